//! Indexed sums with rows of more entries than a run has: see [`RUN`].

use super::number::Number;
use super::{inlined, simd_of};
use crate::indexed::RUN;
use crate::loops::Loops;
use crate::par::{Workers, for_range};

/// Columns of a row that are summed together.
const WIDTH: usize = 64;
/// About how many additions a part of a split kernel has.
const CHUNK: usize = 1 << 14;

/// Entries by the row that they name, in ascending order.
pub(super) struct ByRow {
    starts: Vec<u32>,
    order: Vec<u32>,
}

impl ByRow {
    /// Sorts entries by row. `None` if no row has more entries than a run, or if there are 2^32 entries: the caller then adds them
    /// one by one.
    ///
    /// `each` calls its argument with each of `count` entries, those of a row in ascending order, and the row.
    pub(super) fn of(
        count: usize,
        rows: usize,
        each: impl Fn(&mut dyn FnMut(usize, usize)),
    ) -> Option<ByRow> {
        if count <= RUN || u32::try_from(count).is_err() {
            return None;
        }
        let mut starts = vec![0_u32; rows + 1];
        each(&mut |_, row| starts[row + 1] += 1);
        if starts.iter().all(|&entries| entries as usize <= RUN) {
            return None;
        }
        (0..rows).for_each(|row| starts[row + 1] += starts[row]);
        let (mut next, mut order) = (starts.clone(), vec![0; starts[rows] as usize]);
        each(&mut |entry, row| {
            order[next[row] as usize] = entry as u32;
            next[row] += 1;
        });
        Some(ByRow { starts, order })
    }

    /// The same of one line of entries, of which `row` tells the row.
    pub(super) fn of_line(count: usize, rows: usize, row: impl Fn(usize) -> Option<isize>) -> Option<ByRow> {
        ByRow::of(count, rows, |body| {
            (0..count).for_each(|entry| row(entry).into_iter().for_each(|row| body(entry, row as usize)));
        })
    }

    fn entries(&self, row: usize) -> &[u32] {
        &self.order[self.starts[row] as usize..self.starts[row + 1] as usize]
    }

    /// Adds entries to the rows that they name: `columns` has the steps of an entry and of a row, `row` where one begins, and `entry` where
    /// one begins and its factor, unless it is left out; `add` makes the next sum of one, an element and its factor.
    ///
    /// # Safety
    /// All columns can be read of each entry, and read and written of each row. Rows share no elements.
    pub(super) unsafe fn add<T: Number>(
        &self,
        workers: &Workers,
        columns: &Loops<2>,
        row: &(impl Fn(usize) -> *mut T + Sync),
        entry: &(impl Fn(usize) -> Option<(*const T, T)> + Sync),
        add: &(impl Fn(T, T, T) -> T + Sync),
    ) {
        let (rows, chunks) = (self.starts.len() - 1, columns.elements.div_ceil(WIDTH));
        let each = (self.order.len() / rows.max(1) + 1) * WIDTH;
        for_range(workers, rows * chunks, (CHUNK / each).max(1), &|items| {
            for item in items {
                let (at, chunk) = (item / chunks, item % chunks);
                let entries = self.entries(at);
                if entries.is_empty() {
                    continue;
                }
                let mut runs = columns.runs(chunk * WIDTH..columns.elements.min((chunk + 1) * WIDTH));
                let [from_step, to_step] = runs.steps();
                while let Some(([from_at, to_at], len)) = runs.next() {
                    let to = row(at).wrapping_offset(to_at);
                    let added = |sums: &mut [T; WIDTH], entries: &[u32]| {
                        for (from, factor) in entries.iter().filter_map(|&at| entry(at as usize)) {
                            let from = from.wrapping_offset(from_at);
                            for (column, sum) in sums[..len].iter_mut().enumerate() {
                                // SAFETY: the caller promises that the columns of an entry can be read.
                                let element = unsafe { *from.offset(column as isize * from_step) };
                                *sum = add(*sum, element, factor);
                            }
                        }
                    };
                    simd_of::<false, _>(inlined!(|| {
                        let mut sums = [T::ZERO; WIDTH];
                        for (column, sum) in sums[..len].iter_mut().enumerate() {
                            // SAFETY: the caller promises that the columns of a row can be read.
                            *sum = unsafe { *to.offset(column as isize * to_step) };
                        }
                        in_runs(&mut sums, entries, added);
                        for (column, sum) in sums[..len].iter().enumerate() {
                            // SAFETY: the caller promises that the columns of a row can be written, and each is this part's.
                            unsafe { *to.offset(column as isize * to_step) = *sum };
                        }
                    }));
                }
            }
        });
    }
}

/// Adds entries to sums: those of the first run one by one, others by run.
#[inline(always)]
fn in_runs<T: Number>(sums: &mut [T; WIDTH], entries: &[u32], added: impl Fn(&mut [T; WIDTH], &[u32])) {
    let mut runs = entries.chunks(RUN);
    added(sums, runs.next().unwrap_or_default());
    for run in runs {
        // -0 adds nothing, not even to -0.
        let mut own = [T::ZERO.neg(); WIDTH];
        added(&mut own, run);
        sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.add(own));
    }
}
