//! `y = tanh x`; `x' = g / cosh² x`, which is `g (1 - y²)` without cancellation.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The hyperbolic tangent.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn tanh(&self) -> Result<Var> {
        // y'' = -2 y (1 - y²)
        let bend = |x: &Var| {
            let y = x.tanh()?;
            y.square()?.add_scalar(-1.0)?.mul(&y)?.mul_scalar(2.0)
        };
        function(self, UnaryOp::Tanh, self.value().tanh()?, Some(bend))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::tanh)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let x = vector(&[0.0, 0.5 * 3.0_f64.ln(), f64::INFINITY])?;
        let y = x.tanh()?;
        close(&y, &[0.0, 0.5, 1.0])?;
        close_values(&gradient(&y, &x)?, &[1.0, 0.75, 0.0]);
        Ok(())
    }
}
