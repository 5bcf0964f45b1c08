//! Reductions: folds, and what is made of them.

use device::DType;
use smallvec::SmallVec;

use super::fold::{Max, Min, Prod, Sum, SumExp, SumSquares, fold};
use super::lanes::{Lanes, Scratch, with_scratch};
use super::number::{Number, Real};
use crate::chain::{Chain, Fold};
use crate::layout::{Dst, Loops, Src};
use crate::par::{Workers, for_range};
use crate::reduction::{Axes, Extreme, ReduceOp, Reduction};

/// A reduction that joins numbers of any type; no other is asked for.
///
/// # Safety
/// The elements that `axes` reaches can be read, `out` has room for all outputs, and nobody else uses it meanwhile.
pub(crate) unsafe fn of_numbers<T: Number + Scratch>(
    how: Reduction,
    axes: &Axes,
    workers: &Workers,
    x: Src<T>,
    out: Dst<T>,
) {
    let Reduction::Join(op) = how else { return };
    // SAFETY: the caller keeps the contract of `fold`; these folds lift nothing and need no shifts.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => fold(axes, workers, x, None, out, Sum),
            ReduceOp::Prod => fold(axes, workers, x, None, out, Prod),
            ReduceOp::Max => fold(axes, workers, x, None, out, Max),
            ReduceOp::Min => fold(axes, workers, x, None, out, Min),
        }
    }
}

/// A reduction of floats.
///
/// # Safety
/// As for [`of_numbers`].
pub(crate) unsafe fn of_floats<T: Lanes>(
    how: Reduction,
    axes: &Axes,
    workers: &Workers,
    x: Src<T>,
    out: Dst<T>,
) {
    let count = axes.reduced.elements as f64;
    // SAFETY: the caller keeps the contract of `fold`. Shifts are the outputs, or lie in scratch with an element for
    // each.
    unsafe {
        match how {
            Reduction::Join(op) => {
                of_numbers(how, axes, workers, x, out);
                if op == ReduceOp::Mean {
                    divide(axes, out, T::from_f64(count));
                }
            }
            Reduction::Var { correction, root } => {
                let divisor = T::from_f64((count - correction).max(0.0));
                variance(axes, workers, x, out, (divisor, root));
            }
            Reduction::LogSumExp => with_scratch(axes.kept.elements, |largest: *mut T| {
                log_sum_exp(axes, workers, x, Dst(largest), out);
                for k in 0..axes.kept.elements as isize {
                    *out.at(k) = (*out.at(k)).add(*largest.offset(k));
                }
            }),
            // `extreme`, whose results are no floats.
            Reduction::Index(_) => {}
        }
    }
}

/// `out = sum (x - mean)^2 / divisor`, or its root.
///
/// # Safety
/// As for [`of_numbers`].
unsafe fn variance<T: Lanes>(
    axes: &Axes,
    workers: &Workers,
    x: Src<T>,
    out: Dst<T>,
    (divisor, root): (T, bool),
) {
    let (kept, count) = (axes.kept.elements, T::from_f64(axes.reduced.elements as f64));
    // SAFETY: the caller keeps the contract of `fold`. Means and squares go to `out` or to scratch with an element
    // for each output, and are written before they are read.
    unsafe {
        let squares = |scale: T, to: Dst<T>| {
            // The means first.
            fold(axes, workers, x, None, to, Sum);
            divide(axes, to, count);
            fold(axes, workers, x, Some(to.src()), to, SumSquares(scale));
        };
        squares(T::ONE, out);
        let outputs = std::slice::from_raw_parts_mut(out.0, kept);
        let scales: SmallVec<[T; 8]> = outputs
            .iter()
            .map(|&squares| T::scale_of_squares(squares))
            // A variance below all numbers is 0.
            .map(|scale| if scale > T::ONE && !root { T::ONE } else { scale })
            .collect();
        let finish = |squares: T, scale: T| {
            let variance = squares.div(divisor);
            let value = if root { variance.sqrt() } else { variance.div(scale) };
            value.div(scale)
        };
        for (output, _) in outputs.iter_mut().zip(&scales).filter(|(_, scale)| **scale == T::ONE) {
            *output = finish(*output, T::ONE);
        }
        for scale in [T::SHRINK, T::SHRINK.recip()].into_iter().filter(|scale| scales.contains(scale)) {
            with_scratch(kept, |scaled: *mut T| {
                squares(scale, Dst(scaled));
                for k in (0..kept).filter(|&k| scales[k] == scale) {
                    *out.at(k as isize) = finish(*scaled.add(k), scale);
                }
            });
        }
    }
}

/// The reduction of a chain, of what its functions have written.
///
/// # Safety
/// A step's results that are folded were written to memory; as for [`of_numbers`].
pub(crate) unsafe fn fold_chain(chain: &Chain, workers: &Workers) {
    let Some(Fold { of, op, dtype, axes, out, .. }) = &chain.fold else { return };
    let Some(written) = chain.steps[*of].output else { return };
    let (how, x, out) = (Reduction::Join(*op), chain.operands[written].at.src(), out.at);
    // SAFETY: the caller promises that the folded step was written to its operand, whose elements of type `dtype`
    // `axes` reaches, and keeps the contract of `of_numbers` for `out`.
    unsafe {
        match dtype {
            DType::F64 => of_floats::<f64>(how, axes, workers, x.cast(), out.cast()),
            _ => of_floats::<f32>(how, axes, workers, x.cast(), out.cast()),
        }
    }
}

/// `largest = max x`, or 0 if that is infinite, and `out = log(sum exp(x - largest))`.
///
/// # Safety
/// As for [`of_numbers`], for both outputs.
pub(super) unsafe fn log_sum_exp<T: Lanes>(
    axes: &Axes,
    workers: &Workers,
    x: Src<T>,
    largest: Dst<T>,
    out: Dst<T>,
) {
    // SAFETY: the caller keeps the contract of `fold` for both outputs, and `largest` is written before it is read as
    // shifts.
    unsafe {
        fold(axes, workers, x, None, largest, Max);
        for k in 0..axes.kept.elements as isize {
            let m = largest.at(k);
            // With an infinite one `x - m` would be NaN; without it the infinity comes through by itself.
            if (*m).sub(*m).is_nan() && !(*m).is_nan() {
                *m = T::ZERO;
            }
        }
        fold(axes, workers, x, Some(largest.src()), out, SumExp);
        for k in 0..axes.kept.elements as isize {
            *out.at(k) = (*out.at(k)).log();
        }
    }
}

/// Divides all outputs.
///
/// # Safety
/// There is room for all of them, each with a value.
unsafe fn divide<T: Real>(axes: &Axes, out: Dst<T>, divisor: T) {
    for k in 0..axes.kept.elements as isize {
        // SAFETY: `k` is below the number of outputs, which the caller promises to have values.
        unsafe { *out.at(k) = (*out.at(k)).div(divisor) };
    }
}

/// `out[k]` = index of the first largest or smallest of the `len` elements at steps of `step` from kept element `k`.
///
/// # Safety
/// As for [`of_numbers`], with as many elements; `len` is not 0.
pub(crate) unsafe fn extreme<T: Number>(
    which: Extreme,
    kept: &Loops<1>,
    workers: &Workers,
    x: Src<T>,
    along: (usize, isize),
    out: Dst<i64>,
) {
    // SAFETY: the caller keeps the contract of `first_best`: readable elements, room for all outputs, and a `len`
    // above 0.
    unsafe {
        match which {
            Extreme::Largest => first_best(kept, workers, x, along, out, |a, b| a > b),
            Extreme::Smallest => first_best(kept, workers, x, along, out, |a, b| a < b),
        }
    }
}

/// `out[k]` = index of the first of the `len` elements at steps of `step` from kept element `k` that no other is `better`
/// than; the first NaN wins.
///
/// # Safety
/// The elements can be read, `len` is not 0, `out` has room for all kept elements, and nobody else uses it meanwhile.
unsafe fn first_best<T: Number>(
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
                // SAFETY: `kept` reaches the first element and `i` is below `len`, so the caller promises the
                // element; `k` counts the kept elements, for which `out` has room.
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
