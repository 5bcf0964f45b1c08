//! Stochastic gradient descent.

use device::{Error, Result};
use tensor::{RuleStep, SgdStep};

use super::{Field, Fused, Kind};

/// `g += weight_decay * w; b = momentum * b + (1 - dampening) * g; w -= lr * b`.
///
/// The first `b` is `g` itself. With `nesterov` the last step takes `g + momentum * b` in place of `b`;
/// without momentum it takes `g`. These are torch's formulas, in torch's order.
///
/// ```
/// use models::{Optimizer, Sgd};
/// use autograd::Var;
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(tensor::Tensor::scalar(3.0f64, &device::Device::cpu())?);
/// let mut sgd = Sgd::new(vec![w.clone()], 0.25)?;
/// sgd.step(&w.square()?.backward()?)?;
/// assert_eq!(w.value().item::<f64>()?, 1.5);
/// # Ok(())
/// # }
/// ```
pub type Sgd = Fused<SgdOptions>;

/// How [`Sgd`] steps; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the earlier direction is kept; 0 keeps none.
    pub momentum: f64,
    /// How much of the new gradient is left out of the direction.
    pub dampening: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
    /// Whether to look ahead along the direction (Nesterov): with momentum and without dampening only.
    pub nesterov: bool,
}

impl Default for SgdOptions {
    fn default() -> Self {
        SgdOptions { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

impl Kind for SgdOptions {
    const NAME: &'static str = "sgd";
    const COUNTS_STEPS: bool = false;

    fn rule(&self, step: u64) -> Result<RuleStep> {
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov } = *self;
        Ok(SgdStep { lr, momentum, dampening, weight_decay, nesterov, first: step == 1 }.into())
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![
            ("lr", Field::NotNegative(&mut self.lr)),
            ("momentum", Field::NotNegative(&mut self.momentum)),
            ("dampening", Field::Finite(&mut self.dampening)),
            ("weight_decay", Field::NotNegative(&mut self.weight_decay)),
            ("nesterov", Field::Flag(&mut self.nesterov)),
        ]
    }

    fn lr(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn check(&self) -> Result<()> {
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::invalid(
                Self::NAME,
                "nesterov",
                "used with positive momentum and without dampening",
                format_args!("momentum {} and dampening {}", self.momentum, self.dampening),
            ));
        }
        Ok(())
    }
}
