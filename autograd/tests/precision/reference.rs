//! Elementwise functions by their definitions.

use std::f64::consts::{FRAC_1_SQRT_2, LN_2};

use tensor::{BinaryOp, GeluKind, Result, UnaryOp};

use crate::big::Big;
use autograd::Var;

/// A function of one number.
pub(crate) type Exact<'a> = &'a dyn Fn(&Big) -> Big;
/// A function of two numbers.
pub(crate) type Exact2<'a> = &'a dyn Fn(&Big, &Big) -> Big;

/// The value of an op at `x`, whose numbers are `dtype`'s.
pub(crate) fn unary(op: UnaryOp, x: &Big) -> Option<Big> {
    let zero = || x.of(0.0);
    let hinge = |x: &Big| if x.is_positive() { x.clone() } else { zero() };
    Some(match op {
        UnaryOp::Neg => x.neg(),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign => x.of(if x.is_positive() { 1.0 } else { -1.0 }),
        UnaryOp::Square => x.mul(x),
        UnaryOp::AddScalar(value) => x.plus(value),
        UnaryOp::MulScalar(value) => x.times(value),
        UnaryOp::Clamp(low, high) => clamp(x, low, high),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => x.sqrt().recip(),
        UnaryOp::Reciprocal => x.recip(),
        UnaryOp::Cube => x.mul(x).mul(x),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tan => x.sin().div(&x.cos()),
        UnaryOp::Log2 => x.ln().div(&x.of(2.0).ln()),
        UnaryOp::Log1p => x.plus(1.0).ln(),
        UnaryOp::Expm1 => x.exp().plus(-1.0),
        UnaryOp::Floor => x.of(x.to_f64().floor()),
        UnaryOp::Ceil => x.of(x.to_f64().ceil()),
        UnaryOp::Round => x.of(x.to_f64().round_ties_even()),
        UnaryOp::Trunc => x.of(x.to_f64().trunc()),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sigmoid => x.sigmoid(),
        UnaryOp::Erf => x.erf(),
        UnaryOp::Relu => hinge(x),
        UnaryOp::Silu => x.mul(&x.sigmoid()),
        UnaryOp::GeluErf => x.mul(&x.normal_cdf()),
        UnaryOp::GeluTanh => x.mul(&gelu_gate(x)),
        UnaryOp::PowScalar(exponent) => x.pow(&x.of(exponent), parity(exponent)),
        UnaryOp::Softsign => x.div(&x.abs().plus(1.0)),
        UnaryOp::Elu(alpha) if !x.is_positive() => x.exp().plus(-1.0).times(alpha),
        UnaryOp::Elu(_) => x.clone(),
        UnaryOp::Softplus(beta, threshold) => {
            let z = x.times(beta);
            if x.of(threshold).less(&z) { x.clone() } else { z.exp().plus(1.0).ln().div(&x.of(beta)) }
        }
        UnaryOp::HardSigmoid => clamp(&x.plus(3.0), 0.0, 6.0).div(&x.of(6.0)),
        UnaryOp::HardSwish => x.mul(&clamp(&x.plus(3.0), 0.0, 6.0)).div(&x.of(6.0)),
        UnaryOp::Mish => x.mul(&x.exp().plus(1.0).ln().tanh()),
        _ => return None,
    })
}

/// The larger of the two terms whose sum is the derivative, where that passes through zero.
pub(crate) fn larger_term(op: UnaryOp, x: &Big, derivative: &Big) -> Option<Big> {
    let first = match op {
        UnaryOp::Silu => Some(x.sigmoid()),
        UnaryOp::GeluErf => Some(x.normal_cdf()),
        UnaryOp::GeluTanh => Some(gelu_gate(x)),
        UnaryOp::Mish => Some(x.exp().plus(1.0).ln().tanh()),
        UnaryOp::HardSwish => Some(x.of(0.5)),
        _ => None,
    }?;
    let second = derivative.sub(&first).abs();
    Some(if first.less(&second) { second } else { first })
}

fn clamp(x: &Big, low: f64, high: f64) -> Big {
    let raised = if x.less(&x.of(low)) { x.of(low) } else { x.clone() };
    if x.of(high).less(&raised) { x.of(high) } else { raised }
}

/// The definition of the tanh form, `(1 + tanh(u)) / 2`.
fn gelu_gate(x: &Big) -> Big {
    let cubic = x.mul(x).mul(x).mul(&x.of(44_715.0).div(&x.of(1e6)));
    x.of(2.0).div(&x.pi()).sqrt().mul(&x.add(&cubic)).tanh().plus(1.0).times(0.5)
}

/// Whether an exponent is an odd integer; `None` unless it is an integer.
pub(crate) fn parity(exponent: f64) -> Option<bool> {
    (exponent == exponent.trunc()).then(|| exponent.abs() % 2.0 == 1.0)
}

pub(crate) fn binary(op: BinaryOp, x: &Big, y: &Big) -> Option<Big> {
    Some(match op {
        BinaryOp::Add => x.add(y),
        BinaryOp::Sub => x.sub(y),
        BinaryOp::Mul => x.mul(y),
        BinaryOp::Div => x.div(y),
        BinaryOp::Pow => x.pow(y, parity(y.to_f64())),
        BinaryOp::Fmod => x.sub(&x.div(y).trunc().mul(y)),
        BinaryOp::Atan2 => {
            let angle = x.div(&y.abs()).atan();
            let half_turn = if x.is_negative() { x.pi().neg() } else { x.pi() };
            if y.is_negative() { half_turn.sub(&angle) } else { angle }
        }
        BinaryOp::Maximum => {
            if x.less(y) {
                y.clone()
            } else {
                x.clone()
            }
        }
        BinaryOp::Minimum => {
            if y.less(x) {
                y.clone()
            } else {
                x.clone()
            }
        }
        _ => return None,
    })
}

/// An op on variables, and the function of the table that it is.
pub(crate) type Activation = (UnaryOp, fn(&Var) -> Result<Var>);

/// Every op on variables that is a function of the table, some with other numbers than the table's examples.
pub(crate) const ACTIVATIONS: &[Activation] = &[
    (UnaryOp::Abs, Var::abs),
    (UnaryOp::Square, Var::square),
    (UnaryOp::Exp, Var::exp),
    (UnaryOp::Log, Var::log),
    (UnaryOp::Sqrt, Var::sqrt),
    (UnaryOp::Rsqrt, Var::rsqrt),
    (UnaryOp::Reciprocal, Var::reciprocal),
    (UnaryOp::Sin, Var::sin),
    (UnaryOp::Cos, Var::cos),
    (UnaryOp::Tan, Var::tan),
    (UnaryOp::Log2, Var::log2),
    (UnaryOp::Log1p, Var::log1p),
    (UnaryOp::Expm1, Var::expm1),
    (UnaryOp::Floor, Var::floor),
    (UnaryOp::Ceil, Var::ceil),
    (UnaryOp::Round, Var::round),
    (UnaryOp::Trunc, Var::trunc),
    (UnaryOp::Tanh, Var::tanh),
    (UnaryOp::Sigmoid, Var::sigmoid),
    (UnaryOp::Erf, Var::erf),
    (UnaryOp::Relu, Var::relu),
    (UnaryOp::Silu, Var::silu),
    (UnaryOp::GeluErf, |x| x.gelu(GeluKind::Erf)),
    (UnaryOp::GeluTanh, |x| x.gelu(GeluKind::Tanh)),
    (UnaryOp::PowScalar(1.7), |x| x.pow_scalar(1.7)),
    (UnaryOp::PowScalar(-0.3), |x| x.pow_scalar(-0.3)),
    (UnaryOp::PowScalar(1.0 / 3.0), |x| x.pow_scalar(1.0 / 3.0)),
    (UnaryOp::PowScalar(0.5), |x| x.pow_scalar(0.5)),
    (UnaryOp::PowScalar(-0.5), |x| x.pow_scalar(-0.5)),
    (UnaryOp::PowScalar(-1.0), |x| x.pow_scalar(-1.0)),
    (UnaryOp::PowScalar(3.0), |x| x.pow_scalar(3.0)),
    (UnaryOp::PowScalar(5.0), |x| x.pow_scalar(5.0)),
    (UnaryOp::Softsign, Var::softsign),
    (UnaryOp::Elu(1.0), |x| x.elu(1.0)),
    (UnaryOp::Elu(0.75), |x| x.elu(0.75)),
    (UnaryOp::Softplus(1.0, 20.0), |x| x.softplus(1.0, 20.0)),
    (UnaryOp::Softplus(2.5, 20.0), |x| x.softplus(2.5, 20.0)),
    (UnaryOp::Softplus(-0.5, 3.0), |x| x.softplus(-0.5, 3.0)),
    (UnaryOp::HardSigmoid, Var::hard_sigmoid),
    (UnaryOp::HardSwish, Var::hard_swish),
    (UnaryOp::Mish, Var::mish),
];

/// An op on two variables, with its definition.
pub(crate) struct Pairwise {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Var, &Var) -> Result<Var>,
    pub(crate) exact: fn(&Big, &Big) -> Big,
    /// Second operands, of a number in 0..1.
    pub(crate) second: Option<fn(f64) -> f64>,
    /// The largest of the terms of a derivative that passes through zero.
    pub(crate) term: Option<f64>,
}

/// A target of one of the kinds that classifiers have.
fn target(draw: f64) -> f64 {
    match draw {
        0.0..0.25 => 0.0,
        0.25..0.5 => 1.0,
        _ => (draw - 0.5) * 2.0,
    }
}

pub(crate) const LOSSES: &[Pairwise] = &[
    Pairwise {
        name: "mse_loss",
        run: |x, t| x.mse_loss(t, autograd::Reduction::None),
        exact: |x, t| x.sub(t).mul(&x.sub(t)),
        second: None,
        term: None,
    },
    Pairwise {
        name: "l1_loss",
        run: |x, t| x.l1_loss(t, autograd::Reduction::None),
        exact: |x, t| x.sub(t).abs(),
        second: None,
        term: None,
    },
    Pairwise {
        name: "smooth_l1_loss",
        run: |x, t| x.smooth_l1_loss(t, 0.5, autograd::Reduction::None),
        exact: |x, t| {
            let d = x.sub(t).abs();
            if d.less(&d.of(0.5)) { d.mul(&d) } else { d.plus(-0.25) }
        },
        second: None,
        term: None,
    },
    Pairwise {
        name: "bce_with_logits",
        run: |x, t| x.bce_with_logits(t, autograd::Reduction::None),
        exact: |x, t| x.exp().plus(1.0).ln().sub(&x.mul(t)),
        second: Some(target),
        term: Some(1.0),
    },
];

/// Half of the points at which functions are interesting beside random ones.
pub(crate) const SPECIAL: [f64; 12] =
    [1.0, 3.0, 6.0, 0.5, LN_2, FRAC_1_SQRT_2, 20.0, 88.7, 104.0, 709.7, 1e-8, 1.7e-6];
