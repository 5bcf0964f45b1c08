//! Lion.

use pulp::Simd;

use super::Formula;
use crate::cpu::lanes::Lanes;
use crate::cpu::number::Number;
use crate::cuda::walk::ByValue;

/// The numbers of a step of Lion: `param = (1 - lr weight_decay) param`,
/// `param = param - lr sign(beta1 exp_avg + (1 - beta1) grad)`, `exp_avg = beta2 exp_avg + (1 - beta2) grad`
/// (Chen et al., "Symbolic discovery of optimization algorithms", 2023). The sign of 0, and of NaN, is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionStep {
    /// Learning rate.
    pub lr: f64,
    /// Share of the mean gradient in the direction.
    pub beta1: f64,
    /// Share of the mean gradient that is kept.
    pub beta2: f64,
    /// Share of the parameter that is taken off it, times the learning rate.
    pub weight_decay: f64,
}

/// `Lion` of the CUDA program.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Lion<T> {
    lr: T,
    /// `1 - lr weight_decay`
    shrink: T,
    keep1: T,
    /// `1 - beta1`
    fresh1: T,
    keep2: T,
    /// `1 - beta2`
    fresh2: T,
}

// SAFETY: six numbers of one type.
unsafe impl<T: Number> ByValue for Lion<T> {}

impl<T: Number> Lion<T> {
    pub(super) fn of(step: &LionStep) -> Lion<T> {
        Lion {
            lr: T::from_f64(step.lr),
            shrink: T::from_f64(1.0 - step.lr * step.weight_decay),
            keep1: T::from_f64(step.beta1),
            fresh1: T::from_f64(1.0 - step.beta1),
            keep2: T::from_f64(step.beta2),
            fresh2: T::from_f64(1.0 - step.beta2),
        }
    }
}

impl<T: Lanes> Formula<T, 3> for Lion<T> {
    #[inline(always)]
    fn step<S: Simd>(&self, simd: S, values: &mut [T::Vector<S>; 3]) {
        let [p, g, m] = *values;
        let mix = |keep: T, fresh: T| {
            let fresh = T::v_mul(simd, g, T::splat(simd, fresh));
            T::v_add(simd, T::v_mul(simd, m, T::splat(simd, keep)), fresh)
        };
        let way = T::v_mul(simd, T::splat(simd, self.lr), T::v_sign(simd, mix(self.keep1, self.fresh1)));
        let p = T::v_mul(simd, p, T::splat(simd, self.shrink));
        *values = [T::v_sub(simd, p, way), g, mix(self.keep2, self.fresh2)];
    }
}
