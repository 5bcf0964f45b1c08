//! Launchers that read and add at indices.
//!
//! Indices are I64, count from 0, and are checked when the command runs: one that is out of range is
//! `Async` at the next synchronising call, and nothing outside the operands is touched.

use device::{Error, Result, Stream};

use crate::command::{Command, Raw, for_number, no_scalars};
use crate::cpu::{for_bits, index as cpu};
use crate::cuda::index as cuda;
use crate::fuse::{Fusible, IndexSums};
use crate::indexed::{IndexedElements, IndexedRows};
use crate::layout::{LoopAxis, Loops, View, normalize_axis};
use crate::loops::Places;

/// `out[.., i, ..] = x[.., indices[i], ..]` along `axis`.
///
/// Shapes: `x [a.., n, b..]`, `indices [k]`, `out [a.., k, b..]`. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `AxisOutOfRange`; `DTypeMismatch`; `ShapeMismatch`; `InvalidArgument` for an `out`
/// that is expanded or overlaps an input; the errors of [`Stream::launch`].
pub fn index_select(
    stream: &Stream,
    x: View<'_>,
    axis: isize,
    indices: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "index_select";
    x.expect_dtype(OP, out.dtype)?;
    let rows = rows(OP, axis, [&out, &x, &indices])?;
    let size = out.dtype.size_bytes();
    Command::new(OP, (out.write::<Raw>(), x.read::<Raw>(), indices.read::<i64>().exact()))
        .cost(out.layout.elements(), 1)
        .may_fail()
        .run(
            stream,
            rows,
            // SAFETY: `rows` was made from the layouts of these operands, which are of one type; see
            // `Command::launch`.
            move |rows, workers, (out, x, index)| unsafe {
                for_bits!(size, B => cpu::select::<B>(rows, workers, (out.cast(), x.cast(), index)));
            },
            move |rows, queue, operands| cuda::select(queue, size, rows, operands.into()),
        )
}

/// `out[.., indices[i], ..] += src[.., i, ..]` along `axis`, in ascending order of `i`. BF16 and F16 are summed in F32, and the
/// sum is rounded.
///
/// Shapes: `out [a.., n, b..]`, `indices [k]`, `src [a.., k, b..]`. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `DTypeUnsupported` for booleans; `AxisOutOfRange`; `DTypeMismatch`;
/// `ShapeMismatch`; `InvalidArgument` for an `out` that is expanded or overlaps an input; the errors
/// of [`Stream::launch`].
pub fn index_add(
    stream: &Stream,
    out: View<'_>,
    axis: isize,
    indices: View<'_>,
    src: View<'_>,
) -> Result<()> {
    const OP: &str = "index_add";
    let (rows, dtype) = (rows(OP, axis, [&src, &out, &indices])?, out.dtype);
    for_number!(OP, dtype, T => Command::new(
        OP,
        (out.write::<T>().keep(true), src.read::<T>(), indices.read::<i64>().exact()),
    )
    .cost(src.layout.elements(), 1)
    .may_fail()
    .launch(
        stream,
        rows,
        no_scalars,
        move |rows, operands| Fusible::of(IndexSums { dtype, rows: rows.clone(), operands }),
        // SAFETY: `rows` was made from the layouts of these operands; see `Command::launch`.
        |rows, workers, operands| unsafe { cpu::add(rows, workers, operands) },
        move |rows, queue, operands| cuda::index_add(queue, dtype, rows, operands.into(), false),
    ))
}

/// Takes apart the operands `[part, whole, indices]` of [`index_select`] and [`index_add`]: `whole` has all `n` rows, `part`
/// the `k` that the indices name.
fn rows(op: &'static str, axis: isize, [part, whole, indices]: [&View<'_>; 3]) -> Result<IndexedRows> {
    let rank = whole.layout.rank();
    let axis = normalize_axis(op, axis, rank)?;
    let alike = indices.layout.rank() == 1
        && part.layout.rank() == rank
        && (0..rank)
            .all(|i| part.shape()[i] == if i == axis { indices.shape()[0] } else { whole.shape()[i] });
    if !alike {
        return Err(Error::shape_mismatch(op, whole.shape(), part.shape()));
    }
    let layouts = [part.layout, whole.layout];
    Ok(IndexedRows {
        op,
        outer: Loops::over(layouts, 0..axis),
        inner: Places::over(layouts, axis + 1..rank),
        steps: layouts.map(|layout| layout.strides()[axis]),
        count: part.shape()[axis],
        size: whole.shape()[axis],
        index_step: indices.layout.strides()[0],
    })
}

/// `out[p] = x[p with p[axis] replaced by indices[p]]`.
///
/// Shapes: `indices` and `out` alike, at most as large as `x` on the other axes. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `AxisOutOfRange`; `DTypeMismatch`; `ShapeMismatch`; `InvalidArgument` for an `out`
/// that is expanded or overlaps an input; the errors of [`Stream::launch`].
pub fn gather(stream: &Stream, x: View<'_>, axis: isize, indices: View<'_>, out: View<'_>) -> Result<()> {
    const OP: &str = "gather";
    x.expect_dtype(OP, out.dtype)?;
    out.expect_shape(OP, indices.shape())?;
    let elements = elements(OP, axis, [&out, &x, &indices])?;
    let size = out.dtype.size_bytes();
    Command::new(OP, (out.write::<Raw>(), x.read::<Raw>(), indices.read::<i64>().exact()))
        .cost(out.layout.elements(), 4)
        .may_fail()
        .run(
            stream,
            elements,
            // SAFETY: `elements` was made from the layouts of these operands, which are of one type; see
            // `Command::launch`.
            move |elements, workers, (out, x, index)| unsafe {
                for_bits!(size, B => cpu::gather::<B>(elements, workers, (out.cast(), x.cast(), index)));
            },
            move |elements, queue, operands| cuda::gather(queue, size, elements, operands.into()),
        )
}

/// `out[p with p[axis] replaced by indices[p]] += src[p]`, in row-major order of `p`. BF16 and F16 are summed
/// in F32, and the sum is rounded.
///
/// Shapes: `indices` at most as large as `src`, and as `out` on the other axes. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `DTypeUnsupported` for booleans; `AxisOutOfRange`; `DTypeMismatch`;
/// `ShapeMismatch`; `InvalidArgument` for an `out` that is expanded or overlaps an input; the errors
/// of [`Stream::launch`].
pub fn scatter_add(
    stream: &Stream,
    out: View<'_>,
    axis: isize,
    indices: View<'_>,
    src: View<'_>,
) -> Result<()> {
    const OP: &str = "scatter_add";
    let (elements, dtype) = (elements(OP, axis, [&src, &out, &indices])?, out.dtype);
    for_number!(OP, dtype, T => Command::new(
        OP,
        (out.write::<T>().keep(true), src.read::<T>(), indices.read::<i64>().exact()),
    )
    .may_fail()
    .run(
        stream,
        elements,
        // SAFETY: `elements` was made from the layouts of these operands; see `Command::launch`.
        |elements, _, operands| unsafe { cpu::scatter_add(elements, operands) },
        move |elements, queue, operands| cuda::scatter_add(queue, dtype, elements, operands.into()),
    ))
}

/// Takes apart the operands `[part, whole, indices]` of [`gather`] and [`scatter_add`].
fn elements(
    op: &'static str,
    axis: isize,
    [part, whole, indices]: [&View<'_>; 3],
) -> Result<IndexedElements> {
    let rank = whole.layout.rank();
    let axis = normalize_axis(op, axis, rank)?;
    let shape = indices.shape();
    let fits = shape.len() == rank
        && part.layout.rank() == rank
        && (0..rank).all(|i| shape[i] <= part.shape()[i] && (i == axis || shape[i] <= whole.shape()[i]));
    if !fits {
        return Err(Error::shape_mismatch(op, whole.shape(), shape));
    }
    let at = |i: usize| LoopAxis {
        size: shape[i],
        strides: [part, whole, indices].map(|view| view.layout.strides()[i]),
    };
    let still = |i: usize| {
        let LoopAxis { size, strides: [part, whole, index] } = at(i);
        LoopAxis { size, strides: [part, if i == axis { 0 } else { whole }, index] }
    };
    Ok(IndexedElements {
        op,
        loops: Loops::from_axes((0..rank).map(still)),
        lines: Loops::from_axes((0..rank).filter(|&i| i != axis).map(at)),
        along: at(axis),
        size: whole.shape()[axis],
    })
}

#[cfg(test)]
mod tests;
