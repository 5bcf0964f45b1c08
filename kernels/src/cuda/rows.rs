//! Choice of thread group and grid for row reductions; see `rows.cuh`.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::Family;
use super::walk::ByValue;

/// Lanes of a block of a row; also threads of a warp.
pub(super) const LANES: usize = 32;
/// Neighbouring elements that a lane loads at once.
pub(super) const PACK: usize = 4;
/// Elements of a block.
pub(super) const BLOCK: usize = 512;
/// Packs of a block per lane; also the most packs of a short row per thread.
const PACKS: usize = BLOCK / LANES / PACK;
/// Threads that fill a device.
const BUSY: usize = 1 << 16;
/// Blocks in a part.
const PART: usize = 32;
/// Columns per thread block of a column reduction.
const COLUMNS: usize = 32;
/// Contiguous columns: packs of columns per thread block, and threads per pack (or twice the packs and half the threads).
const BESIDE: u32 = 8;
const DOWN: u32 = LANES as u32;
/// Most warps that keep a row in registers, for F64 and for other types.
const WIDE: [usize; 2] = [8, 28];
/// Thread blocks below which a device is mostly idle, and thread blocks that are resident at once.
pub(super) const FEW: usize = 128;
pub(super) const SOME: usize = 512;
/// Thread blocks that keep every multiprocessor busy.
const MANY: u64 = 1024;
/// States of a row that one thread block combines quickly.
const JOINED: usize = 1024;
/// Largest state of a reduction in bytes.
const STATE: usize = 24;

/// Thread groups of `rows.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowGroup {
    /// Up to a warp, for short contiguous rows.
    Warp,
    /// A thread block with one warp per 512 elements, which stay in registers.
    Wide,
    /// A thread block that loops over a long row.
    Block,
    /// Neighbouring threads on neighbouring rows, for strided rows.
    Column,
}

/// Thread group and sizes of a launch over rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowThreads {
    pub(super) group: RowGroup,
    /// Threads along a row, a power of two.
    pub(super) lanes: u32,
    /// Most warps of a thread block, as the kernels' launch bounds allow.
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
    /// For `rows` rows of `len` elements; `along` is the stride of elements, `across` that of rows.
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

    /// As [`of`](Self::of), for kernels that read a row several times and may keep it in registers.
    pub(super) fn holding(rows: usize, len: usize, along: isize, across: isize, dtype: DType) -> RowThreads {
        let threads = RowThreads::of(rows, len, along, across);
        let warps = WIDE[usize::from(dtype != DType::F64)];
        match threads.group {
            RowGroup::Block if len <= warps * BLOCK => RowThreads { group: RowGroup::Wide, warps, ..threads },
            RowGroup::Block => RowThreads { warps, ..threads },
            _ => threads,
        }
    }

    /// The grid for rows that are split so.
    pub(super) fn grid(&self, cut: Units) -> Grid {
        let (rows, units) = (self.rows as u64, u64::from(cut.units));
        match self.group {
            RowGroup::Warp => {
                // Small blocks spread few threads over all multiprocessors.
                let threads =
                    if self.rows * self.lanes as usize * cut.units as usize > BUSY / 2 { 256 } else { 64 };
                exactly(rows.div_ceil(u64::from(threads / self.lanes)) * units, threads)
            }
            RowGroup::Wide => exactly(rows, (self.len.div_ceil(BLOCK) * LANES) as u32),
            RowGroup::Block => {
                // A power of two that divides the blocks of a part. With many thread blocks, several share a multiprocessor's registers.
                let most = self.warps.min(8 << usize::from(rows.saturating_mul(units) < SOME as u64));
                exactly(rows * units, (self.len.div_ceil(BLOCK).min(most) * LANES) as u32)
            }
            RowGroup::Column => {
                let down = self.lanes.min(LANES as u32 / 2);
                let width = ((self.warps * LANES) as u32 / down)
                    .min(rows.next_power_of_two().min(LANES as u64) as u32);
                let mut grid = exactly(rows.div_ceil(u64::from(width)) * units, width * down);
                grid.threads = [width, down, 1];
                grid
            }
        }
    }

    /// As [`of`](Self::of), for reductions, with the split of rows that fills a device if there are few rows.
    pub(super) fn folding(rows: usize, len: usize, along: isize, across: isize) -> (RowThreads, Units) {
        let threads = RowThreads::of(rows, len, along, across);
        let blocks = len.div_ceil(BLOCK);
        let parts = blocks.div_ceil(PART);
        let (group, each) = match threads.group {
            RowGroup::Warp => return (threads, Units::WHOLE),
            RowGroup::Column => return (threads, Units::filling(rows, COLUMNS, len, FEW)),
            // One warp per block, where a unit per part would leave the device idle.
            _ if along == 1 && parts > 1 && rows.saturating_mul(parts) < SOME && blocks <= JOINED => {
                (RowGroup::Warp, 1)
            }
            group => (group, PART),
        };
        (RowThreads { group, warps: 16, ..threads }, Units::of(blocks, each))
    }
}

/// `Units` of the program: units per row, and blocks per unit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    pub(super) units: u32,
    blocks: u32,
}

// SAFETY: two words of 32 bits, so `repr(C)` adds no padding.
unsafe impl ByValue for Units {}

impl Units {
    /// Rows that are not split.
    pub(super) const WHOLE: Units = Units { units: 1, blocks: PART as u32 };

    /// Splits rows of `blocks` blocks into units of `each` blocks (1 or `PART`).
    fn of(blocks: usize, each: usize) -> Units {
        Units { units: blocks.div_ceil(each).max(1) as u32, blocks: each as u32 }
    }

    /// For `width` rows per thread block; fewer than `few` thread blocks leave a device idle.
    fn filling(rows: usize, width: usize, len: usize, few: usize) -> Units {
        let blocks = len.div_ceil(BLOCK);
        let are_few = rows.div_ceil(width) * blocks.div_ceil(PART) < few;
        Units::of(blocks, if are_few { 1 } else { PART })
    }

    /// For contiguous columns of `rows` elements, a pack of columns per thread.
    pub(super) fn beside(columns: usize, rows: usize) -> Units {
        Units::filling(columns, BESIDE as usize * PACK, rows, SOME)
    }

    /// The grid of the kernel that reduces such columns: one lane per thread or, with many blocks, two.
    pub(super) fn grid_beside(self, columns: usize) -> Grid {
        let across = |beside: u32| columns.div_ceil(beside as usize * PACK) as u64 * u64::from(self.units);
        let wide = if across(2 * BESIDE) < MANY { 1 } else { 2 };
        let mut grid = exactly(across(wide * BESIDE), BESIDE * DOWN);
        grid.threads = [wide * BESIDE, DOWN / wide, 1];
        grid
    }

    /// Bytes of the workspace for the states of `rows` rows' units.
    pub(super) fn workspace(self, rows: usize) -> usize {
        if self.units > 1 { rows.saturating_mul(self.units as usize).saturating_mul(STATE) } else { 0 }
    }

    /// The grid of the kernel that combines units, and its lanes per row.
    pub(super) fn join(self, rows: usize) -> (Grid, u32) {
        let lanes = lanes(self.units as usize);
        // Rows of many single-block units get a whole thread block.
        let each = if self.blocks == 1 && self.units as usize > PART { 256 } else { lanes };
        (exactly((rows as u64).div_ceil(u64::from(256 / each)), 256), lanes)
    }
}

/// A row reduction by the kernels `NAME_GROUP` (or `NAME_columns` for contiguous columns) and, if rows are split, `NAME_join`.
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
    /// Enqueues the kernels: on `columns` (their split, and the numbers of columns and rows) if given, else on the rows that `numbers` describes.
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
            kernel("columns", cut.grid_beside(rows), &args)?;
        } else {
            args.extend([numbers, states, cut.arg(), Arg::U32(threads.lanes)]);
            kernel(threads.group.name(), threads.grid(cut), &args)?;
        }
        if cut.units <= 1 {
            return Ok(());
        }
        let (grid, lanes) = cut.join(rows);
        args.truncate(outputs.len());
        args.extend([states, Arg::U64(rows as u64), cut.arg(), Arg::U32(lanes)]);
        kernel("join", grid, &args)
    }
}

/// A grid of as many thread blocks; the driver refuses 2^31 and more.
pub(super) fn exactly(blocks: u64, threads: u32) -> Grid {
    Grid::linear(u32::try_from(blocks.max(1)).unwrap_or(u32::MAX), threads)
}

/// Threads per row of `len` elements: a warp, or fewer for short rows, with `PACKS` packs per thread; more if there are few rows.
fn short_lanes(rows: usize, len: usize) -> u32 {
    let packs = len.div_ceil(PACK);
    let most = lanes(packs);
    if packs > LANES {
        return most;
    }
    // Few elements that are loaded one by one are spread over more threads.
    let short = if len.is_multiple_of(PACK) || packs > 8 { PACKS } else { PACKS / 2 };
    lanes(packs.div_ceil(short)).max(lanes(BUSY.div_ceil(rows.max(1)))).min(most)
}

/// Lanes for `wanted` packs or states: the next power of two, at most a warp.
pub(super) fn lanes(wanted: usize) -> u32 {
    wanted.next_power_of_two().clamp(1, LANES) as u32
}
