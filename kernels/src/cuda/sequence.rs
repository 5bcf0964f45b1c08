//! Cumulative sums and rotations.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::walk::{ByValue, THREADS, WARP, Walk, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::loops::{Loops, Rows, ScanOrder};

pub(super) static PROGRAMS: Family = family!("sequence", SIGNED, "rows.cuh", "sequence.cu");

const _: () = assert!(ScanOrder::TILE_RUNS == WARP as usize, "a warp takes a tile at a time");

pub(crate) fn cumsum(
    queue: &Queue<'_>,
    dtype: DType,
    &Rows { ref kept, len, steps: [out_step, x_step] }: &Rows<2>,
    reverse: bool,
    [out, x]: [Address; 2],
) -> Result<()> {
    let walk = Walk::of(queue.op(), kept)?;
    // `Scan` of the program.
    let scan = [len as i64, out_step as i64, x_step as i64, i64::from(reverse), ScanOrder::RUN as i64];
    let args = [out.into(), x.into(), walk.arg(), scan.arg()];
    let grid = blocks(queue, kept.elements.div_ceil((THREADS / WARP) as usize) as u64, THREADS);
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe { PROGRAMS.kernel(queue, &["cumsum"], dtype, grid, &args) }
}

pub(crate) fn rotary(
    queue: &Queue<'_>,
    dtype: DType,
    pairs: &Loops<4>,
    (apart, inverse): ([isize; 2], bool),
    [out, x, cos, sin]: [Address; 4],
) -> Result<()> {
    let walk = Walk::of(queue.op(), pairs)?;
    let [out_apart, x_apart] = apart.map(|apart| Arg::I64(apart as i64));
    let inverse = Arg::U32(u32::from(inverse));
    let args = [out.into(), x.into(), cos.into(), sin.into(), walk.arg(), out_apart, x_apart, inverse];
    // SAFETY: the kernel takes these arguments, and the pairs are those of the operands.
    unsafe { PROGRAMS.kernel(queue, &["rotary"], dtype, walk.grid(queue, 1), &args) }
}
