//! Running error analysis: numbers that know how far an engine of a given precision may be from them.
//!
//! Every operation rounds once: its result may be off by the errors of its operands, as they propagate to first and second
//! order, and by one unit of roundoff. A formula written on these numbers therefore has its error bound by construction.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// How an engine rounds what it computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Precision {
    /// The largest relative error of a rounding to nearest.
    pub(crate) unit: f64,
    /// The largest absolute error of a rounding among the subnormal numbers.
    pub(crate) tiny: f64,
}

/// A value, computed in f64, and how far a result of the engine may be from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Num {
    pub(crate) value: f64,
    pub(crate) error: f64,
    pub(crate) precision: Precision,
}

impl Num {
    /// An element that is exactly so.
    pub(crate) fn exact(value: f64, precision: Precision) -> Num {
        Num { value, error: 0.0, precision }
    }

    /// Another exact number for the same computation.
    pub(crate) fn with(self, value: f64) -> Num {
        Num::exact(value, self.precision)
    }

    /// What follows from the propagated error of the operands and `roundings` units of roundoff.
    fn rounded(self, value: f64, propagated: f64, roundings: f64) -> Num {
        let Precision { unit, tiny } = self.precision;
        // Infinities and NaN are not approximated.
        let error =
            if value.is_finite() { propagated + roundings * (unit * value.abs() + tiny) } else { 0.0 };
        Num { value, error, ..self }
    }

    /// One more rounding, for a result that the engine stores on the way.
    pub(crate) fn stored(self, precision: Precision) -> Num {
        let Precision { unit, tiny } = precision;
        Num { error: self.error + unit * (self.value.abs() + self.error) + tiny, ..self }
    }

    /// A function of the value that is at most `roundings` units off by itself; `slope` bounds the derivative within the
    /// operand's error.
    fn function(self, value: f64, slope: f64, roundings: f64) -> Num {
        let propagated = if self.error == 0.0 { 0.0 } else { slope.abs() * self.error };
        self.rounded(value, propagated, roundings)
    }

    /// `e^x`, within an ulp.
    pub(crate) fn exp(self) -> Num {
        self.function(self.value.exp(), (self.value + self.error).exp(), 2.0)
    }

    /// The natural logarithm, within an ulp.
    pub(crate) fn ln(self) -> Num {
        self.function(self.value.ln(), 1.0 / (self.value - self.error).max(0.0), 2.0)
    }

    /// The square root.
    pub(crate) fn sqrt(self) -> Num {
        let root = self.value.sqrt();
        // Near 0 an error of the square is one of its root.
        let slope = 1.0 / (root + (self.value - self.error).max(0.0).sqrt());
        self.function(root, slope, 1.0)
    }

    /// The hyperbolic tangent, within three ulp.
    pub(crate) fn tanh(self) -> Num {
        self.function(self.value.tanh(), 1.0, 6.0)
    }

    /// `1 / (1 + e^-x)`, within three ulp.
    pub(crate) fn sigmoid(self) -> Num {
        let power = (-self.value.abs()).exp();
        let value = if self.value < 0.0 { power / (1.0 + power) } else { 1.0 / (1.0 + power) };
        // The slope is below the value itself on the left, and below 1/4 everywhere.
        self.function(value, (value * self.error.exp()).min(0.25), 6.0)
    }

    /// The error function, within two ulp.
    pub(crate) fn erf(self) -> Num {
        self.function(erf(self.value), std::f64::consts::FRAC_2_SQRT_PI, 4.0)
    }

    /// The sine, within an ulp.
    pub(crate) fn sin(self) -> Num {
        self.function(self.value.sin(), 1.0, 2.0)
    }

    /// The cosine, within an ulp.
    pub(crate) fn cos(self) -> Num {
        self.function(self.value.cos(), 1.0, 2.0)
    }

    /// A power of an exact number, within two ulp.
    pub(crate) fn powf(self, exponent: f64) -> Num {
        self.function(self.value.powf(exponent), 0.0, 4.0)
    }

    pub(crate) fn abs(self) -> Num {
        Num { value: self.value.abs(), ..self }
    }

    /// The larger one; NaN if either is.
    pub(crate) fn max(self, other: Num) -> Num {
        let error = self.error.max(other.error);
        let value =
            if self.value.is_nan() || other.value.is_nan() { f64::NAN } else { self.value.max(other.value) };
        Num { value, error, ..self }
    }

    /// The smaller one; NaN if either is.
    pub(crate) fn min(self, other: Num) -> Num {
        -(-self).max(-other)
    }
}

impl Neg for Num {
    type Output = Num;

    fn neg(self) -> Num {
        Num { value: -self.value, ..self }
    }
}

impl Add for Num {
    type Output = Num;

    fn add(self, other: Num) -> Num {
        self.rounded(self.value + other.value, self.error + other.error, 1.0)
    }
}

impl Sub for Num {
    type Output = Num;

    fn sub(self, other: Num) -> Num {
        self + -other
    }
}

impl Mul for Num {
    type Output = Num;

    fn mul(self, other: Num) -> Num {
        let (a, b) = (self, other);
        let propagated = product(a.value, b.error) + product(b.value, a.error) + a.error * b.error;
        self.rounded(a.value * b.value, propagated, 1.0)
    }
}

impl Div for Num {
    type Output = Num;

    fn div(self, other: Num) -> Num {
        let (a, b) = (self, other);
        let value = a.value / b.value;
        let propagated = if a.error == 0.0 && b.error == 0.0 {
            0.0
        } else {
            (a.error + product(value, b.error)) / (b.value.abs() - b.error).max(0.0)
        };
        self.rounded(value, propagated, 1.0)
    }
}

/// `|value| error`, where no error is none of an infinity either.
fn product(value: f64, error: f64) -> f64 {
    if error == 0.0 { 0.0 } else { value.abs() * error }
}

/// The sum in whatever order: each of the `n` terms is in at most `n` roundings. `zero` is the sum of none.
pub(crate) fn sum(terms: &[Num], zero: Num) -> Num {
    let value: f64 = terms.iter().map(|term| term.value).sum();
    let errors: f64 = terms.iter().map(|term| term.error).sum();
    let magnitude: f64 = terms.iter().map(|term| term.value.abs() + term.error).sum();
    let Precision { unit, tiny } = zero.precision;
    let roundings = terms.len() as f64;
    let error = if value.is_finite() { errors + roundings * (unit * magnitude + tiny) } else { 0.0 };
    Num { value, error, ..zero }
}

/// The product in whatever order. What a part of it loses below the smallest number grows with the other factors; where a part
/// may leave the range of the type, anything may come of it.
pub(crate) fn product_of(factors: &[Num], one: Num) -> Num {
    let product = factors.iter().fold(one, |product, &factor| product * factor);
    let growth: f64 = factors.iter().map(|factor| factor.value.abs().max(1.0)).product();
    let Precision { unit, tiny } = one.precision;
    let largest = if unit > f64::from(f32::EPSILON) * 1e-3 { f64::from(f32::MAX) } else { f64::MAX };
    let lost = if growth < largest { factors.len() as f64 * tiny * growth } else { f64::INFINITY };
    if product.value.is_nan() { product } else { Num { error: product.error + lost, ..product } }
}

/// The largest of some exact numbers; NaN if any is, -infinity of none.
pub(crate) fn largest(values: &[Num], like: Num) -> Num {
    values.iter().fold(like.with(f64::NEG_INFINITY), |most, &value| most.max(value))
}

/// `ln Σ e^x`, shifted by the largest `x`. Engines that go through the terms by blocks rescale what they have so far.
pub(crate) fn log_sum_exp(values: &[Num], like: Num) -> Num {
    let most = largest(values, like);
    if most.value.is_infinite() || most.value.is_nan() {
        return most;
    }
    let terms: Vec<Num> = values.iter().map(|&x| (x - most).exp()).collect();
    sum(&terms, like.with(0.0)).ln() + most
}

/// The mean, and the deviations from it.
pub(crate) fn deviations(values: &[Num], like: Num) -> (Num, Vec<Num>) {
    let mean = sum(values, like.with(0.0)) / like.with(values.len() as f64);
    (mean, values.iter().map(|&x| x - mean).collect())
}

/// The sum of squares.
pub(crate) fn squares(values: &[Num], like: Num) -> Num {
    let squares: Vec<Num> = values.iter().map(|&x| x * x).collect();
    sum(&squares, like.with(0.0))
}

/// The error function by its series and, far out, by the continued fraction of its complement; to about 1e-16.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if x.is_nan() {
        return x;
    }
    if a > 6.0 {
        return 1_f64.copysign(x);
    }
    if a < 1.0 {
        // 2 / sqrt(pi) Σ (-1)^n x^(2n + 1) / n! / (2n + 1), the small terms first, and what is lost of the last sum and product.
        let power = |n: u32| (1..=n).fold(a, |power, k| power * (-a * a / f64::from(k)));
        let rest = (1..=24).rev().fold(0.0, |sum, n| sum + power(n) / f64::from(2 * n + 1));
        let (factor, factor_lost) = (std::f64::consts::FRAC_2_SQRT_PI, 1.533_545_961_316_588e-17);
        let total = a + rest;
        let (lost, product) = ((a - total) + rest, factor * total);
        let product_lost = factor.mul_add(total, -product);
        return (product + (product_lost + factor * lost + factor_lost * total)).copysign(x);
    }
    // The square of the first part is exact, and what the rest adds to it is small.
    let first = f64::from(a as f32);
    let power = (-first * first).exp() * (-(a - first) * (a + first)).exp();
    let fraction = (1..=400).rev().fold(a, |tail, k| a + f64::from(k) / 2.0 / tail);
    let complement = power / fraction / std::f64::consts::PI.sqrt();
    (1.0 - complement).copysign(x)
}
