//! Total norm of many tensors, scaling, and the check for infinities and NaN.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};

use super::rows::{BLOCK, LANES};
use super::table::Table;
use super::tensors::Tensor;
use super::walk::{ByValue, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::norms::PART;

pub(super) static PROGRAMS: Family =
    family!("clip", FLOATS, "rows.cuh", "table.cuh", "tensors.cuh", "clip.cu");

/// Threads of a block; as in the program.
const THREADS: u32 = 256;

/// Threads for the sum of squares of a part: one warp per block of its elements.
const SQUARES: u32 = (PART / BLOCK * LANES) as u32;

/// Tensors with their numbers of elements, split into parts.
fn tensors<'a, const N: usize>(
    sizes: &'a [usize],
    operands: impl Iterator<Item = [Address; N]> + 'a,
) -> impl Iterator<Item = (Tensor<N>, usize)> + 'a {
    operands.zip(sizes).map(|(operands, &elements)| Tensor::with_parts(operands, elements))
}

pub(crate) fn total_norm(
    queue: &Queue<'_>,
    dtype: DType,
    sizes: &[usize],
    x: &[Address],
    max_norm: f64,
    [parts, norm, scale]: [Address; 3],
) -> Result<()> {
    let mut first = 0;
    Table::each(tensors(sizes, x.iter().map(|&x| [x])), |table| {
        let grid = blocks(queue, u64::from(table.parts), SQUARES);
        let own = parts.offset(first, dtype.compute_dtype().size_bytes());
        first += table.parts as isize;
        // SAFETY: the kernel takes these arguments, and there is a sum for each part of the tensors.
        unsafe { PROGRAMS.kernel(queue, &["squares"], dtype, grid, &[table.arg(), own.into()]) }
    })?;
    let args = [parts.into(), Arg::U64(first as u64), Arg::F64(max_norm), norm.into(), scale.into()];
    // SAFETY: the kernel takes these arguments: `parts` has `first` sums, norm and scale have one element.
    unsafe { PROGRAMS.kernel(queue, &["norm_of"], dtype, Grid::linear(1, THREADS), &args) }
}

pub(crate) fn scale_all(
    queue: &Queue<'_>,
    dtype: DType,
    sizes: &[usize],
    pairs: &[(Address, Address)],
    scale: Address,
) -> Result<()> {
    Table::each(tensors(sizes, pairs.iter().map(|&(out, x)| [out, x])), |table| {
        let grid = blocks(queue, u64::from(table.parts), THREADS);
        // SAFETY: the kernel takes these arguments, and the table names the operands' elements.
        unsafe { PROGRAMS.kernel(queue, &["scale_all"], dtype, grid, &[table.arg(), scale.into()]) }
    })
}

pub(crate) fn unscale_all(
    queue: &Queue<'_>,
    dtype: DType,
    sizes: &[usize],
    pairs: &[(Address, Address)],
    scale: Address,
    [parts, found]: [Address; 2],
) -> Result<()> {
    let mut first = 0;
    Table::each(tensors(sizes, pairs.iter().map(|&(out, x)| [out, x])), |table| {
        let grid = blocks(queue, u64::from(table.parts), THREADS);
        let own = parts.offset(first, dtype.compute_dtype().size_bytes());
        first += table.parts as isize;
        let args = [table.arg(), scale.into(), own.into()];
        // SAFETY: the kernel takes these arguments, and there is a number for each part of the tensors.
        unsafe { PROGRAMS.kernel(queue, &["unscale_all"], dtype, grid, &args) }
    })?;
    let args = [parts.into(), Arg::U64(first as u64), found.into()];
    // SAFETY: the kernel takes these arguments: `parts` has `first` numbers, and found has one element.
    unsafe { PROGRAMS.kernel(queue, &["any_of"], dtype, Grid::linear(1, THREADS), &args) }
}
