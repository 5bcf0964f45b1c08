//! Adam and AdamW.

use device::Result;
use tensor::{AdamStep, RuleStep};

use super::{Field, Fused, Kind};

/// `m = β₁ m + (1 - β₁) g; v = β₂ v + (1 - β₂) g²; w -= lr m̂ / (sqrt(v̂) + eps)`.
///
/// `m̂ = m / (1 - β₁ᵗ)` and `v̂ = v / (1 - β₂ᵗ)` in step t; weight decay adds `weight_decay * w` to `g` first
/// (Kingma and Ba 2015, in torch's order of operations).
///
/// ```
/// use models::{Adam, Optimizer};
/// use autograd::Var;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(tensor::Tensor::scalar(3.0f64, &device::Device::cpu())?);
/// let mut adam = Adam::new(vec![w.clone()], 0.5)?;
/// adam.step(&w.square()?.backward()?)?;
/// assert!((w.value().item::<f64>()? - 2.5).abs() < 1e-6); // the first step is as long as the rate
/// # Ok(())
/// # }
/// ```
pub type Adam = Fused<AdamOptions>;

/// [`Adam`] with the weight decay taken off the weight itself: `w -= lr * weight_decay * w` before the step
/// (Loshchilov and Hutter 2019, in torch's order of operations).
pub type AdamW = Fused<AdamWOptions>;

/// How [`Adam`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the gradient's mean and of its mean square is kept.
    pub betas: (f64, f64),
    /// Added to the root in the denominator.
    pub eps: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
}

/// How [`AdamW`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the gradient's mean and of its mean square is kept.
    pub betas: (f64, f64),
    /// Added to the root in the denominator.
    pub eps: f64,
    /// How much of the weight is taken off in each step, times the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

impl Default for AdamWOptions {
    fn default() -> Self {
        AdamWOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 1e-2 }
    }
}

impl Kind for AdamOptions {
    const NAME: &'static str = "adam";
    const COUNTS_STEPS: bool = true;

    fn rule(&self, step: u64) -> Result<RuleStep> {
        let AdamOptions { lr, betas: (beta1, beta2), eps, weight_decay } = *self;
        AdamStep { step, lr, beta1, beta2, eps, weight_decay, decoupled: false }.try_into()
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        fields(&mut self.lr, &mut self.betas, &mut self.eps, &mut self.weight_decay)
    }

    fn lr(&mut self) -> &mut f64 {
        &mut self.lr
    }
}

impl Kind for AdamWOptions {
    const NAME: &'static str = "adamw";
    const COUNTS_STEPS: bool = true;

    fn rule(&self, step: u64) -> Result<RuleStep> {
        let AdamWOptions { lr, betas: (beta1, beta2), eps, weight_decay } = *self;
        AdamStep { step, lr, beta1, beta2, eps, weight_decay, decoupled: true }.try_into()
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        fields(&mut self.lr, &mut self.betas, &mut self.eps, &mut self.weight_decay)
    }

    fn lr(&mut self) -> &mut f64 {
        &mut self.lr
    }
}

fn fields<'a>(
    lr: &'a mut f64,
    betas: &'a mut (f64, f64),
    eps: &'a mut f64,
    weight_decay: &'a mut f64,
) -> Vec<(&'static str, Field<'a>)> {
    vec![
        ("lr", Field::NotNegative(lr)),
        ("beta1", Field::Share(&mut betas.0)),
        ("beta2", Field::Share(&mut betas.1)),
        ("eps", Field::NotNegative(eps)),
        ("weight_decay", Field::NotNegative(weight_decay)),
    ]
}
