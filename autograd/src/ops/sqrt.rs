//! `y = √x`, `x' = g / (2 y)`; and `y = 1 / √x`, `x' = -g y³ / 2`.

use tensor::{Device, Result};

use super::one;
use super::samples::{Draw, Sample, unary};
use crate::autocast::Cast;
use crate::{Save, Var, record};

impl Var {
    /// The square root `√x`; NaN for negative numbers. Its gradient at 0 is infinite.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn sqrt(&self) -> Result<Var> {
        let value = self.value().sqrt()?;
        Ok(record("sqrt", &[self], &[Save::Output], value, |ctx, g| {
            Ok(one(g.div(&ctx.saved(0).mul_scalar(2.0)?)?))
        }))
    }

    /// The inverse square root `1 / √x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn rsqrt(&self) -> Result<Var> {
        if let Some(cast) = Cast::of("rsqrt") {
            return cast.run(|cast| cast.var(self)?.rsqrt());
        }
        let value = self.value().rsqrt()?;
        Ok(record("rsqrt", &[self], &[Save::Output], value, |ctx, g| {
            Ok(one(g.mul(&ctx.saved(0).pow_scalar(3.0)?)?.mul_scalar(-0.5)?))
        }))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::positive, Var::sqrt)
}

pub(super) fn rsqrt_samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::positive, Var::rsqrt)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn roots() -> Result<()> {
        let x = vector(&[4.0, 0.25])?;
        close(&x.sqrt()?, &[2.0, 0.5])?;
        close(&x.rsqrt()?, &[0.5, 2.0])?;
        close_values(&gradient(&x.sqrt()?, &x)?, &[0.25, 1.0]);
        close_values(&gradient(&x.rsqrt()?, &x)?, &[-0.0625, -4.0]);
        Ok(())
    }

    #[test]
    fn gradient_at_zero_is_infinite() -> Result<()> {
        let x = vector(&[0.0])?;
        close_values(&gradient(&x.sqrt()?, &x)?, &[f64::INFINITY]);
        Ok(())
    }
}
