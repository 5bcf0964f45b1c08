//! Launcher of `argsort`: the indices that sort the elements along an axis.

use device::{Error, Result, Stream};

use crate::command::{Command, for_number};
use crate::cpu::order as cpu;
use crate::cuda::{needs, order as cuda};
use crate::layout::{Loops, View, normalize_axis};
use crate::loops::Rows;

/// Bytes of the workspace that an [`argsort`] needs on `stream`'s device for the first `count` of each row of `len` of so many elements.
pub fn argsort_workspace(stream: &Stream, elements: usize, len: usize, count: usize) -> usize {
    needs(stream, || cuda::workspace(elements, len, count)).unwrap_or(0)
}

/// The indices, of type I64, of the first elements along an axis in ascending or descending order, for floats and integers.
///
/// Shapes: `out` like `x`, but for the axis, where it has at most as many elements; `workspace`, of type U8 and contiguous, has
/// [`argsort_workspace`] elements, and may be left out if those are none.
///
/// The sort is stable: equal elements stay in the order of their indices, in both directions. 0 and -0 are equal, and NaN is
/// larger than every number.
///
/// # Errors
/// `AxisOutOfRange`, `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for a workspace that is smaller and for 2^31
/// elements, those of [`Stream::launch`].
pub fn argsort(
    stream: &Stream,
    x: View<'_>,
    axis: isize,
    descending: bool,
    (workspace, out): (Option<View<'_>>, View<'_>),
) -> Result<()> {
    const OP: &str = "argsort";
    let (shape, elements) = (x.shape(), x.layout.elements());
    let at = normalize_axis(OP, axis, shape.len())?;
    let is_part = |i: usize| out.shape()[i] == shape[i] || i == at && out.shape()[i] < shape[i];
    if out.shape().len() != shape.len() || !(0..shape.len()).all(is_part) {
        return Err(Error::shape_mismatch(OP, "", shape, out.shape()));
    }
    Error::require(elements < 1 << 31, OP, "x", "fewer than 2^31 elements", elements)?;
    let layouts = [out.layout, x.layout];
    let kept = Loops::over(layouts, (0..shape.len()).filter(|&i| i != at));
    let rows = Rows { kept, len: shape[at], steps: layouts.map(|layout| layout.strides()[at]) };
    let (dtype, count) = (x.dtype, out.shape()[at]);
    let needed = argsort_workspace(stream, elements, shape[at], count);
    let workspace = View::workspace::<u8>(OP, workspace, needed)?;
    let depth = shape[at].max(2).ilog2() as usize;
    for_number!(OP, dtype, T => Command::new(OP, (out.write::<i64>().exact(), x.read::<T>(), workspace))
    .cost(elements, depth)
    .run(
        stream,
        rows,
        // SAFETY: `rows` was made from the layouts of these operands; see `Command::launch`.
        move |rows, workers, (out, x, _)| unsafe { cpu::argsort(rows, count, descending, workers, (out, x)) },
        move |rows, queue, (out, x, workspace)| {
            cuda::argsort(queue, dtype, rows, (count, descending), [out, x], workspace)
        },
    ))
}

#[cfg(test)]
mod tests;
