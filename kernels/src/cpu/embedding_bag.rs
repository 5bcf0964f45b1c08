//! Sums and means over bags of rows of a table. Every index and offset is checked before it is followed.

use std::ops::Range;

use device::{Error, failure};

use super::index::{add_entries, begin, checked};
use super::lanes::update;
use super::number::Real;
use super::{inlined, simd_of};
use crate::indexed::BagSizes;
use crate::layout::{Dst, Src};
use crate::loops::Places;
use crate::par::{Workers, for_range};

/// Indices, offsets and weights of bags; without offsets all bags are of one size.
pub(crate) type BagMemory<T> = (Src<i64>, Option<Src<i64>>, Option<Src<T>>);

/// Bags to go through.
struct BagReader<'a, T> {
    sizes: &'a BagSizes,
    memory: BagMemory<T>,
}

impl<T: Real> BagReader<'_, T> {
    /// The places of a bag's indices; no place for a bag without a [range](Self::range).
    ///
    /// # Safety
    /// As for [`range`](Self::range).
    #[inline(always)]
    unsafe fn places(&self, bag: usize) -> Range<usize> {
        // SAFETY: the caller's `bag` and offsets are as `range` asks.
        unsafe { self.range(bag) }.unwrap_or(0..0)
    }

    /// The places of a bag's indices. `None` if the offsets do not ascend from 0 to at most the number of indices, which is
    /// reported as the command's failure.
    ///
    /// # Safety
    /// `bag` is one, and the offsets can be read.
    #[inline(always)]
    unsafe fn range(&self, bag: usize) -> Option<Range<usize>> {
        let BagSizes { op, len, count, offset_step, .. } = *self.sizes;
        let Some(offsets) = self.memory.1 else {
            let each = len / count;
            return Some(bag * each..(bag + 1) * each);
        };
        // SAFETY: `bag` is below `count`, the number of offsets at steps of `offset_step`, which the caller promises
        // to be readable.
        let offset = |bag: usize| unsafe { *offsets.at(bag as isize * offset_step) };
        let (begin, end) = (offset(bag), if bag + 1 < count { offset(bag + 1) } else { len as i64 });
        let follows = (begin == 0 || bag > 0) && 0 <= begin && begin <= end && end as u64 <= len as u64;
        if follows { Some(begin as usize..end as usize) } else { bad_offsets(op, (bag, begin..end), len) }
    }

    /// The row at a place and its factor; nothing for the padding, nor for an index that is no row, which is reported as the
    /// command's failure.
    ///
    /// # Safety
    /// `place` is one, and indices and weights can be read.
    #[inline(always)]
    unsafe fn member(&self, place: usize) -> Option<(isize, T)> {
        let BagSizes { op, rows, padding, index_step, weight_step, .. } = *self.sizes;
        let (indices, _, weights) = self.memory;
        let place = place as isize;
        // SAFETY: `place` is below `len`, the number of indices and weights at their steps, which the caller promises
        // to be readable.
        unsafe {
            let index = *indices.at(place * index_step);
            let row = checked(op, index, rows)?;
            let factor = || weights.map_or(T::ONE, |weights| *weights.at(place * weight_step));
            (index != padding).then(|| (row, factor()))
        }
    }
}

#[cold]
#[inline(never)]
fn bad_offsets(op: &'static str, (bag, range): (usize, Range<i64>), len: usize) -> Option<Range<usize>> {
    let value = format!("{range:?} for bag {bag} of {len} indices");
    let expected = "ascending from 0 and at most the number of indices";
    failure::report(Error::invalid(op, "offsets", expected, value));
    None
}

/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 13;

/// Bags of a part when a kernel is split over threads.
fn chunk(sizes: &BagSizes) -> usize {
    let BagSizes { len, count, width, .. } = *sizes;
    (CHUNK * count / (len + count).max(1) / width.max(1)).max(1)
}

/// `out[i] = Σ w[j] table[indices[j]]`, divided by the number of members where they are wanted. Rows with the weight 0 are not read.
pub(crate) unsafe fn sum<T: Real>(
    sizes: &BagSizes,
    workers: &Workers,
    (out, table, memory, members): (Dst<T>, Src<T>, BagMemory<T>, Option<Dst<T>>),
) {
    let BagSizes { width, table_steps, sum_steps, member_step, .. } = *sizes;
    let bags = BagReader { sizes, memory };
    for_range(workers, sizes.count, chunk(sizes), &|range| {
        simd_of::<false, _>(inlined!(|| {
            for bag in range.clone() {
                let to = Dst(out.at(bag as isize * sum_steps[0]));
                let each = |f: &dyn Fn(T) -> T| {
                    for c in 0..width as isize {
                        // SAFETY: `bag` and `c` are below the sizes of the output, and each bag is one part's.
                        unsafe { *to.at(c * sum_steps[1]) = f(*to.at(c * sum_steps[1])) };
                    }
                };
                each(&|_| T::ZERO);
                let mut count = 0;
                // SAFETY: `places` yields only places below `len`, and `member` only rows of the table. `to` and
                // `table` are apart.
                unsafe {
                    for place in bags.places(bag) {
                        if let Some((row, factor)) = bags.member(place) {
                            count += 1;
                            if factor == T::ZERO {
                                continue;
                            }
                            let from = (table.at(row * table_steps[0]), table_steps[1]);
                            let add = inlined!(|sum: T, x: T| sum.add(x.mul(factor)));
                            update((to.0, sum_steps[1]), from, width, add);
                        }
                    }
                    if let Some(members) = members {
                        let divisor = T::from_i64(count.max(1));
                        *members.at(bag as isize * member_step) = divisor;
                        each(&|sum| sum.div(divisor));
                    }
                }
            }
        }));
    });
}

/// `out[indices[j]] += w[j] / members[i] g[i]` on zeros, in the order of [`Runs`](super::indexed::Runs), without those with the weight 0.
pub(crate) unsafe fn grad<T: Real>(
    (sizes, places): &(BagSizes, Places<2>),
    workers: &Workers,
    (out, g, memory, members): (Dst<T>, Src<T>, BagMemory<T>, Option<Src<T>>),
) {
    let BagSizes { op, len, count, weight_step, sum_steps, member_step, .. } = *sizes;
    let mut bag_of = vec![None; len];
    for bag in 0..count {
        // SAFETY: the bag is one.
        bag_of[unsafe { BagReader { sizes, memory }.places(bag) }].fill(Some(bag as isize));
    }
    let entry = |_, place: usize| {
        let bag = bag_of[place]?;
        // SAFETY: the place is below `len`, and the bag below `count`.
        let (weight, share) = unsafe {
            let weight = memory.2.map_or(T::ONE, |weights| *weights.at(place as isize * weight_step));
            (weight, members.map_or(T::ONE, |members| *members.at(bag * member_step)))
        };
        (weight != T::ZERO).then(|| (g.at(bag * sum_steps[0]), weight.div(share)))
    };
    // SAFETY: each row of the table has all columns, and so has each of the sums.
    unsafe {
        begin(places, workers, out, None);
        add_entries(op, &sizes.entries(), workers, (out, memory.0), entry);
    }
}

/// `out[j] = Σ_c g[i, c] table[indices[j], c]`; 0 for the padding.
pub(crate) unsafe fn weights_grad<T: Real>(
    &(ref sizes, out_step): &(BagSizes, isize),
    workers: &Workers,
    (out, g, table, memory): (Dst<T>, Src<T>, Src<T>, BagMemory<T>),
) {
    let BagSizes { width, table_steps, sum_steps, .. } = *sizes;
    let bags = BagReader { sizes, memory };
    // SAFETY: each bag is below the number of offsets, which can be read.
    let is_ascending = |bag| unsafe { bags.range(bag) }.is_some();
    // Bags that overlap would write the same element from two threads.
    if !(0..sizes.count).all(is_ascending) {
        return;
    }
    for_range(workers, sizes.count, chunk(sizes), &|range| {
        for bag in range {
            let own = Src(g.at(bag as isize * sum_steps[0]));
            // SAFETY: `places` yields only places below `len`, for which `out` has an element, and `member` only rows
            // of the table. Bags share no place, since all offsets ascend.
            unsafe {
                for place in bags.places(bag) {
                    let mut sum = T::ZERO;
                    if let Some((row, _)) = bags.member(place) {
                        let from = Src(table.at(row * table_steps[0]));
                        for c in 0..width as isize {
                            let product = (*own.at(c * sum_steps[1])).mul(*from.at(c * table_steps[1]));
                            sum = sum.add(product);
                        }
                    }
                    *out.at(place as isize * out_step) = sum;
                }
            }
        }
    });
}
