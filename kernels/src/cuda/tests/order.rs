//! Sorts: the same indices on both devices.

use super::*;
use crate::{argsort, argsort_workspace};

fn order_of<T: Real>() {
    let Some(both) = both() else { return };
    for shape in SHAPES.into_iter().chain([[2, 3000], [1, 70_000], [5000, 9], [2, 2048]]) {
        for (axis, how) in [(0, Stored::Dense), (1, Stored::Dense), (1, Stored::Transposed), (1, Stored::Row)]
        {
            for (descending, share) in [(false, 1), (true, 1), (true, 3)] {
                both.same((T::DTYPE, shape, axis, how, descending, share), |stream| {
                    let x = stored::<T>(stream, 1, shape, how);
                    let mut part = shape;
                    part[axis] = shape[axis].div_ceil(share);
                    let out = Array::full(stream, -1_i64, &part);
                    let memory =
                        workspace(stream, argsort_workspace(stream, shape[0] * shape[1], shape[axis]));
                    let memory = memory.as_ref().map(Array::view);
                    argsort(stream, x.view(), axis as isize, descending, (memory, out.view())).map(|()| out)
                });
            }
        }
    }
}

#[test]
fn order_of_each_type() {
    order_of::<f32>();
    order_of::<f64>();
    order_of::<bf16>();
    order_of::<f16>();
    order_of::<i64>();
    order_of::<u8>();
}

#[test]
fn zeros_are_equal_and_nan_is_the_largest() {
    let Some(both) = both() else { return };
    let special = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 1e-310];
    for descending in [false, true] {
        both.same(descending, |stream| {
            let x = Array::new(stream, &special, &[1, 9]);
            let out = Array::full(stream, -1_i64, &[1, 9]);
            let memory = workspace(stream, argsort_workspace(stream, 9, 9));
            let memory = memory.as_ref().map(Array::view);
            argsort(stream, x.view(), 1, descending, (memory, out.view())).map(|()| out)
        });
    }
}
