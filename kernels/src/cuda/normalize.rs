//! Normalization of rows, and its gradients.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::rows::{PACK, RowThreads, Units, by_group};
use super::walk::ByValue;
use super::{by_dtype, float_programs};
use crate::command::Address;
use crate::norms::NormRows;

float_programs!("normalize", "rows.cuh", "columns.cuh", "norm_columns.cuh", "normalize.cuh", "normalize.cu");

/// The kernels that add, apart from the others: who needs them compiles them.
mod added {
    use super::super::float_programs;

    float_programs!("normalize_added", "rows.cuh", "normalize.cuh", "normalize_added.cu");
}

/// Threads of a block, at most; as in the program.
const THREADS: u32 = 256;

/// `Norm` of the program.
fn numbers(
    &(rows, count): &(NormRows, usize),
    dtype: DType,
    elements: &[Option<Address>],
    weights: &[Option<Address>],
) -> [i64; 5] {
    let NormRows { groups, channels, inner } = rows;
    let aligned = |operands: &[Option<Address>], dtype: DType| {
        operands.iter().flatten().all(|at| at.0.addr().is_multiple_of(PACK * dtype.size_bytes()))
    };
    let aligned = aligned(elements, dtype) && aligned(weights, dtype.compute_dtype());
    let packed = usize::from(rows.row().is_multiple_of(PACK) && aligned);
    [count, groups, channels, inner, packed].map(|number| number as i64)
}

/// Threads and units for the gradients of weights.
fn weight_threads(&(rows, count): &(NormRows, usize)) -> (RowThreads, Units) {
    let NormRows { groups, inner, .. } = rows;
    // Without inner elements, those of a weight lie across the rows.
    let along = if inner == 1 { rows.weights() as isize } else { 1 };
    let each = count.checked_div(groups).unwrap_or(0) * inner;
    RowThreads::folding(rows.weights(), each, along, inner as isize)
}

/// Units for the same where a weight has an element in each row, and they are whole packs of neighbours.
pub(super) fn columns(&(rows, count): &(NormRows, usize)) -> Option<Units> {
    let NormRows { groups, channels, inner } = rows;
    let beside = groups == 1 && inner == 1 && channels.is_multiple_of(PACK) && channels > 0 && count > 0;
    beside.then(|| Units::beside(channels, count))
}

/// Bytes of the workspace for the gradients of weights.
pub(crate) fn workspace(rows: &(NormRows, usize)) -> usize {
    let of = |cut: Units| cut.workspace(rows.0.weights());
    of(weight_threads(rows).1).max(columns(rows).map_or(0, of))
}

pub(crate) fn normalize(
    queue: &Queue<'_>,
    dtype: DType,
    rows: &(NormRows, usize),
    eps: f64,
    [out, x]: [Address; 2],
    affine: [Option<Address>; 2],
    (mean, rstd): (Option<Address>, Address),
) -> Result<()> {
    let (norm, len) = (numbers(rows, dtype, &[Some(out), Some(x)], &affine), rows.0.row());
    let threads = RowThreads::holding(rows.1, len, 1, len as isize, THREADS);
    let [weight, bias] = affine.map(Arg::from);
    let (eps, lanes) = (Arg::F64(eps), Arg::U32(threads.lanes));
    let args = [out.into(), x.into(), weight, bias, mean.into(), rstd.into(), norm.arg(), eps, lanes];
    let kernel = by_group!(threads.group, dtype, "normalize");
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe { queue.kernel(program_of(dtype), kernel, threads.grid(queue, THREADS), &args) }
}

/// [`normalize`] of a sum of two terms, of which each begins again behind so many rows. The sum goes where `sum` says.
pub(crate) fn normalize_added(
    queue: &Queue<'_>,
    dtype: DType,
    rows: &(NormRows, usize),
    eps: f64,
    (out, terms, sum): (Address, [(Address, usize); 2], Option<Address>),
    affine: [Option<Address>; 2],
    (mean, rstd): (Option<Address>, Address),
) -> Result<()> {
    let [(first, first_rows), (second, second_rows)] = terms;
    let (norm, len) =
        (numbers(rows, dtype, &[Some(out), Some(first), Some(second), sum], &affine), rows.0.row());
    let threads = RowThreads::holding(rows.1, len, 1, len as isize, THREADS);
    let [weight, bias] = affine.map(Arg::from);
    let [first_rows, second_rows] = [first_rows, second_rows].map(|rows| Arg::U64(rows as u64));
    let (eps, lanes) = (Arg::F64(eps), Arg::U32(threads.lanes));
    let (out, sum, first, second) = (Arg::from(out), Arg::from(sum), Arg::from(first), Arg::from(second));
    let (mean, rstd, norm) = (mean.into(), rstd.into(), norm.arg());
    let args = [out, sum, first, second, first_rows, second_rows, weight, bias, mean, rstd, norm, eps, lanes];
    let kernel = by_group!(threads.group, dtype, "normalize_added");
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands. A thread reads an element
    // before it writes one at the same address.
    unsafe { queue.kernel(added::program_of(dtype), kernel, threads.grid(queue, THREADS), &args) }
}

/// The gradients; that of the elements is added to `other`, if there is one, and may go there.
pub(crate) fn gradient(
    queue: &Queue<'_>,
    dtype: DType,
    all @ &(rows, count): &(NormRows, usize),
    ([g, x], weight): ([Address; 2], Option<Address>),
    (mean, rstd): (Option<Address>, Address),
    (dx, other, [dweight, dbias]): (Option<Address>, Option<Address>, [Option<Address>; 2]),
    workspace: Option<Address>,
) -> Result<()> {
    let norm = numbers(all, dtype, &[dx, other, Some(g), Some(x)], &[weight]);
    let aligned = [g, x].iter().all(|at| at.0.addr().is_multiple_of(PACK * dtype.size_bytes()));
    let (len, weights) = (rows.row(), rows.weights());
    let (program, rstd) = (program_of(dtype), Arg::from(rstd));
    let [g, x] = [g, x].map(Arg::from);
    let [weight, mean] = [weight, mean].map(Arg::from);
    if let Some(dx) = dx.filter(|_| count * len > 0) {
        let threads = RowThreads::holding(count, len, 1, len as isize, THREADS);
        let (grid, lanes) = (threads.grid(queue, THREADS), Arg::U32(threads.lanes));
        let args = [dx.into(), g, x, weight, mean, rstd, norm.arg(), lanes, other.into()];
        // SAFETY: the kernel takes these arguments, and the rows are those of the operands. A thread reads an element
        // before it writes one at the same address.
        unsafe {
            if other.is_some() {
                let kernel = by_group!(threads.group, dtype, "normalize_grad_added");
                queue.kernel(added::program_of(dtype), kernel, grid, &args)?;
            } else {
                let kernel = by_group!(threads.group, dtype, "normalize_grad");
                queue.kernel(program, kernel, grid, &args[..args.len() - 1])?;
            }
        }
    }
    if weights > 0 && (dweight.is_some() || dbias.is_some()) {
        let ((threads, mut cut), states) = (weight_threads(all), Arg::from(workspace));
        let [dweight, dbias] = [dweight, dbias].map(Arg::from);
        // SAFETY: the kernels take these arguments, the rows are those of the operands, and the workspace has room
        // for the states of all units.
        unsafe {
            if let Some(columns) = columns(all).filter(|_| aligned) {
                cut = columns;
                let [channels, count] = [rows.channels, count].map(|count| Arg::U64(count as u64));
                let args = [dweight, dbias, g, x, mean, rstd, channels, count, states, cut.arg()];
                let kernel = by_dtype!(dtype, "normalize_weights_columns");
                queue.kernel(program, kernel, cut.grid_beside(queue, rows.channels), &args)?;
            } else {
                let lanes = Arg::U32(threads.lanes);
                let args = [dweight, dbias, g, x, mean, rstd, norm.arg(), states, cut.arg(), lanes];
                let kernel = by_group!(threads.group, dtype, "normalize_weights");
                queue.kernel(program, kernel, threads.grid_of(queue, THREADS, cut), &args)?;
            }
            if cut.are_joined() {
                let (grid, lanes) = cut.join(queue, weights);
                let args = [dweight, dbias, states, Arg::U64(weights as u64), cut.arg(), Arg::U32(lanes)];
                queue.kernel(program, by_dtype!(dtype, "normalize_weights_join"), grid, &args)?;
            }
        }
    }
    Ok(())
}
