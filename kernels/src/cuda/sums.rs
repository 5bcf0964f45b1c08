//! Which block has which sums of a matrix in memory, see `sums.cuh`.

use device::DType;
use device::cuda::{Grid, Queue};

use super::walk::{MAX_Y, THREADS};

/// Sums of 16-bit elements that a thread holds; as in the program.
pub(super) const HELD: usize = 32;
/// Blocks for each multiprocessor that are wanted: each goes through all that is added, so there are no more than keep the
/// device busy.
const BLOCKS: usize = 8;

/// What a block owns of a matrix of sums.
pub(super) struct Owned {
    /// Rows, each the same number but for the last block along x.
    pub(super) rows: usize,
    /// Columns at a time, a power of two. The block's threads share out its rows if they are more than the columns.
    pub(super) width: usize,
    pub(super) grid: Grid,
}

impl Owned {
    /// Shares out `[rows, columns]` sums, neither of which is 0.
    pub(super) fn of(queue: &Queue<'_>, dtype: DType, [rows, columns]: [usize; 2]) -> Owned {
        let width = columns.next_power_of_two().min(THREADS as usize);
        let across = columns.div_ceil(width).min(MAX_Y);
        let wanted = (queue.multiprocessors() as usize * BLOCKS).div_ceil(across);
        let shared = THREADS as usize / width;
        let most = if dtype.is_half() { HELD * shared } else { 1 << 31 };
        let each = rows.div_ceil(wanted).max(shared).min(most);
        let down = rows.div_ceil(each).max(1);
        let grid = Grid { blocks: [down as u32, across as u32, 1], ..Grid::linear(1, THREADS) };
        Owned { rows: each, width, grid }
    }
}
