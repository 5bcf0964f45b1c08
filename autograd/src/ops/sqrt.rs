//! `y = √x`, `x' = g / (2 √x)`; and `y = 1 / √x`, `x' = -g / (2 x √x)`.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The square root `√x`; NaN for negative numbers. Its gradient at 0 is infinite.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn sqrt(&self) -> Result<Var> {
        let bend = |x: &Var| x.pow_scalar(-1.5)?.mul_scalar(-0.25);
        function(self, UnaryOp::Sqrt, self.value().sqrt()?, Some(bend))
    }

    /// The inverse square root `1 / √x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn rsqrt(&self) -> Result<Var> {
        autocast!("rsqrt", [self], |x| x.rsqrt());
        let bend = |x: &Var| x.pow_scalar(-2.5)?.mul_scalar(0.75);
        function(self, UnaryOp::Rsqrt, self.value().rsqrt()?, Some(bend))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::positive, Var::sqrt)
}

pub(super) fn rsqrt_samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::positive, Var::rsqrt)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn roots() -> Result<()> {
        let x = vector(&[4.0, 0.25])?;
        close(&x.sqrt()?, &[2.0, 0.5])?;
        close(&x.rsqrt()?, &[0.5, 2.0])?;
        close_values(&gradient(&x.sqrt()?, &x)?, &[0.25, 1.0]);
        close_values(&gradient(&x.rsqrt()?, &x)?, &[-0.0625, -4.0]);
        Ok(())
    }

    #[test]
    fn gradient_at_zero_is_infinite() -> Result<()> {
        let x = vector(&[0.0])?;
        close_values(&gradient(&x.sqrt()?, &x)?, &[f64::INFINITY]);
        Ok(())
    }
}
