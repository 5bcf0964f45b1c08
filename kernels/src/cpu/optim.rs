//! Optimizer steps, in explicit vector code: loops over several outputs are more than the compiler vectorises.

use pulp::{Arch, Scalar, Simd, WithSimd};

use super::lanes::Lanes;
use crate::layout::{Dst, Loops};
use crate::optim::Formula;
use crate::par::{Workers, for_range};

// Elements of a part when a step is split over threads.
const CHUNK: usize = 1 << 15;

/// Steps each element of parameter, gradient and states; the gradient is only read.
///
/// # Safety
/// `operands` are parameter, gradient and states. The elements that `loops` reaches can be read and, but for the
/// gradient's, written, and nobody else uses them meanwhile.
pub(crate) unsafe fn step<T: Lanes, F: Formula<T, N>, const N: usize>(
    loops: &Loops<N>,
    workers: &Workers,
    operands: [Dst<T>; N],
    formula: F,
) {
    let steps = loops.inner().strides;
    for_range(workers, loops.elements, CHUNK, &|range| {
        loops.for_runs(range, |offsets, len| {
            let at: [*mut T; N] = std::array::from_fn(|k| operands[k].at(offsets[k]));
            if steps == [1; N] {
                Arch::new().dispatch(Run { at, len, formula });
                return;
            }
            for i in 0..len as isize {
                // SAFETY: the caller's promise.
                unsafe { one(std::array::from_fn(|k| at[k].wrapping_offset(i * steps[k])), &formula) }
            }
        });
    });
}

// Updates one element.
#[inline(always)]
unsafe fn one<T: Lanes, F: Formula<T, N>, const N: usize>(at: [*mut T; N], formula: &F) {
    // SAFETY: the caller's promise; a scalar's vector is one element.
    unsafe {
        let mut values = std::array::from_fn(|k| T::load(Scalar, at[k]));
        formula.step(Scalar, &mut values);
        for k in (0..N).filter(|&k| k != 1) {
            T::store(Scalar, at[k], values[k]);
        }
    }
}

// Elements that lie next to each other in all operands.
struct Run<T, F, const N: usize> {
    at: [*mut T; N],
    len: usize,
    formula: F,
}

impl<T: Lanes, F: Formula<T, N>, const N: usize> WithSimd for Run<T, F, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run { at, len, formula } = self;
        let lanes = T::lanes::<S>();
        let mut i = 0;
        // SAFETY: the promise of `step`'s caller.
        unsafe {
            while i + lanes <= len {
                let mut values = std::array::from_fn(|k| T::load(simd, at[k].add(i)));
                formula.step(simd, &mut values);
                for k in 0..N {
                    if k != 1 {
                        T::store(simd, at[k].add(i), values[k]);
                    }
                }
                i += lanes;
            }
            while i < len {
                one(std::array::from_fn(|k| at[k].add(i)), &formula);
                i += 1;
            }
        }
    }
}
