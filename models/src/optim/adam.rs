//! Adam and AdamW.

use device::{Error, Result};
use tensor::{Rule, RuleStep, RuleValue};

use super::{Field, Fused, Kind, decayed, lerp};

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
pub type AdamOptions = AdamKind<false>;

/// How [`AdamW`] steps; the defaults are torch's.
pub type AdamWOptions = AdamKind<true>;

/// The options of Adam and AdamW, which differ only in what the weight decay does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamKind<const DECOUPLED: bool> {
    /// The learning rate.
    pub lr: f64,
    /// How much of the gradient's mean and of its mean square is kept.
    pub betas: (f64, f64),
    /// Added to the root in the denominator.
    pub eps: f64,
    /// For [`Adam`] an L2 penalty, added to the gradient; for [`AdamW`] how much of the weight is taken off in each step, times the
    /// learning rate.
    pub weight_decay: f64,
}

impl<const DECOUPLED: bool> Default for AdamKind<DECOUPLED> {
    fn default() -> Self {
        let weight_decay = if DECOUPLED { 1e-2 } else { 0.0 };
        AdamKind { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay }
    }
}

impl<const DECOUPLED: bool> Kind for AdamKind<DECOUPLED> {
    const NAME: &'static str = if DECOUPLED { "adamw" } else { "adam" };
    const COUNTS_STEPS: bool = true;

    fn rule(&self, step: u64) -> Result<RuleStep> {
        let AdamKind { lr, betas: (beta1, beta2), eps, weight_decay } = *self;
        Error::require(step > 0, AdamRule::OP, "step", "at least 1", step)?;
        let power = i32::try_from(step).unwrap_or(i32::MAX);
        let (fresh1, fresh2) = (1.0 - beta1, 1.0 - beta2);
        let size = -(lr / (1.0 - beta1.powi(power)));
        let root = (1.0 - beta2.powi(power)).sqrt();
        let shrink = if DECOUPLED { 1.0 - lr * weight_decay } else { 1.0 };
        let numbers = [size, root, eps, fresh1, fresh2, beta2, weight_decay, shrink];
        Ok(RuleStep::new(AdamRule, numbers, [weight_decay != 0.0 && !DECOUPLED, fresh1 >= 0.5]))
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("lr", Field::NotNegative(&mut self.lr)),
            ("beta1", Field::Share(&mut self.betas.0)),
            ("beta2", Field::Share(&mut self.betas.1)),
            ("eps", Field::NotNegative(&mut self.eps)),
            ("weight_decay", Field::NotNegative(&mut self.weight_decay)),
        ]
    }
}

/// `size` is `-lr / (1 - beta1^step)`, `root` is `sqrt(1 - beta2^step)`.
struct AdamRule;

impl Rule<2, 8, 2> for AdamRule {
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
