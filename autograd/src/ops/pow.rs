//! `y = a^b`; `a' = g b a^(b-1)`, 0 where `b = 0`; `b' = g y ln a`, 0 where `a = 0` and `b >= 0`.

use tensor::{BinaryGradOp, Result, UnaryOp};

use super::function::function;
use super::{Draw, Sample, binary_slope, if_needed, record_binary, unary};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The power `self^exponent`, with broadcasting. See [`Tensor::pow`](tensor::Tensor::pow).
    ///
    /// The gradient of the base is 0 where the exponent is 0, and that of the exponent is 0 where the base is 0 and the
    /// exponent is not negative; neither is NaN there.
    ///
    /// # Errors
    /// As for [`Tensor::pow`](tensor::Tensor::pow).
    pub fn pow(&self, exponent: &Var) -> Result<Var> {
        autocast!("pow", [self, exponent], |x, exponent| x.pow(&exponent));
        promote!(self, exponent, Var::pow);
        let value = self.value().pow(exponent.value())?;
        let saved = [Save::Input(0), Save::Input(1)];
        Ok(record_binary("pow", self, exponent, &saved, value, |ctx, g| {
            let (base, exponent) = (ctx.saved(0), ctx.saved(1));
            let slope = |op| binary_slope(op, &base, &exponent, g);
            Ok([
                if_needed(ctx, 0, || slope(BinaryGradOp::PowBase))?,
                if_needed(ctx, 1, || slope(BinaryGradOp::PowExponent))?,
            ])
        }))
    }

    /// The power `x^p` with a number; the gradient for `p = 0` is 0 everywhere.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn pow_scalar(&self, p: f64) -> Result<Var> {
        autocast!("pow_scalar", [self], |x| x.pow_scalar(p));
        // y'' = p (p - 1) x^(p - 2), 0 for a straight line.
        let bend = move |x: &Var| match p {
            0.0 | 1.0 => Ok(Var::constant(x.value().zeros_like()?)),
            _ => x.pow_scalar(p - 2.0)?.mul_scalar(p * (p - 1.0)),
        };
        function(self, UnaryOp::PowScalar(p), Some(bend))
    }
}

pub(super) fn scalar_samples(d: &Draw) -> Result<Vec<Sample>> {
    let mut samples = unary(d, Draw::positive, |x| x.pow_scalar(-1.5))?;
    samples.extend(d.samples(&[
        ("zeroth", &[&[3]], |v| v[0].pow_scalar(0.0)?.mul(&v[0])),
        ("first", &[&[3]], |v| v[0].pow_scalar(1.0)),
        ("second", &[&[3]], |v| v[0].pow_scalar(2.0)),
        ("third", &[&[3]], |v| v[0].pow_scalar(3.0)),
    ])?);
    samples.push(d.sample_of(Draw::positive, "half", &[&[3]], |v| v[0].pow_scalar(0.5))?);
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn powers() -> Result<()> {
        let (a, b) = (vector(&[2.0, 9.0])?, vector(&[3.0, 0.5])?);
        let y = a.pow(&b)?;
        close(&y, &[8.0, 3.0])?;
        close_values(&gradient(&y, &a)?, &[12.0, 0.5 / 3.0]);
        close_values(&gradient(&y, &b)?, &[8.0 * 2.0_f64.ln(), 3.0 * 9.0_f64.ln()]);
        Ok(())
    }

    #[test]
    fn zero_bases_and_exponents() -> Result<()> {
        let (a, b) = (vector(&[0.0, 0.0, 0.0, -2.0])?, vector(&[0.0, 2.0, -1.0, 0.0])?);
        let y = a.pow(&b)?;
        close(&y, &[1.0, 0.0, f64::INFINITY, 1.0])?;
        close_values(&gradient(&y, &a)?, &[0.0, 0.0, f64::NEG_INFINITY, 0.0]);
        close_values(&gradient(&y, &b)?, &[0.0, 0.0, f64::NEG_INFINITY, f64::NAN]);
        Ok(())
    }

    #[test]
    fn number_as_exponent() -> Result<()> {
        let x = vector(&[0.0, -2.0])?;
        close(&x.pow_scalar(3.0)?, &[0.0, -8.0])?;
        close_values(&gradient(&x.pow_scalar(3.0)?, &x)?, &[0.0, 12.0]);
        close_values(&gradient(&x.pow_scalar(0.0)?, &x)?, &[0.0, 0.0]);
        close_values(&gradient(&x.pow_scalar(1.0)?, &x)?, &[1.0, 1.0]);
        // Powers that overflow, of either sign.
        let x = vector(&[-0.0, -1e-200, 1e-200])?;
        close_values(
            &gradient(&x.pow_scalar(-2.0)?, &x)?,
            &[f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY],
        );
        let x = vector(&[-2.0])?;
        assert!(gradient(&x.pow_scalar(1.5)?, &x)?[0].is_nan());
        let x = vector(&[1e154])?;
        close_values(&gradient(&x.pow_scalar(3.0)?.mul_scalar(0.5)?, &x)?, &[1.5e308]);
        Ok(())
    }
}
