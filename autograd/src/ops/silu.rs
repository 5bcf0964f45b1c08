//! `y = x σ(x)`; `x' = g σ (1 + x (1 - σ))`.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The sigmoid linear unit `x / (1 + e^-x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn silu(&self) -> Result<Var> {
        function(self, UnaryOp::Silu, self.value().silu()?, Some(curvature))
    }
}

/// `y'' = σ (1 - σ) (2 + x (1 - 2 σ))`.
fn curvature(x: &Var) -> Result<Var> {
    let s = x.sigmoid()?;
    let bell = s.sub(&s.square()?)?;
    let factor = x.mul(&s.mul_scalar(-2.0)?.add_scalar(1.0)?)?.add_scalar(2.0)?;
    bell.mul(&factor)
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::silu)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let x = 3.0_f64.ln();
        let v = vector(&[0.0, x])?;
        close(&v.silu()?, &[0.0, 0.75 * x])?;
        close_values(&gradient(&v.silu()?, &v)?, &[0.5, 0.75 * (1.0 + 0.25 * x)]);
        Ok(())
    }
}
