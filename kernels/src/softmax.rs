//! Launchers of softmax, its logarithm, and their gradients.

use device::{Result, Stream};

use crate::command::{Command, for_float};
use crate::cpu::softmax::RowOp;
use crate::cuda::softmax as cuda;
use crate::layout::{LoopAxis, Loops, View, normalize_axis};
use crate::loops::Rows;

/// `out = exp(x - max x) / sum exp(x - max x)` along an axis, for floats.
///
/// Shapes: `out` like `x`. The sum is taken in the order of [`reduce`](crate::reduce).
///
/// # Errors
/// `AxisOutOfRange`, `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, those of
/// [`Stream::launch`].
pub fn softmax(stream: &Stream, x: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    unary(stream, "softmax", false, x, axis, out)
}

/// `out = x - max x - log(sum exp(x - max x))` along an axis, for floats.
///
/// Shapes and order as for [`softmax`].
///
/// # Errors
/// As for [`softmax`].
pub fn log_softmax(stream: &Stream, x: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    unary(stream, "log_softmax", true, x, axis, out)
}

/// Gradient of [`softmax`], whose output is `y`: `out = y (g - sum(g y))` along an axis, for floats.
///
/// Shapes: `g` and `out` like `y`. The sum is taken in the order of [`reduce`](crate::reduce).
///
/// # Errors
/// As for [`softmax`].
pub fn softmax_grad(stream: &Stream, y: View<'_>, g: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    gradient(stream, "softmax_grad", false, y, g, axis, out)
}

/// Gradient of [`log_softmax`], whose output is `y`: `out = g - exp(y) sum(g)` along an axis, for floats.
///
/// Shapes and order as for [`softmax_grad`].
///
/// # Errors
/// As for [`softmax`].
pub fn log_softmax_grad(stream: &Stream, y: View<'_>, g: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    gradient(stream, "log_softmax_grad", true, y, g, axis, out)
}

fn unary(
    stream: &Stream,
    op: &'static str,
    log: bool,
    x: View<'_>,
    axis: isize,
    out: View<'_>,
) -> Result<()> {
    let (rows, dtype) = (rows(op, [&out, &x], axis)?, out.dtype);
    for_float!(op, dtype, T => Command::new(op, (out.write::<T>(), x.read::<T>().in_place()))
    .cost(out.layout.elements(), 8)
    .run(
        stream,
        rows,
        // SAFETY: `rows` was made from the layouts of these operands; see `Command::launch`.
        move |rows, workers, (out, x)| unsafe {
            match log {
                true => RowOp::<true, false>::run(rows, workers, out, [x]),
                false => RowOp::<false, false>::run(rows, workers, out, [x]),
            }
        },
        move |rows, queue, operands| cuda::softmax(queue, (log, dtype), rows, operands.into()),
    ))
}

fn gradient(
    stream: &Stream,
    op: &'static str,
    log: bool,
    y: View<'_>,
    g: View<'_>,
    axis: isize,
    out: View<'_>,
) -> Result<()> {
    let (rows, dtype) = (rows(op, [&out, &y, &g], axis)?, out.dtype);
    for_float!(op, dtype, T => Command::new(op, (out.write::<T>(), y.read::<T>(), g.read::<T>()))
    .cost(out.layout.elements(), 8)
    .run(
        stream,
        rows,
        // SAFETY: `rows` was made from the layouts of these operands; see `Command::launch`.
        move |rows, workers, (out, y, g)| unsafe {
            match log {
                true => RowOp::<true, true>::run(rows, workers, out, [y, g]),
                false => RowOp::<false, true>::run(rows, workers, out, [y, g]),
            }
        },
        move |rows, queue, operands| cuda::softmax(queue, (log, dtype), rows, operands.into()),
    ))
}

/// The rows along `axis`; operand 0 is the output, to which the others must be equal in shape.
pub(crate) fn rows<const N: usize>(op: &'static str, views: [&View<'_>; N], axis: isize) -> Result<Rows<N>> {
    let shape = views[0].shape();
    views.iter().try_for_each(|view| view.expect_shape(op, shape))?;
    let axis = normalize_axis(op, axis, shape.len())?;
    let layouts = views.map(|view| view.layout);
    let kept = Loops::over(layouts, (0..shape.len()).filter(|&i| i != axis));
    Ok(Rows { kept, len: shape[axis], steps: LoopAxis::of(layouts, axis).strides })
}

#[cfg(test)]
mod tests;
