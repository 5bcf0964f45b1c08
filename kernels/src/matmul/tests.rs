#![allow(clippy::unwrap_used)]

use device::{DType, ErrorKind};

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

fn naive(m: usize, n: usize, k: usize, a: &[f64], b: &[f64]) -> Vec<f64> {
    let at = |i: usize| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum();
    (0..m * n).map(at).collect()
}

fn check_f64(m: usize, n: usize, k: usize, a_order: &[usize], b_order: &[usize], c_order: &[usize]) {
    let dev = cpu(1);
    let s = dev.default_stream();
    let (a, b, c) = (values(1, m * k), values(2, k * n), values(3, m * n));
    let x = Array::stored_as(&s, &a, &[m, k], a_order);
    let y = Array::stored_as(&s, &b, &[k, n], b_order);
    let out = Array::stored_as(&s, &c, &[m, n], c_order);
    let expected = naive(m, n, k, &a, &b);
    matmul(&s, x.view(), y.view(), out.view(), Accumulate::Overwrite).unwrap().launch(None).unwrap();
    let close = |got: f64, want: f64| (got - want).abs() <= 1e-13 * (k as f64 + 1.0);
    assert!(
        out.to_vec().iter().zip(&expected).all(|(&g, &w)| close(g, w)),
        "{m} {n} {k} {a_order:?} {b_order:?}"
    );
    matmul(&s, x.view(), y.view(), out.view(), Accumulate::Add).unwrap().launch(None).unwrap();
    assert!(out.to_vec().iter().zip(&expected).all(|(&g, &w)| close(g, 2.0 * w)), "added {m} {n} {k}");
}

#[test]
fn products_are_right_for_all_sizes_and_orders() {
    let sizes = [1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 17, 31, 33, 40, 65];
    for (i, &m) in sizes.iter().enumerate() {
        for (j, &n) in sizes.iter().enumerate() {
            let k = sizes[(i * 7 + j * 3) % sizes.len()];
            let order = |flag: usize| if flag == 0 { [0, 1] } else { [1, 0] };
            for flags in 0..8 {
                check_f64(m, n, k, &order(flags & 1), &order(flags & 2), &order(flags & 4));
            }
        }
    }
}

#[test]
fn products_are_right_across_blocks() {
    for (m, n, k) in
        [(500, 40, 300), (30, 1100, 260), (520, 3, 700), (100, 300, 513), (3, 700, 40), (1, 300, 600)]
    {
        for orders in [([0, 1], [0, 1]), ([0, 1], [1, 0]), ([1, 0], [0, 1]), ([1, 0], [1, 0])] {
            check_f64(m, n, k, &orders.0, &orders.1, &[0, 1]);
        }
    }
}

/// The order that the docs promise, element by element.
fn reference(n: usize, k: usize, a: &[f32], b: &[f32], init: impl Fn(usize) -> Option<f32>) -> Vec<f32> {
    let m = a.len() / k;
    let element = |i: usize| {
        let mut sum = init(i);
        for block in (0..k).step_by(256) {
            let products = (block..k.min(block + 256))
                .fold(0.0_f32, |acc, p| a[i / n * k + p].mul_add(b[p * n + i % n], acc));
            sum = Some(sum.map_or(products, |sum| sum + products));
        }
        sum.unwrap_or(0.0)
    };
    (0..m * n).map(element).collect()
}

#[test]
fn bits_follow_the_documented_order_for_all_strides_and_threads() {
    for (m, n, k) in [
        (70, 90, 300),
        (32, 256, 784),
        (256, 10, 256),
        (10, 256, 64),
        (1, 40, 600),
        (40, 1, 600),
        (700, 600, 40),
    ] {
        let (a, b, bias) = (values_f32(4, m * k), values_f32(5, k * n), values_f32(6, n));
        let plain = bits(&reference(n, k, &a, &b, |_| None));
        let biased = bits(&reference(n, k, &a, &b, |i| Some(bias[i % n])));
        for threads in [1, 2, 3] {
            let dev = cpu(threads);
            let s = dev.default_stream();
            for orders in [([0, 1], [0, 1]), ([0, 1], [1, 0]), ([1, 0], [0, 1]), ([1, 0], [1, 0])] {
                let x = Array::stored_as(&s, &a, &[m, k], &orders.0);
                let y = Array::stored_as(&s, &b, &[k, n], &orders.1);
                let out = Array::full(&s, f32::NAN, &[m, n]);
                matmul(&s, x.view(), y.view(), out.view(), Accumulate::Overwrite)
                    .unwrap()
                    .launch(None)
                    .unwrap();
                assert!(bits(&out.to_vec()) == plain, "{m} {n} {k} {orders:?} {threads} threads");
                let row = Array::new(&s, &bias, &[n]);
                linear(&s, x.view(), y.view(), Some(row.view()), Activation::None, out.view())
                    .unwrap()
                    .launch(None)
                    .unwrap();
                assert!(bits(&out.to_vec()) == biased, "bias {m} {n} {k} {orders:?} {threads} threads");
            }
        }
    }
}

#[test]
fn large_products_are_split_and_keep_their_bits() {
    let (m, n, k) = (320, 300, 270);
    let (a, b) = (values_f32(7, 2 * m * k), values_f32(8, 2 * k * n));
    let run = |threads: usize, leading: usize, rows: usize| {
        let dev = cpu(threads);
        let s = dev.default_stream();
        let x = Array::new(&s, &a[..leading * rows * k], &[leading, rows, k]);
        let y = Array::new(&s, &b[..leading * k * n], &[leading, k, n]);
        let out = Array::full(&s, 0.0_f32, &[leading, rows, n]);
        matmul(&s, x.view(), y.view(), out.view(), Accumulate::Overwrite).unwrap().launch(None).unwrap();
        bits(&out.to_vec())
    };
    for (leading, rows) in [(1, m), (2, m), (1, 40)] {
        let one = run(1, leading, rows);
        assert!(one == run(2, leading, rows) && one == run(4, leading, rows), "{leading} {rows}");
    }
    let many = |threads: usize| {
        let dev = cpu(threads);
        let s = dev.default_stream();
        let x = Array::new(&s, &a[..64 * 50 * 20], &[64, 50, 20]);
        let y = Array::new(&s, &b[..64 * 20 * 50], &[64, 20, 50]);
        let out = Array::full(&s, 0.0_f32, &[64, 50, 50]);
        matmul(&s, x.view(), y.view(), out.view(), Accumulate::Overwrite).unwrap().launch(None).unwrap();
        bits(&out.to_vec())
    };
    assert!(many(1) == many(2));
}

#[test]
fn leading_axes_may_be_expanded_or_permuted() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let (m, n, k) = (5, 7, 6);
    let (a, b) = (values(1, 2 * 3 * m * k), values(2, 3 * k * n));
    let x = Array::stored_as(&s, &a, &[2, 3, m, k], &[1, 2, 0, 3]);
    let y = Array::new(&s, &b, &[3, k, n]).with(|l| l.expand("test", &[2, 3, k, n]).unwrap());
    let out = Array::full(&s, 0.0, &[2, 3, m, n]);
    matmul(&s, x.view(), y.view(), out.view(), Accumulate::Overwrite).unwrap().launch(None).unwrap();
    let got = out.to_vec();
    for batch in 0..6 {
        let want = naive(m, n, k, &a[batch * m * k..][..m * k], &b[batch % 3 * k * n..][..k * n]);
        assert!(
            got[batch * m * n..][..m * n].iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-13),
            "batch {batch}"
        );
    }
    // One and the same right operand turns the leading axes into rows.
    let shared = Array::new(&s, &b[..k * n], &[k, n]).with(|l| l.expand("test", &[2, 3, k, n]).unwrap());
    let x = Array::new(&s, &a, &[2, 3, m, k]);
    matmul(&s, x.view(), shared.view(), out.view(), Accumulate::Overwrite).unwrap().launch(None).unwrap();
    let want = naive(6 * m, n, k, &a, &b[..k * n]);
    assert!(out.to_vec().iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-13));
}

#[test]
fn expanded_operands_and_bias_are_read_in_place() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = Array::new(&s, &[2.0_f32], &[1, 1]).with(|l| l.expand("test", &[3, 4]).unwrap());
    let w = Array::new(&s, &[1.0_f32, 2.0, 3.0, 4.0], &[4, 1]).with(|l| l.expand("test", &[4, 5]).unwrap());
    let bias = Array::new(&s, &[0.5_f32], &[1]).with(|l| l.expand("test", &[5]).unwrap());
    let out = Array::full(&s, f32::NAN, &[3, 5]);
    linear(&s, x.view(), w.view(), Some(bias.view()), Activation::None, out.view())
        .unwrap()
        .launch(None)
        .unwrap();
    assert_eq!(out.to_vec(), [20.5; 15]);
}

#[test]
fn empty_products() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let none = Array::<f32>::new(&s, &[], &[3, 0]);
    let none_t = Array::<f32>::new(&s, &[], &[0, 2]);
    let out = Array::full(&s, f32::NAN, &[3, 2]);
    matmul(&s, none.view(), none_t.view(), out.view(), Accumulate::Overwrite).unwrap().launch(None).unwrap();
    assert_eq!(out.to_vec(), [0.0; 6]);
    let bias = Array::new(&s, &[1.0_f32, 2.0], &[2]);
    linear(&s, none.view(), none_t.view(), Some(bias.view()), Activation::None, out.view())
        .unwrap()
        .launch(None)
        .unwrap();
    matmul(&s, none.view(), none_t.view(), out.view(), Accumulate::Add).unwrap().launch(None).unwrap();
    assert_eq!(out.to_vec(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let square = Array::full(&s, 1.0_f32, &[2, 2]);
    let empty = Array::<f32>::new(&s, &[], &[0, 2]);
    matmul(&s, none_t.view(), square.view(), empty.view(), Accumulate::Overwrite)
        .unwrap()
        .launch(None)
        .unwrap();
}

#[test]
fn infinities_and_nan_come_through() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = Array::new(&s, &[0.0_f32, f32::INFINITY, 1.0, f32::NAN], &[2, 2]);
    let y = Array::new(&s, &[1.0_f32, 0.0, 1.0, 0.0], &[2, 2]);
    let out = Array::full(&s, 0.0_f32, &[2, 2]);
    matmul(&s, x.view(), y.view(), out.view(), Accumulate::Overwrite).unwrap().launch(None).unwrap();
    let got = out.to_vec();
    assert_eq!(got[0], f32::INFINITY);
    assert!(got[1..].iter().all(|x| x.is_nan()));
}

#[test]
fn wrong_operands_are_errors() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = Array::full(&s, 1.0_f32, &[2, 3]);
    let out = Array::full(&s, 1.0_f32, &[2, 2]);
    let error = matmul(&s, x.view(), x.view(), out.view(), Accumulate::Overwrite)
        .and_then(|product| product.launch(None))
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "matmul", .. }), "{error}");
    let y = Array::full(&s, 1.0_f64, &[3, 2]);
    let error = matmul(&s, x.view(), y.view(), out.view(), Accumulate::Overwrite)
        .and_then(|product| product.launch(None))
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { got: DType::F64, .. }), "{error}");
    let truth = Array::full(&s, true, &[2, 2]);
    let error = matmul(&s, truth.view(), truth.view(), truth.view(), Accumulate::Overwrite)
        .and_then(|product| product.launch(None))
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DTypeUnsupported { dtype: DType::Bool, .. }), "{error}");
    let error = matmul(&s, x.view(), x.view(), Array::full(&s, 1.0_f32, &[3]).view(), Accumulate::Add)
        .and_then(|product| product.launch(None))
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
}

#[test]
fn integer_products_wrap_around() {
    fn check<T: Number + From<u8>>(
        threads: usize,
        shape: [usize; 4],
        order: &[usize],
        accumulate: Accumulate,
    ) {
        let dev = cpu(threads);
        let (s, [batch, m, k, n]) = (dev.default_stream(), shape);
        let of = |seed: usize, len: usize| -> Vec<T> {
            (0..len).map(|i| T::from((i * 37 + seed) as u8).mul(T::from_i64(0x5F0F_0F0F_0F0F_0F0F))).collect()
        };
        let (a, b, c) = (of(1, batch * m * k), of(2, k * n), of(3, batch * m * n));
        let x = Array::stored_as(&s, &a, &[batch, m, k], order);
        let y = Array::new(&s, &b, &[1, k, n]).with(|y| y.expand("test", &[batch, k, n]).unwrap());
        let out = Array::stored_as(&s, &c, &[batch, m, n], order);
        matmul(&s, x.view(), y.view(), out.view(), accumulate).unwrap().launch(None).unwrap();
        let old = |i: usize| if accumulate == Accumulate::Add { c[i] } else { T::ZERO };
        let product = |i: usize, p: usize| a[i / n * k + p].mul(b[p * n + i % n]);
        let want: Vec<T> =
            (0..c.len()).map(|i| (0..k).fold(old(i), |sum, p| sum.add(product(i, p)))).collect();
        assert!(out.to_vec() == want, "{threads} {shape:?} {order:?} {accumulate:?}");
    }
    for threads in [1, 3] {
        for shape in [[1, 1, 1, 1], [2, 3, 0, 2], [0, 2, 2, 2], [3, 5, 7, 2], [2, 70, 90, 80]] {
            for (order, accumulate) in [([0, 1, 2], Accumulate::Overwrite), ([1, 2, 0], Accumulate::Add)] {
                check::<i64>(threads, shape, &order, accumulate);
                check::<u8>(threads, shape, &order, accumulate);
            }
        }
    }
}
