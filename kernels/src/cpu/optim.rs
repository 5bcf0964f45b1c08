//! Optimizer steps, in explicit vector code: loops over several outputs are more than the compiler vectorises.

use pulp::{Arch, Scalar, Simd, WithSimd};

use super::lanes::Lanes;
use crate::layout::{Dst, Loops};
use crate::optim::{AdamStep, SgdStep};
use crate::par::{Workers, for_range};

// Elements of a part when a step is split over threads.
const CHUNK: usize = 1 << 15;

/// What a step does to parameter, gradient and state, in this order. The gradient comes back as it was.
trait Step<T: Lanes, const N: usize>: Copy + Sync {
    fn apply<S: Simd>(self, simd: S, values: [T::Vector<S>; N]) -> [T::Vector<S>; N];
}

#[derive(Clone, Copy)]
struct Sgd<T> {
    lr: T,
    momentum: T,
    fresh: T,
    weight_decay: Option<T>,
    nesterov: bool,
    first: bool,
}

impl<T: Lanes, const N: usize> Step<T, N> for Sgd<T> {
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, mut values: [T::Vector<S>; N]) -> [T::Vector<S>; N] {
        let [p, mut d] = [values[0], values[1]];
        if let Some(decay) = self.weight_decay {
            d = T::v_add(simd, d, T::v_mul(simd, T::splat(simd, decay), p));
        }
        // A buffer is there only if there is momentum.
        if N == 3 {
            let momentum = T::splat(simd, self.momentum);
            let mut b = d;
            if !self.first {
                let fresh = T::v_mul(simd, T::splat(simd, self.fresh), d);
                b = T::v_add(simd, T::v_mul(simd, momentum, values[2]), fresh);
            }
            values[2] = b;
            d = if self.nesterov { T::v_add(simd, d, T::v_mul(simd, momentum, b)) } else { b };
        }
        values[0] = T::v_sub(simd, p, T::v_mul(simd, T::splat(simd, self.lr), d));
        values
    }
}

#[derive(Clone, Copy)]
struct Adam<T> {
    /// `-lr / (1 - beta1^step)`
    size: T,
    /// `sqrt(1 - beta2^step)`
    root: T,
    eps: T,
    /// `1 - beta1`
    fresh1: T,
    /// `beta1` if m is moved from the gradient's end, which is nearer where `beta1 <= 1/2`.
    near_end: Option<T>,
    keep2: T,
    /// `1 - beta2`
    fresh2: T,
    weight_decay: Option<T>,
    /// `1 - lr weight_decay`, if that is how the decay is done.
    shrink: Option<T>,
}

impl<T: Lanes> Step<T, 4> for Adam<T> {
    #[inline(always)]
    fn apply<S: Simd>(
        self,
        simd: S,
        [mut p, gradient, mut m, mut v]: [T::Vector<S>; 4],
    ) -> [T::Vector<S>; 4] {
        let mut g = gradient;
        if let Some(shrink) = self.shrink {
            p = T::v_mul(simd, p, T::splat(simd, shrink));
        } else if let Some(decay) = self.weight_decay {
            g = T::v_add(simd, g, T::v_mul(simd, T::splat(simd, decay), p));
        }
        let way = T::v_sub(simd, g, m);
        m = match self.near_end {
            Some(keep) => T::v_sub(simd, g, T::v_mul(simd, way, T::splat(simd, keep))),
            None => T::v_add(simd, m, T::v_mul(simd, T::splat(simd, self.fresh1), way)),
        };
        let square = T::v_mul(simd, T::v_mul(simd, T::splat(simd, self.fresh2), g), g);
        v = T::v_add(simd, T::v_mul(simd, v, T::splat(simd, self.keep2)), square);
        let root = T::v_div(simd, T::v_sqrt(simd, v), T::splat(simd, self.root));
        let divisor = T::v_add(simd, root, T::splat(simd, self.eps));
        let way = T::v_div(simd, T::v_mul(simd, T::splat(simd, self.size), m), divisor);
        [T::v_add(simd, p, way), gradient, m, v]
    }
}

/// # Safety
/// `operands` are parameter, gradient and state. The elements that `loops` reaches can be read and, but for the
/// gradient's, written, and nobody else uses them meanwhile.
pub(crate) unsafe fn sgd<T: Lanes, const N: usize>(
    loops: &Loops<N>,
    workers: &Workers,
    operands: [Dst<T>; N],
    step: SgdStep,
) {
    let op = Sgd {
        lr: T::from_f64(step.lr),
        momentum: T::from_f64(step.momentum),
        fresh: T::from_f64(1.0 - step.dampening),
        weight_decay: (step.weight_decay != 0.0).then_some(T::from_f64(step.weight_decay)),
        nesterov: step.nesterov,
        first: step.first,
    };
    // SAFETY: the caller's promise.
    unsafe { update(loops, workers, operands, op) }
}

/// # Safety
/// As for [`sgd`].
pub(crate) unsafe fn adam<T: Lanes>(
    loops: &Loops<4>,
    workers: &Workers,
    operands: [Dst<T>; 4],
    step: AdamStep,
) {
    let power = i32::try_from(step.step).unwrap_or(i32::MAX);
    let fresh1 = 1.0 - step.beta1;
    let op = Adam {
        size: T::from_f64(-(step.lr / (1.0 - step.beta1.powi(power)))),
        root: T::from_f64((1.0 - step.beta2.powi(power)).sqrt()),
        eps: T::from_f64(step.eps),
        fresh1: T::from_f64(fresh1),
        near_end: (fresh1 >= 0.5).then_some(T::ONE.sub(T::from_f64(fresh1))),
        keep2: T::from_f64(step.beta2),
        fresh2: T::from_f64(1.0 - step.beta2),
        weight_decay: (step.weight_decay != 0.0).then_some(T::from_f64(step.weight_decay)),
        shrink: step.decoupled.then_some(T::from_f64(1.0 - step.lr * step.weight_decay)),
    };
    // SAFETY: the caller's promise.
    unsafe { update(loops, workers, operands, op) }
}

// Replaces the values of each element, the gradient's aside.
unsafe fn update<T: Lanes, O: Step<T, N>, const N: usize>(
    loops: &Loops<N>,
    workers: &Workers,
    operands: [Dst<T>; N],
    op: O,
) {
    let steps = loops.inner().strides;
    for_range(workers, loops.elements, CHUNK, &|range| {
        loops.for_runs(range, |offsets, len| {
            let at: [*mut T; N] = std::array::from_fn(|k| operands[k].at(offsets[k]));
            if steps == [1; N] {
                Arch::new().dispatch(Run { at, len, op });
                return;
            }
            for i in 0..len as isize {
                // SAFETY: the caller's promise.
                unsafe { one(std::array::from_fn(|k| at[k].wrapping_offset(i * steps[k])), op) }
            }
        });
    });
}

// Updates one element.
#[inline(always)]
unsafe fn one<T: Lanes, O: Step<T, N>, const N: usize>(at: [*mut T; N], op: O) {
    // SAFETY: the caller's promise; a scalar's vector is one element.
    unsafe {
        let values = op.apply(Scalar, std::array::from_fn(|k| T::load(Scalar, at[k])));
        for k in (0..N).filter(|&k| k != 1) {
            T::store(Scalar, at[k], values[k]);
        }
    }
}

// Elements that lie next to each other in all operands.
struct Run<T, O, const N: usize> {
    at: [*mut T; N],
    len: usize,
    op: O,
}

impl<T: Lanes, O: Step<T, N>, const N: usize> WithSimd for Run<T, O, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run { at, len, op } = self;
        let lanes = T::lanes::<S>();
        let mut i = 0;
        // SAFETY: the promise of `update`'s caller.
        unsafe {
            while i + lanes <= len {
                let values = op.apply(simd, std::array::from_fn(|k| T::load(simd, at[k].add(i))));
                for k in 0..N {
                    if k != 1 {
                        T::store(simd, at[k].add(i), values[k]);
                    }
                }
                i += lanes;
            }
            while i < len {
                one(std::array::from_fn(|k| at[k].add(i)), op);
                i += 1;
            }
        }
    }
}
