//! Sorts.

use super::number::Number;
use crate::layout::{Dst, Src};
use crate::loops::Rows;
use crate::par::{Workers, for_range};

/// An element that can be sorted.
pub(crate) trait Sortable: Number {
    /// An element's key, and its index in the low 32 bits.
    type Entry: Ord + Copy;

    /// `flip` reverses the order of the keys.
    fn entry(self, index: u32, flip: bool) -> Self::Entry;

    fn index(entry: Self::Entry) -> u32;
}

/// `$bits` maps an element to an unsigned integer in the same order; see [`argsort`](crate::argsort) for zeros and NaN.
macro_rules! sortable {
    ($($t:ty, $key:ty, $entry:ty, $bits:expr;)+) => {$(
        impl Sortable for $t {
            type Entry = $entry;

            #[inline(always)]
            fn entry(self, index: u32, flip: bool) -> $entry {
                let bits: fn($t) -> $key = $bits;
                let key = if flip { !bits(self) } else { bits(self) };
                <$entry>::from(key) << 32 | <$entry>::from(index)
            }

            #[inline(always)]
            fn index(entry: $entry) -> u32 {
                entry as u32
            }
        }
    )+};
}

sortable! {
    f32, u32, u64, |x| {
        let bits = (x + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        if x.is_nan() { u32::MAX } else { ordered }
    };
    f64, u64, u128, |x| {
        let bits = (x + 0.0).to_bits();
        let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        if x.is_nan() { u64::MAX } else { ordered }
    };
    i64, u64, u128, |x| x as u64 ^ 1 << 63;
    u8, u32, u64, u32::from;
}

/// Elements that one thread sorts at least.
const SHARE: usize = 1 << 12;

/// The indices of the first `count` elements of each row in order.
///
/// # Safety
/// The operands have these rows, `count` elements of each of the output, and nobody else uses those of the output.
pub(crate) unsafe fn argsort<T: Sortable>(
    rows: &Rows<2>,
    count: usize,
    descending: bool,
    workers: &Workers,
    (out, x): (Dst<i64>, Src<T>),
) {
    let Rows { kept, len, steps: [out_step, x_step] } = rows;
    for_range(workers, kept.elements, (SHARE / len.max(&1)).max(1), &|range| {
        let mut entries = Vec::with_capacity(*len);
        let mut runs = kept.runs(range);
        let sides = runs.steps();
        while let Some((offsets, beside)) = runs.next() {
            for row in 0..beside as isize {
                let [to, from] = [0, 1].map(|k| offsets[k] + row * sides[k]);
                entries.clear();
                entries.extend((0..*len as u32).map(|i| {
                    // SAFETY: the caller promises these elements of the input.
                    let x = unsafe { *x.at(from + i as isize * x_step) };
                    x.entry(i, descending)
                }));
                // Entries differ in their indices, so a sort that is not stable gives the same order.
                if count < *len {
                    entries.select_nth_unstable(count);
                }
                entries[..count].sort_unstable();
                for (i, &entry) in (0..).zip(&entries[..count]) {
                    // SAFETY: the caller promises these elements of the output.
                    unsafe { *out.at(to + i * out_step) = i64::from(T::index(entry)) };
                }
            }
        }
    });
}
