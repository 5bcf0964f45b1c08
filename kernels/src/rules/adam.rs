//! Adam and AdamW.

use super::{Rule, RuleValue, decayed, lerp};

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

impl AdamStep {
    /// The numbers and choices of [`Adam`].
    pub(crate) fn numbers(&self) -> ([f64; 8], [bool; 2]) {
        let power = i32::try_from(self.step).unwrap_or(i32::MAX);
        let (fresh1, fresh2) = (1.0 - self.beta1, 1.0 - self.beta2);
        let size = -(self.lr / (1.0 - self.beta1.powi(power)));
        let root = (1.0 - self.beta2.powi(power)).sqrt();
        let shrink = if self.decoupled { 1.0 - self.lr * self.weight_decay } else { 1.0 };
        let decays = self.weight_decay != 0.0 && !self.decoupled;
        let numbers = [size, root, self.eps, fresh1, fresh2, self.beta2, self.weight_decay, shrink];
        (numbers, [decays, fresh1 >= 0.5])
    }
}

/// The rule of [`AdamStep`]. Its `size` is `-lr / (1 - beta1^step)`, its `root` `sqrt(1 - beta2^step)`.
pub(crate) struct Adam;

impl Rule<2, 8, 2> for Adam {
    const OP: &'static str = "adam";
    const STATES: [&'static str; 2] = ["exp_avg", "exp_avg_sq"];

    #[inline(always)]
    fn step<V: RuleValue>(
        [size, root, eps, fresh1, fresh2, keep2, weight_decay, shrink]: [V; 8],
        [decays, near_end]: [V::Flag; 2],
        p: V,
        g: V,
        [m, v]: [V; 2],
    ) -> (V, [V; 2]) {
        let p = p * shrink;
        let g = decayed(decays, weight_decay, p, g);
        let m = lerp(near_end, m, g, fresh1);
        let v = v * keep2 + fresh2 * g * g;
        (p + size * m / (v.sqrt() / root + eps), [m, v])
    }
}
