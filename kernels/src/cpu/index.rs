//! Reading and adding at indices. Every index is checked before it is followed.

use std::ops::Range;

use device::{Error, ErrorKind, failure};
use smallvec::SmallVec;

use super::indexed::Runs;
use super::lanes::update;
use super::number::Number;
use super::walk::{map, map_run};
use super::{inlined, simd_of};
use crate::indexed::{Entries, Gather};
use crate::layout::{Dst, Src};
use crate::loops::{Loops, Places};
use crate::par::{Workers, for_range, threads};

/// The index as a number of rows. One that is not in `0..size` is reported as the command's failure.
#[inline(always)]
pub(super) fn checked(op: &'static str, index: i64, size: usize) -> Option<isize> {
    if (index as u64) < size as u64 { Some(index as isize) } else { out_of_range(op, index, size) }
}

#[cold]
#[inline(never)]
fn out_of_range(op: &'static str, index: i64, size: usize) -> Option<isize> {
    failure::report(Error::new(ErrorKind::IndexOutOfRange { op, operand: "index", index, size }));
    None
}

/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 14;
/// Rows whose sums fit into the cache.
const CACHED: usize = 1 << 15;

/// `part[p] = whole[p, index[p] along the axis]`.
pub(crate) unsafe fn gather<T: Copy>(
    gather: &Gather,
    workers: &Workers,
    (part, whole, index): (Dst<T>, Src<T>, Src<i64>),
) {
    for_range(workers, gather.loops.elements, CHUNK, &|range| {
        // Copies, which need not be read again after each write.
        let Gather { op, ref loops, step, size } = *gather;
        let (part, whole, index) = (part, whole, index);
        let mut runs = loops.runs(range);
        let [to_step, from_step, index_step] = runs.steps();
        while let Some(([to, from, at], len)) = runs.next() {
            // SAFETY: `loops` reaches only elements of the part, of the whole at its first place, and indices, and `checked` returns a
            // place of the whole.
            unsafe {
                if index_step != 0 {
                    for k in 0..len as isize {
                        let Some(row) = checked(op, *index.at(at + k * index_step), size) else { continue };
                        *part.at(to + k * to_step) = *whole.at(from + k * from_step + row * step);
                    }
                } else if let Some(row) = checked(op, *index.at(at), size) {
                    let (to, from) = (part.at(to), whole.at(from + row * step));
                    if [to_step, from_step] == [1, 1] {
                        std::ptr::copy_nonoverlapping(from, to, len);
                    } else {
                        map_run(len, (to, to_step), [(from, from_step)], |[x]| x);
                    }
                }
            }
        }
    });
}

/// `to[c] = f(to[c], from[c])` for some columns of `[part, whole]`. An operand lies there as that one of them does, or without gaps.
///
/// # Safety
/// The elements can be read and written.
#[inline(always)]
unsafe fn add_columns<T: Number>(
    columns: &Loops<2>,
    range: Range<usize>,
    (to, to_lies): (*mut T, Option<usize>),
    (from, from_lies): (*const T, Option<usize>),
    f: impl Fn(T, T) -> T,
) {
    // SAFETY: the caller promises all elements.
    unsafe {
        if columns.elements == 1 {
            *to = f(*to, *from);
            return;
        }
        let (steps, mut done) = (columns.inner().strides, 0);
        let mut run = inlined!(|offsets: [isize; 2], len: usize| {
            let lie = |of: Option<usize>| of.map_or((done, 1), |k| (offsets[k], steps[k]));
            let ((to_at, to_step), (from_at, from_step)) = (lie(to_lies), lie(from_lies));
            update((to.offset(to_at), to_step), (from.offset(from_at), from_step), len, &f);
            done += len as isize;
        });
        match columns.axes[..] {
            [_] => run(steps.map(|step| range.start as isize * step), range.len()),
            _ => columns.for_runs(range, run),
        }
    }
}

/// Begins sums with the elements of a base, or with zeros.
///
/// # Safety
/// As for [`map`].
pub(crate) unsafe fn begin<T: Number>(
    places: &Places<2>,
    workers: &Workers,
    out: Dst<T>,
    base: Option<Src<T>>,
) {
    let zero = T::ZERO;
    let base = base.unwrap_or(Src(&raw const zero));
    // SAFETY: the contract is the same; without a base all places are those of the zero.
    unsafe { map::<false, T, T, _, _>(places, workers, out, [base], |[x]| x) };
}

/// Adds elements of `part` to the rows of `whole` that their indices name, in the order of [`Runs`].
pub(crate) unsafe fn add<T: Number>(
    op: &'static str,
    entries: &Entries,
    workers: &Workers,
    (whole, part, index): (Dst<T>, Src<T>, Src<i64>),
) {
    let step = entries.steps[0];
    let entry =
        inlined!(move |first: isize, at: usize| { Some((part.at(first + at as isize * step), T::ONE)) });
    // SAFETY: the part has all entries of each line.
    unsafe { add_entries(op, entries, workers, (whole, index), entry) };
}

/// Adds entries to the rows that their indices name: `entry(first, at)` has the columns of entry `at` of a line and their factor, unless it
/// is left out; `first` is the offset of the line's first one.
///
/// # Safety
/// All columns can be read of each entry, and read and written of each row.
#[inline(always)]
pub(super) unsafe fn add_entries<T: Number>(
    op: &'static str,
    entries: &Entries,
    workers: &Workers,
    (whole, index): (Dst<T>, Src<i64>),
    entry: impl Fn(isize, usize) -> Option<(*const T, T)> + Copy + Sync,
) {
    let Entries { ref lines, ref columns, size, .. } = *entries;
    // Without columns there may be no index, either.
    let lines_of = lines.elements * columns.elements.min(1);
    let (all, threads) = ([0..lines_of, 0..columns.elements, 0..size], threads(workers));
    // Threads share out lines, columns or rows: every sum stays in one thread, in order.
    let by_columns = usize::from(columns.elements >= 64 * threads);
    let axis = if lines.elements >= threads || size == 0 { 0 } else { 2 - by_columns };
    // Lines of one column that lie side by side are gone through together, in the order of memory, if their sums fit into the cache.
    let side = if columns.elements > 1 || entries.steps[2] == 1 { 1 } else { (CACHED / size.max(1)).max(64) };
    for_range(workers, all[axis].len(), all[axis].len().div_ceil(threads), &|range| {
        let mut own = all.clone();
        own[axis] = range;
        let [own_lines, own_columns, own_rows] = own;
        // Copies, which need not be read again after each write.
        let Entries { each, steps, size, padding, .. } = *entries;
        let (whole, index, entry) = (whole, index, entry);
        simd_of::<false, _>(inlined!(|| {
            for line in own_lines.clone().step_by(side) {
                let firsts: SmallVec<[[isize; 3]; 4]> =
                    (line..own_lines.end.min(line + side)).map(|line| lines.offsets(line)).collect();
                // By line and row, counted from the first that this part owns.
                let mut sums = Runs::new(firsts.len() * own_rows.len(), own_columns.len(), each);
                let row_at = |key: usize| {
                    let (line, row) = (key / own_rows.len(), key % own_rows.len() + own_rows.start);
                    (whole.at(firsts[line][1] + row as isize * steps[1]), Some(1))
                };
                // SAFETY: the row is one of these lines, of which this part owns the columns; a run has as many.
                let add_run = |key: usize, run: &[T]| unsafe {
                    add_columns(columns, own_columns.clone(), row_at(key), (run.as_ptr(), None), T::add);
                };
                for at in 0..each {
                    for (line, first) in firsts.iter().enumerate() {
                        // SAFETY: each line has an index for each of its entries.
                        let index = unsafe { *index.at(first[2] + at as isize * steps[2]) };
                        if index == padding || !own_rows.contains(&(index as usize)) {
                            checked(op, index, size);
                            continue;
                        }
                        let key = line * own_rows.len() + index as usize - own_rows.start;
                        let to = match sums.next(key, |run| add_run(key, run)) {
                            Some(run) => (run.as_mut_ptr(), None),
                            None => (whole.at(first[1] + index as isize * steps[1]), Some(1)),
                        };
                        let Some((from, factor)) = entry(first[0], at) else { continue };
                        let scaled = inlined!(|sum: T, x: T| sum.add(x.mul(factor)));
                        // SAFETY: the index is one of the line's rows; the entry is the caller's.
                        unsafe { add_columns(columns, own_columns.clone(), to, (from, Some(0)), scaled) };
                    }
                }
                sums.rest().for_each(|(key, run)| add_run(key, run));
            }
        }));
    });
}
