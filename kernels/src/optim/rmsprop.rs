//! RMSprop.

use pulp::Simd;

use super::{Formula, Visit};
use crate::cpu::lanes::Lanes;
use crate::cpu::number::Number;
use crate::cuda::walk::ByValue;

/// The numbers of a step of RMSprop: `g = grad + weight_decay param`,
/// `square_avg = alpha square_avg + (1 - alpha) g^2`, `d = sqrt(square_avg) + eps`, or, if centered,
/// `grad_avg = grad_avg + (1 - alpha) (g - grad_avg)` and `d = sqrt(square_avg - grad_avg^2) + eps`;
/// `param = param - lr g / d`, or, with momentum, `momentum_buffer = momentum momentum_buffer + g / d` and
/// `param = param - lr momentum_buffer`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropStep {
    /// Learning rate.
    pub lr: f64,
    /// Share of the mean squared gradient that is kept.
    pub alpha: f64,
    /// Added to the divisor.
    pub eps: f64,
    /// Share of the parameter that is added to the gradient.
    pub weight_decay: f64,
    /// Share of the buffer that is kept. With 0 there is no buffer.
    pub momentum: f64,
    /// Whether the divisor is the root of the gradient's variance instead of its mean square.
    pub centered: bool,
}

impl RmsPropStep {
    pub(super) fn states(&self) -> &'static [&'static str] {
        match (self.momentum != 0.0, self.centered) {
            (false, false) => &["square_avg"],
            (true, false) => &["square_avg", "momentum_buffer"],
            (false, true) => &["square_avg", "grad_avg"],
            (true, true) => &["square_avg", "momentum_buffer", "grad_avg"],
        }
    }

    pub(super) fn visit<T: Lanes, V: Visit<T>>(&self, visitor: V) -> V::Output {
        let numbers = RmsProp::of(self);
        match self.states() {
            [_] => visitor.visit::<3>(numbers),
            [_, _] => visitor.visit::<4>(numbers),
            _ => visitor.visit::<5>(numbers),
        }
    }
}

/// `RmsProp` of the CUDA program.
#[derive(Clone, Copy)]
#[repr(C)]
struct RmsProp<T> {
    lr: T,
    alpha: T,
    /// `1 - alpha`
    fresh: T,
    keep: T,
    eps: T,
    momentum: T,
    weight_decay: T,
    decays: u32,
    moves: u32,
    centered: u32,
    /// Whether the mean is moved from the gradient's end, which is nearer where `alpha <= 1/2`.
    near_end: u32,
}

// SAFETY: seven numbers of F32 or F64 and four words need no padding.
unsafe impl<T: Number> ByValue for RmsProp<T> {}

impl<T: Number> RmsProp<T> {
    fn of(step: &RmsPropStep) -> RmsProp<T> {
        let fresh = 1.0 - step.alpha;
        RmsProp {
            lr: T::from_f64(step.lr),
            alpha: T::from_f64(step.alpha),
            fresh: T::from_f64(fresh),
            keep: T::ONE.sub(T::from_f64(fresh)),
            eps: T::from_f64(step.eps),
            momentum: T::from_f64(step.momentum),
            weight_decay: T::from_f64(step.weight_decay),
            decays: u32::from(step.weight_decay != 0.0),
            moves: u32::from(step.momentum != 0.0),
            centered: u32::from(step.centered),
            near_end: u32::from(fresh >= 0.5),
        }
    }
}

impl<T: Lanes, const N: usize> Formula<T, N> for RmsProp<T> {
    #[inline(always)]
    fn step<S: Simd>(&self, simd: S, values: &mut [T::Vector<S>; N]) {
        let [p, mut g] = [values[0], values[1]];
        if self.decays != 0 {
            g = T::v_add(simd, g, T::v_mul(simd, T::splat(simd, self.weight_decay), p));
        }
        let fresh = T::splat(simd, self.fresh);
        let square = T::v_mul(simd, T::v_mul(simd, fresh, g), g);
        let mut v = T::v_add(simd, T::v_mul(simd, values[2], T::splat(simd, self.alpha)), square);
        values[2] = v;
        // The buffer is the second state, the mean the last one.
        if N > 3 && self.centered != 0 {
            let way = T::v_sub(simd, g, values[N - 1]);
            let mean = match self.near_end {
                0 => T::v_add(simd, values[N - 1], T::v_mul(simd, fresh, way)),
                _ => T::v_sub(simd, g, T::v_mul(simd, way, T::splat(simd, self.keep))),
            };
            values[N - 1] = mean;
            v = T::v_sub(simd, v, T::v_mul(simd, mean, mean));
        }
        let divisor = T::v_add(simd, T::v_sqrt(simd, v), T::splat(simd, self.eps));
        let lr = T::splat(simd, self.lr);
        let way = if N > 3 && self.moves != 0 {
            let kept = T::v_mul(simd, values[3], T::splat(simd, self.momentum));
            values[3] = T::v_add(simd, kept, T::v_div(simd, g, divisor));
            T::v_mul(simd, lr, values[3])
        } else {
            T::v_div(simd, T::v_mul(simd, lr, g), divisor)
        };
        values[0] = T::v_sub(simd, p, way);
    }
}
