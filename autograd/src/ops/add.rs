//! `y = a + b`; the gradient goes to both as it is.

use tensor::Result;

use super::{record_binary, record_one};
use crate::Var;

#[derive::located]
impl Var {
    /// The sum `self + rhs`, with broadcasting. The gradient of each operand has the operand's shape and type. See
    /// [`Tensor::add`](tensor::Tensor::add).
    ///
    /// # Errors
    /// As for [`Tensor::add`](tensor::Tensor::add).
    #[inline]
    pub fn add(&self, rhs: &Var) -> Result<Var> {
        promote!(self, rhs, Var::add);
        let value = self.value().add(rhs.value())?;
        Ok(record_binary("add", self, rhs, &[], value, |ctx, g| {
            Ok([ctx.needs(0).then(|| g.clone()), ctx.needs(1).then(|| g.clone())])
        }))
    }

    /// The sum `x + c` with a number.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn add_scalar(&self, c: f64) -> Result<Var> {
        let value = self.value().add_scalar(c)?;
        record_one("add_scalar", self, &[], value, |_, g| Ok(g.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn sums_and_broadcasts() -> Result<()> {
        let (a, b) = (leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?, vector(&[10.0, 20.0])?);
        let y = a.add(&b)?;
        close(&y, &[11.0, 22.0, 13.0, 24.0])?;
        close_values(&gradient(&y, &b)?, &[2.0, 2.0]);
        close(&a.add_scalar(0.5)?, &[1.5, 2.5, 3.5, 4.5])
    }
}
