//! Softmax and its relatives: every row of an axis by itself.
//!
//! Long rows that lie along memory are worked on where they are. Other rows are copied, up to [`WIDTH`] at a time and
//! side by side, so that short rows (ten classes, say) fill vectors as well as long ones do. The sums have the same
//! order either way.

use std::ops::Range;

use super::fold::{BLOCK, Columns, Fold, LANES, Max, Sum, WIDTH, fold_partials, fold_slice};
use super::lanes::{Lanes, map, simd_for, with_scratch};
use super::product::{Matrix, copy_matrix};
use crate::layout::{Dst, Src};
use crate::loops::Rows;
use crate::par::{Workers, for_range};

/// What is done to a row of `x`, beside a row of `y` in a gradient:
/// `out = finish(t, y, scale(sum term(t, y)))` with `t = shift(x, max x)`.
trait RowOp<T: Lanes>: Copy + Sync {
    /// Whether there is a `shift`, which needs the largest element.
    const MAX: bool = false;
    /// Whether `term` is more than `t`.
    const TERM: bool = false;
    #[inline(always)]
    fn shift(self, x: T, _largest: T) -> T {
        x
    }
    #[inline(always)]
    fn term(self, t: T, _y: T) -> T {
        t
    }
    #[inline(always)]
    fn scale(self, sum: T) -> T {
        sum
    }
    fn finish(self, t: T, y: T, scale: T) -> T;
}

#[derive(Clone, Copy)]
struct Softmax;

impl<T: Lanes> RowOp<T> for Softmax {
    const MAX: bool = true;
    #[inline(always)]
    fn shift(self, x: T, largest: T) -> T {
        x.sub(largest).exp()
    }
    #[inline(always)]
    fn finish(self, t: T, _: T, sum: T) -> T {
        t.div(sum)
    }
}

#[derive(Clone, Copy)]
struct LogSoftmax;

impl<T: Lanes> RowOp<T> for LogSoftmax {
    const MAX: bool = true;
    const TERM: bool = true;
    #[inline(always)]
    fn shift(self, x: T, largest: T) -> T {
        x.sub(largest)
    }
    #[inline(always)]
    fn term(self, t: T, _: T) -> T {
        t.exp()
    }
    #[inline(always)]
    fn scale(self, sum: T) -> T {
        sum.log()
    }
    #[inline(always)]
    fn finish(self, t: T, _: T, log_sum: T) -> T {
        t.sub(log_sum)
    }
}

// In the gradients `x` is the gradient of the output and `y` the output.

#[derive(Clone, Copy)]
struct SoftmaxGrad;

impl<T: Lanes> RowOp<T> for SoftmaxGrad {
    const TERM: bool = true;
    #[inline(always)]
    fn term(self, g: T, y: T) -> T {
        g.mul(y)
    }
    #[inline(always)]
    fn finish(self, g: T, y: T, sum: T) -> T {
        y.mul(g.sub(sum))
    }
}

#[derive(Clone, Copy)]
struct LogSoftmaxGrad;

impl<T: Lanes> RowOp<T> for LogSoftmaxGrad {
    #[inline(always)]
    fn finish(self, g: T, y: T, sum: T) -> T {
        g.sub(y.exp().mul(sum))
    }
}

/// Softmax or, with `log`, its logarithm.
///
/// # Safety
/// The elements of `rows` can be read and, of the output, written, and nobody else uses them meanwhile.
pub(crate) unsafe fn forward<T: Lanes>(log: bool, rows: &Rows<2>, workers: &Workers, out: Dst<T>, x: Src<T>) {
    // SAFETY: the contract is the same.
    unsafe {
        match log {
            true => run(rows, workers, out, [x], LogSoftmax),
            false => run(rows, workers, out, [x], Softmax),
        }
    }
}

/// The gradient of softmax or of its logarithm, from its output and the gradient of that.
///
/// # Safety
/// As for [`forward`].
pub(crate) unsafe fn gradient<T: Lanes>(
    log: bool,
    rows: &Rows<3>,
    workers: &Workers,
    out: Dst<T>,
    inputs: [Src<T>; 2],
) {
    // SAFETY: the contract is the same.
    unsafe {
        match log {
            true => run(rows, workers, out, inputs, LogSoftmaxGrad),
            false => run(rows, workers, out, inputs, SoftmaxGrad),
        }
    }
}

// `I` inputs, the last of which is x; operand `i + 1` is input `i`.
unsafe fn run<T: Lanes, O: RowOp<T>, const N: usize, const I: usize>(
    rows: &Rows<N>,
    workers: &Workers,
    out: Dst<T>,
    inputs: [Src<T>; I],
    op: O,
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
        if by_rows {
            with_scratch(if O::TERM { len } else { 0 }, |terms: *mut T| {
                simd_for::<T, _>(
                    #[inline(always)]
                    || {
                        let sides = kept.inner().strides;
                        kept.for_runs(
                            range.clone(),
                            #[inline(always)]
                            |offsets, count| {
                                for row in 0..count as isize {
                                    let at = |k: usize| offsets[k] + row * sides[k];
                                    let inputs = std::array::from_fn(|i| inputs[i].at(at(i + 1)));
                                    // SAFETY: the caller's promise; rows of the output are disjoint.
                                    unsafe { run_row::<T, O, I>(op, len, out.at(at(0)), inputs, terms) };
                                }
                            },
                        );
                    },
                );
            });
        } else {
            // SAFETY: the caller's promise.
            unsafe { run_columns(rows, range, out, inputs, op) }
        }
    });
}

// `terms` has room for a row if the op has terms.
#[inline(always)]
unsafe fn run_row<T: Lanes, O: RowOp<T>, const I: usize>(
    op: O,
    len: usize,
    out: *mut T,
    inputs: [*const T; I],
    terms: *mut T,
) {
    let (y, x) = (inputs[0], inputs[I - 1]);
    // SAFETY: the caller's promise: `len` elements of each. `out` may be an input: its elements are read first.
    unsafe {
        let mut t = x;
        if O::MAX {
            let largest = fold_slice(Max, std::slice::from_raw_parts(x, len));
            map(
                len,
                out,
                [x],
                #[inline(always)]
                |[x]| op.shift(x, largest),
            );
            t = out;
        }
        let mut summed = t;
        if O::TERM {
            map(
                len,
                terms,
                [t, y],
                #[inline(always)]
                |[t, y]| op.term(t, y),
            );
            summed = terms;
        }
        let scale = op.scale(fold_slice(Sum, std::slice::from_raw_parts(summed, len)));
        map(
            len,
            out,
            [t, y],
            #[inline(always)]
            |[t, y]| op.finish(t, y, scale),
        );
    }
}

// Rows `range`, copied to lie side by side.
unsafe fn run_columns<T: Lanes, O: RowOp<T>, const N: usize, const I: usize>(
    rows: &Rows<N>,
    range: Range<usize>,
    out: Dst<T>,
    inputs: [Src<T>; I],
    op: O,
) {
    let Rows { kept, len, steps } = rows;
    let len = *len;
    let arch = pulp::Arch::new();
    let sides = kept.inner().strides;
    // Fewer long rows at a time, so that the copies stay in the cache.
    let width = ((1 << 16) / len).clamp(WIDTH / 2, WIDTH);
    let size = Columns::<T>::SIZE;
    let copied = I + usize::from(O::TERM);
    with_scratch(size + copied * len * width, |lanes: *mut T| {
        let copies: [*mut T; I] = std::array::from_fn(|i| lanes.wrapping_add(size + i * len * width));
        let terms = lanes.wrapping_add(size + I * len * width);
        for first in range.clone().step_by(width) {
            let count = width.min(range.end - first);
            // SAFETY: the caller's promise, and there is room for the copies.
            unsafe {
                let block = |ptr: *mut T| Matrix { ptr, row: count as isize, col: 1 };
                let mut done = 0;
                kept.for_runs(first..first + count, |offsets, n| {
                    for i in 0..I {
                        let ptr = inputs[i].at(offsets[i + 1]).cast_mut();
                        let from = Matrix { ptr, row: steps[i + 1], col: sides[i + 1] };
                        copy_matrix(arch, len, n, from, block(copies[i]).at(0, done));
                    }
                    done += n;
                });
                simd_for::<T, _>(
                    #[inline(always)]
                    || {
                        columns(op, len, count, lanes, copies, terms);
                    },
                );
                let mut done = 0;
                kept.for_runs(first..first + count, |offsets, n| {
                    let to = Matrix { ptr: out.at(offsets[0]), row: steps[0], col: sides[0] };
                    copy_matrix(arch, len, n, block(copies[I - 1]).at(0, done), to);
                    done += n;
                });
            }
        }
    });
}

// Works on `width` rows that lie side by side, and leaves the result in the last copy. `terms` has room for a copy if
// the op has terms.
#[inline(always)]
unsafe fn columns<T: Lanes, O: RowOp<T>, const I: usize>(
    op: O,
    len: usize,
    width: usize,
    lanes: *mut T,
    copies: [*mut T; I],
    terms: *mut T,
) {
    let (y, x) = (copies[0].cast_const(), copies[I - 1]);
    let mut scale = [T::ZERO; WIDTH];
    // SAFETY: the caller's promise: `len` rows of `width` elements each.
    unsafe {
        if O::MAX {
            let mut largest = [T::ZERO; WIDTH];
            fold_columns(Max, width, lanes, std::slice::from_raw_parts(x, len * width), &mut largest);
            let largest = largest.as_ptr();
            for i in 0..len {
                let row = x.add(i * width);
                map(
                    width,
                    row,
                    [row, largest],
                    #[inline(always)]
                    |[x, largest]| op.shift(x, largest),
                );
            }
        }
        let mut summed = x.cast_const();
        if O::TERM {
            map(
                len * width,
                terms,
                [summed, y],
                #[inline(always)]
                |[t, y]| op.term(t, y),
            );
            summed = terms;
        }
        fold_columns(Sum, width, lanes, std::slice::from_raw_parts(summed, len * width), &mut scale);
        let sums = scale.as_ptr();
        map(
            width,
            scale.as_mut_ptr(),
            [sums],
            #[inline(always)]
            |[sum]| op.scale(sum),
        );
        let scale = scale.as_ptr();
        for i in 0..len {
            let (row, y) = (x.add(i * width), y.add(i * width));
            map(
                width,
                row,
                [row, y, scale],
                #[inline(always)]
                |[t, y, scale]| op.finish(t, y, scale),
            );
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
    // SAFETY: the caller lent the memory.
    let mut columns = unsafe { Columns::new(fold, lanes, rows, width) };
    columns.dense(fold, x);
    out[..width].copy_from_slice(columns.join(fold));
}
