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

/// The new parameter; the mean square and the states that there are become new, too.
#[inline(always)]
fn step<V: RuleValue>(
    [lr, alpha, fresh, eps, weight_decay, momentum]: [V; 6],
    [decays, near_end]: [V::Flag; 2],
    (p, g): (V, V),
    square: &mut V,
    buffer: Option<&mut V>,
    mean: Option<&mut V>,
) -> V {
    let g = decayed(decays, weight_decay, p, g);
    *square = *square * alpha + fresh * g * g;
    let mut variance = *square;
    if let Some(mean) = mean {
        *mean = lerp(near_end, *mean, g, fresh);
        variance = variance - *mean * *mean;
    }
    let divisor = variance.sqrt() + eps;
    let Some(buffer) = buffer else { return p - lr * g / divisor };
    *buffer = *buffer * momentum + g / divisor;
    p - lr * *buffer
}

impl Rule<1, 6, 2> for RmsProp<false, false> {
    const OP: &'static str = "rmsprop";
    const STATES: [&'static str; 1] = ["square_avg"];

    #[inline(always)]
    fn step<V: RuleValue>(numbers: [V; 6], flags: [V::Flag; 2], p: V, g: V, [mut v]: [V; 1]) -> (V, [V; 1]) {
        let p = step(numbers, flags, (p, g), &mut v, None, None);
        (p, [v])
    }
}

impl Rule<2, 6, 2> for RmsProp<true, false> {
    const OP: &'static str = "rmsprop";
    const STATES: [&'static str; 2] = ["square_avg", "momentum_buffer"];

    #[inline(always)]
    fn step<V: RuleValue>(
        numbers: [V; 6],
        flags: [V::Flag; 2],
        p: V,
        g: V,
        [mut v, mut b]: [V; 2],
    ) -> (V, [V; 2]) {
        let p = step(numbers, flags, (p, g), &mut v, Some(&mut b), None);
        (p, [v, b])
    }
}

impl Rule<2, 6, 2> for RmsProp<false, true> {
    const OP: &'static str = "rmsprop";
    const STATES: [&'static str; 2] = ["square_avg", "grad_avg"];

    #[inline(always)]
    fn step<V: RuleValue>(
        numbers: [V; 6],
        flags: [V::Flag; 2],
        p: V,
        g: V,
        [mut v, mut m]: [V; 2],
    ) -> (V, [V; 2]) {
        let p = step(numbers, flags, (p, g), &mut v, None, Some(&mut m));
        (p, [v, m])
    }
}

impl Rule<3, 6, 2> for RmsProp<true, true> {
    const OP: &'static str = "rmsprop";
    const STATES: [&'static str; 3] = ["square_avg", "momentum_buffer", "grad_avg"];

    #[inline(always)]
    fn step<V: RuleValue>(
        numbers: [V; 6],
        flags: [V::Flag; 2],
        p: V,
        g: V,
        [mut v, mut b, mut m]: [V; 3],
    ) -> (V, [V; 3]) {
        let p = step(numbers, flags, (p, g), &mut v, Some(&mut b), Some(&mut m));
        (p, [v, b, m])
    }
}
