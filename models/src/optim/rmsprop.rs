//! RMSprop.

use device::Result;
use tensor::{Rule, RuleStep, RuleValue};

use super::{Field, Fused, Kind, decayed, lerp};

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
        let fresh = 1.0 - alpha;
        let numbers = [lr, alpha, fresh, eps, weight_decay, momentum];
        let flags = [weight_decay != 0.0, fresh >= 0.5];
        Ok(match (momentum != 0.0, centered) {
            (false, false) => RuleStep::new(Kept::<false, false>, numbers, flags),
            (true, false) => RuleStep::new(Kept::<true, false>, numbers, flags),
            (false, true) => RuleStep::new(Kept::<false, true>, numbers, flags),
            (true, true) => RuleStep::new(Kept::<true, true>, numbers, flags),
        })
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
}

/// The rule by what it keeps: momentum and a centred variance take a state each.
struct Kept<const MOMENTUM: bool, const CENTERED: bool>;

/// Implements the rule for given positions of the momentum buffer and the mean gradient among its states.
macro_rules! rule {
    ($momentum:literal, $centered:literal, $states:literal, $names:expr, $buffer:expr, $mean:expr) => {
        impl Rule<$states, 6, 2> for Kept<$momentum, $centered> {
            const OP: &'static str = "rmsprop";
            const STATES: [&'static str; $states] = $names;

            #[inline(always)]
            fn step<V: RuleValue>(
                numbers: [V; 6],
                flags: [V::Flag; 2],
                p: V,
                g: V,
                states: [V; $states],
            ) -> (V, [V; $states]) {
                step(numbers, flags, p, g, states, $buffer, $mean)
            }
        }
    };
}
rule!(false, false, 1, ["square_avg"], None, None);
rule!(true, false, 2, ["square_avg", "momentum_buffer"], Some(1), None);
rule!(false, true, 2, ["square_avg", "grad_avg"], None, Some(1));
rule!(true, true, 3, ["square_avg", "momentum_buffer", "grad_avg"], Some(1), Some(2));

/// The first state is the mean square; the positions of the others are given.
#[inline(always)]
fn step<V: RuleValue, const N: usize>(
    [lr, alpha, fresh, eps, weight_decay, momentum]: [V; 6],
    [decays, near_end]: [V::Flag; 2],
    p: V,
    g: V,
    mut states: [V; N],
    buffer: Option<usize>,
    mean: Option<usize>,
) -> (V, [V; N]) {
    let g = decayed(decays, weight_decay, p, g);
    states[0] = states[0] * alpha + fresh * g * g;
    let mut variance = states[0];
    if let Some(mean) = mean {
        states[mean] = lerp(near_end, states[mean], g, fresh);
        variance = variance - states[mean] * states[mean];
    }
    let divisor = variance.sqrt() + eps;
    let Some(buffer) = buffer else { return (p - lr * g / divisor, states) };
    states[buffer] = states[buffer] * momentum + g / divisor;
    (p - lr * states[buffer], states)
}
