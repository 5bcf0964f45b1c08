//! Rules of optimizers: what a step does to a parameter, as formulas that are written once. A CPU evaluates them on vectors; for
//! CUDA they are written down as source of kernels.

use std::ops::{Add, Div, Mul, Sub};

/// What the formula of a [`Rule`] computes with: an element of a parameter, of its gradient or of a state, or a number of
/// the step.
///
/// Each operation is rounded by itself, so that all devices give the same bits.
pub trait RuleValue:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// A choice of the step, the same for all elements.
    type Flag: Copy;

    /// The constant `value`, whatever `self` is.
    fn constant(self, value: f64) -> Self;

    /// The square root.
    fn sqrt(self) -> Self;

    /// `if self < other { yes } else { no }`. Nothing is less than NaN, nor NaN than anything.
    fn select_less(self, other: Self, yes: Self, no: Self) -> Self;

    /// `if flag { yes } else { no }`; both are computed.
    fn choose(flag: Self::Flag, yes: Self, no: Self) -> Self;

    /// -1, 0 or 1 with the sign of the value; 0 for NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        let (zero, one) = (self.constant(0.0), self.constant(1.0));
        zero.select_less(self, one, zero) - self.select_less(zero, one, zero)
    }

    /// The absolute value.
    #[inline(always)]
    fn abs(self) -> Self {
        let zero = self.constant(0.0);
        self.select_less(zero, zero - self, self)
    }

    /// The larger of two; `self` if either is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.select_less(other, other, self)
    }

    /// The smaller of two; `self` if either is NaN.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        other.select_less(self, other, self)
    }
}

/// A rule of an optimizer: what a step does to each element of a parameter and of the states that it keeps with it, from
/// `NUMBERS` numbers and `FLAGS` choices of the step, which may be others in the next one.
///
/// ```
/// use kernels::{Rule, RuleStep, RuleValue};
///
/// /// `buffer = momentum buffer + sign(grad)`, `param = param - lr buffer`
/// struct SignMomentum;
///
/// impl Rule<1, 2> for SignMomentum {
///     const OP: &'static str = "sign_momentum";
///     const STATES: [&'static str; 1] = ["buffer"];
///
///     #[inline(always)]
///     fn step<V: RuleValue>([lr, momentum]: [V; 2], _: [V::Flag; 0], p: V, g: V, [b]: [V; 1]) -> (V, [V; 1]) {
///         let b = momentum * b + g.sign();
///         (p - lr * b, [b])
///     }
/// }
///
/// let step = RuleStep::new(SignMomentum, [0.1, 0.9], []);
/// assert_eq!((step.op(), step.states()), ("sign_momentum", &["buffer"][..]));
/// ```
pub trait Rule<const STATES: usize, const NUMBERS: usize, const FLAGS: usize = 0>: 'static {
    /// The name of the command in errors and profiles: letters, digits and underscores.
    const OP: &'static str;

    /// The names of the states, made like [`OP`](Self::OP); at most 3. All start as zeros.
    const STATES: [&'static str; STATES];

    /// The new element of the parameter, and those of the states. Should be `#[inline(always)]`, as should all that it calls:
    /// only then a CPU computes it on vectors.
    fn step<V: RuleValue>(
        numbers: [V; NUMBERS],
        flags: [V::Flag; FLAGS],
        param: V,
        grad: V,
        states: [V; STATES],
    ) -> (V, [V; STATES]);
}

/// The most that a rule can have of each kind.
pub(crate) const MAX_STATES: usize = 3;
pub(crate) const MAX_NUMBERS: usize = 12;
pub(crate) const MAX_FLAGS: usize = 32;

/// What is stepped, its gradient and states, and last the parameter, if that is the rounded value of what is stepped.
pub(crate) const OPERANDS: usize = MAX_STATES + 3;
pub(crate) const ROUNDED: usize = OPERANDS - 1;

/// What may change from one step of a rule to the next, as plain numbers: a command that is launched again with others is
/// the same command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepNumbers {
    /// The numbers, in the rule's order.
    pub numbers: [f64; MAX_NUMBERS],
    /// The choices, the rule's first one in the lowest bit.
    pub flags: u32,
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
