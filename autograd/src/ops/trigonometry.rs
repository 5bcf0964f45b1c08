//! `sin' = cos`, `cos' = -sin`.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The sine of `x` in radians.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn sin(&self) -> Result<Var> {
        function(self, UnaryOp::Sin, self.value().sin()?, Some(|x: &Var| x.sin()?.neg()))
    }

    /// The cosine of `x` in radians.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn cos(&self) -> Result<Var> {
        function(self, UnaryOp::Cos, self.value().cos()?, Some(|x: &Var| x.cos()?.neg()))
    }
}

pub(super) fn sin_samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::sin)
}

pub(super) fn cos_samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::cos)
}

#[cfg(test)]
mod tests {
    use std::f64::consts::FRAC_PI_6;

    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn at_thirty_degrees() -> Result<()> {
        let x = vector(&[0.0, FRAC_PI_6])?;
        let (sine, cosine) = (0.5, 0.75_f64.sqrt());
        close(&x.sin()?, &[0.0, sine])?;
        close(&x.cos()?, &[1.0, cosine])?;
        close_values(&gradient(&x.sin()?, &x)?, &[1.0, cosine]);
        close_values(&gradient(&x.cos()?, &x)?, &[0.0, -sine]);
        Ok(())
    }
}
