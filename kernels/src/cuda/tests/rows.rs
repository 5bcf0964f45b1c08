//! Reductions, softmax, cross-entropy.

use super::*;
use crate::{
    Extreme, ReduceOp, Reduction, View, cross_entropy, cross_entropy_grad, log_softmax, log_softmax_grad,
    reduce, reduce_workspace, softmax, softmax_grad,
};

/// Rows along memory and across it, of one block and of several, few and many.
const ROWS: [[usize; 2]; 17] = [
    [1, 1],
    [4, 3],
    [7, 10],
    [1000, 10],
    [10, 33],
    [33, 64],
    [2, 512],
    [3, 513],
    [5, 4099],
    [40, 700],
    [2, 20_000],
    [700, 2],
    [5000, 3],
    [70_000, 1],
    [2, 40_000],
    [1, 34_817],
    [1025, 32],
];
const ORDERS: [Stored; 3] = [Stored::Dense, Stored::Transposed, Stored::Narrowed];

/// Rounding errors of a fold of `len` elements.
fn tolerance<T: Real>(len: usize) -> f64 {
    T::UNIT * (len as f64).sqrt().max(1.0)
}

/// Folds along either axis and along both: on the CPU, and in every order of storage with the same bits.
fn folds<T: Real, O: Real>(
    what: impl Debug,
    fold: impl Fn(&Stream, &Array<T>, &[isize], Option<View<'_>>, &Array<O>) -> Result<()>,
) {
    folds_of(&ROWS, what, fold);
}

fn folds_of<T: Real, O: Real>(
    shapes: &[[usize; 2]],
    what: impl Debug,
    fold: impl Fn(&Stream, &Array<T>, &[isize], Option<View<'_>>, &Array<O>) -> Result<()>,
) {
    let Some(both) = both() else { return };
    for &shape in shapes {
        for axes in [&[0_isize][..], &[1], &[]] {
            let kept = match axes {
                [0] => vec![shape[1]],
                [1] => vec![shape[0]],
                _ => vec![],
            };
            let run = |stream: &Stream, how: Stored| {
                // The same elements whatever the order.
                let elements = numbers::<T>(1, shape[0] * shape[1]);
                let x = match how {
                    Stored::Dense => Array::new(stream, &elements, &shape),
                    Stored::Transposed => Array::stored_as(stream, &elements, &shape, &[1, 0]),
                    _ => {
                        let mut wide = Vec::new();
                        for row in elements.chunks(shape[1]) {
                            wide.push(T::default());
                            wide.extend_from_slice(row);
                        }
                        Array::new(stream, &wide, &[shape[0], shape[1] + 1])
                            .with(|layout| layout.narrow("test", 1, 1, shape[1]).expect("within the axis"))
                    }
                };
                let out = Array::full(stream, O::default(), &kept);
                let workspace = workspace(stream, reduce_workspace(stream, &x.layout, axes)?);
                fold(stream, &x, axes, workspace.as_ref().map(Array::view), &out).map(|()| out)
            };
            let len = shape[0] * shape[1] / kept.iter().product::<usize>();
            both.close(tolerance::<T>(len), (&what, T::DTYPE, shape, axes), |stream| {
                run(stream, Stored::Dense)
            });
            let results =
                ORDERS.map(|how| run(&both.cuda, how).and_then(|out| out.try_vec()).expect("a result"));
            for (result, order) in results.iter().zip(ORDERS) {
                let alike = result.iter().zip(&results[0]).all(|(a, b)| a.agrees(*b, 0.0));
                assert!(alike, "{what:?} {shape:?} {axes:?}: {order:?} differs from dense");
            }
        }
    }
}

fn reductions_of<T: Real>(ops: &[ReduceOp]) {
    for &op in ops {
        folds::<T, T>(op, |stream, x, axes, space, out| {
            reduce(stream, op, x.view(), axes, space, out.view())
        });
    }
}

/// Of which a thread reads several columns at once.
#[test]
fn reductions_of_many_columns() {
    fn of<T: Real>(ops: &[ReduceOp]) {
        for &op in ops {
            folds_of::<T, T>(&[[1030, 2052]], op, |stream, x, axes, space, out| {
                reduce(stream, op, x.view(), axes, space, out.view())
            });
        }
    }
    of::<f32>(&[ReduceOp::Mean, ReduceOp::Max]);
    of::<bf16>(&[ReduceOp::Sum, ReduceOp::Min]);
    of::<f64>(&[ReduceOp::Sum]);
    of::<i64>(&[ReduceOp::Prod]);
}

#[test]
fn reductions_of_floats() {
    // Products of many numbers overflow.
    let ops = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min];
    reductions_of::<f32>(&ops);
    reductions_of::<f64>(&ops);
    reductions_of::<bf16>(&ops);
    reductions_of::<f16>(&ops);
}

#[test]
fn reductions_of_integers() {
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
    reductions_of::<i64>(&ops);
    reductions_of::<u8>(&ops);
}

#[test]
fn products_of_floats() {
    let Some(both) = both() else { return };
    both.close(1e-5, "prod", |stream| {
        let x = Array::new(stream, &numbers::<f32>(1, 4000), &[400, 10]);
        let out = Array::full(stream, 0_f32, &[400]);
        reduce(stream, ReduceOp::Prod, x.view(), &[1], None, out.view()).map(|()| out)
    });
}

#[test]
fn variances_and_logsumexps() {
    variances_and_logsumexps_of::<f32>();
    variances_and_logsumexps_of::<f64>();
    variances_and_logsumexps_of::<bf16>();
    variances_and_logsumexps_of::<f16>();
}

fn variances_and_logsumexps_of<T: Real>() {
    for correction in [0.0, 1.0] {
        folds::<T, T>("var", |stream, x, axes, space, out| {
            reduce(stream, Reduction::Var { correction, root: false }, x.view(), axes, space, out.view())
        });
    }
    folds::<T, T>("logsumexp", |stream, x, axes, space, out| {
        reduce(stream, Reduction::LogSumExp, x.view(), axes, space, out.view())
    });
}

#[test]
fn reductions_over_several_axes() {
    let Some(both) = both() else { return };
    for axes in [&[0_isize, 2][..], &[1], &[0, 1], &[1, 2], &[0, 3], &[1, 3]] {
        let shape = [3, 5, 7, 70];
        let kept: Vec<usize> =
            (0..4).map(|i| if axes.contains(&(i as isize)) { 1 } else { shape[i] }).collect();
        both.close(1e-4, axes, |stream| {
            let x = Array::new(stream, &numbers::<f32>(1, shape.iter().product()), &shape);
            let out = Array::full(stream, 0_f32, &kept);
            reduce(stream, ReduceOp::Sum, x.view(), axes, None, out.view()).map(|()| out)
        });
    }
}

#[test]
fn folds_of_nothing_and_of_special_values() {
    let Some(both) = both() else { return };
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Prod] {
        both.same((op, "nothing"), |stream| {
            let x = Array::<f32>::new(stream, &[], &[3, 0]);
            let out = Array::full(stream, 5_f32, &[3]);
            reduce(stream, op, x.view(), &[1], None, out.view()).map(|()| out)
        });
    }
    let rows = [[1.0, nan, 3.0], [nan, nan, inf], [-inf, -inf, -inf], [inf, 1.0, inf], [-0.0, -0.0, -0.0]];
    let elements: Vec<f32> = rows.into_iter().flatten().collect();
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod] {
        both.same((op, "special"), |stream| {
            let x = Array::new(stream, &elements, &[5, 3]);
            let out = Array::full(stream, 5_f32, &[5]);
            reduce(stream, op, x.view(), &[1], None, out.view()).map(|()| out)
        });
    }
    both.close(1e-6, "logsumexp", |stream| {
        let x = Array::new(stream, &elements, &[5, 3]);
        let out = Array::full(stream, 5_f32, &[5]);
        reduce(stream, Reduction::LogSumExp, x.view(), &[1], None, out.view()).map(|()| out)
    });
    for index in INDICES {
        both.same(index.name(), |stream| {
            let x = Array::new(stream, &elements, &[5, 3]);
            let out = Array::full(stream, 5_i64, &[5]);
            reduce(stream, index, x.view(), &[1], None, out.view()).map(|()| out)
        });
        both.same((index.name(), "bounds"), |stream| {
            let x = Array::new(stream, &[0, i64::MIN, i64::MAX, i64::MIN], &[4]);
            let out = Array::full(stream, 5_i64, &[]);
            reduce(stream, index, x.view(), &[0], None, out.view()).map(|()| out)
        });
    }
}

const INDICES: [Reduction; 2] = [Reduction::Index(Extreme::Largest), Reduction::Index(Extreme::Smallest)];

fn index_of<T: Real>() {
    for index in INDICES {
        folds::<T, i64>(index.name(), |stream, x, axes, space, out| {
            if axes.is_empty() {
                Ok(())
            } else {
                reduce(stream, index, x.view(), &axes[..1], space, out.view())
            }
        });
    }
}

#[test]
fn the_first_largest_and_smallest_element() {
    // Integers of hundreds and bytes have many ties in long rows.
    index_of::<f32>();
    index_of::<f64>();
    index_of::<bf16>();
    index_of::<f16>();
    index_of::<i64>();
    index_of::<u8>();
}

fn softmax_of<T: Real>() {
    let Some(both) = both() else { return };
    for (shape, axis) in ROWS.into_iter().flat_map(|shape| [(shape, 0), (shape, 1)]) {
        for (x, out) in [
            (Stored::Dense, Stored::Dense),
            (Stored::Transposed, Stored::Dense),
            (Stored::Row, Stored::Narrowed),
        ] {
            let tolerance = tolerance::<T>(shape[axis as usize]);
            for (name, log) in [("softmax", false), ("log_softmax", true)] {
                both.close(tolerance, (name, T::DTYPE, shape, axis, x), |stream| {
                    let (x, out) = (stored::<T>(stream, 1, shape, x), stored::<T>(stream, 2, shape, out));
                    let run = if log { log_softmax } else { softmax };
                    run(stream, x.view(), axis, out.view()).map(|()| out)
                });
                both.close(4.0 * tolerance, (name, "grad", T::DTYPE, shape, axis, x), |stream| {
                    let (y, g) =
                        (stored::<T>(stream, 1, shape, x), stored::<T>(stream, 2, shape, Stored::Dense));
                    let out = stored::<T>(stream, 3, shape, out);
                    // Any y will do; e^y should stay small.
                    let half = crate::UnaryOp::MulScalar(0.25);
                    let small = stored::<T>(stream, 4, shape, Stored::Dense);
                    crate::unary(stream, half, y.view(), small.view())?;
                    let run = if log { log_softmax_grad } else { softmax_grad };
                    run(stream, small.view(), g.view(), axis, out.view()).map(|()| out)
                });
            }
        }
    }
    both.close(tolerance::<T>(4099), "in place", |stream| {
        let x = stored::<T>(stream, 1, [3, 4099], Stored::Dense);
        softmax(stream, x.view(), 1, x.view()).map(|()| x)
    });
}

#[test]
fn softmax_and_gradients_of_f32() {
    softmax_of::<f32>();
}

#[test]
fn softmax_and_gradients_of_f64() {
    softmax_of::<f64>();
}

#[test]
fn softmax_and_gradients_of_halves() {
    softmax_of::<bf16>();
    softmax_of::<f16>();
}

fn cross_entropy_of<T: Real>() {
    let Some(both) = both() else { return };
    for [n, c] in [[1, 1], [1, 10], [64, 10], [33, 600], [5, 5000], [2, 33_000]] {
        let labels: Vec<i64> = (0..n).map(|i| (i * 7 % c) as i64).collect();
        for how in ORDERS {
            let tolerance = tolerance::<T>(c);
            let run = |stream: &Stream| {
                let logits = stored::<T>(stream, 1, [n, c], how);
                let labels = Array::new(stream, &labels, &[n]);
                let losses = Array::full(stream, T::Computed::default(), &[n]);
                let log_sums = Array::full(stream, T::Computed::default(), &[n]);
                cross_entropy(stream, logits.view(), labels.view(), losses.view(), log_sums.view())?;
                Ok((logits, labels, losses, log_sums))
            };
            both.close(tolerance, ("losses", n, c, how), |stream| run(stream).map(|results| results.2));
            both.close(tolerance, ("log_sums", n, c, how), |stream| run(stream).map(|results| results.3));
            for expanded in [false, true] {
                both.close(tolerance, ("gradient", n, c, how, expanded), |stream| {
                    let (logits, labels, _, log_sums) = run(stream)?;
                    let g = numbers::<T::Computed>(3, if expanded { 1 } else { n });
                    let g = Array::new(stream, &g, &[g.len()])
                        .with(|layout| layout.expand("test", &[n]).expect("one or all"));
                    let out = stored::<T>(stream, 4, [n, c], how);
                    let (x, sums) = (logits.view(), log_sums.view());
                    cross_entropy_grad(stream, x, sums, labels.view(), g.view(), out.view())?;
                    Ok(out)
                });
            }
        }
    }
}

#[test]
fn cross_entropies_and_gradients() {
    cross_entropy_of::<f32>();
    cross_entropy_of::<f64>();
    cross_entropy_of::<bf16>();
    cross_entropy_of::<f16>();
}

#[test]
fn a_label_that_is_no_class_is_an_error() {
    let Some(Both { cuda, .. }) = both() else { return };
    for label in [10, -1, i64::MAX] {
        let logits = Array::full(&cuda, 0_f32, &[2, 10]);
        let labels = Array::new(&cuda, &[3, label], &[2]);
        let (losses, log_sums) = (Array::full(&cuda, 0_f32, &[2]), Array::full(&cuda, 0_f32, &[2]));
        cross_entropy(&cuda, logits.view(), labels.view(), losses.view(), log_sums.view()).expect("a launch");
        let error = cuda.synchronize().expect_err("a fault").to_string();
        assert!(error.contains("cross_entropy") && error.contains(&label.to_string()), "{error}");
        let g = Array::full(&cuda, 1_f32, &[2]);
        cross_entropy_grad(&cuda, logits.view(), log_sums.view(), labels.view(), g.view(), logits.view())
            .expect("a launch");
        let error = cuda.synchronize().expect_err("a fault").to_string();
        assert!(error.contains("cross_entropy_grad") && error.contains(&label.to_string()), "{error}");
    }
}
