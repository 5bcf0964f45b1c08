//! RMSprop.

use device::Result;
use tensor::{RmsPropStep, RuleStep};

use super::{Field, Fused, Kind};

/// `v = alpha v + (1 - alpha) g²; w -= lr g / (sqrt(v) + eps)`.
///
/// Weight decay adds `weight_decay * w` to `g` first. With `centered`, `v - ḡ²` takes the place of `v`, where
/// `ḡ = alpha ḡ + (1 - alpha) g`: the variance of the gradient instead of its mean square (Graves 2013). With momentum,
/// `b = momentum * b + g / (sqrt(v) + eps); w -= lr * b`. These are torch's formulas, in torch's order: the root of a
/// variance that rounding made negative is NaN.
///
/// ```
/// use models::{Optimizer, RmsProp};
/// use autograd::Var;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(tensor::Tensor::scalar(3.0f64, &device::Device::cpu())?);
/// let mut rmsprop = RmsProp::new(vec![w.clone()], 0.1)?;
/// rmsprop.step(&w.square()?.backward()?)?;
/// assert!((w.value().item::<f64>()? - 2.0).abs() < 1e-6); // 0.1 / sqrt(1 - alpha) at first
/// # Ok(())
/// # }
/// ```
pub type RmsProp = Fused<RmsPropOptions>;

/// How [`RmsProp`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the gradient's mean square is kept.
    pub alpha: f64,
    /// Added to the root in the denominator.
    pub eps: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
    /// How much of the earlier direction is kept; 0 keeps none.
    pub momentum: f64,
    /// Whether to divide by the root of the gradient's variance.
    pub centered: bool,
}

impl Default for RmsPropOptions {
    fn default() -> Self {
        let (lr, alpha, eps) = (1e-2, 0.99, 1e-8);
        RmsPropOptions { lr, alpha, eps, weight_decay: 0.0, momentum: 0.0, centered: false }
    }
}

impl Kind for RmsPropOptions {
    const NAME: &'static str = "rmsprop";
    const COUNTS_STEPS: bool = false;

    fn rule(&self, _: u64) -> Result<RuleStep> {
        let RmsPropOptions { lr, alpha, eps, weight_decay, momentum, centered } = *self;
        Ok(RmsPropStep { lr, alpha, eps, weight_decay, momentum, centered }.into())
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("lr", Field::NotNegative(&mut self.lr)),
            ("alpha", Field::NotNegative(&mut self.alpha)),
            ("eps", Field::NotNegative(&mut self.eps)),
            ("weight_decay", Field::NotNegative(&mut self.weight_decay)),
            ("momentum", Field::NotNegative(&mut self.momentum)),
            ("centered", Field::Flag(&mut self.centered)),
        ]
    }

    fn lr(&mut self) -> &mut f64 {
        &mut self.lr
    }
}
