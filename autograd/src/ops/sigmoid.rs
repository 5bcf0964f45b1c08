//! `y = 1 / (1 + e^-x)`; `x' = g y (1 - y)`.

use tensor::{Device, Result};

use super::binary::if_needed;
use super::one;
use super::samples::{Draw, Sample, unary};
use crate::{Grads, Save, Var, record};

impl Var {
    /// The logistic function `1 / (1 + e^-x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn sigmoid(&self) -> Result<Var> {
        let value = self.value().sigmoid()?;
        Ok(record("sigmoid", &[self], &[Save::Output], value, |ctx, g| {
            Ok(one(sigmoid_grad(&ctx.saved(0), g)?))
        }))
    }
}

/// `g y (1 - y)` in one kernel; `y' = h g (1 - 2 y)` and `g' = h y (1 - y)` for its own gradient `h`.
fn sigmoid_grad(y: &Var, g: &Var) -> Result<Var> {
    let value = y.value().sigmoid_grad(g.value())?;
    Ok(record("sigmoid_grad", &[y, g], &[Save::Input(0), Save::Input(1)], value, |ctx, h| {
        let (y, g) = (ctx.saved(0), ctx.saved(1));
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || h.mul(&g)?.mul(&y.mul_scalar(-2.0)?.add_scalar(1.0)?))?,
            if_needed(ctx, 1, || sigmoid_grad(&y, h))?,
        ]))
    }))
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
