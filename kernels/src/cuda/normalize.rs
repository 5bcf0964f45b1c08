//! Launchers of row normalization and its gradients.

use device::cuda::{Arg, Queue};
use device::{DType, Error, Result};

use super::rows::{PACK, RowReduction, RowThreads, Units};
use super::walk::{ByValue, divisor};
use super::{Family, family};
use crate::command::Address;
use crate::norms::NormRows;

pub(super) static PROGRAMS: Family =
    family!("normalize", FLOATS, "rows.cuh", "columns.cuh", "normalize.cuh", "normalize.cu");

/// `RowNorm` of the program.
///
/// # Errors
/// `InvalidArgument` for rows of 2^31 elements or more if `inner` is not 1.
fn numbers(
    op: &'static str,
    &(rows, count): &(NormRows, usize),
    dtypes: [DType; 2],
    elements: &[Option<Address>],
    weights: &[Option<Address>],
) -> Result<[i64; 7]> {
    let NormRows { groups, channels, inner } = rows;
    Error::require(inner == 1 || rows.row() < 1 << 31, op, "rows", "fewer than 2^31 elements", rows.row())?;
    let aligned = [elements, weights].iter().zip(dtypes).all(|(operands, dtype)| {
        operands.iter().flatten().all(|at| at.0.addr().is_multiple_of(PACK * dtype.size_bytes()))
    });
    let packed = rows.row().is_multiple_of(PACK) && aligned;
    let [packed, stored] = [packed, dtypes[0] == dtypes[1]].map(usize::from);
    Ok([count, groups, channels, inner, packed, divisor(inner), stored].map(|number| number as i64))
}

/// Thread group and split for the gradients of weights.
fn weight_threads(&(rows, count): &(NormRows, usize)) -> (RowThreads, Units) {
    let NormRows { groups, inner, .. } = rows;
    // If inner = 1, the elements of a weight are strided.
    let along = if inner == 1 { rows.weights() as isize } else { 1 };
    let each = count.checked_div(groups).unwrap_or(0) * inner;
    RowThreads::folding(rows.weights(), each, along, inner as isize)
}

/// Split for the kernel of contiguous columns: one group, inner = 1, and whole packs of weights.
fn columns(&(rows, count): &(NormRows, usize)) -> Option<Units> {
    let NormRows { groups, channels, inner } = rows;
    let beside = groups == 1 && inner == 1 && channels.is_multiple_of(PACK) && channels > 0 && count > 0;
    beside.then(|| Units::beside(channels, count))
}

/// Bytes of the workspace for the gradients of weights.
pub(crate) fn workspace(rows: &(NormRows, usize)) -> usize {
    let of = |cut: Units| cut.workspace(rows.0.weights());
    of(weight_threads(rows).1).max(columns(rows).map_or(0, of))
}

/// Normalizes `x`. `dtypes`: of elements and of weights.
pub(crate) fn normalize(
    queue: &Queue<'_>,
    dtypes @ [dtype, _]: [DType; 2],
    rows: &(NormRows, usize),
    eps: f64,
    [out, x]: [Address; 2],
    affine: [Option<Address>; 2],
    (mean, rstd): (Option<Address>, Address),
) -> Result<()> {
    let norm = numbers(queue.op(), rows, dtypes, &[Some(out), Some(x)], &affine)?;
    let len = rows.0.row();
    let threads = RowThreads::holding(rows.1, len, 1, len as isize, dtype);
    let [weight, bias] = affine.map(Arg::from);
    let (eps, lanes) = (Arg::F64(eps), Arg::U32(threads.lanes));
    let args = [out.into(), x.into(), weight, bias, mean.into(), rstd.into(), norm.arg(), eps, lanes];
    let kernel = ["normalize", threads.group.name()];
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe { PROGRAMS.kernel(queue, &kernel, dtype, threads.grid(Units::WHOLE), &args) }
}

/// The gradients. `dtypes`: of elements and of weights.
pub(crate) fn gradient(
    queue: &Queue<'_>,
    dtypes @ [dtype, _]: [DType; 2],
    all @ &(rows, count): &(NormRows, usize),
    ([g, x], weight): ([Address; 2], Option<Address>),
    (mean, rstd): (Option<Address>, Address),
    (dx, [dweight, dbias]): (Option<Address>, [Option<Address>; 2]),
    workspace: Option<Address>,
) -> Result<()> {
    let norm = numbers(queue.op(), all, dtypes, &[dx, Some(g), Some(x)], &[weight])?;
    let (len, weights, [.., packed, _, stored]) = (rows.row(), rows.weights(), norm);
    let [g, x, rstd] = [g, x, rstd].map(Arg::from);
    let [weight, mean] = [weight, mean].map(Arg::from);
    if let Some(dx) = dx.filter(|_| count * len > 0) {
        let threads = RowThreads::holding(count, len, 1, len as isize, dtype);
        let (grid, group) = (threads.grid(Units::WHOLE), threads.group.name());
        let args = [dx.into(), g, x, weight, mean, rstd, norm.arg(), Arg::U32(threads.lanes)];
        // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
        unsafe { PROGRAMS.kernel(queue, &["normalize_grad", group], dtype, grid, &args)? };
    }
    if weights == 0 || dweight.or(dbias).is_none() {
        return Ok(());
    }
    let reduction = RowReduction {
        programs: &PROGRAMS,
        name: "normalize_weights",
        dtype,
        rows: weights,
        outputs: &[dweight.into(), dbias.into(), Arg::U32(stored as u32)],
        inputs: &[g, x, mean, rstd],
        states: workspace.into(),
    };
    let columns = columns(all).filter(|_| packed != 0).map(|cut| (cut, [rows.channels, count]));
    // SAFETY: the kernels take these arguments, the rows are those of the operands, and the workspace has room for the states
    // of all units.
    unsafe { reduction.enqueue(queue, columns, weight_threads(all), norm.arg()) }
}
