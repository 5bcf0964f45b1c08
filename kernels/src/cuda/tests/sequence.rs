//! Cumulative sums and rotations.

use super::*;
use crate::{Rotation, cumsum, cumsum_workspace, rotary};

/// Both devices add in one order: the same bits.
fn sums_of<T: Real>() {
    let Some(both) = both() else { return };
    for shape in SHAPES.into_iter().chain([[2, 1500], [1100, 3], [1, 20_000], [2, 300_000]]) {
        for (axis, how) in
            [(0, Stored::Dense), (1, Stored::Dense), (0, Stored::Transposed), (1, Stored::Narrowed)]
        {
            for reverse in [false, true] {
                both.close(0.0, (T::DTYPE, shape, axis, how, reverse), |stream| {
                    let x = stored::<T>(stream, 1, shape, how);
                    let out = stored::<T>(stream, 2, shape, Stored::Dense);
                    let bytes = cumsum_workspace(stream, shape[0] * shape[1], shape[axis as usize]);
                    let memory = workspace(stream, bytes);
                    cumsum(stream, x.view(), axis, reverse, (memory.as_ref().map(Array::view), out.view()))
                        .map(|()| out)
                });
            }
        }
    }
}

/// Rows that are cut in groups of 16 tiles.
#[test]
fn cumulative_sums_of_many_long_rows() {
    let Some(both) = both() else { return };
    let shape = [57, 32_769];
    both.same("sums", |stream| {
        let (x, out) =
            (stored::<f32>(stream, 1, shape, Stored::Dense), stored::<f32>(stream, 2, shape, Stored::Dense));
        let memory = workspace(stream, cumsum_workspace(stream, shape[0] * shape[1], shape[1]));
        cumsum(stream, x.view(), 1, false, (memory.as_ref().map(Array::view), out.view())).map(|()| out)
    });
}

#[test]
fn cumulative_sums() {
    sums_of::<f32>();
    sums_of::<f64>();
    sums_of::<bf16>();
    sums_of::<f16>();
    sums_of::<i64>();
}

fn rotations_of<T: Real>(tolerance: f64) {
    let Some(both) = both() else { return };
    for [rows, half] in [[1, 1], [5, 3], [40, 32], [300, 64]] {
        for how in [Stored::Dense, Stored::Transposed, Stored::Narrowed] {
            for (interleaved, inverse) in [(false, false), (true, false), (false, true), (true, true)] {
                both.close(tolerance, (T::DTYPE, rows, half, how, interleaved, inverse), |stream| {
                    let x = stored::<T>(stream, 1, [rows, 2 * half], how);
                    let (cos, sin) = (
                        stored::<T>(stream, 2, [rows, half], Stored::Row),
                        stored::<T>(stream, 3, [rows, half], Stored::Dense),
                    );
                    let out = stored::<T>(stream, 4, [rows, 2 * half], Stored::Narrowed);
                    let rotation = Rotation { interleaved, inverse };
                    rotary(stream, x.view(), (cos.view(), sin.view()), rotation, out.view()).map(|()| out)
                });
            }
        }
    }
}

#[test]
fn rotations() {
    rotations_of::<f32>(1e-6);
    rotations_of::<f64>(1e-14);
    rotations_of::<bf16>(1e-6);
    rotations_of::<f16>(1e-6);
}
