//! `y = 1 / x`; `x' = -g / x²`.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The reciprocal `1 / x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn reciprocal(&self) -> Result<Var> {
        autocast!("reciprocal", [self], |x| x.reciprocal());
        let bend = |x: &Var| x.pow_scalar(-3.0)?.mul_scalar(2.0);
        function(self, UnaryOp::Reciprocal, self.value().reciprocal()?, Some(bend))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::nonzero, Var::reciprocal)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn inverts() -> Result<()> {
        let x = vector(&[2.0, -0.5])?;
        close(&x.reciprocal()?, &[0.5, -2.0])?;
        close_values(&gradient(&x.reciprocal()?, &x)?, &[-0.25, -4.0]);
        Ok(())
    }
}
