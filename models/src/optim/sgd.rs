//! Stochastic gradient descent.

use device::{Error, Result};
use tensor::{Rule, RuleStep, RuleValue};

use super::{Field, Fused, Kind, decayed};

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
        let decays = weight_decay != 0.0;
        if momentum == 0.0 {
            return Ok(RuleStep::new(Plain, [lr, weight_decay], [decays]));
        }
        let numbers = [lr, weight_decay, momentum, 1.0 - dampening];
        Ok(RuleStep::new(Momentum, numbers, [decays, nesterov, step == 1]))
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

    fn check(&self) -> Result<()> {
        let value = format_args!("momentum {} and dampening {}", self.momentum, self.dampening);
        let expected = "used with positive momentum and without dampening";
        let is_valid = !self.nesterov || (self.momentum != 0.0 && self.dampening == 0.0);
        Error::require(is_valid, Self::NAME, "nesterov", expected, value)
    }
}

/// The rule without momentum.
struct Plain;

impl Rule<0, 2, 1> for Plain {
    const OP: &'static str = "sgd";
    const STATES: [&'static str; 0] = [];

    #[inline(always)]
    fn step<V: RuleValue>(
        [lr, weight_decay]: [V; 2],
        [decays]: [V::Flag; 1],
        p: V,
        g: V,
        []: [V; 0],
    ) -> (V, [V; 0]) {
        (p - lr * decayed(decays, weight_decay, p, g), [])
    }
}

/// The rule with momentum. Its first step takes the gradient as the buffer.
struct Momentum;

impl Rule<1, 4, 3> for Momentum {
    const OP: &'static str = "sgd";
    const STATES: [&'static str; 1] = ["momentum_buffer"];

    #[inline(always)]
    fn step<V: RuleValue>(
        [lr, weight_decay, momentum, fresh]: [V; 4],
        [decays, nesterov, first]: [V::Flag; 3],
        p: V,
        g: V,
        [b]: [V; 1],
    ) -> (V, [V; 1]) {
        let d = decayed(decays, weight_decay, p, g);
        let b = V::choose(first, d, momentum * b + fresh * d);
        (p - lr * V::choose(nesterov, d + momentum * b, b), [b])
    }
}
