//! The norm over many tensors, their scaling, and the search for what is not finite.

use std::ops::Range;

use super::fold::{Sum, fold_slice};
use super::lanes::{Lanes, with_scratch};
use crate::layout::{Dst, Src};
use crate::norms::PART;
use crate::par::{Workers, for_chunks, for_range};

/// Calls `body(tensor, part, elements)` for the parts of each tensor, which are counted over all, and returns their number.
fn for_parts(sizes: &[usize], workers: &Workers, body: impl Fn(usize, usize, Range<usize>) + Sync) -> usize {
    let mut first = 0;
    for (tensor, &size) in sizes.iter().enumerate() {
        for_chunks(workers, size, PART, &|part, range| body(tensor, first + part, range));
        first += size.div_ceil(PART);
    }
    first
}

/// # Safety
/// As many elements as `sizes` says lie at each of `x`, the first of `to` has room for the sums of all parts, and the others for
/// one element each.
pub(crate) unsafe fn total_norm<T: Lanes>(
    sizes: &[usize],
    workers: &Workers,
    x: &[Src<T>],
    max_norm: f64,
    [parts, norm, scale]: [Dst<T>; 3],
) {
    let count = for_parts(sizes, workers, |tensor, part, range| {
        with_scratch(range.len(), |squares: *mut T| {
            // SAFETY: `range` lies in the tensor's elements, the scratch has room for a square of each, and this call
            // alone writes `part`.
            unsafe {
                let elements = x[tensor].slice(range.start, range.len());
                elements.iter().enumerate().for_each(|(i, &x)| squares.add(i).write(x.mul(x)));
                let squares = std::slice::from_raw_parts(squares, range.len());
                parts.at(part as isize).write(fold_slice(Sum, squares));
            }
        });
    });
    // SAFETY: `for_parts` has written the sums of all `count` parts and returned. `norm` and `scale` have one
    // element each.
    unsafe {
        let sum = fold_slice(Sum, std::slice::from_raw_parts(parts.at(0), count)).sqrt();
        let factor = T::from_f64(max_norm).div(sum.add(T::from_f64(1e-6)));
        norm.at(0).write(sum);
        scale.at(0).write(if factor > T::ONE { T::ONE } else { factor });
    }
}

/// # Safety
/// As many elements as `sizes` says lie at both of each of `pairs`, and one at `scale`.
pub(crate) unsafe fn scale_all<T: Lanes>(
    sizes: &[usize],
    workers: &Workers,
    pairs: &[(Dst<T>, Src<T>)],
    scale: Src<T>,
) {
    // SAFETY: the caller promises one element at `scale`.
    let scale = unsafe { *scale.at(0) };
    for (&size, (out, x)) in sizes.iter().zip(pairs) {
        for_range(workers, size, 1 << 15, &|range| {
            for i in range {
                // SAFETY: `i` is below `size`, the number of elements of both; ranges are disjoint.
                unsafe { out.at(i as isize).write((*x.at(i as isize)).mul(scale)) };
            }
        });
    }
}

/// # Safety
/// As many elements as `sizes` says lie at both of each of `pairs`, and one at `scale`; the first of `to` has room for a number
/// for each part of the tensors, the second for one.
pub(crate) unsafe fn unscale_all<T: Lanes>(
    sizes: &[usize],
    workers: &Workers,
    pairs: &[(Dst<T>, Src<T>)],
    scale: Src<T>,
    [parts, found]: [Dst<T>; 2],
) {
    // SAFETY: the caller promises one element at `scale`.
    let factor = T::ONE.div(unsafe { *scale.at(0) });
    let count = for_parts(sizes, workers, |tensor, part, range| {
        let (out, x) = pairs[tensor];
        let mut finite = true;
        for i in range {
            // SAFETY: `i` is below the number of elements of both; ranges are disjoint.
            unsafe {
                let x = *x.at(i as isize);
                finite &= x.sub(x) == T::ZERO;
                out.at(i as isize).write(x.mul(factor));
            }
        }
        // SAFETY: `parts` has room for all parts, and this call alone writes this one.
        unsafe { parts.at(part as isize).write(if finite { T::ZERO } else { T::ONE }) };
    });
    // SAFETY: `for_parts` has written the numbers of all `count` parts and returned. `found` has one element.
    unsafe {
        let parts = std::slice::from_raw_parts(parts.at(0), count);
        found.at(0).write(if parts.contains(&T::ONE) { T::ONE } else { T::ZERO });
    }
}
