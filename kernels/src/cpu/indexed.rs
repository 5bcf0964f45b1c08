//! Indexed sums: entries are added one after the other to the rows that they name, in runs of [`RUN`].

use super::number::Number;
use crate::indexed::RUN;

/// What rows with more entries than a run need beside themselves: the sums of their newest runs.
pub(super) struct Runs<T> {
    /// Elements of a row.
    width: usize,
    /// For each row, the entries of its first run so far, or `RUN` and those of its newest one. Empty if a run holds all entries.
    counts: Vec<u8>,
    /// For each row, where its own sums begin, if it has any.
    starts: Vec<usize>,
    /// The rows that have some, in the order of their sums.
    rows: Vec<usize>,
    sums: Vec<T>,
}

impl<T: Number> Runs<T> {
    /// For `rows` rows of `width` elements, to which at most `entries` are added each.
    pub(super) fn new(rows: usize, width: usize, entries: usize) -> Runs<T> {
        let counts = if entries > RUN { vec![0; rows] } else { Vec::new() };
        Runs { width, counts, starts: Vec::new(), rows: Vec::new(), sums: Vec::new() }
    }

    /// Where the next entry of a row is added, if not to the row itself. `add` adds the run before to the row.
    #[inline(always)]
    pub(super) fn next(&mut self, row: usize, add: impl FnOnce(&[T])) -> Option<&mut [T]> {
        const { assert!(2 * RUN <= 1 << u8::BITS) };
        let count = self.counts.get_mut(row)?;
        let before = usize::from(*count);
        *count = if before + 1 == 2 * RUN { RUN as u8 } else { *count + 1 };
        if before < RUN {
            return None;
        }
        let start = if before == RUN { self.begin(row, add) } else { self.starts[row] };
        Some(&mut self.sums[start..][..self.width])
    }

    /// Begins a run.
    fn begin(&mut self, row: usize, add: impl FnOnce(&[T])) -> usize {
        const NONE: usize = usize::MAX;
        self.starts.resize(self.counts.len(), NONE);
        let end = self.sums.len();
        // -0 adds nothing, not even to -0.
        if self.starts[row] == NONE {
            self.starts[row] = end;
            self.rows.push(row);
            self.sums.resize(end + self.width, T::ZERO.neg());
        } else {
            let run = &mut self.sums[self.starts[row]..][..self.width];
            add(run);
            run.fill(T::ZERO.neg());
        }
        self.starts[row]
    }

    /// The newest runs, which are to be added to these rows.
    pub(super) fn rest(&self) -> impl Iterator<Item = (usize, &[T])> {
        self.rows.iter().copied().zip(self.sums.chunks_exact(self.width.max(1)))
    }
}
