//! Which group of threads takes a row, see `rows.cuh`.

use device::cuda::{Grid, Queue};

use super::walk::blocks;

/// Lanes of a row's block, and threads of a warp.
const LANES: usize = 32;
/// Elements that are folded before blocks are joined.
const BLOCK: usize = 512;

/// Threads that fold a row together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowGroup {
    /// Up to a warp, for short rows along memory.
    Warp,
    /// A block, for long ones.
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
    rows: usize,
    len: usize,
}

/// The kernel of an op for a group and an element type.
macro_rules! by_group {
    ($group:expr, $dtype:expr, $op:literal) => {
        match $group {
            $crate::cuda::rows::RowGroup::Warp => $crate::cuda::by_dtype!($dtype, concat!($op, "_warp")),
            $crate::cuda::rows::RowGroup::Block => $crate::cuda::by_dtype!($dtype, concat!($op, "_block")),
            $crate::cuda::rows::RowGroup::Column => $crate::cuda::by_dtype!($dtype, concat!($op, "_column")),
        }
    };
}
pub(super) use by_group;

impl RowThreads {
    /// For `rows` rows of `len` elements that are `along` apart, the rows themselves `across`.
    pub(super) fn of(rows: usize, len: usize, along: isize, across: isize) -> RowThreads {
        let lanes = len.next_power_of_two().clamp(1, LANES) as u32;
        let group = if rows > 1 && along != 1 && across < along {
            RowGroup::Column
        } else if len <= BLOCK {
            RowGroup::Warp
        } else {
            RowGroup::Block
        };
        RowThreads { group, lanes, rows, len }
    }

    /// Blocks of at most `most` threads, 256 or more. The result does not depend on it.
    pub(super) fn grid(&self, queue: &Queue<'_>, most: u32) -> Grid {
        let rows = self.rows as u64;
        match self.group {
            RowGroup::Warp => {
                let threads = 256;
                blocks(queue, rows.div_ceil(u64::from(threads / self.lanes)), threads)
            }
            RowGroup::Block => {
                let warps = self.len.div_ceil(BLOCK).next_power_of_two().min(LANES) as u32;
                let threads = (warps * LANES as u32).min(most);
                blocks(queue, rows, threads)
            }
            RowGroup::Column => {
                // Eight columns of four bytes fill what memory gives at once; more of them if there are many.
                let many = rows >= u64::from(queue.multiprocessors()) * LANES as u64;
                let threads = if many { most } else { 256 };
                let width = threads / self.lanes;
                let mut grid = blocks(queue, rows.div_ceil(u64::from(width)), threads);
                grid.threads = [width, self.lanes, 1];
                grid
            }
        }
    }
}
