//! Reductions to an index.

use super::number::Number;
use crate::layout::{Dst, Loops, Src};
use crate::par::{Workers, for_range};

/// `out[k]` = index of the first of the `len` elements at steps of `step` from kept element `k` that no other is `better`
/// than; the first NaN wins.
///
/// # Safety
/// The elements can be read, `len` is not 0, `out` has room for all kept elements, and nobody else uses it meanwhile.
pub(crate) unsafe fn first_best<T: Number>(
    kept: &Loops<1>,
    workers: &Workers,
    x: Src<T>,
    (len, step): (usize, isize),
    out: Dst<i64>,
    better: impl Fn(T, T) -> bool + Sync,
) {
    let chunk = ((1 << 14) / len).max(1);
    for_range(workers, kept.elements, chunk, &|range| {
        let side = kept.inner().strides[0];
        let mut k = range.start;
        kept.for_runs(range, |[offset], count| {
            for c in 0..count as isize {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = x.at(offset + c * side);
                    let (mut best, mut index) = (*from, 0);
                    for i in 1..len {
                        let value = *from.offset(i as isize * step);
                        if better(value, best) || (value.is_nan() && !best.is_nan()) {
                            (best, index) = (value, i);
                        }
                    }
                    *out.at(k as isize) = index as i64;
                }
                k += 1;
            }
        });
    });
}
