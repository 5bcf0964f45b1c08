//! RMSprop.

use super::{Rule, RuleValue, decayed, lerp};

/// The numbers of a step of RMSprop: `g = grad + weight_decay param`,
/// `square_avg = alpha square_avg + (1 - alpha) g^2`, `d = sqrt(square_avg) + eps`, or, if centered,
/// `grad_avg = grad_avg + (1 - alpha) (g - grad_avg)` and `d = sqrt(square_avg - grad_avg^2) + eps`;
/// `param = param - lr g / d`, or, with momentum, `momentum_buffer = momentum momentum_buffer + g / d` and
/// `param = param - lr momentum_buffer`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropStep {
    /// Learning rate.
    pub lr: f64,
    /// Share of the mean squared gradient that is kept.
    pub alpha: f64,
    /// Added to the divisor.
    pub eps: f64,
    /// Share of the parameter that is added to the gradient.
    pub weight_decay: f64,
    /// Share of the buffer that is kept. With 0 there is no buffer.
    pub momentum: f64,
    /// Whether the divisor is the root of the gradient's variance instead of its mean square.
    pub centered: bool,
}

impl RmsPropStep {
    /// The numbers and choices of [`RmsProp`].
    pub(crate) fn numbers(&self) -> ([f64; 6], [bool; 2]) {
        let RmsPropStep { lr, alpha, eps, weight_decay, momentum, .. } = *self;
        let fresh = 1.0 - alpha;
        ([lr, alpha, fresh, eps, weight_decay, momentum], [weight_decay != 0.0, fresh >= 0.5])
    }
}

/// The rule of [`RmsPropStep`], which keeps a state more for momentum, and one for being centered.
pub(crate) struct RmsProp<const MOMENTUM: bool, const CENTERED: bool>;

/// A rule by what it keeps: which of its states are the buffer and the mean gradient.
macro_rules! rule {
    ($momentum:literal, $centered:literal, $states:literal, $names:expr, $buffer:expr, $mean:expr) => {
        impl Rule<$states, 6, 2> for RmsProp<$momentum, $centered> {
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
                step(numbers, flags, (p, g), states, $buffer, $mean)
            }
        }
    };
}
rule!(false, false, 1, ["square_avg"], None, None);
rule!(true, false, 2, ["square_avg", "momentum_buffer"], Some(1), None);
rule!(false, true, 2, ["square_avg", "grad_avg"], None, Some(1));
rule!(true, true, 3, ["square_avg", "momentum_buffer", "grad_avg"], Some(1), Some(2));

/// The first state is the mean square; the numbers of others are given.
#[inline(always)]
fn step<V: RuleValue, const N: usize>(
    [lr, alpha, fresh, eps, weight_decay, momentum]: [V; 6],
    [decays, near_end]: [V::Flag; 2],
    (p, g): (V, V),
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
