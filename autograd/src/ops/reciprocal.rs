//! `y = 1 / x`; `x' = -g y²`.

use tensor::{Device, Result};

use super::one;
use super::samples::{Draw, Sample, unary};
use crate::autocast::Cast;
use crate::{Save, Var, record};

impl Var {
    /// The reciprocal `1 / x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn reciprocal(&self) -> Result<Var> {
        if let Some(cast) = Cast::of("reciprocal") {
            return cast.run(|cast| cast.var(self)?.reciprocal());
        }
        let value = self.value().reciprocal()?;
        Ok(record("reciprocal", &[self], &[Save::Output], value, |ctx, g| {
            Ok(one(g.mul(&ctx.saved(0).square()?)?.neg()?))
        }))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::nonzero, Var::reciprocal)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn inverts() -> Result<()> {
        let x = vector(&[2.0, -0.5])?;
        close(&x.reciprocal()?, &[0.5, -2.0])?;
        close_values(&gradient(&x.reciprocal()?, &x)?, &[-0.25, -4.0]);
        Ok(())
    }
}
