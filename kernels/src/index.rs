//! Launchers that read and add at indices.
//!
//! Indices are I64, count from 0, and are checked when the command runs: one that is out of range is
//! [`Error::Async`] at the next synchronising call, and nothing outside the operands is touched.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu;
use crate::cpu::index::Rows;
use crate::cpu::number::Number;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{LoopAxis, Loops, Src, View, normalize_axis, shape_mismatch};
use crate::par::old_workers;

/// `out[.., i, ..] = x[.., indices[i], ..]` along `axis`.
///
/// Shapes: `x [a.., n, b..]`, `indices [k]`, `out [a.., k, b..]`. Asynchronous, ordered by the buffers.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`]; [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for an `out`
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
    let (rows, index) = rows(OP, x, axis, indices, out)?;
    x.expect_apart(OP, &out)?;
    indices.expect_apart(OP, &out)?;
    let (xs, o) = (x.bytes(OP)?, out.bytes_mut(OP)?);
    if stream.is_cuda() {
        let axis = normalize_axis(OP, axis, x.layout.rank())?;
        return cuda::index::select(stream, x, axis, indices, out);
    }
    let size = out.dtype.size_bytes();
    let workers = old_workers(stream, out.layout.elements(), 1);
    let uses = [Use::read(x.buffer), Use::read(indices.buffer), Use::write(out.buffer)];
    stream.launch_host(OP, &uses, move || {
        // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
        unsafe { cpu::index::select(size, &rows, &workers, o, xs, index) }
    })
}

/// `out[.., indices[i], ..] += src[.., i, ..]` along `axis`, in ascending order of `i`. BF16 and F16 are summed in F32, and the
/// sum is rounded.
///
/// Shapes: `out [a.., n, b..]`, `indices [k]`, `src [a.., k, b..]`. Asynchronous, ordered by the buffers.
///
/// # Errors
/// [`Error::DTypeUnsupported`] for booleans; [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`];
/// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for an `out` that is expanded or overlaps an input; the errors
/// of [`Stream::launch`].
pub fn index_add(
    stream: &Stream,
    out: View<'_>,
    axis: isize,
    indices: View<'_>,
    src: View<'_>,
) -> Result<()> {
    const OP: &str = "index_add";
    expect_numbers(OP, out.dtype)?;
    src.expect_dtype(OP, out.dtype)?;
    let (rows, index) = rows(OP, out, axis, indices, src)?;
    src.expect_apart(OP, &out)?;
    indices.expect_apart(OP, &out)?;
    if stream.is_cuda() {
        src.bytes(OP)?;
        out.bytes_mut(OP)?;
        let axis = normalize_axis(OP, axis, out.layout.rank())?;
        return cuda::index::index_add(stream, out, axis, indices, src);
    }
    let operands = [out, src, indices];
    match out.dtype.compute_dtype() {
        DType::F32 => index_add_of::<f32>(stream, OP, operands, rows, index),
        DType::F64 => index_add_of::<f64>(stream, OP, operands, rows, index),
        DType::I64 => index_add_of::<i64>(stream, OP, operands, rows, index),
        DType::U8 => index_add_of::<u8>(stream, OP, operands, rows, index),
        dtype => Err(Error::DTypeUnsupported { op: OP, dtype }),
    }
}

fn index_add_of<T: Number>(
    stream: &Stream,
    op: &'static str,
    [out, src, indices]: [View<'_>; 3],
    rows: Rows,
    index: Src<i64>,
) -> Result<()> {
    let from = Operand::<T>::old(op, &src, out.dtype)?;
    let to = Operand::<T>::old_mut(op, &out, out.dtype)?;
    let workers = old_workers(stream, src.layout.elements(), 1);
    let uses = [Use::read(src.buffer), Use::read(indices.buffer), Use::write(out.buffer)];
    stream.launch_host(op, &uses, move || {
        // SAFETY: types, shapes, bounds and overlap were checked; the launch orders the accesses.
        unsafe {
            let stage = Stage::new(&workers);
            cpu::index::add::<T>(&rows, &workers, stage.update(&to), stage.read(&from), index);
        }
    })
}

/// Checks and takes apart the operands of [`index_select`] and [`index_add`]: `whole` has all `n` rows, `part` the `k`
/// that the indices name.
fn rows(
    op: &'static str,
    whole: View<'_>,
    axis: isize,
    indices: View<'_>,
    part: View<'_>,
) -> Result<(Rows, Src<i64>)> {
    let rank = whole.layout.rank();
    let axis = normalize_axis(op, axis, rank)?;
    let index = indices.src::<i64>(op)?;
    let alike = indices.layout.rank() == 1
        && part.layout.rank() == rank
        && (0..rank)
            .all(|i| part.shape()[i] == if i == axis { indices.shape()[0] } else { whole.shape()[i] });
    if !alike {
        return Err(shape_mismatch(op, whole.shape(), part.shape()));
    }
    let layouts = [part.layout, whole.layout];
    let rows = Rows {
        op,
        outer: Loops::over(layouts, 0..axis),
        inner: Loops::over(layouts, axis + 1..rank),
        steps: layouts.map(|layout| layout.strides()[axis]),
        count: part.shape()[axis],
        size: whole.shape()[axis],
        index_step: indices.layout.strides()[0],
    };
    Ok((rows, index))
}

/// `out[p] = x[p with p[axis] replaced by indices[p]]`.
///
/// Shapes: `indices` and `out` alike, at most as large as `x` on the other axes. Asynchronous, ordered by the buffers.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`]; [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for an `out`
/// that is expanded or overlaps an input; the errors of [`Stream::launch`].
pub fn gather(stream: &Stream, x: View<'_>, axis: isize, indices: View<'_>, out: View<'_>) -> Result<()> {
    const OP: &str = "gather";
    x.expect_dtype(OP, out.dtype)?;
    out.expect_shape(OP, indices.shape())?;
    let (loops, step, rows) = along(OP, out, x, axis, indices)?;
    x.expect_apart(OP, &out)?;
    indices.expect_apart(OP, &out)?;
    let (xs, o, index) = (x.bytes(OP)?, out.bytes_mut(OP)?, indices.src::<i64>(OP)?);
    if stream.is_cuda() {
        return cuda::index::gather(stream, OP, &loops, (step, rows), x, indices, out);
    }
    let size = out.dtype.size_bytes();
    let workers = old_workers(stream, out.layout.elements(), 4);
    let uses = [Use::read(x.buffer), Use::read(indices.buffer), Use::write(out.buffer)];
    stream.launch_host(OP, &uses, move || {
        // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
        unsafe { cpu::index::gather(OP, size, &loops, (step, rows), &workers, o, xs, index) }
    })
}

/// `out[p with p[axis] replaced by indices[p]] += src[p]`, in row-major order of `p`. BF16 and F16 are summed
/// in F32, and the sum is rounded.
///
/// Shapes: `indices` at most as large as `src`, and as `out` on the other axes. Asynchronous, ordered by the buffers.
///
/// # Errors
/// [`Error::DTypeUnsupported`] for booleans; [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`];
/// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for an `out` that is expanded or overlaps an input; the errors
/// of [`Stream::launch`].
pub fn scatter_add(
    stream: &Stream,
    out: View<'_>,
    axis: isize,
    indices: View<'_>,
    src: View<'_>,
) -> Result<()> {
    const OP: &str = "scatter_add";
    expect_numbers(OP, out.dtype)?;
    src.expect_dtype(OP, out.dtype)?;
    let (loops, step, rows) = along(OP, src, out, axis, indices)?;
    src.expect_apart(OP, &out)?;
    indices.expect_apart(OP, &out)?;
    if stream.is_cuda() {
        src.bytes(OP)?;
        out.bytes_mut(OP)?;
        indices.src::<i64>(OP)?;
        let axis = normalize_axis(OP, axis, out.layout.rank())?;
        return cuda::index::scatter_add(stream, out, axis, indices, src);
    }
    let (operands, along) = ([out, src, indices], (step, rows));
    match out.dtype.compute_dtype() {
        DType::F32 => scatter_add_of::<f32>(stream, OP, operands, loops, along),
        DType::F64 => scatter_add_of::<f64>(stream, OP, operands, loops, along),
        DType::I64 => scatter_add_of::<i64>(stream, OP, operands, loops, along),
        DType::U8 => scatter_add_of::<u8>(stream, OP, operands, loops, along),
        dtype => Err(Error::DTypeUnsupported { op: OP, dtype }),
    }
}

fn scatter_add_of<T: Number>(
    stream: &Stream,
    op: &'static str,
    [out, src, indices]: [View<'_>; 3],
    loops: Loops<3>,
    along: (isize, usize),
) -> Result<()> {
    let from = Operand::<T>::old(op, &src, out.dtype)?;
    let to = Operand::<T>::old_mut(op, &out, out.dtype)?;
    let index = indices.src::<i64>(op)?;
    let uses = [Use::read(src.buffer), Use::read(indices.buffer), Use::write(out.buffer)];
    stream.launch_host(op, &uses, move || {
        // SAFETY: types, shapes, bounds and overlap were checked; the launch orders the accesses.
        unsafe {
            let stage = Stage::new(&None);
            cpu::index::scatter_add::<T>(op, &loops, along, stage.update(&to), stage.read(&from), index);
        }
    })
}

fn expect_numbers(op: &'static str, dtype: DType) -> Result<()> {
    if dtype == DType::Bool { Err(Error::DTypeUnsupported { op, dtype }) } else { Ok(()) }
}

/// Loops over the shape of `indices` for `(each, whole, indices)`, where `whole` stands still along `axis`; its step
/// and size there.
fn along(
    op: &'static str,
    each: View<'_>,
    whole: View<'_>,
    axis: isize,
    indices: View<'_>,
) -> Result<(Loops<3>, isize, usize)> {
    let rank = whole.layout.rank();
    let axis = normalize_axis(op, axis, rank)?;
    let shape = indices.shape();
    let fits = shape.len() == rank
        && each.layout.rank() == rank
        && (0..rank).all(|i| shape[i] <= each.shape()[i] && (i == axis || shape[i] <= whole.shape()[i]));
    if !fits {
        return Err(shape_mismatch(op, whole.shape(), shape));
    }
    let loops = Loops::from_axes((0..rank).map(|i| {
        let still = if i == axis { 0 } else { whole.layout.strides()[i] };
        LoopAxis { size: shape[i], strides: [each.layout.strides()[i], still, indices.layout.strides()[i]] }
    }));
    Ok((loops, whole.layout.strides()[axis], whole.shape()[axis]))
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
