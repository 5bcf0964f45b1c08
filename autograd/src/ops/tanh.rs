//! `y = tanh x`; `x' = g (1 - y²)`.

use tensor::{Device, Result};

use super::binary::if_needed;
use super::one;
use super::samples::{Draw, Sample, unary};
use crate::{Grads, Save, Var, record};

impl Var {
    /// The hyperbolic tangent.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn tanh(&self) -> Result<Var> {
        let value = self.value().tanh()?;
        Ok(record("tanh", &[self], &[Save::Output], value, |ctx, g| Ok(one(tanh_grad(&ctx.saved(0), g)?))))
    }
}

/// `g (1 - y²)` in one kernel; `y' = -2 h g y` and `g' = h (1 - y²)` for its own gradient `h`.
fn tanh_grad(y: &Var, g: &Var) -> Result<Var> {
    let value = y.value().tanh_grad(g.value())?;
    Ok(record("tanh_grad", &[y, g], &[Save::Input(0), Save::Input(1)], value, |ctx, h| {
        let (y, g) = (ctx.saved(0), ctx.saved(1));
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || h.mul(&g)?.mul(&y)?.mul_scalar(-2.0))?,
            if_needed(ctx, 1, || tanh_grad(&y, h))?,
        ]))
    }))
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
