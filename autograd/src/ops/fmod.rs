//! `r = x - trunc(x / y) y`; `x' = g`, `y' = -g trunc(x / y)`.

use tensor::{BinaryGradOp, Result, Tensor};

use super::{Draw, Sample, binary, binary_slope, if_needed, record_binary};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The remainder of `self / divisor`, with the sign of `self`, with broadcasting. The gradient of the divisor is as if the
    /// quotient stayed the same integer. See [`Tensor::fmod`](tensor::Tensor::fmod).
    ///
    /// # Errors
    /// As for [`Tensor::fmod`](tensor::Tensor::fmod).
    pub fn fmod(&self, divisor: &Var) -> Result<Var> {
        promote!(self, divisor, Var::fmod);
        let value = self.value().fmod(divisor.value())?;
        let saved = [Save::Input(0), Save::Input(1)];
        Ok(record_binary("fmod", self, divisor, &saved, value, |ctx, g| {
            let slope = || binary_slope(BinaryGradOp::FmodDivisor, &ctx.saved(0), &ctx.saved(1), g);
            Ok([ctx.needs(0).then(|| g.clone()), if_needed(ctx, 1, slope)?])
        }))
    }
}

/// Multiples of 0.1, of which dividends of steps of 0.1 beside them are none.
fn divisors(draw: &Draw, shape: &[usize]) -> Result<Tensor> {
    draw.positive(shape)?.mul_scalar(10.0)?.round()?.div_scalar(10.0)
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    binary(d, Draw::distinct, divisors, Var::fmod)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn remainders_have_the_dividends_sign() -> Result<()> {
        let (x, y) = (
            vector(&[5.0, -5.0, 5.5, 1.0, 1e300, 2.0])?,
            vector(&[3.0, 3.0, -2.0, f64::INFINITY, 7.0, 0.0])?,
        );
        let r = x.fmod(&y)?;
        close(&r, &[2.0, -2.0, 1.5, 1.0, 1e300 % 7.0, f64::NAN])?;
        close_values(&gradient(&r, &x)?, &[1.0; 6]);
        close_values(&gradient(&r, &y)?[..4], &[-1.0, 1.0, 2.0, 0.0]);
        // A quotient that is rounded to the integer above.
        let (x, y) = (vector(&[3.0_f64.next_down()])?, vector(&[1.0])?);
        close_values(&gradient(&x.fmod(&y)?, &y)?, &[-2.0]);
        Ok(())
    }

    /// The slope is flat, but what leads to the divisor bends.
    #[test]
    fn second_derivatives_of_a_computed_divisor() -> Result<()> {
        let (x, w) = (vector(&[7.0])?, vector(&[1.5])?);
        let y = x.fmod(&w.square()?)?;
        close(&crate::hvp(&y, &w, &vector(&[1.0])?)?, &[-6.0])
    }
}
