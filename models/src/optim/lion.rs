//! Lion.

use device::Result;
use tensor::{Rule, RuleStep, RuleValue};

use super::{Field, Fused, Kind};

/// `w -= lr * weight_decay * w; w -= lr sign(β₁ m + (1 - β₁) g); m = β₂ m + (1 - β₂) g`
/// (Chen et al. 2023, in the order of operations of its authors' code).
///
/// Every weight moves by the learning rate, which therefore is three to ten times smaller than Adam's, and the weight
/// decay as many times larger. The sign of 0, and of NaN, is 0.
///
/// ```
/// use models::{Lion, Optimizer};
/// use autograd::Var;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(tensor::Tensor::scalar(3.0f64, &device::Device::cpu())?);
/// let mut lion = Lion::new(vec![w.clone()], 0.5)?;
/// lion.step(&w.square()?.backward()?)?;
/// assert_eq!(w.value().item::<f64>()?, 2.5);
/// # Ok(())
/// # }
/// ```
pub type Lion = Fused<LionOptions>;

/// How [`Lion`] steps; the defaults are the paper's code's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the mean gradient is in the direction, and how much of it is kept.
    pub betas: (f64, f64),
    /// How much of the weight is taken off in each step, times the learning rate.
    pub weight_decay: f64,
}

impl Default for LionOptions {
    fn default() -> Self {
        LionOptions { lr: 1e-4, betas: (0.9, 0.99), weight_decay: 0.0 }
    }
}

impl Kind for LionOptions {
    const NAME: &'static str = "lion";
    const COUNTS_STEPS: bool = false;

    fn rule(&self, _: u64) -> Result<RuleStep> {
        let LionOptions { lr, betas: (beta1, beta2), weight_decay } = *self;
        let numbers = [lr, 1.0 - lr * weight_decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2];
        Ok(RuleStep::new(LionRule, numbers, []))
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("lr", Field::NotNegative(&mut self.lr)),
            ("beta1", Field::Share(&mut self.betas.0)),
            ("beta2", Field::Share(&mut self.betas.1)),
            ("weight_decay", Field::NotNegative(&mut self.weight_decay)),
        ]
    }
}

struct LionRule;

impl Rule<1, 6> for LionRule {
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
