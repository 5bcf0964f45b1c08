//! `y = x Φ(x)` with `Φ` the standard normal distribution, exactly or through
//! `tanh(√(2/π) (x + 0.044715 x³))`.

use std::f64::consts::{FRAC_2_PI, PI};

use tensor::{GeluKind, Result, UnaryOp};

use super::function::function;
use crate::Var;

const CUBIC: f64 = 0.044_715;

#[derive::located]
impl Var {
    /// The Gaussian error linear unit `x Φ(x)`, exact or approximated. See [`Tensor::gelu`](tensor::Tensor::gelu).
    ///
    /// # Errors
    /// As for [`Tensor::gelu`](tensor::Tensor::gelu).
    pub fn gelu(&self, kind: GeluKind) -> Result<Var> {
        match kind {
            GeluKind::Erf => function(self, UnaryOp::GeluErf, Some(erf_curvature)),
            GeluKind::Tanh => function(self, UnaryOp::GeluTanh, Some(tanh_curvature)),
        }
    }
}

/// `y'' = φ(x) (2 - x²)` with the standard normal density `φ`.
fn erf_curvature(x: &Var) -> Result<Var> {
    let squared = x.square()?;
    let density = squared.mul_scalar(-0.5)?.exp()?.mul_scalar((2.0 * PI).sqrt().recip())?;
    density.mul(&squared.neg()?.add_scalar(2.0)?)
}

/// `y'' = (1 - t²) (u' + x (u'' / 2 - t u'²))` with `t = tanh u` and `u = √(2/π) (x + 0.044715 x³)`.
fn tanh_curvature(x: &Var) -> Result<Var> {
    let scale = FRAC_2_PI.sqrt();
    let squared = x.square()?;
    let t = squared.mul_scalar(CUBIC)?.add_scalar(1.0)?.mul(x)?.mul_scalar(scale)?.tanh()?;
    let slope = squared.mul_scalar(3.0 * CUBIC)?.add_scalar(1.0)?.mul_scalar(scale)?;
    let bend = x.mul_scalar(3.0 * CUBIC * scale)?.sub(&t.mul(&slope.square()?)?)?;
    let flatness = t.square()?.neg()?.add_scalar(1.0)?;
    flatness.mul(&slope.add(&x.mul(&bend)?)?)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn exact_at_zero_and_one() -> Result<()> {
        let (cdf, density) = (0.841_344_746_068_542_9, 0.241_970_724_519_143_37);
        let x = vector(&[0.0, 1.0, -1.0])?;
        let y = x.gelu(GeluKind::Erf)?;
        close(&y, &[0.0, cdf, cdf - 1.0])?;
        close_values(&gradient(&y, &x)?, &[0.5, cdf + density, 1.0 - cdf - density]);
        Ok(())
    }

    #[test]
    fn approximate_at_zero_and_one() -> Result<()> {
        let x = vector(&[0.0, 1.0])?;
        let t = (FRAC_2_PI.sqrt() * (1.0 + CUBIC)).tanh();
        let slope = FRAC_2_PI.sqrt() * (1.0 + 3.0 * CUBIC);
        let y = x.gelu(GeluKind::Tanh)?;
        close(&y, &[0.0, 0.5 * (1.0 + t)])?;
        close_values(&gradient(&y, &x)?, &[0.5, 0.5 * (1.0 + t) + 0.5 * (1.0 - t * t) * slope]);
        Ok(())
    }
}
