//! Launchers of reductions.

use device::{Error, Result, Stream};
use smallvec::SmallVec;

use crate::command::{Command, Write, for_float, for_number, no_scalars};
use crate::cpu::number::Number;
use crate::cpu::reduce as cpu;
use crate::cuda::needs;
use crate::cuda::reduce as cuda;
use crate::fuse::Fusible;
use crate::layout::{Dst, Layout, Src, View, normalize_axes, normalize_axis};
use crate::loops::{LoopAxis, Loops};
use crate::par::Workers;
use crate::reduction::{Axes, Extreme, ReduceOp, Reduction};

/// Bytes of the workspace that a reduction of `x` along axes needs on `stream`'s device; the same for all reductions.
///
/// # Errors
/// `AxisOutOfRange`; `InvalidArgument` for a doubled axis.
pub fn reduce_workspace(stream: &Stream, x: &Layout, axes: &[isize]) -> Result<usize> {
    let needed = || Ok(cuda::workspace(&axes_of(x, &is_reduced("reduce", x, axes)?)));
    needs(stream, needed).unwrap_or(Ok(0))
}

/// Reduces elements along axes. No axes at all mean all axes.
///
/// Shapes: `out` has the axes of `x` without the reduced ones, or with size 1 in their place, and is contiguous. All
/// element types but Bool; integers wrap around.
///
/// The order is fixed. The reduced elements, in row-major order, are cut into blocks of 4096; in a block, element `i`
/// goes to lane `i % 64`, and the lanes are joined as a tree, `l` with `l + 32`, then `l + 16`, and so on; several
/// blocks' values are joined in the same way. BF16 and F16 are joined in F32, and the result is rounded. Strides and the number
/// of threads do not matter. On CUDA it is blocks of 512 and 32 lanes, see `cuda/rows.cuh`.
///
/// `workspace`, of type U8 and contiguous, has [`reduce_workspace`] elements, and may be left out if those are none.
///
/// # Errors
/// `AxisOutOfRange`, `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`;
/// `InvalidArgument` for a doubled axis, or for `Max` and `Min` of no elements; those of [`Stream::launch`].
pub fn reduce(
    stream: &Stream,
    how: impl Into<Reduction>,
    x: View<'_>,
    axes: &[isize],
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let how = how.into();
    let op = how.name();
    if let Reduction::Index(which) = how {
        let [axis] = axes[..] else {
            return Err(Error::invalid(op, "axes", "one axis", format_args!("{axes:?}")));
        };
        return index(stream, which, x, axis, workspace, out);
    }
    let axes = split_axes(op, x.layout, axes, &out)?;
    let extreme = matches!(how, Reduction::Join(ReduceOp::Max | ReduceOp::Min));
    let is_valid = !extreme || axes.reduced.elements > 0 || axes.kept.elements == 0;
    Error::require(is_valid, op, "axes", "axes with elements", format_args!("shape {:?}", x.shape()))?;
    match how {
        Reduction::Join(ReduceOp::Mean) | Reduction::Var { .. } | Reduction::LogSumExp => {
            for_float!(op, x.dtype, T => launch(stream, op, how, x, axes, (workspace, out), cpu::of_floats::<T>))
        }
        _ => {
            for_number!(op, x.dtype, T => launch(stream, op, how, x, axes, (workspace, out), cpu::of_numbers::<T>))
        }
    }
}

/// The workspace, if one is needed.
fn expect_workspace<'a>(
    op: &'static str,
    stream: &Stream,
    axes: &Axes,
    given: Option<View<'a>>,
) -> Result<Option<Write<'a, u8>>> {
    View::workspace::<u8>(op, given, needs(stream, || cuda::workspace(axes)).unwrap_or(0))
}

/// Launches a reduction whose body for a CPU is `body`.
fn launch<T: Number>(
    stream: &Stream,
    op: &'static str,
    how: Reduction,
    x: View<'_>,
    axes: Axes,
    (workspace, out): (Option<View<'_>>, View<'_>),
    body: unsafe fn(Reduction, &Axes, &Workers, Src<T>, Dst<T>),
) -> Result<()> {
    let dtype = x.dtype;
    let workspace = expect_workspace(op, stream, &axes, workspace)?;
    Command::new(op, (x.read::<T>(), out.write::<T>(), workspace)).cost(x.layout.elements(), 1).launch(
        stream,
        axes,
        no_scalars,
        move |axes, (x, out, workspace)| Fusible::fold(how, dtype, axes, [x, out], workspace),
        // SAFETY: `axes` was made from the layout of `x`, and `out` is contiguous with an element for each kept one;
        // see `Command::launch`.
        move |axes, workers, (x, out, _)| unsafe { body(how, axes, workers, x, out) },
        move |axes, queue, (x, out, workspace)| cuda::reduce(queue, dtype, how, axes, [out, x], workspace),
    )
}

/// The index of the largest or smallest element along an axis, the first if there are several; NaN counts as more extreme.
fn index(
    stream: &Stream,
    which: Extreme,
    x: View<'_>,
    axis: isize,
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let op = which.op();
    let axis = normalize_axis(op, axis, x.layout.rank())?;
    let axes = split_axes(op, x.layout, &[axis as isize], &out)?;
    let (len, step, dtype) = (x.shape()[axis], x.layout.strides()[axis], x.dtype);
    let value = format_args!("axis {axis} of shape {:?}", x.shape());
    Error::require(len > 0 || axes.kept.elements == 0, op, "axis", "an axis with elements", value)?;
    let workspace = expect_workspace(op, stream, &axes, workspace)?;
    for_number!(op, dtype, T => Command::new(op, (x.read::<T>(), out.write::<i64>().exact(), workspace))
    .cost(x.layout.elements(), 2)
    .run(
        stream,
        axes,
        // SAFETY: `axes` was made from the layout of `x`, `out` is contiguous with an element for each kept one, and
        // `len` is not 0; see `Command::launch`.
        move |axes, workers, (x, out, _)| unsafe {
            cpu::extreme(which, &axes.kept, workers, x, (len, step), out);
        },
        move |axes, queue, (x, out, workspace)| {
            cuda::reduce(queue, dtype, Reduction::Index(which), axes, [out, x], workspace)
        },
    ))
}

/// Which axes are reduced; none named mean all.
fn is_reduced(op: &'static str, x: &Layout, axes: &[isize]) -> Result<SmallVec<[bool; 8]>> {
    let mut is_reduced = SmallVec::from_elem(false, x.rank());
    normalize_axes(op, axes, x.rank())?.iter().for_each(|&axis| is_reduced[axis] = true);
    Ok(is_reduced)
}

fn axes_of(x: &Layout, is_reduced: &[bool]) -> Axes {
    let axis = |i: usize| LoopAxis { size: x.shape()[i], strides: [x.strides()[i]] };
    let pick = |wanted: bool| Loops::from_axes((0..x.rank()).filter(|&i| is_reduced[i] == wanted).map(axis));
    Axes { kept: pick(false), reduced: pick(true) }
}

// Separates kept from reduced axes, and checks the output's shape and layout.
fn split_axes(op: &'static str, x: &Layout, axes: &[isize], out: &View<'_>) -> Result<Axes> {
    let is_reduced = is_reduced(op, x, axes)?;
    let kept = (0..x.rank()).filter(|&i| !is_reduced[i]).map(|i| x.shape()[i]);
    let with_ones = (0..x.rank()).map(|i| if is_reduced[i] { 1 } else { x.shape()[i] });
    let shape = out.shape().iter().copied();
    if !(kept.eq(shape.clone()) || with_ones.eq(shape)) {
        return Err(Error::shape_mismatch(op, "", x.shape(), out.shape()));
    }
    out.expect_contiguous(op, "out")?;
    Ok(axes_of(x, &is_reduced))
}

#[cfg(test)]
mod tests;
