//! `y = 1 / (1 + e^-x)`; `x' = g e^-|x| / (1 + e^-|x|)²`, which is `g y (1 - y)` without cancellation.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The logistic function `1 / (1 + e^-x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn sigmoid(&self) -> Result<Var> {
        // y'' = y (1 - y) (1 - 2 y)
        let bend = |x: &Var| {
            let y = x.sigmoid()?;
            y.sub(&y.square()?)?.mul(&y.mul_scalar(-2.0)?.add_scalar(1.0)?)
        };
        function(self, UnaryOp::Sigmoid, self.value().sigmoid()?, Some(bend))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::sigmoid)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let x = vector(&[0.0, 3.0_f64.ln(), f64::NEG_INFINITY])?;
        let y = x.sigmoid()?;
        close(&y, &[0.5, 0.75, 0.0])?;
        close_values(&gradient(&y, &x)?, &[0.25, 0.1875, 0.0]);
        Ok(())
    }
}
