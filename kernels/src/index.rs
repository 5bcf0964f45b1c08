//! Launchers that read and add at indices.
//!
//! Indices are I64, count from 0, and are checked when the command runs: one that is out of range is
//! `Async` at the next synchronising call, and nothing outside the operands is touched.

use device::{Error, Result, Stream};

use crate::command::{Command, Raw, for_number};
use crate::cpu::{for_bits, index as cpu};
use crate::cuda::index as cuda;
use crate::cuda::needs;
use crate::indexed::{Entries, Indexed, begin};
use crate::layout::{LoopAxis, View, normalize_axis};

/// `out[.., i, ..] = x[.., indices[i], ..]` along `axis`; `op` is the name in errors and profiles.
///
/// Shapes: `x [a.., n, b..]`, `indices [k]`, `out [a.., k, b..]`. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `AxisOutOfRange`; `DTypeMismatch`; `ShapeMismatch`; `InvalidArgument` for an `out`
/// that is expanded or overlaps an input; the errors of [`Stream::launch`].
pub fn index_select(
    stream: &Stream,
    op: &'static str,
    x: View<'_>,
    axis: isize,
    indices: View<'_>,
    out: View<'_>,
) -> Result<()> {
    read(stream, op, axis, rows, [out, x, indices])
}

/// Copies elements that indices name; `indexed` takes apart the operands.
fn read(
    stream: &Stream,
    op: &'static str,
    axis: isize,
    indexed: impl Fn(&'static str, isize, [&View<'_>; 3]) -> Result<Indexed>,
    [out, x, indices]: [View<'_>; 3],
) -> Result<()> {
    x.expect_dtype(op, out.dtype)?;
    let gather = indexed(op, axis, [&out, &x, &indices])?.gather(op);
    let size = out.dtype.size_bytes();
    Command::new(op, (out.write::<Raw>(), x.read::<Raw>(), indices.read::<i64>().exact()))
        .cost(out.layout.elements(), 2)
        .may_fail()
        .run(
            stream,
            gather,
            // SAFETY: `gather` was made from the layouts of these operands, which are of one type; see `Command::launch`.
            move |gather, workers, (out, x, index)| unsafe {
                for_bits!(size, B => cpu::gather::<B>(gather, workers, (out.cast(), x.cast(), index)));
            },
            move |gather, queue, operands| cuda::gather(queue, size, gather, operands.into()),
        )
}

/// Indexed sums whose operands were checked: see [`index_add`] and [`scatter_add`].
#[must_use = "they are not launched yet"]
#[derive(Debug)]
pub struct IndexSums<'a> {
    stream: &'a Stream,
    op: &'static str,
    /// Sums, values and indices.
    operands: [View<'a>; 3],
    base: Option<View<'a>>,
    entries: Entries,
    /// Bytes that it works in.
    workspace: usize,
}

impl<'a> IndexSums<'a> {
    fn new(stream: &'a Stream, op: &'static str, operands: [View<'a>; 3], entries: Entries) -> IndexSums<'a> {
        let workspace = needs(stream, || entries.clone().merged().workspace()).unwrap_or(0);
        IndexSums { stream, op, operands, base: None, entries, workspace }
    }

    /// The same where no two indices of a line are equal, as those of a sort: a CUDA device then writes each value where it belongs. With
    /// equal ones any of their values may remain.
    pub fn of_distinct(self) -> IndexSums<'a> {
        let IndexSums { stream, op, operands, base, entries, .. } = self;
        IndexSums { base, ..IndexSums::new(stream, op, operands, Entries { distinct: true, ..entries }) }
    }

    /// The same as a part of the op `op`, which is the name in errors and profiles.
    pub fn named(self, op: &'static str) -> Self {
        IndexSums { op, ..self }
    }

    /// Bytes of the workspace.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Launches them. `workspace`, of type U8, has [`workspace`](Self::workspace) elements, and may be left out if those are none.
    ///
    /// # Errors
    /// `DTypeUnsupported` for booleans; `DTypeMismatch`; `ShapeMismatch` of the base; `InvalidArgument` for an `out` that is
    /// expanded or overlaps an input other than a base that is `out`, and for a workspace that is smaller; the errors of
    /// [`Stream::launch`].
    pub fn launch(self, workspace: Option<View<'_>>) -> Result<()> {
        let IndexSums { stream, op, operands: [out, src, indices], base, entries, workspace: needed } = self;
        let (dtype, workspace) = (out.dtype, View::workspace::<u8>(op, workspace, needed)?);
        let places = begin(op, out.layout, base.as_ref().map(|base| base.layout))?;
        for_number!(op, dtype, T => {
            let base = base.map(|base| base.read::<T>().in_place());
            Command::new(op, (out.write::<T>(), base, src.read::<T>(), indices.read::<i64>().exact(), workspace))
                .cost(src.layout.elements().saturating_add(out.layout.elements()), 1)
                .may_fail()
                .run(
                    stream,
                    (entries, places),
                    // SAFETY: `entries` and `places` were made from the layouts of these operands; see `Command::launch`.
                    move |(entries, places), workers, (out, base, src, indices, _)| unsafe {
                        cpu::begin(places, workers, out, base);
                        cpu::add(op, entries, workers, (out, src, indices));
                    },
                    move |(entries, places), queue, (out, base, src, indices, workspace)| {
                        let (entries, sums) = (entries.clone().merged(), (out, base, places));
                        cuda::add(queue, dtype, &entries, sums, [src, indices], workspace)
                    },
                )
        })
    }
}

/// `out = base`, or zeros without one, and `out[.., indices[i], ..] += src[.., i, ..]` along `axis`, in ascending order of `i`. BF16
/// and F16 are summed in F32, and the sum is rounded. `base` may be `out`.
///
/// The first 32 entries of a row are added one by one. Others are summed in runs of 32, and the runs are added in order: the same
/// bits on every device.
///
/// Shapes: `out` and `base [a.., n, b..]`, `indices [k]`, `src [a.., k, b..]`. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `AxisOutOfRange`; `ShapeMismatch`.
pub fn index_add<'a>(
    stream: &'a Stream,
    out: View<'a>,
    base: Option<View<'a>>,
    axis: isize,
    indices: View<'a>,
    src: View<'a>,
) -> Result<IndexSums<'a>> {
    const OP: &str = "index_add";
    let entries = rows(OP, axis, [&src, &out, &indices])?.entries();
    Ok(IndexSums { base, ..IndexSums::new(stream, OP, [out, src, indices], entries) })
}

/// Takes apart the operands `[part, whole, indices]` of [`index_select`] and [`index_add`]: `whole` has all `n` rows, `part`
/// the `k` that the indices name.
fn rows(op: &'static str, axis: isize, [part, whole, indices]: [&View<'_>; 3]) -> Result<Indexed> {
    let rank = whole.layout.rank();
    let axis = normalize_axis(op, axis, rank)?;
    let alike = indices.layout.rank() == 1
        && part.layout.rank() == rank
        && (0..rank)
            .all(|i| part.shape()[i] == if i == axis { indices.shape()[0] } else { whole.shape()[i] });
    if !alike {
        return Err(Error::shape_mismatch(op, "", whole.shape(), part.shape()));
    }
    let along = |i: usize| LoopAxis {
        size: part.shape()[i],
        strides: [
            part.layout.strides()[i],
            whole.layout.strides()[i],
            if i == axis { indices.layout.strides()[0] } else { 0 },
        ],
    };
    Ok(Indexed { axes: (0..rank).map(along).collect(), axis, size: whole.shape()[axis] })
}

/// `out[p] = x[p with p[axis] replaced by indices[p]]`; `op` is the name in errors and profiles.
///
/// Shapes: `indices` and `out` alike, at most as large as `x` on the other axes. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `AxisOutOfRange`; `DTypeMismatch`; `ShapeMismatch`; `InvalidArgument` for an `out`
/// that is expanded or overlaps an input; the errors of [`Stream::launch`].
pub fn gather(
    stream: &Stream,
    op: &'static str,
    x: View<'_>,
    axis: isize,
    indices: View<'_>,
    out: View<'_>,
) -> Result<()> {
    out.expect_shape(op, indices.shape())?;
    read(stream, op, axis, elements, [out, x, indices])
}

/// `out = base`, or zeros without one, and `out[p with p[axis] replaced by indices[p]] += src[p]`, in ascending order along the axis,
/// as [`index_add`] adds.
///
/// Shapes: `base` as `out`; `indices` at most as large as `src`, and as `out` on the other axes. Asynchronous, ordered by the buffers.
///
/// # Errors
/// As for [`index_add`].
pub fn scatter_add<'a>(
    stream: &'a Stream,
    out: View<'a>,
    base: Option<View<'a>>,
    axis: isize,
    indices: View<'a>,
    src: View<'a>,
) -> Result<IndexSums<'a>> {
    const OP: &str = "scatter_add";
    let entries = elements(OP, axis, [&src, &out, &indices])?.entries();
    Ok(IndexSums { base, ..IndexSums::new(stream, OP, [out, src, indices], entries) })
}

/// Takes apart the operands `[part, whole, indices]` of [`gather`] and [`scatter_add`].
fn elements(op: &'static str, axis: isize, [part, whole, indices]: [&View<'_>; 3]) -> Result<Indexed> {
    let rank = whole.layout.rank();
    let axis = normalize_axis(op, axis, rank)?;
    let shape = indices.shape();
    let fits = shape.len() == rank
        && part.layout.rank() == rank
        && (0..rank).all(|i| shape[i] <= part.shape()[i] && (i == axis || shape[i] <= whole.shape()[i]));
    if !fits {
        return Err(Error::shape_mismatch(op, "", whole.shape(), shape));
    }
    let at = |i: usize| LoopAxis {
        size: shape[i],
        strides: [part, whole, indices].map(|view| view.layout.strides()[i]),
    };
    Ok(Indexed { axes: (0..rank).map(at).collect(), axis, size: whole.shape()[axis] })
}

#[cfg(test)]
mod tests;
