//! Sums and means over bags of rows of a table. Every index and offset is checked before it is followed.

use std::ops::Range;

use super::index::checked;
use super::number::Real;
use super::simd_of;
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_range};

/// A matrix to read: its first element, and steps to the next row and the next column.
pub(crate) type Rows<T> = (Src<T>, [isize; 2]);
/// A vector to read, with its step.
pub(crate) type Numbers<T> = (Src<T>, isize);
/// A vector to write.
pub(crate) type NumbersMut<T> = (Dst<T>, isize);

/// The launcher's `Bags`, checked.
pub(crate) struct Bags<T> {
    pub(crate) op: &'static str,
    pub(crate) indices: Numbers<i64>,
    pub(crate) offsets: Option<Numbers<i64>>,
    pub(crate) weights: Option<Numbers<T>>,
    /// Indices.
    pub(crate) len: usize,
    /// Bags.
    pub(crate) count: usize,
    /// Rows of the table, and elements of each.
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// A row that counts for nothing, or -1.
    pub(crate) padding: i64,
}

impl<T: Real> Bags<T> {
    /// The places of a bag's indices.
    ///
    /// # Safety
    /// `bag` is one, and the offsets can be read.
    ///
    /// # Panics
    /// If the offsets do not go from 0 upwards to at most the number of indices. The panic becomes the device's error.
    #[inline(always)]
    unsafe fn places(&self, bag: usize) -> Range<usize> {
        let Some((offsets, step)) = self.offsets else {
            let each = self.len / self.count;
            return bag * each..(bag + 1) * each;
        };
        // SAFETY: the caller's promise.
        let offset = |bag: usize| unsafe { *offsets.at(bag as isize * step) };
        let (begin, end) =
            (offset(bag), if bag + 1 < self.count { offset(bag + 1) } else { self.len as i64 });
        assert!(
            (begin == 0 || bag > 0) && 0 <= begin && begin <= end && end as u64 <= self.len as u64,
            "{}: bag {bag} of {begin}..{end} does not follow the one before within {} indices",
            self.op,
            self.len
        );
        begin as usize..end as usize
    }

    /// The row at a place and its factor; nothing for the padding.
    ///
    /// # Safety
    /// `place` is one, and indices and weights can be read.
    ///
    /// # Panics
    /// If the index is no row.
    #[inline(always)]
    unsafe fn member(&self, place: usize) -> Option<(isize, T)> {
        let (indices, step) = self.indices;
        // SAFETY: the caller's promise.
        let index = unsafe { *indices.at(place as isize * step) };
        let row = checked(self.op, index, self.rows);
        if index == self.padding {
            return None;
        }
        // SAFETY: the caller's promise.
        let factor =
            self.weights.map_or(T::ONE, |(weights, step)| unsafe { *weights.at(place as isize * step) });
        Some((row, factor))
    }
}

/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 13;

/// `to[c] += factor from[c]`, rounded twice.
///
/// # Safety
/// `len` elements at these steps can be read and written, and do not overlap.
#[inline(always)]
unsafe fn add_scaled<T: Real>(to: (Dst<T>, isize), from: Numbers<T>, factor: T, len: usize) {
    let ((to, to_step), (from, from_step)) = (to, from);
    // SAFETY: the caller's promise. Steps that the compiler knows make vectors.
    unsafe {
        if to_step == 1 && from_step == 1 {
            for c in 0..len as isize {
                *to.at(c) = (*to.at(c)).add((*from.at(c)).mul(factor));
            }
        } else {
            for c in 0..len as isize {
                *to.at(c * to_step) = (*to.at(c * to_step)).add((*from.at(c * from_step)).mul(factor));
            }
        }
    }
}

/// `out[i] = Σ w[j] table[indices[j]]`, divided by the number of members where they are wanted.
///
/// # Safety
/// The operands of the launcher can be read, the outputs written, and nobody else uses them meanwhile.
pub(crate) unsafe fn sum<T: Real>(
    bags: &Bags<T>,
    workers: &Workers,
    (table, [row_step, column_step]): Rows<T>,
    (out, steps): (Dst<T>, [isize; 2]),
    members: Option<NumbersMut<T>>,
) {
    let chunk = CHUNK * bags.count / (bags.len + bags.count).max(1) / bags.width.max(1);
    for_range(workers, bags.count, chunk.max(1), &|range| {
        simd_of::<false, _>(
            #[inline(always)]
            || {
                for bag in range.clone() {
                    let to = Dst(out.at(bag as isize * steps[0]));
                    let each = |f: &dyn Fn(T) -> T| {
                        for c in 0..bags.width as isize {
                            // SAFETY: the caller's promise.
                            unsafe { *to.at(c * steps[1]) = f(*to.at(c * steps[1])) };
                        }
                    };
                    each(&|_| T::ZERO);
                    let mut count = 0;
                    // SAFETY: the caller's promise; the index is checked.
                    unsafe {
                        for place in bags.places(bag) {
                            if let Some((row, factor)) = bags.member(place) {
                                let from = (Src(table.at(row * row_step)), column_step);
                                add_scaled((to, steps[1]), from, factor, bags.width);
                                count += 1;
                            }
                        }
                        if let Some((members, step)) = members {
                            let divisor = T::from_i64(count.max(1));
                            *members.at(bag as isize * step) = divisor;
                            each(&|sum| sum.div(divisor));
                        }
                    }
                }
            },
        );
    });
}

/// `out[indices[j]] += w[j] / members[i] g[i]` on zeros, in ascending order of `j`.
///
/// # Safety
/// As for [`sum`].
pub(crate) unsafe fn grad<T: Real>(
    bags: &Bags<T>,
    workers: &Workers,
    (g, [bag_step, column_step]): Rows<T>,
    members: Option<Numbers<T>>,
    (out, steps): (Dst<T>, [isize; 2]),
) {
    // Threads share out the rows of the table, and each goes through all indices: every sum stays in one thread, in order.
    let chunk = bags.rows.div_ceil(PARTS).max(CHUNK / bags.width.max(1));
    for_range(workers, bags.rows, chunk.max(1), &|rows| {
        let (first, last) = (rows.start as isize, rows.end as isize);
        simd_of::<false, _>(
            #[inline(always)]
            || {
                // SAFETY: the caller's promise; the index is checked.
                unsafe {
                    for row in first..last {
                        for c in 0..bags.width as isize {
                            *out.at(row * steps[0] + c * steps[1]) = T::ZERO;
                        }
                    }
                    for bag in 0..bags.count {
                        let i = bag as isize;
                        let share = members.map_or(T::ONE, |(members, step)| *members.at(i * step));
                        for place in bags.places(bag) {
                            let Some((row, factor)) = bags.member(place) else { continue };
                            if row < first || row >= last {
                                continue;
                            }
                            let to = (Dst(out.at(row * steps[0])), steps[1]);
                            let from = (Src(g.at(i * bag_step)), column_step);
                            add_scaled(to, from, factor.div(share), bags.width);
                        }
                    }
                }
            },
        );
    });
}

/// Parts that the rows of a table are cut into: each goes through all indices.
const PARTS: usize = 8;

/// `out[j] = Σ_c g[i, c] table[indices[j], c]`; 0 for the padding.
///
/// # Safety
/// As for [`sum`].
pub(crate) unsafe fn weights_grad<T: Real>(
    bags: &Bags<T>,
    workers: &Workers,
    (g, [bag_step, g_step]): Rows<T>,
    (table, [row_step, column_step]): Rows<T>,
    (out, out_step): NumbersMut<T>,
) {
    let chunk = CHUNK * bags.count / (bags.len + bags.count).max(1) / bags.width.max(1);
    for_range(workers, bags.count, chunk.max(1), &|range| {
        for bag in range {
            let own = Src(g.at(bag as isize * bag_step));
            // SAFETY: the caller's promise; the index is checked.
            unsafe {
                for place in bags.places(bag) {
                    let mut sum = T::ZERO;
                    if let Some((row, _)) = bags.member(place) {
                        let from = Src(table.at(row * row_step));
                        for c in 0..bags.width as isize {
                            let product = (*own.at(c * g_step)).mul(*from.at(c * column_step));
                            sum = sum.add(product);
                        }
                    }
                    *out.at(place as isize * out_step) = sum;
                }
            }
        }
    });
}
