//! Stochastic gradient descent.

use pulp::Simd;

use super::{Formula, Visit};
use crate::cpu::lanes::Lanes;
use crate::cpu::number::Number;
use crate::cuda::walk::ByValue;

/// The numbers of a step of stochastic gradient descent:
/// `d = grad + weight_decay param`, `momentum_buffer = momentum momentum_buffer + (1 - dampening) d`,
/// `d = d + momentum momentum_buffer` if nesterov, else `momentum_buffer`, `param = param - lr d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub lr: f64,
    /// Share of the buffer that is kept. With 0 there is no buffer.
    pub momentum: f64,
    /// Share of the gradient that does not go into the buffer.
    pub dampening: f64,
    /// Share of the parameter that is added to the gradient.
    pub weight_decay: f64,
    /// Whether the step looks ahead along the buffer.
    pub nesterov: bool,
    /// Whether this is the buffer's first step: it takes the gradient as it is.
    pub first: bool,
}

impl SgdStep {
    pub(super) fn states(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    pub(super) fn visit<T: Lanes, V: Visit<T>>(&self, visitor: V) -> V::Output {
        let numbers = Sgd::of(self);
        match self.states() {
            [] => visitor.visit::<2>(numbers),
            _ => visitor.visit::<3>(numbers),
        }
    }
}

/// `Sgd` of the CUDA program.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sgd<T> {
    lr: T,
    momentum: T,
    /// `1 - dampening`
    fresh: T,
    weight_decay: T,
    decays: u32,
    nesterov: u32,
    first: u32,
    pad: u32,
}

// SAFETY: four numbers of F32 or F64 and four words need no padding.
unsafe impl<T: Number> ByValue for Sgd<T> {}

impl<T: Number> Sgd<T> {
    fn of(step: &SgdStep) -> Sgd<T> {
        Sgd {
            lr: T::from_f64(step.lr),
            momentum: T::from_f64(step.momentum),
            fresh: T::from_f64(1.0 - step.dampening),
            weight_decay: T::from_f64(step.weight_decay),
            decays: u32::from(step.weight_decay != 0.0),
            nesterov: u32::from(step.nesterov),
            first: u32::from(step.first),
            pad: 0,
        }
    }
}

impl<T: Lanes, const N: usize> Formula<T, N> for Sgd<T> {
    #[inline(always)]
    fn step<S: Simd>(&self, simd: S, values: &mut [T::Vector<S>; N]) {
        let [p, mut d] = [values[0], values[1]];
        if self.decays != 0 {
            d = T::v_add(simd, d, T::v_mul(simd, T::splat(simd, self.weight_decay), p));
        }
        // A buffer is there only if there is momentum.
        if N == 3 {
            let momentum = T::splat(simd, self.momentum);
            let mut b = d;
            if self.first == 0 {
                let fresh = T::v_mul(simd, T::splat(simd, self.fresh), d);
                b = T::v_add(simd, T::v_mul(simd, momentum, values[2]), fresh);
            }
            values[2] = b;
            d = if self.nesterov != 0 { T::v_add(simd, d, T::v_mul(simd, momentum, b)) } else { b };
        }
        values[0] = T::v_sub(simd, p, T::v_mul(simd, T::splat(simd, self.lr), d));
    }
}
