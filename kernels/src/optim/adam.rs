//! Adam and AdamW.

use pulp::Simd;

use super::Formula;
use crate::cpu::lanes::Lanes;
use crate::cpu::number::Number;
use crate::cuda::walk::ByValue;

/// The numbers of a step of Adam or AdamW, with `exp_avg` and `exp_avg_sq` the running means of the gradient and of its
/// square: `g = grad + weight_decay param`, or `param = (1 - lr weight_decay) param` if decoupled;
/// `exp_avg = exp_avg + (1 - beta1) (g - exp_avg)`, `exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2`,
/// `param = param - lr / (1 - beta1^step) exp_avg / (sqrt(exp_avg_sq) / sqrt(1 - beta2^step) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Number of this step, from 1.
    pub step: u64,
    /// Learning rate.
    pub lr: f64,
    /// Share of the mean gradient that is kept.
    pub beta1: f64,
    /// Share of the mean squared gradient that is kept.
    pub beta2: f64,
    /// Added to the divisor.
    pub eps: f64,
    /// Share of the parameter that is added to the gradient or, if decoupled, taken off the parameter.
    pub weight_decay: f64,
    /// AdamW: the decay does not pass through the gradient.
    pub decoupled: bool,
}

/// `Adam` of the CUDA program.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Adam<T> {
    /// `-lr / (1 - beta1^step)`
    size: T,
    /// `sqrt(1 - beta2^step)`
    root: T,
    eps: T,
    /// `1 - beta1`
    fresh1: T,
    keep1: T,
    /// `1 - beta2`
    fresh2: T,
    keep2: T,
    weight_decay: T,
    /// `1 - lr weight_decay`, or 1 if the decay goes through the gradient.
    shrink: T,
    decays: u32,
    /// Whether the mean is moved from the gradient's end, which is nearer where `beta1 <= 1/2`.
    near_end: u32,
}

// SAFETY: nine numbers of F32 or F64 and two words need no padding.
unsafe impl<T: Number> ByValue for Adam<T> {}

impl<T: Number> Adam<T> {
    pub(super) fn of(step: &AdamStep) -> Adam<T> {
        let power = i32::try_from(step.step).unwrap_or(i32::MAX);
        let fresh1 = 1.0 - step.beta1;
        let shrink = if step.decoupled { 1.0 - step.lr * step.weight_decay } else { 1.0 };
        Adam {
            size: T::from_f64(-(step.lr / (1.0 - step.beta1.powi(power)))),
            root: T::from_f64((1.0 - step.beta2.powi(power)).sqrt()),
            eps: T::from_f64(step.eps),
            fresh1: T::from_f64(fresh1),
            keep1: T::ONE.sub(T::from_f64(fresh1)),
            fresh2: T::from_f64(1.0 - step.beta2),
            keep2: T::from_f64(step.beta2),
            weight_decay: T::from_f64(step.weight_decay),
            shrink: T::from_f64(shrink),
            decays: u32::from(step.weight_decay != 0.0 && !step.decoupled),
            near_end: u32::from(fresh1 >= 0.5),
        }
    }
}

impl<T: Lanes> Formula<T, 4> for Adam<T> {
    #[inline(always)]
    fn step<S: Simd>(&self, simd: S, values: &mut [T::Vector<S>; 4]) {
        let [mut p, mut g, mut m, mut v] = *values;
        p = T::v_mul(simd, p, T::splat(simd, self.shrink));
        if self.decays != 0 {
            g = T::v_add(simd, g, T::v_mul(simd, T::splat(simd, self.weight_decay), p));
        }
        let way = T::v_sub(simd, g, m);
        m = match self.near_end {
            0 => T::v_add(simd, m, T::v_mul(simd, T::splat(simd, self.fresh1), way)),
            _ => T::v_sub(simd, g, T::v_mul(simd, way, T::splat(simd, self.keep1))),
        };
        let square = T::v_mul(simd, T::v_mul(simd, T::splat(simd, self.fresh2), g), g);
        v = T::v_add(simd, T::v_mul(simd, v, T::splat(simd, self.keep2)), square);
        let root = T::v_div(simd, T::v_sqrt(simd, v), T::splat(simd, self.root));
        let divisor = T::v_add(simd, root, T::splat(simd, self.eps));
        let way = T::v_div(simd, T::v_mul(simd, T::splat(simd, self.size), m), divisor);
        *values = [T::v_add(simd, p, way), g, m, v];
    }
}
