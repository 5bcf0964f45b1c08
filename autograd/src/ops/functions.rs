//! Functions of one element, as one table.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2};

use tensor::{Result, UnaryOp};

use super::Autocast::{F32, Operands};
use super::binary::widened;
use super::function::{STRAIGHT, function};
use super::{Draw, OpEntry, Sample, op, unary};
use crate::Var;

/// Methods of [`Var`] and the entries of the list of ops. A row has the name and the numbers of the method, in which type it runs
/// under autocast, the function, the derivative of its derivative for what the function saves, and samples.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($number:ident),*) $class:ident: $f:expr, $bend:expr, $samples:expr;)+) => {
        pub(super) const OPS: &[OpEntry] = &[$(op(stringify!($name), $class, $samples)),+];

        #[derive::located]
        impl Var {
            $($(#[$doc])*
            pub fn $name(&self $(, $number: f64)*) -> Result<Var> {
                functions!(@cast $class, self, $name($($number),*));
                function(self, $f, $bend)
            })+
        }
    };
    (@cast Operands, $x:expr, $name:ident($($number:ident),*)) => {};
    (@cast F32, $x:expr, $name:ident($($number:ident),*)) => {
        autocast!(stringify!($name), [$x], |x| x.$name($($number),*));
    };
}

functions! {
    /// The smallest integer that is at least `x`. Its gradient is 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    ceil() Operands: UnaryOp::Ceil, STRAIGHT, |d| unary(d, Draw::normal, |x| x.mul_scalar(3.0)?.ceil()?.mul(x));

    /// The cosine of `x` in radians.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    cos() Operands: UnaryOp::Cos, Some(|x: &Var| x.cos()?.neg()), |d| unary(d, Draw::normal, Var::cos);

    /// `x` where it is positive, `alpha (e^x - 1)` elsewhere. The usual `alpha` is 1.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    elu(alpha) Operands: UnaryOp::Elu(alpha), Some(move |x: &Var| {
        let positive = x.value().gt(0.0)?;
        x.masked_fill(&positive, f64::NEG_INFINITY)?.exp()?.mul_scalar(alpha)
    }), |d| unary(d, Draw::nonzero, |x| x.elu(0.7));

    /// The error function `2 / √π ∫₀ˣ e^(-t²) dt`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    erf() Operands: UnaryOp::Erf, Some(|x: &Var| x.square()?.neg()?.exp()?.mul(x)?.mul_scalar(-2.0 * FRAC_2_SQRT_PI)),
        |d| unary(d, Draw::normal, Var::erf);

    /// The exponential `e^x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    exp() F32: UnaryOp::Exp, Some(|y: &Var| Ok(Var::constant(y.value().ones_like()?))),
        |d| unary(d, Draw::normal, Var::exp);

    /// `e^x - 1`, without cancellation near 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    expm1() F32: UnaryOp::Expm1, Some(|x: &Var| x.exp()),
        |d| unary(d, Draw::normal, Var::expm1);

    /// The largest integer that is at most `x`. Its gradient is 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    floor() Operands: UnaryOp::Floor, STRAIGHT, |d| unary(d, Draw::normal, |x| x.mul_scalar(3.0)?.floor()?.mul(x));

    /// `min(max(x / 6 + 1 / 2, 0), 1)`; its gradient at the ends of the slope is 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    hard_sigmoid() Operands: UnaryOp::HardSigmoid, STRAIGHT,
        |d| unary(d, Draw::normal, |x| x.mul_scalar(2.0)?.hard_sigmoid());

    /// `x hard_sigmoid(x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    hard_swish() Operands: UnaryOp::HardSwish, Some(|x: &Var| {
        let bent = x.value().abs()?.lt(3.0)?;
        Ok(Var::constant(bent.to_dtype(x.dtype())?.mul_scalar(1.0 / 3.0)?))
    }), |d| unary(d, Draw::normal, |x| x.mul_scalar(2.0)?.hard_swish());

    /// The natural logarithm `ln x`; NaN for negative numbers, negative infinity for 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    log() F32: UnaryOp::Log, Some(|x: &Var| x.square()?.reciprocal()?.neg()),
        |d| unary(d, Draw::positive, Var::log);

    /// `ln(1 + x)`, without cancellation near 0; NaN below -1, negative infinity there.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    log1p() F32: UnaryOp::Log1p, Some(|x: &Var| x.add_scalar(1.0)?.square()?.reciprocal()?.neg()),
        |d| unary(d, Draw::positive, |x| x.add_scalar(-0.3)?.log1p());

    /// The logarithm to the base 2; NaN for negative numbers, negative infinity for 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    log2() F32: UnaryOp::Log2, Some(|x: &Var| x.square()?.mul_scalar(LN_2)?.reciprocal()?.neg()),
        |d| unary(d, Draw::positive, Var::log2);

    /// `x tanh(ln(1 + e^x))` (Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019).
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    mish() Operands: UnaryOp::Mish, Some(|x: &Var| {
        // With t = tanh(ln(1 + e^x)) and σ: y'' = (1 - t²) σ (2 + x (1 - σ - 2 t σ)).
        let (t, s) = (x.softplus(1.0, 20.0)?.tanh()?, x.sigmoid()?);
        let inner = s.mul(&t.mul_scalar(2.0)?.add_scalar(1.0)?)?.neg()?.add_scalar(1.0)?;
        t.square()?.neg()?.add_scalar(1.0)?.mul(&s)?.mul(&x.mul(&inner)?.add_scalar(2.0)?)
    }), |d| unary(d, Draw::normal, Var::mish);

    /// The reciprocal `1 / x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    reciprocal() F32: UnaryOp::Reciprocal, Some(|x: &Var| x.pow_scalar(-3.0)?.mul_scalar(2.0)),
        |d| unary(d, Draw::nonzero, Var::reciprocal);

    /// The positive part `max(x, 0)`; its gradient at 0 is 0. NaN stays NaN.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    relu() Operands: UnaryOp::Relu, STRAIGHT, |d| unary(d, Draw::nonzero, Var::relu);

    /// The nearest integer, of two the even one. Its gradient is 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    round() Operands: UnaryOp::Round, STRAIGHT, |d| unary(d, Draw::normal, |x| x.mul_scalar(3.0)?.round()?.mul(x));

    /// The inverse square root `1 / √x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    rsqrt() F32: UnaryOp::Rsqrt, Some(|x: &Var| x.pow_scalar(-2.5)?.mul_scalar(0.75)),
        |d| unary(d, Draw::positive, Var::rsqrt);

    /// The logistic function `1 / (1 + e^-x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    sigmoid() Operands: UnaryOp::Sigmoid, Some(|x: &Var| {
        // y'' = y (1 - y) (1 - 2 y)
        let y = x.sigmoid()?;
        y.sub(&y.square()?)?.mul(&y.mul_scalar(-2.0)?.add_scalar(1.0)?)
    }), |d| unary(d, Draw::normal, Var::sigmoid);

    /// The sigmoid linear unit `x / (1 + e^-x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    silu() Operands: UnaryOp::Silu, Some(|x: &Var| {
        // y'' = σ (1 - σ) (2 + x (1 - 2 σ))
        let s = x.sigmoid()?;
        let bell = s.sub(&s.square()?)?;
        bell.mul(&x.mul(&s.mul_scalar(-2.0)?.add_scalar(1.0)?)?.add_scalar(2.0)?)
    }), |d| unary(d, Draw::normal, Var::silu);

    /// The sine of `x` in radians.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    sin() Operands: UnaryOp::Sin, Some(|x: &Var| x.sin()?.neg()), |d| unary(d, Draw::normal, Var::sin);

    /// `ln(1 + e^(β x)) / β`, and `x` where `β x` is above `threshold`. The usual `beta` is 1, the usual `threshold` 20.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    softplus(beta, threshold) F32: UnaryOp::Softplus(beta, threshold), Some(move |x: &Var| {
        // y'' = β σ (1 - σ) where it is not straight.
        let z = x.mul_scalar(beta)?;
        let s = z.sigmoid()?;
        let straight = z.value().gt(threshold)?;
        s.sub(&s.square()?)?.mul_scalar(beta)?.masked_fill(&straight, 0.0)
    }), softplus_samples;

    /// `x / (1 + |x|)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    softsign() Operands: UnaryOp::Softsign, Some(|x: &Var| {
        // y'' = -2 sign(x) / (1 + |x|)^3
        let sign = Var::constant(x.value().sign()?);
        sign.mul_scalar(-2.0)?.div(&x.abs()?.add_scalar(1.0)?.pow_scalar(3.0)?)
    }), |d| unary(d, Draw::nonzero, Var::softsign);

    /// The square root `√x`; NaN for negative numbers. Its gradient at 0 is infinite.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    sqrt() Operands: UnaryOp::Sqrt, Some(|x: &Var| x.pow_scalar(-1.5)?.mul_scalar(-0.25)),
        |d| unary(d, Draw::positive, Var::sqrt);

    /// The square `x²`.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    square() F32: UnaryOp::Square, Some(|x: &Var| Ok(Var::constant(x.value().full_like(2.0)?))),
        |d| unary(d, Draw::normal, Var::square);

    /// The tangent of `x` in radians.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    tan() F32: UnaryOp::Tan, Some(|x: &Var| {
        // y'' = 2 y / cos² x
        x.tan()?.mul(&x.cos()?.square()?.reciprocal()?)?.mul_scalar(2.0)
    }), |d| unary(d, Draw::normal, |x| x.mul_scalar(0.3)?.tan());

    /// The hyperbolic tangent.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    tanh() Operands: UnaryOp::Tanh, Some(|x: &Var| {
        // y'' = -2 y (1 - y²)
        let y = x.tanh()?;
        y.square()?.add_scalar(-1.0)?.mul(&y)?.mul_scalar(2.0)
    }), |d| unary(d, Draw::normal, Var::tanh);

    /// The integer part. Its gradient is 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    trunc() Operands: UnaryOp::Trunc, STRAIGHT, |d| unary(d, Draw::normal, |x| x.mul_scalar(3.0)?.trunc()?.mul(x));
}

#[derive::located]
impl Var {
    /// `x` where it is positive, `slope · x` elsewhere. The usual `slope` is 0.01.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn leaky_relu(&self, slope: f64) -> Result<Var> {
        let positive = self.value().gt(0.0)?;
        Var::where_cond(&positive, self, &self.mul_scalar(slope)?)
    }

    /// `ln(1 / (1 + e^-x))`, without cancellation or overflow.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn log_sigmoid(&self) -> Result<Var> {
        self.neg()?.softplus(1.0, f64::INFINITY)?.neg()
    }

    /// `s x` where `x` is positive, `s a (e^x - 1)` elsewhere, with `s` = 1.0507.. and `a` = 1.6732.., which keep the mean and the variance
    /// of activations (Klambauer et al., "Self-Normalizing Neural Networks", 2017).
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn selu(&self) -> Result<Var> {
        if self.dtype().is_half() {
            return widened(self, Var::selu);
        }
        self.elu(1.673_263_242_354_377_2)?.mul_scalar(1.050_700_987_355_480_5)
    }

    /// `x` where it is positive, `alpha (e^(x / alpha) - 1)` elsewhere. The usual `alpha` is 1.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn celu(&self, alpha: f64) -> Result<Var> {
        if self.dtype().is_half() {
            return widened(self, |x| x.celu(alpha));
        }
        // At 0, where both have one slope, there is no curvature, as in torch.
        let positive = self.value().ge(0.0)?;
        Var::where_cond(&positive, self, &self.div_scalar(alpha)?.elu(1.0)?.mul_scalar(alpha)?)
    }
}

fn softplus_samples(d: &Draw) -> Result<Vec<Sample>> {
    let mut samples = unary(d, Draw::normal, |x| x.softplus(1.0, 20.0))?;
    samples.push(d.sample_of(Draw::nonzero, "steep", &[&[7]], |v| v[0].softplus(-2.5, 20.0))?);
    // The value jumps a little at the threshold, which no sample is near.
    let straight = |v: &[Var]| v[0].softplus(3.0, 1.0)?.mul(&v[0]);
    samples.push(d.sample_of(Draw::distinct, "straight", &[&[40]], straight)?);
    Ok(samples)
}

#[cfg(test)]
mod tests;
