//! Adagrad.

use device::{Error, Result};
use tensor::{Rule, RuleStep, RuleValue};

use super::{Field, Fused, Kind, decayed};

/// `s += g²; w -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)` in step t, with `s = 0` at first.
///
/// Weight decay adds `weight_decay * w` to `g` first (Duchi et al. 2011, in torch's order of operations).
///
/// ```
/// use models::{Adagrad, Optimizer};
/// use autograd::Var;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(tensor::Tensor::scalar(3.0f64, &device::Device::cpu())?);
/// let mut adagrad = Adagrad::new(vec![w.clone()], 0.5)?;
/// adagrad.step(&w.square()?.backward()?)?;
/// assert!((w.value().item::<f64>()? - 2.5).abs() < 1e-9); // the first step is as long as the rate
/// # Ok(())
/// # }
/// ```
pub type Adagrad = Fused<AdagradOptions>;

/// How [`Adagrad`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much the rate falls from step to step.
    pub lr_decay: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
    /// Added to the root in the denominator.
    pub eps: f64,
}

impl Default for AdagradOptions {
    fn default() -> Self {
        AdagradOptions { lr: 1e-2, lr_decay: 0.0, weight_decay: 0.0, eps: 1e-10 }
    }
}

impl Kind for AdagradOptions {
    const NAME: &'static str = "adagrad";
    const COUNTS_STEPS: bool = true;

    fn rule(&self, step: u64) -> Result<RuleStep> {
        let AdagradOptions { lr, lr_decay, weight_decay, eps } = *self;
        Error::require(step > 0, AdagradRule::OP, "step", "at least 1", step)?;
        let rate = lr / (1.0 + (step - 1) as f64 * lr_decay);
        Ok(RuleStep::new(AdagradRule, [rate, weight_decay, eps], [weight_decay != 0.0]))
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("lr", Field::NotNegative(&mut self.lr)),
            ("lr_decay", Field::NotNegative(&mut self.lr_decay)),
            ("weight_decay", Field::NotNegative(&mut self.weight_decay)),
            ("eps", Field::NotNegative(&mut self.eps)),
        ]
    }
}

struct AdagradRule;

impl Rule<1, 3, 1> for AdagradRule {
    const OP: &'static str = "adagrad";
    const STATES: [&'static str; 1] = ["sum"];

    #[inline(always)]
    fn step<V: RuleValue>(
        [rate, weight_decay, eps]: [V; 3],
        [decays]: [V::Flag; 1],
        p: V,
        g: V,
        [sum]: [V; 1],
    ) -> (V, [V; 1]) {
        let g = decayed(decays, weight_decay, p, g);
        let sum = sum + g * g;
        (p - rate * g / (sum.sqrt() + eps), [sum])
    }
}
