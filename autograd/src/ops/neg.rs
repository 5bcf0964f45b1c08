//! `y = -x`; `x' = -g`.

use tensor::Result;

use super::record_one;
use crate::Var;

#[derive::located]
impl Var {
    /// The negative `-x`.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn neg(&self) -> Result<Var> {
        let value = self.value().neg()?;
        record_one("neg", self, &[], value, |_, g| g.neg())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn negates() -> Result<()> {
        let x = vector(&[1.0, -2.0])?;
        close(&x.neg()?, &[-1.0, 2.0])?;
        close_values(&gradient(&x.neg()?, &x)?, &[-1.0, -1.0]);
        Ok(())
    }
}
