//! `y = a - b`; the gradient goes to `a` as it is and to `b` negated.

use tensor::Result;

use super::{if_needed, record_binary};
use crate::Var;

#[derive::located]
impl Var {
    /// The difference `self - rhs`, with broadcasting. See [`Tensor::sub`](tensor::Tensor::sub).
    ///
    /// # Errors
    /// As for [`Tensor::sub`](tensor::Tensor::sub).
    pub fn sub(&self, rhs: &Var) -> Result<Var> {
        promote!(self, rhs, Var::sub);
        let value = self.value().sub(rhs.value())?;
        Ok(record_binary("sub", self, rhs, &[], value, |ctx, g| {
            Ok([ctx.needs(0).then(|| g.clone()), if_needed(ctx, 1, || g.neg())?])
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn subtracts() -> Result<()> {
        let (a, b) = (vector(&[1.0, 2.0])?, vector(&[10.0, -1.0])?);
        let y = a.sub(&b)?;
        close(&y, &[-9.0, 3.0])?;
        close_values(&gradient(&y, &a)?, &[1.0, 1.0]);
        close_values(&gradient(&y, &b)?, &[-1.0, -1.0]);
        Ok(())
    }
}
