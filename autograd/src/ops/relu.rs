//! `y = max(x, 0)`; `x' = g` where `y > 0`, else 0.

use tensor::{Device, Result, Tensor};

use super::binary::if_needed;
use super::one;
use super::samples::{Draw, Sample, unary};
use crate::{Grads, Save, Var, record};

impl Var {
    /// The positive part `max(x, 0)`; its gradient at 0 is 0. NaN stays NaN.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn relu(&self) -> Result<Var> {
        let value = self.value().relu()?;
        Ok(record("relu", &[self], &[Save::Output], value, |ctx, g| {
            Ok(one(relu_grad(ctx.saved(0).value(), g)?))
        }))
    }
}

/// `g` where `y > 0`, else 0; `y` is flat wherever there is a gradient, so only `g` has one.
fn relu_grad(y: &Tensor, g: &Var) -> Result<Var> {
    let value = y.relu_grad(g.value())?;
    Ok(record("relu_grad", &[g], &[Save::Tensor(y)], value, |ctx, h| {
        Ok(Grads::from_iter([if_needed(ctx, 0, || relu_grad(ctx.saved(0).value(), h))?]))
    }))
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
