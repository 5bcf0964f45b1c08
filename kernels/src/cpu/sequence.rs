//! Cumulative sums and rotations.

use super::number::{Number, Real};
use crate::layout::{Dst, Src};
use crate::loops::{Loops, Rows};
use crate::par::{Workers, for_range};

/// Rows that are summed side by side.
const WIDTH: usize = 64;

/// Sums along rows, from their begin or, if `reverse`, their end.
pub(crate) unsafe fn cumsum<T: Number>(
    &Rows { ref kept, len, steps }: &Rows<2>,
    workers: &Workers,
    reverse: bool,
    (out, x): (Dst<T>, Src<T>),
) {
    for_range(workers, kept.elements, ((1 << 13) / len).max(1).next_multiple_of(WIDTH), &|range| {
        let mut runs = kept.runs(range);
        let sides = runs.steps();
        while let Some((offsets, count)) = runs.next() {
            for first in (0..count).step_by(WIDTH) {
                let width = WIDTH.min(count - first);
                let mut sums = [T::ZERO; WIDTH];
                for i in 0..len {
                    let i = if reverse { len - 1 - i } else { i } as isize;
                    for (c, sum) in sums[..width].iter_mut().enumerate() {
                        let at = |k: usize| offsets[k] + (first + c) as isize * sides[k] + i * steps[k];
                        // SAFETY: element `i` of a row of `rows`.
                        unsafe {
                            *sum = sum.add(*x.at(at(1)));
                            *out.at(at(0)) = *sum;
                        }
                    }
                }
            }
        }
    });
}

/// Turns pairs, the other way if `inverse`. Operands of `pairs` are output, input, cosine and sine, and the second element of
/// a pair is `apart` from the first in output and input.
pub(crate) unsafe fn rotary<T: Real>(
    pairs: &Loops<4>,
    workers: &Workers,
    (apart, inverse): ([isize; 2], bool),
    (out, x, cos, sin): (Dst<T>, Src<T>, Src<T>, Src<T>),
) {
    for_range(workers, pairs.elements, 1 << 13, &|range| {
        let mut runs = pairs.runs(range);
        let steps = runs.steps();
        while let Some((offsets, count)) = runs.next() {
            for i in 0..count as isize {
                let at = |k: usize| offsets[k] + i * steps[k];
                // SAFETY: a pair of `pairs`.
                unsafe {
                    let (a, b) = (*x.at(at(1)), *x.at(at(1) + apart[1]));
                    let (cos, sin) = (*cos.at(at(2)), *sin.at(at(3)));
                    let sin = if inverse { sin.neg() } else { sin };
                    *out.at(at(0)) = a.mul(cos).sub(b.mul(sin));
                    *out.at(at(0) + apart[0]) = b.mul(cos).add(a.mul(sin));
                }
            }
        }
    });
}
