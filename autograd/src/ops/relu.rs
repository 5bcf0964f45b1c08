//! `y = max(x, 0)`; `x' = g` where `y > 0`, else 0.

use tensor::{Device, Result, UnaryOp};

use super::function::straight;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The positive part `max(x, 0)`; its gradient at 0 is 0. NaN stays NaN.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn relu(&self) -> Result<Var> {
        straight(self, UnaryOp::Relu, self.value().relu()?)
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::nonzero, Var::relu)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let x = vector(&[-1.0, 0.0, 2.0])?;
        close(&x.relu()?, &[0.0, 0.0, 2.0])?;
        close_values(&gradient(&x.relu()?, &x)?, &[0.0, 0.0, 1.0]);
        Ok(())
    }

    #[test]
    fn keeps_nan() -> Result<()> {
        close(&vector(&[f64::NAN, 1.0])?.relu()?, &[f64::NAN, 1.0])
    }
}
