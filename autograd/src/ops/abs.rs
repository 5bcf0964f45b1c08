//! `y = |x|`; `x' = g sign(x)`, 0 at 0.

use tensor::Result;

use super::record_one;
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The absolute value `|x|`; its gradient at 0 is 0.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn abs(&self) -> Result<Var> {
        let value = self.value().abs()?;
        record_one("abs", self, &[Save::Input(0)], value, |ctx, g| {
            g.mul(&Var::constant(ctx.saved(0).value().sign()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn absolute() -> Result<()> {
        let x = vector(&[3.0, -2.0, 0.0])?;
        close(&x.abs()?, &[3.0, 2.0, 0.0])?;
        close_values(&gradient(&x.abs()?, &x)?, &[1.0, -1.0, 0.0]);
        Ok(())
    }
}
