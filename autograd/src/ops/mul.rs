//! `y = a b`; `a' = g b`, `b' = g a`.

use tensor::Result;

use super::crossed::Crossed;
use super::{if_needed, record_binary, record_one};
use crate::Var;

#[derive::located]
impl Var {
    /// The product `self * rhs`, with broadcasting. See [`Tensor::mul`](tensor::Tensor::mul).
    ///
    /// # Errors
    /// As for [`Tensor::mul`](tensor::Tensor::mul).
    pub fn mul(&self, rhs: &Var) -> Result<Var> {
        promote!(self, rhs, Var::mul);
        let value = self.value().mul(rhs.value())?;
        let crossed = Crossed::new(self, rhs);
        Ok(record_binary("mul", self, rhs, crossed.saved(), value, move |ctx, g| {
            Ok([
                if_needed(ctx, 0, || g.mul(&crossed.rhs(ctx)))?,
                if_needed(ctx, 1, || g.mul(&crossed.lhs(ctx)))?,
            ])
        }))
    }

    /// The product `c x` with a number.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn mul_scalar(&self, c: f64) -> Result<Var> {
        let value = self.value().mul_scalar(c)?;
        record_one("mul_scalar", self, &[], value, move |_, g| g.mul_scalar(c))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn multiplies() -> Result<()> {
        let (a, b) = (vector(&[1.0, 2.0])?, vector(&[10.0, -1.0])?);
        let y = a.mul(&b)?;
        close(&y, &[10.0, -2.0])?;
        close_values(&gradient(&y, &a)?, &[10.0, -1.0]);
        close_values(&gradient(&y, &b)?, &[1.0, 2.0]);
        close_values(&gradient(&a.mul(&a)?, &a)?, &[2.0, 4.0]);
        close_values(&gradient(&a.mul_scalar(3.0)?, &a)?, &[3.0, 3.0]);
        Ok(())
    }
}
