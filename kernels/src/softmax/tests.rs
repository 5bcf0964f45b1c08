#![allow(clippy::unwrap_used)]

use device::ErrorKind;

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

const CASES: &[(&[usize], isize)] = &[
    (&[10], 0),
    (&[256, 10], 1),
    (&[256, 10], 0),
    (&[70, 64], -1),
    (&[3, 200], 1),
    (&[3, 40, 70], 1),
    (&[3, 40, 70], 0),
    (&[5, 1, 4], 1),
    (&[2, 9000], 1),
    (&[9000, 3], 0),
    (&[2, 33, 65], 2),
];

/// Calls `f(indices of the elements of a row)` for every row.
fn for_rows(shape: &[usize], axis: isize, mut f: impl FnMut(Vec<usize>)) {
    let axis = axis.rem_euclid(shape.len() as isize) as usize;
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    for o in 0..outer {
        for i in 0..inner {
            f((0..shape[axis]).map(|j| (o * shape[axis] + j) * inner + i).collect());
        }
    }
}

fn softmax_reference(x: &[f64], shape: &[usize], axis: isize) -> Vec<f64> {
    let mut y = x.to_vec();
    for_rows(shape, axis, |row| {
        let sum: f64 = row.iter().map(|&i| x[i].exp()).sum();
        row.iter().for_each(|&i| y[i] = x[i].exp() / sum);
    });
    y
}

#[test]
fn all_four_match_a_reference() {
    for &(shape, axis) in CASES {
        let dev = cpu(1);
        let s = dev.default_stream();
        let n = shape.iter().product();
        let (x, g) = (values(1, n), values(2, n));
        let y = softmax_reference(&x, shape, axis);
        let log_y: Vec<f64> = y.iter().map(|y| y.ln()).collect();
        let (mut dx, mut log_dx) = (g.clone(), g.clone());
        for_rows(shape, axis, |row| {
            let dot: f64 = row.iter().map(|&i| g[i] * y[i]).sum();
            let sum: f64 = row.iter().map(|&i| g[i]).sum();
            row.iter().for_each(|&i| (dx[i], log_dx[i]) = (y[i] * (g[i] - dot), g[i] - y[i] * sum));
        });
        let check = |name: &str, want: &[f64], f: &dyn Fn(View<'_>) -> Result<()>| {
            let out = Array::full(&s, f64::NAN, shape);
            f(out.view()).unwrap();
            let close = |(got, want): (&f64, &f64)| (got - want).abs() <= 1e-11 * want.abs().max(1.0);
            assert!(out.to_vec().iter().zip(want).all(close), "{name} of {shape:?} along {axis}");
        };
        let [x, g, y, log_y_array] = [&x, &g, &y, &log_y].map(|v| Array::new(&s, v, shape));
        check("softmax", &y.to_vec(), &|out| softmax(&s, x.view(), axis, out));
        check("log_softmax", &log_y, &|out| log_softmax(&s, x.view(), axis, out));
        check("softmax_grad", &dx, &|out| softmax_grad(&s, y.view(), g.view(), axis, out));
        check("log_softmax_grad", &log_dx, &|out| {
            log_softmax_grad(&s, log_y_array.view(), g.view(), axis, out)
        });
    }
}

#[test]
fn bits_do_not_depend_on_strides_or_threads() {
    for &(shape, axis) in CASES.iter().chain(&[(&[3000, 50][..], 1), (&[100, 3000], 1)]) {
        let n = shape.iter().product();
        let (x, g) = (values_f32(1, n), values_f32(2, n));
        let forward: Vec<usize> = (0..shape.len()).collect();
        let backward: Vec<usize> = (0..shape.len()).rev().collect();
        let mut first: Option<[Vec<u32>; 4]> = None;
        for threads in [1, 2] {
            let dev = cpu(threads);
            let s = dev.default_stream();
            for (order, out_order) in [(&forward, &forward), (&backward, &forward), (&forward, &backward)] {
                let [x, g] = [&x, &g].map(|v| Array::stored_as(&s, v, shape, order));
                let out = Array::stored_as(&s, &vec![f32::NAN; n], shape, out_order);
                let mut results = Vec::new();
                softmax(&s, x.view(), axis, out.view()).unwrap();
                results.push(bits(&out.to_vec()));
                log_softmax(&s, x.view(), axis, out.view()).unwrap();
                results.push(bits(&out.to_vec()));
                softmax_grad(&s, x.view(), g.view(), axis, out.view()).unwrap();
                results.push(bits(&out.to_vec()));
                log_softmax_grad(&s, x.view(), g.view(), axis, out.view()).unwrap();
                results.push(bits(&out.to_vec()));
                let results: [_; 4] = results.try_into().unwrap();
                let first = first.get_or_insert_with(|| results.clone());
                for i in 0..4 {
                    assert!(
                        results[i] == first[i],
                        "op {i} of {shape:?} along {axis}, {order:?}, {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn large_scores_do_not_overflow_and_nan_stays_in_its_row() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let inf = f32::INFINITY;
    let x = Array::new(&s, &[1e4, 1e4, -inf, f32::NAN, 0.0, 1.0, -1e4, -inf, -1e4], &[3, 3]);
    let out = Array::full(&s, 0.0_f32, &[3, 3]);
    softmax(&s, x.view(), 1, out.view()).unwrap();
    let y = out.to_vec();
    assert_eq!([y[0], y[1], y[2], y[6], y[7], y[8]], [0.5, 0.5, 0.0, 0.5, 0.0, 0.5]);
    assert!(y[3..6].iter().all(|y| y.is_nan()));
    log_softmax(&s, x.view(), 1, out.view()).unwrap();
    let y = out.to_vec();
    assert!((y[0] + std::f32::consts::LN_2).abs() < 1e-6 && y[2] == -inf && y[7] == -inf, "{y:?}");
}

#[test]
fn empty_arrays_and_wrong_operands() {
    let dev = cpu(1);
    let s = dev.default_stream();
    for shape in [[0, 10], [10, 0]] {
        let none = Array::<f32>::new(&s, &[], &shape);
        softmax(&s, none.view(), 1, none.view()).unwrap();
        log_softmax_grad(&s, none.view(), none.view(), 1, none.view()).unwrap();
    }
    let x = Array::full(&s, 1.0_f32, &[2, 3]);
    let error = softmax(&s, x.view(), 2, x.view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AxisOutOfRange { op: "softmax", axis: 2, rank: 2 }), "{error}");
    let error = softmax(&s, x.view(), 1, Array::full(&s, 1.0_f32, &[3, 2]).view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
}
