//! `y = e^x`; `x' = g y`.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The exponential `e^x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn exp(&self) -> Result<Var> {
        autocast!("exp", [self], |x| x.exp());
        function(
            self,
            UnaryOp::Exp,
            self.value().exp()?,
            Some(|y: &Var| Ok(Var::constant(y.value().ones_like()?))),
        )
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::exp)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn exponential() -> Result<()> {
        let x = vector(&[0.0, 1.0, f64::NEG_INFINITY])?;
        let expected = [1.0, std::f64::consts::E, 0.0];
        let y = x.exp()?;
        close(&y, &expected)?;
        close_values(&gradient(&y, &x)?, &expected);
        Ok(())
    }
}
