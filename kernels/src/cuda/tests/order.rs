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
                    let bytes = argsort_workspace(stream, shape[0] * shape[1], shape[axis], part[axis]);
                    let memory = workspace(stream, bytes);
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

/// Few of long rows: ties, the last part shorter than what is chosen, and several rounds.
#[test]
fn the_first_of_long_rows() {
    let Some(both) = both() else { return };
    let cases = [
        ([3, 5000], 7),
        ([1, 4097], 1024),
        ([2, 8200], 300),
        ([1, 70_000], 1000),
        ([1, 2049], 1),
        ([2, 4096], 1025),
    ];
    for (shape, count) in cases {
        for (distinct, descending) in [(3, false), (40, true), (1 << 20, false), (1 << 20, true)] {
            both.same((shape, count, distinct, descending), |stream| {
                let values: Vec<f32> =
                    (0..shape[0] * shape[1]).map(|i| ((i * 7919 + i / 5) % distinct) as f32 - 20.0).collect();
                let x = Array::new(stream, &values, &shape);
                let out = Array::full(stream, -1_i64, &[shape[0], count]);
                let bytes = argsort_workspace(stream, shape[0] * shape[1], shape[1], count);
                let memory = workspace(stream, bytes);
                let memory = memory.as_ref().map(Array::view);
                argsort(stream, x.view(), 1, descending, (memory, out.view())).map(|()| out)
            });
        }
    }
}

#[test]
fn zeros_are_equal_and_nan_is_the_largest() {
    let Some(both) = both() else { return };
    let special = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 1e-310];
    for descending in [false, true] {
        both.same(descending, |stream| {
            let x = Array::new(stream, &special, &[1, 9]);
            let out = Array::full(stream, -1_i64, &[1, 9]);
            let memory = workspace(stream, argsort_workspace(stream, 9, 9, 9));
            let memory = memory.as_ref().map(Array::view);
            argsort(stream, x.view(), 1, descending, (memory, out.view())).map(|()| out)
        });
    }
}
