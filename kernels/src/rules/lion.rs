//! Lion.

use super::{Rule, RuleValue};

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

impl LionStep {
    /// The numbers of [`Lion`].
    pub(crate) fn numbers(&self) -> [f64; 6] {
        let LionStep { lr, beta1, beta2, weight_decay } = *self;
        [lr, 1.0 - lr * weight_decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2]
    }
}

/// The rule of [`LionStep`].
pub(crate) struct Lion;

impl Rule<1, 6> for Lion {
    const OP: &'static str = "lion";
    const STATES: [&'static str; 1] = ["exp_avg"];

    #[inline(always)]
    fn step<V: RuleValue>(
        [lr, shrink, keep1, fresh1, keep2, fresh2]: [V; 6],
        []: [V::Flag; 0],
        p: V,
        g: V,
        [m]: [V; 1],
    ) -> (V, [V; 1]) {
        let way = lr * (m * keep1 + g * fresh1).sign();
        (p * shrink - way, [m * keep2 + g * fresh2])
    }
}
