//! Which group of threads takes a row, see `rows.cuh`.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::Family;
use super::walk::{ByValue, blocks};

/// Lanes of a row's block, and threads of a warp.
pub(super) const LANES: usize = 32;
/// Elements that lie next to each other in a lane.
pub(super) const PACK: usize = 4;
/// Elements that are folded before blocks are joined.
pub(super) const BLOCK: usize = 512;
/// Packs of a block that are one lane's, and of a short row that are one thread's, at most.
const PACKS: usize = BLOCK / LANES / PACK;
/// Threads that keep a device busy.
const BUSY: usize = 1 << 16;
/// Blocks of a part.
const PART: usize = 32;
/// Columns of long rows that a block of threads takes.
const COLUMNS: usize = 32;
/// Packs of columns that a block of threads has at once where they lie side by side, and threads for one, or twice and half as many.
const BESIDE: u32 = 8;
const DOWN: u32 = LANES as u32;
/// Warps that hold a row together, at most, of F64 and of other elements.
const WIDE: [usize; 2] = [8, 28];
/// Blocks of threads that leave a device idle, and as many as there may be at once.
pub(super) const FEW: usize = 128;
pub(super) const SOME: usize = 512;
/// Blocks that leave no multiprocessor idle.
const MANY: u64 = 1024;
/// States of a row that are joined quickly.
const JOINED: usize = 1024;
/// Bytes of the state of a fold, at most.
const STATE: usize = 24;

/// Threads that fold a row together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowGroup {
    /// Up to a warp, for short rows along memory.
    Warp,
    /// A block with a warp for each 512 elements, which are kept in registers.
    Wide,
    /// A block, for longer ones, and where nothing is kept.
    Block,
    /// One row beside the other, for rows across memory.
    Column,
}

/// Rows that are worked on alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowThreads {
    pub(super) group: RowGroup,
    /// Threads along a row, a power of two.
    pub(super) lanes: u32,
    /// Warps of a block, at most, as the kernels are bounded.
    pub(super) warps: usize,
    rows: usize,
    len: usize,
}

impl RowGroup {
    /// The group's name in kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            RowGroup::Warp => "warp",
            RowGroup::Wide => "wide",
            RowGroup::Block => "block",
            RowGroup::Column => "column",
        }
    }
}

impl RowThreads {
    /// For `rows` rows of `len` elements that are `along` apart, the rows themselves `across`.
    pub(super) fn of(rows: usize, len: usize, along: isize, across: isize) -> RowThreads {
        let group = if rows > 1 && along != 1 && across < along {
            RowGroup::Column
        } else if len <= BLOCK {
            RowGroup::Warp
        } else {
            RowGroup::Block
        };
        let lanes = if group == RowGroup::Warp { short_lanes(rows, len) } else { lanes(len.div_ceil(PACK)) };
        RowThreads { group, lanes, warps: 8, rows, len }
    }

    /// As [`of`](Self::of), for kernels that go over a row several times.
    pub(super) fn holding(rows: usize, len: usize, along: isize, across: isize, dtype: DType) -> RowThreads {
        let threads = RowThreads::of(rows, len, along, across);
        let warps = WIDE[usize::from(dtype != DType::F64)];
        match threads.group {
            RowGroup::Block if len <= warps * BLOCK => RowThreads { group: RowGroup::Wide, warps, ..threads },
            RowGroup::Block => RowThreads { warps, ..threads },
            _ => threads,
        }
    }

    /// Blocks of threads for rows that are cut so. The result does not depend on them.
    pub(super) fn grid(&self, queue: &Queue<'_>, cut: Units) -> Grid {
        let (rows, units) = (self.rows as u64, u64::from(cut.units));
        match self.group {
            RowGroup::Warp => {
                // Few threads are spread over all multiprocessors.
                let threads =
                    if self.rows * self.lanes as usize * cut.units as usize > BUSY / 2 { 256 } else { 64 };
                blocks(queue, rows.div_ceil(u64::from(threads / self.lanes)) * units, threads)
            }
            RowGroup::Wide => blocks(queue, rows, (self.len.div_ceil(BLOCK) * LANES) as u32),
            RowGroup::Block => {
                // A power of two, as the blocks of a part are. If there are many, several blocks share a multiprocessor's registers.
                let most = self.warps.min(8 << usize::from(rows.saturating_mul(units) < SOME as u64));
                blocks(queue, rows * units, (self.len.div_ceil(BLOCK).min(most) * LANES) as u32)
            }
            RowGroup::Column => {
                let down = self.lanes.min(LANES as u32 / 2);
                let width = ((self.warps * LANES) as u32 / down)
                    .min(rows.next_power_of_two().min(LANES as u64) as u32);
                let mut grid = blocks(queue, rows.div_ceil(u64::from(width)) * units, width * down);
                grid.threads = [width, down, 1];
                grid
            }
        }
    }

    /// As [`of`](Self::of), for folds, with how rows are cut so that they fill a device, even if there are few.
    pub(super) fn folding(rows: usize, len: usize, along: isize, across: isize) -> (RowThreads, Units) {
        let threads = RowThreads::of(rows, len, along, across);
        let blocks = len.div_ceil(BLOCK);
        let parts = blocks.div_ceil(PART);
        let (group, each) = match threads.group {
            RowGroup::Warp => return (threads, Units::WHOLE),
            RowGroup::Column => return (threads, Units::filling(rows, COLUMNS, len, FEW)),
            // A warp for each block, where a few threads would join what is left of many.
            _ if along == 1 && parts > 1 && rows.saturating_mul(parts) < SOME && blocks <= JOINED => {
                (RowGroup::Warp, 1)
            }
            group => (group, PART),
        };
        (RowThreads { group, warps: 16, ..threads }, Units::of(blocks, each))
    }
}

/// `Units` of the program: how many units a row is cut in, and the blocks of each.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    pub(super) units: u32,
    blocks: u32,
}

// SAFETY: two words of 32 bits, so `repr(C)` adds no padding.
unsafe impl ByValue for Units {}

impl Units {
    /// Rows that are not cut.
    pub(super) const WHOLE: Units = Units { units: 1, blocks: PART as u32 };

    /// Rows of so many blocks in units of `each`, which is 1 or those of a part.
    fn of(blocks: usize, each: usize) -> Units {
        Units { units: blocks.div_ceil(each).max(1) as u32, blocks: each as u32 }
    }

    /// For rows of which a block of threads has `width` at a time, where fewer blocks than `few` leave a device idle.
    fn filling(rows: usize, width: usize, len: usize, few: usize) -> Units {
        let blocks = len.div_ceil(BLOCK);
        let are_few = rows.div_ceil(width) * blocks.div_ceil(PART) < few;
        Units::of(blocks, if are_few { 1 } else { PART })
    }

    /// For `rows` rows of columns that lie side by side, of which a thread has a pack.
    pub(super) fn beside(columns: usize, rows: usize) -> Units {
        Units::filling(columns, BESIDE as usize * PACK, rows, SOME)
    }

    /// The grid of the kernel that folds such columns: with a thread for each lane or, where blocks are many, for two.
    pub(super) fn grid_beside(self, queue: &Queue<'_>, columns: usize) -> Grid {
        let across = |beside: u32| columns.div_ceil(beside as usize * PACK) as u64 * u64::from(self.units);
        let wide = if across(2 * BESIDE) < MANY { 1 } else { 2 };
        let mut grid = blocks(queue, across(wide * BESIDE), BESIDE * DOWN);
        grid.threads = [wide * BESIDE, DOWN / wide, 1];
        grid
    }

    /// Bytes of the workspace for the states of `rows` rows' units.
    pub(super) fn workspace(self, rows: usize) -> usize {
        if self.units > 1 { rows.saturating_mul(self.units as usize).saturating_mul(STATE) } else { 0 }
    }

    /// The grid of that kernel, and its lanes of a row.
    pub(super) fn join(self, queue: &Queue<'_>, rows: usize) -> (Grid, u32) {
        let lanes = lanes(self.units as usize);
        // A row of many single blocks has all threads of a block.
        let each = if self.blocks == 1 && self.units as usize > PART { 256 } else { lanes };
        (blocks(queue, (rows as u64).div_ceil(u64::from(256 / each)), 256), lanes)
    }
}

/// A reduction of rows by kernels of a program: `NAME_GROUP`, or `NAME_columns` for rows that lie side by side, and `NAME_join`
/// where rows are cut into units.
pub(super) struct RowReduction<'a> {
    pub(super) programs: &'static Family,
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) outputs: &'a [Arg<'a>],
    pub(super) inputs: &'a [Arg<'a>],
    /// The states of units.
    pub(super) states: Arg<'a>,
}

impl RowReduction<'_> {
    /// Enqueues the kernels, with `columns` on columns and rows of their counts, else as `threads` says on what `numbers` describe.
    ///
    /// # Safety
    /// The kernels take outputs, inputs and these numbers, which describe the operands, and there is room for all states.
    pub(super) unsafe fn enqueue(
        &self,
        queue: &Queue<'_>,
        columns: Option<(Units, [usize; 2])>,
        (threads, cut): (RowThreads, Units),
        numbers: Arg<'_>,
    ) -> Result<()> {
        let RowReduction { programs, name, dtype, rows, outputs, inputs, states } = *self;
        let cut = columns.map_or(cut, |(cut, _)| cut);
        let mut args: SmallVec<[Arg<'_>; 16]> = outputs.iter().chain(inputs).copied().collect();
        // SAFETY: the caller's promise.
        let kernel = |kind, grid, args: &[Arg<'_>]| unsafe {
            programs.kernel(queue, &[name, kind], dtype, grid, args)
        };
        if let Some((_, counts)) = columns {
            args.extend(counts.map(|count| Arg::U64(count as u64)));
            args.extend([states, cut.arg()]);
            kernel("columns", cut.grid_beside(queue, rows), &args)?;
        } else {
            args.extend([numbers, states, cut.arg(), Arg::U32(threads.lanes)]);
            kernel(threads.group.name(), threads.grid(queue, cut), &args)?;
        }
        if cut.units <= 1 {
            return Ok(());
        }
        let (grid, lanes) = cut.join(queue, rows);
        args.truncate(outputs.len());
        args.extend([states, Arg::U64(rows as u64), cut.arg(), Arg::U32(lanes)]);
        kernel("join", grid, &args)
    }
}

/// Threads for rows of `len` elements: a warp, or for short rows as many as have `PACKS` packs each, but more if there are few rows.
fn short_lanes(rows: usize, len: usize) -> u32 {
    let packs = len.div_ceil(PACK);
    let most = lanes(packs);
    if packs > LANES {
        return most;
    }
    // Elements that are read one by one are read by neighbours, if they are few.
    let short = if len.is_multiple_of(PACK) || packs > 8 { PACKS } else { PACKS / 2 };
    lanes(packs.div_ceil(short)).max(lanes(BUSY.div_ceil(rows.max(1)))).min(most)
}

/// The lanes for so many packs, or states, up to a warp.
pub(super) fn lanes(wanted: usize) -> u32 {
    wanted.next_power_of_two().clamp(1, LANES) as u32
}
