//! Stochastic gradient descent.

use super::{Rule, RuleValue, decayed};

/// The numbers of a step of stochastic gradient descent:
/// `d = grad + weight_decay param`, `momentum_buffer = momentum momentum_buffer + (1 - dampening) d`,
/// `d = d + momentum momentum_buffer` if nesterov, else `momentum_buffer`, `param = param - lr d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub lr: f64,
    /// Share of the buffer that is kept. With 0 there is no buffer.
    pub momentum: f64,
    /// Share of the gradient that does not go into the buffer.
    pub dampening: f64,
    /// Share of the parameter that is added to the gradient.
    pub weight_decay: f64,
    /// Whether the step looks ahead along the buffer.
    pub nesterov: bool,
    /// Whether this is the buffer's first step: it takes the gradient as it is.
    pub first: bool,
}

impl SgdStep {
    /// The numbers and choices of [`SgdMomentum`].
    pub(crate) fn numbers(&self) -> ([f64; 4], [bool; 3]) {
        let numbers = [self.lr, self.weight_decay, self.momentum, 1.0 - self.dampening];
        (numbers, [self.weight_decay != 0.0, self.nesterov, self.first])
    }
}

/// The rule `param = param + grad`, which adds gradients.
#[derive(Clone, Copy, Debug)]
pub struct Accumulated;

impl Rule<0, 0> for Accumulated {
    const OP: &'static str = "accumulate";
    const STATES: [&'static str; 0] = [];

    #[inline(always)]
    fn step<V: RuleValue>([]: [V; 0], []: [V::Flag; 0], p: V, g: V, []: [V; 0]) -> (V, [V; 0]) {
        (p + g, [])
    }
}

/// The rule of [`SgdStep`] without momentum.
pub(crate) struct Sgd;

impl Rule<0, 2, 1> for Sgd {
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

/// The rule of [`SgdStep`] with momentum.
pub(crate) struct SgdMomentum;

impl Rule<1, 4, 3> for SgdMomentum {
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
