//! `y = a / b`; `a' = g / b`, `b' = -g a / b²`.

use tensor::{BinaryGradOp, Result};

use super::{binary_slope, if_needed, record_binary, record_one};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The quotient `self / rhs`, with broadcasting. See [`Tensor::div`](tensor::Tensor::div).
    ///
    /// # Errors
    /// As for [`Tensor::div`](tensor::Tensor::div).
    pub fn div(&self, rhs: &Var) -> Result<Var> {
        promote!(self, rhs, Var::div);
        let value = self.value().div(rhs.value())?;
        let saved: &[Save<'_>] =
            if rhs.requires_grad() { &[Save::Input(1), Save::Input(0)] } else { &[Save::Input(1)] };
        Ok(record_binary("div", self, rhs, saved, value, |ctx, g| {
            let divisor = ctx.saved(0);
            Ok([
                if_needed(ctx, 0, || g.div(&divisor))?,
                if_needed(ctx, 1, || binary_slope(BinaryGradOp::DivDivisor, &ctx.saved(1), &divisor, g))?,
            ])
        }))
    }

    /// The quotient `self / c` with a number. See [`Tensor::div_scalar`](tensor::Tensor::div_scalar).
    ///
    /// # Errors
    /// As for [`Tensor::div_scalar`](tensor::Tensor::div_scalar).
    pub fn div_scalar(&self, c: f64) -> Result<Var> {
        let value = self.value().div_scalar(c)?;
        record_one("div_scalar", self, &[], value, move |_, g| g.div_scalar(c))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, tensor, vector};
    use super::*;

    #[test]
    fn divides() -> Result<()> {
        let (a, b) = (vector(&[1.0, 3.0])?, vector(&[2.0, -1.0])?);
        let y = a.div(&b)?;
        close(&y, &[0.5, -3.0])?;
        close_values(&gradient(&y, &a)?, &[0.5, -1.0]);
        close_values(&gradient(&y, &b)?, &[-0.25, -3.0]);
        let third = a.div_scalar(3.0)?;
        close(&third, &[1.0 / 3.0, 1.0])?;
        close_values(&gradient(&third, &a)?, &[1.0 / 3.0, 1.0 / 3.0]);
        Ok(())
    }

    #[test]
    fn integers_are_divided_as_floats() -> Result<()> {
        let a = Var::constant(tensor(&[7_i64, -7], &[2])?);
        let b = Var::constant(tensor(&[2_u8, 2], &[2])?);
        for quotient in [a.div(&b)?, a.div(&a.add(&b)?.sub(&a)?)?, a.div_scalar(2.0)?] {
            assert_eq!(quotient.value().to_vec::<f32>()?, [3.5, -3.5]);
        }
        assert_eq!(a.div_scalar(0.5)?.value().to_vec::<f32>()?, [14.0, -14.0]);
        let x = vector(&[2.0, 4.0])?;
        let y = a.div(&x)?;
        close(&y, &[3.5, -1.75])?;
        close_values(&gradient(&y, &x)?, &[-1.75, 0.4375]);
        Ok(())
    }

    #[test]
    fn division_by_zero_is_infinite() -> Result<()> {
        let (a, b) = (vector(&[1.0])?, vector(&[0.0])?);
        let y = a.div(&b)?;
        close(&y, &[f64::INFINITY])?;
        close_values(&gradient(&y, &b)?, &[f64::NEG_INFINITY]);
        // 1 / b overflows, 0 / b does not.
        let (a, b) = (vector(&[0.0])?, vector(&[1e-309])?);
        close_values(&gradient(&a.div(&b)?, &b)?, &[0.0]);
        Ok(())
    }
}
