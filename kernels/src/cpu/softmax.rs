//! Softmax and its relatives: every row of an axis by itself.
//!
//! Long rows that lie along memory are worked on where they are. Other rows are copied, up to [`WIDTH`] at a time and
//! side by side, so that short rows (ten classes, say) fill vectors as well as long ones do. The sums have the same
//! order either way.

use std::ops::Range;

use super::fold::{BLOCK, Columns, Fold, LANES, Max, Sum, WIDTH, fold_partials, fold_slice};
use super::inlined;
use super::lanes::{Lanes, map, simd_for, with_scratch};
use super::product::{Matrix, copy_matrix};
use crate::layout::{Dst, Src};
use crate::loops::Rows;
use crate::par::{Workers, for_range};

/// What is done to a row of `x`, beside a row of `y` in a gradient:
/// `out = finish(t, y, scale(sum term(t, y)))` with `t = shift(x, max x)`. In the gradients `x` is the gradient of the output
/// and `y` the output.
pub(crate) struct RowOp<const LOG: bool, const GRADIENT: bool>;

impl<const LOG: bool, const GRADIENT: bool> RowOp<LOG, GRADIENT> {
    /// Whether there is a `shift`, which needs the largest element.
    const MAX: bool = !GRADIENT;
    /// Whether `term` is more than `t`.
    const TERM: bool = LOG != GRADIENT;

    #[inline(always)]
    fn shift<T: Lanes>(x: T, largest: T) -> T {
        if LOG { x.sub(largest) } else { x.sub(largest).exp() }
    }

    #[inline(always)]
    fn term<T: Lanes>(t: T, y: T) -> T {
        if GRADIENT { t.mul(y) } else { t.exp() }
    }

    #[inline(always)]
    fn scale<T: Lanes>(sum: T) -> T {
        if LOG && !GRADIENT { sum.log() } else { sum }
    }

    #[inline(always)]
    fn finish<T: Lanes>(t: T, y: T, scale: T) -> T {
        match (LOG, GRADIENT) {
            (false, false) => t.div(scale),
            (true, false) => t.sub(scale),
            (false, true) => y.mul(t.sub(scale)),
            (true, true) => t.sub(y.exp().mul(scale)),
        }
    }

    /// `I` inputs, the last of which is x; operand `i + 1` is input `i`.
    pub(crate) unsafe fn run<T: Lanes, const N: usize, const I: usize>(
        rows: &Rows<N>,
        workers: &Workers,
        out: Dst<T>,
        inputs: [Src<T>; I],
    ) {
        let Rows { kept, len, steps } = rows;
        let len = *len;
        if len == 0 {
            return;
        }
        // Shorter rows leave vectors partly empty.
        let by_rows = steps.iter().all(|&step| step == 1) && (len >= 2 * LANES || len % LANES == 0);
        let chunk = ((1 << 13) / len).max(1).next_multiple_of(WIDTH);
        for_range(workers, kept.elements, chunk, &|range| {
            if !by_rows {
                // SAFETY: `range` lies in the kept rows, for which the module's contract vouches.
                return unsafe { Self::columns(rows, range, out, inputs) };
            }
            with_scratch(if Self::TERM { len } else { 0 }, |terms: *mut T| {
                simd_for::<T, _>(inlined!(|| {
                    let mut runs = kept.runs(range.clone());
                    let sides = runs.steps();
                    while let Some((offsets, count)) = runs.next() {
                        for row in 0..count as isize {
                            let at = |k: usize| offsets[k] + row * sides[k];
                            let inputs: [_; I] = std::array::from_fn(|i| inputs[i].at(at(i + 1)));
                            // SAFETY: the rows are those of the operands, of `len` elements that follow each other,
                            // and `terms` has room for a row. Rows of the output are disjoint.
                            unsafe { Self::row(len, out.at(at(0)), inputs, terms) };
                        }
                    }
                }));
            });
        });
    }

    /// One row, which lies along memory. `terms` has room for a row if the op has terms.
    #[inline(always)]
    unsafe fn row<T: Lanes, const I: usize>(len: usize, out: *mut T, inputs: [*const T; I], terms: *mut T) {
        let (y, x) = (inputs[0], inputs[I - 1]);
        // SAFETY: callers pass `len` elements of each and, if the op has terms, room for as many. `out` may be an
        // input: slices of inputs are dead before it is written, and `map` allows it element for element.
        unsafe {
            let mut t = x;
            if Self::MAX {
                let largest = fold_slice(Max, std::slice::from_raw_parts(x, len));
                map(len, out, [x], inlined!(|[x]| Self::shift(x, largest)));
                t = out;
            }
            let mut summed = t;
            if Self::TERM {
                map(len, terms, [t, y], inlined!(|[t, y]| Self::term(t, y)));
                summed = terms;
            }
            let scale = Self::scale(fold_slice(Sum, std::slice::from_raw_parts(summed, len)));
            map(len, out, [t, y], inlined!(|[t, y]| Self::finish(t, y, scale)));
        }
    }

    /// Rows `range`, copied to lie side by side.
    unsafe fn columns<T: Lanes, const N: usize, const I: usize>(
        rows: &Rows<N>,
        range: Range<usize>,
        out: Dst<T>,
        inputs: [Src<T>; I],
    ) {
        let Rows { kept, len, steps } = rows;
        let len = *len;
        let arch = pulp::Arch::new();
        let sides = kept.inner().strides;
        // Fewer long rows at a time, so that the copies stay in the cache.
        let width = ((1 << 16) / len).clamp(WIDTH / 2, WIDTH);
        let size = Columns::<T>::SIZE;
        let copied = I + usize::from(Self::TERM);
        with_scratch(size + copied * len * width, |lanes: *mut T| {
            let copies: [*mut T; I] = std::array::from_fn(|i| lanes.wrapping_add(size + i * len * width));
            let terms = lanes.wrapping_add(size + I * len * width);
            for first in range.clone().step_by(width) {
                let count = width.min(range.end - first);
                // SAFETY: `first + count` is at most the kept rows, for which the module's contract vouches. The
                // scratch has the lanes and `copied` copies of `len * width` elements.
                unsafe {
                    let block = |ptr: *mut T| Matrix::row_major(ptr, count);
                    let (mut runs, mut done) = (kept.runs(first..first + count), 0);
                    while let Some((offsets, n)) = runs.next() {
                        for i in 0..I {
                            let ptr = inputs[i].at(offsets[i + 1]).cast_mut();
                            let from = Matrix { ptr, row: steps[i + 1], col: sides[i + 1] };
                            copy_matrix(arch, len, n, from, block(copies[i]).at(0, done));
                        }
                        done += n;
                    }
                    simd_for::<T, _>(inlined!(|| Self::side_by_side(len, count, lanes, copies, terms)));
                    let (mut runs, mut done) = (kept.runs(first..first + count), 0);
                    while let Some((offsets, n)) = runs.next() {
                        let to = Matrix { ptr: out.at(offsets[0]), row: steps[0], col: sides[0] };
                        copy_matrix(arch, len, n, block(copies[I - 1]).at(0, done), to);
                        done += n;
                    }
                }
            }
        });
    }

    /// Works on `width` rows that lie side by side, and leaves the result in the last copy. `terms` has room for a copy if
    /// the op has terms.
    #[inline(always)]
    unsafe fn side_by_side<T: Lanes, const I: usize>(
        len: usize,
        width: usize,
        lanes: *mut T,
        copies: [*mut T; I],
        terms: *mut T,
    ) {
        let (y, x) = (copies[0].cast_const(), copies[I - 1]);
        let mut scale = [T::ZERO; WIDTH];
        // SAFETY: callers pass copies of `len` rows of `width` elements, which are apart, and room for the lanes and
        // as many terms. Slices are dead before their memory is written.
        unsafe {
            if Self::MAX {
                let mut largest = [T::ZERO; WIDTH];
                fold_columns(Max, width, lanes, std::slice::from_raw_parts(x, len * width), &mut largest);
                for i in 0..len {
                    let row = x.add(i * width);
                    let shift = inlined!(|[x, largest]: [T; 2]| Self::shift(x, largest));
                    map(width, row, [row, largest.as_ptr()], shift);
                }
            }
            let mut summed = x.cast_const();
            if Self::TERM {
                map(len * width, terms, [summed, y], inlined!(|[t, y]| Self::term(t, y)));
                summed = terms;
            }
            fold_columns(Sum, width, lanes, std::slice::from_raw_parts(summed, len * width), &mut scale);
            let sums = scale.as_mut_ptr();
            map(width, sums, [sums], inlined!(|[sum]| Self::scale(sum)));
            for i in 0..len {
                let (row, y) = (x.add(i * width), y.add(i * width));
                map(width, row, [row, y, sums], inlined!(|[t, y, scale]| Self::finish(t, y, scale)));
            }
        }
    }
}

// Folds `width` columns that lie row after row in `x`.
#[inline(always)]
unsafe fn fold_columns<T: Lanes, F: Fold<T>>(
    fold: F,
    width: usize,
    lanes: *mut T,
    x: &[T],
    out: &mut [T; WIDTH],
) {
    let rows = x.len() / width;
    if rows > BLOCK {
        fold_partials(fold, x, width, &mut |c, value| out[c] = value);
        return;
    }
    // SAFETY: callers lend `Columns::SIZE` elements of scratch, which this thread alone uses.
    let mut columns = unsafe { Columns::new(fold, lanes, rows, width) };
    columns.dense(fold, x);
    out[..width].copy_from_slice(columns.join(fold));
}
