//! Products of small integers, which are exact in any order.

use super::*;
use crate::{Accumulate, Activation, MatrixProduct, linear, matmul};

fn whole<T: Real>(seed: u64, len: usize) -> Vec<T> {
    values(seed, len).into_iter().map(|value| T::of((value * 5.0).round())).collect()
}

/// Launches a product with a workspace as large as it needs, of which nothing is known.
fn launch(stream: &Stream, product: Result<MatrixProduct<'_>>) -> Result<()> {
    let product = product?;
    let memory = workspace(stream, product.workspace());
    product.launch(memory.as_ref().map(Array::view))
}

/// Operands of `batch` products, each stored with its axes in such an order.
fn product<T: Real>(
    stream: &Stream,
    [m, k, n]: [usize; 3],
    batch: &[usize],
    orders: [&[usize]; 3],
    accumulate: Accumulate,
) -> Result<Array<T>> {
    let array = |seed: u64, rows: usize, columns: usize, order: &[usize]| {
        let shape = [batch, &[rows, columns]].concat();
        Array::stored_as(stream, &whole::<T>(seed, shape.iter().product()), &shape, order)
    };
    let (lhs, rhs) = (array(1, m, k, orders[0]), array(2, k, n, orders[1]));
    let out = array(3, m, n, orders[2]);
    launch(stream, matmul(stream, lhs.view(), rhs.view(), out.view(), accumulate)).map(|()| out)
}

const SIZES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [2, 3, 4],
    [1, 7, 5],
    [5, 7, 1],
    [33, 65, 17],
    [64, 64, 64],
    [70, 200, 129],
    [3, 0, 4],
    [0, 4, 3],
];

fn matrices_of<T: Real>() {
    let Some(both) = both() else { return };
    let orders: [&[usize]; 2] = [&[0, 1], &[1, 0]];
    for (sizes, accumulate) in
        SIZES.into_iter().flat_map(|s| [(s, Accumulate::Overwrite), (s, Accumulate::Add)])
    {
        for bits in 0..8 {
            let orders = [orders[bits & 1], orders[bits >> 1 & 1], orders[bits >> 2]];
            both.same((T::DTYPE, sizes, orders, accumulate), |stream| {
                product::<T>(stream, sizes, &[], orders, accumulate)
            });
        }
    }
}

#[test]
fn products_of_matrices_in_any_order() {
    matrices_of::<f32>();
    matrices_of::<f64>();
    matrices_of::<bf16>();
    matrices_of::<f16>();
    matrices_of::<i64>();
    matrices_of::<u8>();
}

#[test]
fn batches_that_one_step_describes_and_others() {
    let Some(both) = both() else { return };
    let orders: [&[usize]; 6] =
        [&[0, 1, 2, 3], &[0, 2, 1, 3], &[1, 0, 3, 2], &[2, 3, 0, 1], &[3, 1, 2, 0], &[0, 1, 3, 2]];
    for (i, &a) in orders.iter().enumerate() {
        for (j, &b) in orders.iter().enumerate() {
            let c = orders[(i + 2 * j) % orders.len()];
            both.same((a, b, c), |stream| {
                product::<f32>(stream, [9, 20, 13], &[3, 4], [a, b, c], Accumulate::Overwrite)
            });
        }
    }
}

#[test]
fn expanded_operands() {
    let Some(both) = both() else { return };
    // Shapes before they are expanded to [3, 9, 20] and [3, 20, 13].
    let lefts = [[3, 9, 20], [1, 9, 20], [3, 1, 20], [3, 9, 1], [1, 1, 1]];
    let rights = [[3, 20, 13], [1, 20, 13], [3, 1, 13], [3, 20, 1]];
    let pairs = lefts.into_iter().flat_map(|left| rights.map(|right| (left, right)));
    for ((left, right), accumulate) in pairs.flat_map(|p| [(p, Accumulate::Overwrite), (p, Accumulate::Add)])
    {
        both.same((left, right, accumulate), |stream| {
            let array = |seed: u64, shape: [usize; 3], to: [usize; 3]| {
                Array::new(stream, &whole::<f32>(seed, shape.iter().product()), &shape)
                    .with(|layout| layout.expand("test", &to).expect("axes of size 1"))
            };
            let (lhs, rhs) = (array(1, left, [3, 9, 20]), array(2, right, [3, 20, 13]));
            let out = array(3, [3, 9, 13], [3, 9, 13]);
            launch(stream, matmul(stream, lhs.view(), rhs.view(), out.view(), accumulate)).map(|()| out)
        });
    }
}

fn linear_of<T: Real>() {
    let Some(both) = both() else { return };
    for [m, k, n] in SIZES {
        for (leading, narrow) in [(&[][..], false), (&[2, 3], false), (&[2], true)] {
            both.same((T::DTYPE, m, k, n, leading, narrow), |stream| {
                let shape = |columns: usize| [leading, &[m, columns]].concat();
                let of = |seed: u64, shape: &[usize]| whole::<T>(seed, shape.iter().product());
                let x = Array::new(stream, &of(1, &shape(k)), &shape(k));
                let w = Array::stored_as(stream, &of(2, &[k, n]), &[k, n], &[1, 0]);
                let bias = Array::new(stream, &of(3, &[n]), &[n]);
                let wide = shape(n + usize::from(narrow));
                let out = Array::full(stream, T::default(), &wide).with(|layout| {
                    layout.narrow("test", -1, usize::from(narrow), n).expect("within the axis")
                });
                launch(
                    stream,
                    linear(stream, x.view(), w.view(), Some(bias.view()), Activation::None, out.view()),
                )
                .map(|()| out)
            });
        }
        // Rows that are one value again and again are none that BLAS can express.
        for (biased, expanded) in [(true, false), (false, false), (true, true)] {
            both.same(("relu", T::DTYPE, m, k, n, biased, expanded), |stream| {
                let of = |seed: u64, shape: &[usize]| whole::<T>(seed, shape.iter().product());
                let shape = [m, if expanded { 1 } else { k }];
                let mut rows = of(1, &shape);
                // Kernels of the library lose it, if they are not chosen with care.
                if let Some(first) = rows.first_mut() {
                    *first = T::of(f64::NAN);
                }
                let x = Array::new(stream, &rows, &shape)
                    .with(|layout| layout.expand("test", &[m, k]).expect("an axis of size 1"));
                let w = Array::stored_as(stream, &of(2, &[k, n]), &[k, n], &[1, 0]);
                let bias = Array::new(stream, &of(3, &[n]), &[n]);
                let out = Array::full(stream, T::default(), &[m, n]);
                let bias = biased.then(|| bias.view());
                launch(stream, linear(stream, x.view(), w.view(), bias, Activation::Relu, out.view()))
                    .map(|()| out)
            });
        }
    }
}

#[test]
fn products_with_a_bias() {
    linear_of::<f32>();
    linear_of::<f64>();
    linear_of::<bf16>();
    linear_of::<f16>();
}

/// `1 + 2^-12` needs more bits than TF32 keeps.
#[test]
fn tf32_is_off_until_it_is_asked_for() {
    let Some(Both { cuda, .. }) = both() else { return };
    let (x, exact, rounded) = (1.0 + 1.0 / 4096.0, 128.0 + 1.0 / 32.0, 128.0);
    for batch in [&[][..], &[3]] {
        let shape = [batch, &[128, 128]].concat();
        let product = |allowed: Option<bool>| {
            if let Some(allowed) = allowed {
                cuda.device().set_tf32(allowed);
            }
            let (lhs, rhs) = (Array::full(&cuda, x as f32, &shape), Array::full(&cuda, 1_f32, &shape));
            let out = Array::full(&cuda, 0_f32, &shape);
            launch(&cuda, matmul(&cuda, lhs.view(), rhs.view(), out.view(), Accumulate::Overwrite))
                .expect("a launch");
            out.to_vec()
        };
        for (allowed, want) in [(None, exact), (Some(true), rounded), (Some(false), exact)] {
            assert!(product(allowed).iter().all(|&got| f64::from(got) == want), "{allowed:?} {batch:?}");
            assert_eq!(cuda.device().tf32(), allowed == Some(true));
        }
    }
    // Other types are left alone.
    cuda.device().set_tf32(true);
    let out = Array::full(&cuda, 0_f64, &[1, 1]);
    let (lhs, rhs) = (Array::full(&cuda, x, &[1, 1]), Array::full(&cuda, 1_f64, &[1, 1]));
    launch(&cuda, matmul(&cuda, lhs.view(), rhs.view(), out.view(), Accumulate::Overwrite))
        .expect("a launch");
    assert_eq!(out.to_vec(), [x]);
}
