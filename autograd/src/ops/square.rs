//! `y = x²`; `x' = 2 g x`.

use tensor::{Device, Result, UnaryOp};

use super::function::function;
use super::samples::{Draw, Sample, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The square `x²`.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn square(&self) -> Result<Var> {
        autocast!("square", [self], |x| x.square());
        let bend = |x: &Var| Ok(Var::constant(x.value().full_like(2.0)?));
        function(self, UnaryOp::Square, self.value().square()?, Some(bend))
    }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::square)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn squares() -> Result<()> {
        let x = vector(&[3.0, -0.5])?;
        close(&x.square()?, &[9.0, 0.25])?;
        close_values(&gradient(&x.square()?, &x)?, &[6.0, -1.0]);
        Ok(())
    }
}
