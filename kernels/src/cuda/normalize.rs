//! Normalization of rows, and its gradients.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::float_programs;
use super::rows::{RowThreads, by_group};
use super::walk::ByValue;
use crate::command::Address;
use crate::norms::NormRows;

float_programs!("normalize", "rows.cuh", "normalize.cu");

/// Threads of a block, at most; as in the program.
const THREADS: u32 = 256;

/// `Norm` of the program.
fn numbers(&(rows, count): &(NormRows, usize)) -> [i64; 4] {
    let NormRows { groups, channels, inner } = rows;
    [count, groups, channels, inner].map(|number| number as i64)
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
    let (norm, len) = (numbers(rows), rows.0.row());
    let threads = RowThreads::of(rows.1, len, 1, len as isize);
    let [weight, bias] = affine.map(Arg::from);
    let (eps, lanes) = (Arg::F64(eps), Arg::U32(threads.lanes));
    let args = [out.into(), x.into(), weight, bias, mean.into(), rstd.into(), norm.arg(), eps, lanes];
    let kernel = by_group!(threads.group, dtype, "normalize");
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe { queue.kernel(program_of(dtype), kernel, threads.grid(queue, THREADS), &args) }
}

pub(crate) fn gradient(
    queue: &Queue<'_>,
    dtype: DType,
    all @ &(rows, count): &(NormRows, usize),
    ([g, x], weight): ([Address; 2], Option<Address>),
    (mean, rstd): (Option<Address>, Address),
    [dx, dweight, dbias]: [Option<Address>; 3],
) -> Result<()> {
    let NormRows { groups, inner, .. } = rows;
    let (norm, len, weights) = (numbers(all), rows.row(), rows.weights());
    let (program, rstd) = (program_of(dtype), Arg::from(rstd));
    let [g, x] = [g, x].map(Arg::from);
    let [weight, mean] = [weight, mean].map(Arg::from);
    if let Some(dx) = dx.filter(|_| count * len > 0) {
        let threads = RowThreads::of(count, len, 1, len as isize);
        let args = [dx.into(), g, x, weight, mean, rstd, norm.arg(), Arg::U32(threads.lanes)];
        let kernel = by_group!(threads.group, dtype, "normalize_grad");
        // SAFETY: as in `normalize`.
        unsafe { queue.kernel(program, kernel, threads.grid(queue, THREADS), &args)? };
    }
    if weights > 0 && (dweight.is_some() || dbias.is_some()) {
        // Without inner elements, those of a weight lie across the rows.
        let along = if inner == 1 { weights as isize } else { 1 };
        let each = count.checked_div(groups).unwrap_or(0) * inner;
        let threads = RowThreads::of(weights, each, along, inner as isize);
        let args = [dweight.into(), dbias.into(), g, x, mean, rstd, norm.arg(), Arg::U32(threads.lanes)];
        let kernel = by_group!(threads.group, dtype, "normalize_weights");
        // SAFETY: as in `normalize`.
        unsafe { queue.kernel(program, kernel, threads.grid(queue, THREADS), &args)? };
    }
    Ok(())
}
