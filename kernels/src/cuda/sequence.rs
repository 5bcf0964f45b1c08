//! cumsum and rotary embedding.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::rows::SOME;
use super::walk::{ByValue, THREADS, WARP, Walk, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::loops::{Loops, Rows, ScanOrder};

pub(super) static PROGRAMS: Family = family!("sequence", SIGNED, "rows.cuh", "sequence.cu");

const _: () = assert!(ScanOrder::RUN == 16 && ScanOrder::TILE_RUNS == WARP as usize, "as in the program");

/// Most tiles of a group and most warps per group, as in the program. Long rows have several groups.
const GROUP: usize = 64;
const WARPS: usize = 16;
/// Number of rows from which on each row has one warp.
const MANY: usize = 2048;

/// Tiles per group and groups per row, for `rows` rows of `len` elements. Results do not depend on them.
fn groups(rows: usize, len: usize) -> [usize; 2] {
    let tiles = len.div_ceil(ScanOrder::RUN * ScanOrder::TILE_RUNS);
    let fills = |each: &usize| rows.saturating_mul(tiles.div_ceil(*each)) <= SOME;
    let each = if tiles > GROUP { [8, 16, 32].into_iter().find(fills).unwrap_or(GROUP) } else { GROUP };
    [each, tiles.div_ceil(each).max(1)]
}

/// Bytes of the workspace for rows of `len` elements.
pub(crate) fn workspace(rows: usize, len: usize) -> usize {
    let [_, groups] = groups(rows, len);
    if groups > 1 { rows.saturating_mul(groups).saturating_mul(size_of::<u64>()) } else { 0 }
}

pub(crate) fn cumsum(
    queue: &Queue<'_>,
    dtype: DType,
    &Rows { ref kept, len, steps: [out_step, x_step] }: &Rows<2>,
    reverse: bool,
    [out, x]: [Address; 2],
    workspace: Option<Address>,
) -> Result<()> {
    let (walk, [each, groups], rows) =
        (Walk::of(queue.op(), kept)?, groups(kept.elements, len), kept.elements);
    let tiles = len.div_ceil(ScanOrder::RUN * ScanOrder::TILE_RUNS).min(each);
    let warps = if rows >= MANY { 1 } else { tiles.next_power_of_two().min(WARPS) };
    let [out_step, x_step] = [out_step, x_step].map(|step| step as i64);
    let [counted, each, shared] = [groups, each, warps].map(|n| n as i64);
    // `Scan` of the program.
    let scan = [len as i64, out_step, x_step, i64::from(reverse), counted, each, shared];
    let threads = THREADS.max(warps as u32 * WARP);
    let grid = blocks(queue, ((rows * groups * warps) as u64).div_ceil(u64::from(threads / WARP)), threads);
    let scan_rows = |only_sums: bool| {
        let [out, x, sums] = [Arg::from(out), x.into(), workspace.into()];
        let args = [out, x, sums, Arg::U32(u32::from(only_sums)), walk.arg(), scan.arg()];
        // SAFETY: the kernel takes these arguments, the rows are those of the operands, and the workspace has room for a sum of each
        // group.
        unsafe { PROGRAMS.kernel(queue, &["cumsum"], dtype, grid, &args) }
    };
    if groups > 1 {
        scan_rows(true)?;
        let args = [workspace.into(), Arg::U64(rows as u64), Arg::U64(groups as u64)];
        let grid = blocks(queue, rows as u64, THREADS);
        // SAFETY: the kernel takes these arguments, and the workspace has a sum of each group.
        unsafe { PROGRAMS.kernel(queue, &["cumsum", "groups"], dtype, grid, &args)? };
    }
    scan_rows(false)
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
