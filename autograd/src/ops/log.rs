//! `y = ln x`; `x' = g / x`.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The natural logarithm `ln x`; NaN for negative numbers, negative infinity for 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn log(&self) -> Result<Var> {
        autocast!("log", [self], |x| x.log());
        function(self, UnaryOp::Log, self.value().log()?, Some(|x: &Var| x.square()?.reciprocal()?.neg()))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::positive, Var::log)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn logarithm() -> Result<()> {
        let x = vector(&[1.0, std::f64::consts::E, 0.0])?;
        let y = x.log()?;
        close(&y, &[0.0, 1.0, f64::NEG_INFINITY])?;
        close_values(&gradient(&y, &x)?, &[1.0, 1.0 / std::f64::consts::E, f64::INFINITY]);
        Ok(())
    }
}
