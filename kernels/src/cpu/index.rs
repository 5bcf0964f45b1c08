//! Reading and adding at indices. Every index is checked before it is followed.

use std::ops::Range;

use device::{Error, ErrorKind, failure};

use super::indexed::ByRow;
use super::lanes::update;
use super::number::Number;
use super::walk::map;
use super::{inlined, simd_of};
use crate::indexed::{Entries, IndexedElements, IndexedRows, RUN};
use crate::layout::{Dst, Src};
use crate::loops::Places;
use crate::par::{Workers, for_range};

/// The index as a number of rows. One that is not in `0..size` is reported as the command's failure.
#[inline(always)]
pub(super) fn checked(op: &'static str, index: i64, size: usize) -> Option<isize> {
    if (index as u64) < size as u64 { Some(index as isize) } else { out_of_range(op, index, size) }
}

#[cold]
#[inline(never)]
fn out_of_range(op: &'static str, index: i64, size: usize) -> Option<isize> {
    failure::report(Error::new(ErrorKind::IndexOutOfRange { op, index, size }));
    None
}

/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 14;

/// `part[i] = whole[index[i]]`.
pub(crate) unsafe fn select<T: Copy>(
    rows: &IndexedRows,
    workers: &Workers,
    (part, whole, index): (Dst<T>, Src<T>, Src<i64>),
) {
    let chunk = (CHUNK / rows.inner.elements().max(1)).max(1);
    for_range(workers, rows.outer.elements * rows.count, chunk, &|range| {
        let mut outer = usize::MAX;
        let mut base = [0, 0];
        for row in range {
            let i = row % rows.count;
            if row / rows.count != outer {
                outer = row / rows.count;
                base = rows.outer.offsets(outer);
            }
            // SAFETY: `i` is below `rows.count`, the number of indices and of the part's rows, and `checked` returns
            // only rows of the whole. Each row of the part is written once.
            unsafe {
                let index = *index.at(i as isize * rows.index_step);
                let Some(j) = checked(rows.op, index, rows.size) else { continue };
                let to = part.at(base[0] + i as isize * rows.steps[0]);
                let from = whole.at(base[1] + j * rows.steps[1]);
                match rows.inner {
                    Places::Run { elements: 1, .. } => *to = *from,
                    Places::Run { elements, steps: [1, 1] } => {
                        std::ptr::copy_nonoverlapping(from, to, elements);
                    }
                    _ => map::<false, _, _, _, _>(&rows.inner, &None, Dst(to), [Src(from)], |[x]| x),
                }
            }
        }
    });
}

/// `whole[index[i]] += part[i]`, in the order of [`ByRow`].
pub(crate) unsafe fn add<T: Number>(
    rows: &IndexedRows,
    workers: &Workers,
    (whole, part, index): (Dst<T>, Src<T>, Src<i64>),
) {
    // SAFETY: `i` is below `rows.count`, the number of indices.
    let row = |i: usize| checked(rows.op, unsafe { *index.at(i as isize * rows.index_step) }, rows.size);
    if let Some(by_row) = ByRow::of_line(rows.count, rows.size, row) {
        let to = |row: usize| whole.at(row as isize * rows.steps[1]);
        let from = |i: usize| Some((part.at(i as isize * rows.steps[0]), T::ONE));
        // SAFETY: `checked` returns rows of the whole, which share no elements, and both have all columns.
        return unsafe { by_row.add(workers, &rows.entries().columns, &to, &from, &|sum, x, _| sum.add(x)) };
    }
    // Threads share out the elements of a row, or else the outer axes: every sum stays in one thread, in order.
    let (split_inner, elements) = (rows.outer.elements == 1, rows.inner.elements());
    let (items, chunk) = if split_inner {
        (elements, (CHUNK / rows.count.max(1)).max(64))
    } else {
        (rows.outer.elements, (CHUNK / (rows.count * elements).max(1)).max(1))
    };
    for_range(workers, items, chunk, &|range| {
        let (outer, inner) = if split_inner { (0..1, range) } else { (range, 0..elements) };
        simd_of::<false, _>(inlined!(|| {
            for outer in outer.clone() {
                let base = rows.outer.offsets(outer);
                for i in 0..rows.count as isize {
                    // SAFETY: `i` is below `rows.count`, the number of indices.
                    let index = unsafe { *index.at(i * rows.index_step) };
                    let Some(j) = checked(rows.op, index, rows.size) else { continue };
                    let (from, to) = (base[0] + i * rows.steps[0], base[1] + j * rows.steps[1]);
                    let mut runs = rows.inner.runs(inner.clone());
                    let [part_step, whole_step] = runs.steps();
                    while let Some(([part_at, whole_at], len)) = runs.next() {
                        let (to, from) = (whole.at(to + whole_at), part.at(from + part_at));
                        // SAFETY: `i` is a row of the part, and `checked` returned row `j` of the whole, so both have
                        // this run. Parts own disjoint outer rows or inner elements of the whole.
                        unsafe { update((to, whole_step), (from, part_step), len, T::add) }
                    }
                }
            }
        }));
    });
}

/// Calls `body` with the offsets of elements `range` in the part, and of those in the whole that the indices name.
///
/// # Safety
/// The indices can be read.
#[inline(always)]
unsafe fn for_indexed(
    elements: &IndexedElements,
    range: Range<usize>,
    index: Src<i64>,
    mut body: impl FnMut(isize, isize),
) {
    let [_, step, _] = elements.along.strides;
    let mut runs = elements.loops.runs(range);
    let [sp, sw, si] = runs.steps();
    while let Some(([part_at, whole_at, index_at], len)) = runs.next() {
        for k in 0..len as isize {
            // SAFETY: `loops` reaches only elements of the indices.
            let index = unsafe { *index.at(index_at + k * si) };
            if let Some(j) = checked(elements.op, index, elements.size) {
                body(part_at + k * sp, whole_at + k * sw + j * step);
            }
        }
    }
}

/// `part[p] = whole[p, index[p] along the axis]`.
pub(crate) unsafe fn gather<T: Copy>(
    elements: &IndexedElements,
    workers: &Workers,
    (part, whole, index): (Dst<T>, Src<T>, Src<i64>),
) {
    for_range(workers, elements.loops.elements, CHUNK, &|range| {
        // SAFETY: by the module's contract the offsets are those of elements of the part and of the whole.
        unsafe { for_indexed(elements, range, index, |to, from| *part.at(to) = *whole.at(from)) };
    });
}

/// `whole[p, index[p] along the axis] += part[p]`, in the order of [`ByRow`].
pub(crate) unsafe fn scatter_add<T: Number>(
    elements: &IndexedElements,
    workers: &Workers,
    (whole, part, index): (Dst<T>, Src<T>, Src<i64>),
) {
    let Entries { lines, each, steps, size, columns, .. } = elements.entries();
    // Lines of no more entries than a run need no order.
    let count = if each > RUN { lines.elements * each } else { 0 };
    let each_entry = |body: &mut dyn FnMut(usize, usize)| {
        for line in 0..lines.elements {
            let first = lines.offsets(line)[2];
            for at in 0..each {
                // SAFETY: the line has an index for each of its entries.
                let row = checked(elements.op, unsafe { *index.at(first + at as isize * steps[2]) }, size);
                row.into_iter().for_each(|row| body(line * each + at, line * size + row as usize));
            }
        }
    };
    if let Some(by_row) = ByRow::of(count, lines.elements * size, each_entry) {
        let to = |row: usize| {
            whole.at(lines.offsets(row / size)[1]).wrapping_offset((row % size) as isize * steps[1])
        };
        let from = |entry: usize| {
            let first = part.at(lines.offsets(entry / each)[0]);
            Some((first.wrapping_offset((entry % each) as isize * steps[0]), T::ONE))
        };
        // SAFETY: `checked` returns rows of the whole's lines, which share no elements.
        return unsafe { by_row.add(workers, &columns, &to, &from, &|sum, x, _| sum.add(x)) };
    }
    // SAFETY: by the module's contract the offsets are those of elements of the part and of the whole. One thread adds
    // all.
    unsafe {
        for_indexed(elements, 0..elements.loops.elements, index, |from, to| {
            let to = whole.at(to);
            *to = (*to).add(*part.at(from));
        });
    }
}
