//! Gradients of the weights of several norms in one launch, see `many_norms.cu`.

use device::cuda::Queue;
use device::{DType, Result};

use super::normalize::columns;
use super::rows::{BESIDE, DOWN, PACK};
use super::table::Table;
use super::walk::{ByValue, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::norms::NormRows;

static PROGRAMS: Family = family!(
    "many_norms",
    FLOATS,
    "rows.cuh",
    "columns.cuh",
    "norm_columns.cuh",
    "table.cuh",
    "many_norms.cu"
);

/// `Operand` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operand {
    /// The gradients of weight and bias, that of the result, the elements, mean and rstd.
    operands: [u64; 6],
    channels: u32,
    rows: u32,
}

// SAFETY: six words of 64 bits and two of 32, so `repr(C)` adds no padding.
unsafe impl ByValue for Operand {}

/// Whether a launch can make the gradients of these rows' weights: from packs of weights side by side, in rows that are not cut.
pub(crate) fn fits(dtype: DType, rows: &(NormRows, usize), [g, x]: [Address; 2]) -> bool {
    let are_packs = [g, x].iter().all(|at| at.0.addr().is_multiple_of(PACK * dtype.size_bytes()));
    let is_whole = columns(rows).is_some_and(|cut| !cut.are_joined());
    are_packs && is_whole && rows.0.channels <= i32::MAX as usize
}

/// The gradients of norms that [fit](fits), of which each has its rows and operands, as the program has them.
pub(crate) fn gradients<'a>(
    queue: &Queue<'_>,
    dtype: DType,
    norms: impl Iterator<Item = (&'a (NormRows, usize), [Option<Address>; 6])>,
) -> Result<()> {
    let operand = |(&(NormRows { channels, .. }, rows), operands): (&_, [Option<Address>; 6])| {
        let operands = operands.map(|at| at.map_or(0, |at| at.0.addr() as u64));
        let parts = channels.div_ceil(PACK * BESIDE as usize);
        (Operand { operands, channels: channels as u32, rows: rows as u32 }, parts)
    };
    Table::each(norms.map(operand), |table| {
        let mut grid = blocks(queue, table.parts.into(), BESIDE * DOWN);
        grid.threads = [BESIDE, DOWN, 1];
        // SAFETY: the kernel takes this argument; the rows are those of the operands, whose memory moves
        // to multiples of 256 bytes, and so of packs, only.
        unsafe { PROGRAMS.kernel(queue, &["many_norms"], dtype, grid, &[table.arg()]) }
    })
}
