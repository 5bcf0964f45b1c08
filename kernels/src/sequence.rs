//! Launchers of what is done along a sequence: cumulative sums, and the rotation of pairs by their place.

use device::{DType, Error, Result, Stream};

use crate::command::{Command, for_float, for_number};
use crate::cpu::sequence as cpu;
use crate::cuda::{needs, sequence as cuda};
use crate::layout::{LoopAxis, Loops, View};
use crate::softmax::rows;

/// Bytes of the workspace that a [`cumsum`] of so many elements, `len` of each row, needs on `stream`'s device.
pub fn cumsum_workspace(stream: &Stream, elements: usize, len: usize) -> usize {
    needs(stream, || cuda::workspace(elements.checked_div(len).unwrap_or(0), len)).unwrap_or(0)
}

/// `out[i] = x[0] + .. + x[i]` along an axis, or from the end with `reverse`, for floats and I64.
///
/// Shapes: `out` like `x`; `workspace`, of type U8 and contiguous, has [`cumsum_workspace`] elements, and may be left out if those are
/// none. Integers wrap around.
///
/// The order of additions is fixed and the same on every device, whatever the strides, so results have the same bits. The axis, from
/// the end if `reverse`, is cut into runs of 16 elements, and tiles of 32 runs. `out[i] = (T + R) + E`, where
/// - `E` is the sum of the elements of `i`'s run up to `i`, added one by one;
/// - `R` is the sum of the runs before it in its tile, and `T` the sum of the tiles before that one. A sum of `n` runs or tiles has a
///   block of `2^k` of them for each bit `k` of `n`, the largest block first, and is added from the last block to the first:
///   `B8 + (B2 + B1)` for `n = 11`. A block is the sum of its two halves, down to single runs or tiles; a tile is a block of runs.
///
/// Each sum begins at 0. The error of a result grows with the logarithm of its place, and a result depends on the elements before it
/// only. The order is part of the contract: kernels may become faster, but bits stay.
///
/// # Errors
/// `AxisOutOfRange`, `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for a workspace that is smaller, those of
/// [`Stream::launch`].
pub fn cumsum(
    stream: &Stream,
    x: View<'_>,
    axis: isize,
    reverse: bool,
    (workspace, out): (Option<View<'_>>, View<'_>),
) -> Result<()> {
    const OP: &str = "cumsum";
    let dtype = out.dtype;
    if dtype == DType::U8 {
        return Err(Error::dtype_unsupported(OP, dtype, "floats and i64"));
    }
    let rows = rows(OP, [&out, &x], axis)?;
    let workspace =
        View::workspace::<u8>(OP, workspace, cumsum_workspace(stream, out.layout.elements(), rows.len))?;
    for_number!(OP, dtype, T => Command::new(OP, (out.write::<T>(), x.read::<T>().in_place(), workspace))
    .cost(out.layout.elements(), 2)
    .run(
        stream,
        rows,
        // SAFETY: `rows` was made from the layouts of these operands; see `Command::launch`.
        move |rows, workers, (out, x, _)| unsafe { cpu::cumsum(rows, workers, reverse, (out, x)) },
        move |rows, queue, (out, x, workspace)| cuda::cumsum(queue, dtype, rows, reverse, [out, x], workspace),
    ))
}

/// How [`rotary`] pairs the elements of the last axis, and which way it turns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Whether pairs are neighbours, `(2 i, 2 i + 1)`, rather than `(i, i + d / 2)`.
    pub interleaved: bool,
    /// Whether the angles are negated.
    pub inverse: bool,
}

/// Turns each pair `(a, b)` of the last axis: `(a cos - b sin, b cos + a sin)`, for floats.
///
/// Shapes: `x` and `out` `[.., d]` with an even `d`, `cos` and `sin` `[.., d / 2]`; expanded axes may have stride 0.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, those of [`Stream::launch`].
pub fn rotary(
    stream: &Stream,
    x: View<'_>,
    (cos, sin): (View<'_>, View<'_>),
    rotation: Rotation,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "rotary";
    let mismatch = || Error::shape_mismatch(OP, "", x.shape(), cos.shape());
    x.expect_shape(OP, out.shape())?;
    sin.expect_shape_of(OP, &cos)?;
    let (&[ref leading @ .., width], &[ref angles_leading @ .., half]) = (x.shape(), cos.shape()) else {
        return Err(mismatch());
    };
    if leading != angles_leading || half.checked_mul(2) != Some(width) {
        return Err(mismatch());
    }
    // A loop over the pairs; the second element of each lies at a fixed distance.
    let last = leading.len();
    let [out_step, x_step] = [&out, &x].map(|view| view.layout.strides()[last]);
    let (pair, apart) = if rotation.interleaved { (2, 1) } else { (1, half as isize) };
    let strides = |axis: usize| [&out, &x, &cos, &sin].map(|view| view.layout.strides()[axis]);
    let [_, _, cos_step, sin_step] = strides(last);
    // What overflows is refused when the command is launched.
    let [out_pair, x_pair] = [out_step, x_step].map(|step| step.wrapping_mul(pair));
    let along = LoopAxis { size: half, strides: [out_pair, x_pair, cos_step, sin_step] };
    let pairs = Loops::from_axes(
        (0..last).map(|axis| LoopAxis { size: leading[axis], strides: strides(axis) }).chain([along]),
    );
    let turn = ([out_step, x_step].map(|step| step.wrapping_mul(apart)), rotation.inverse);
    let dtype = out.dtype;
    for_float!(OP, dtype, T => {
        Command::new(OP, (out.write::<T>(), x.read::<T>(), cos.read::<T>(), sin.read::<T>()))
            .cost(out.layout.elements(), 4)
            .run(
                stream,
                pairs,
                // SAFETY: `pairs` was made from the layouts of these operands; see `Command::launch`.
                move |pairs, workers, operands| unsafe { cpu::rotary(pairs, workers, turn, operands) },
                move |pairs, queue, operands| cuda::rotary(queue, dtype, pairs, turn, operands.into()),
            )
    })
}

#[cfg(test)]
mod tests;
