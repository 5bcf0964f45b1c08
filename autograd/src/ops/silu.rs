//! `y = x σ(x)`; `x' = g σ (1 + x (1 - σ))`.

use tensor::{Device, Result};

use super::binary::if_needed;
use super::one;
use super::samples::{Draw, Sample, unary};
use crate::{Grads, Save, Var, record};

impl Var {
    /// The sigmoid linear unit `x / (1 + e^-x)`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn silu(&self) -> Result<Var> {
        let value = self.value().silu()?;
        Ok(record("silu", &[self], &[Save::Input(0)], value, |ctx, g| Ok(one(silu_grad(&ctx.saved(0), g)?))))
    }
}

/// The gradient in one kernel; `x' = h g σ (1 - σ) (2 + x (1 - 2 σ))` for its own gradient `h`.
fn silu_grad(x: &Var, g: &Var) -> Result<Var> {
    let value = x.value().silu_grad(g.value())?;
    Ok(record("silu_grad", &[x, g], &[Save::Input(0), Save::Input(1)], value, |ctx, h| {
        let (x, g) = (ctx.saved(0), ctx.saved(1));
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || h.mul(&g)?.mul(&curvature(&x)?))?,
            if_needed(ctx, 1, || silu_grad(&x, h))?,
        ]))
    }))
}

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
