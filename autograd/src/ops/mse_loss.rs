//! `loss = (x - target)²`; `x' = 2 g (x - target)`.

use tensor::{Error, Result};

use super::binary::computed;
use super::cross_entropy::not_empty;
use super::{Draw, Reduction, Sample, sample};
use crate::Var;

#[derive::located]
impl Var {
    /// The squared error `(x - target)²`.
    ///
    /// Shapes: both the same, for broadcasting here hides mistakes; the result is a scalar, or has that shape with
    /// [`Reduction::None`].
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `InvalidArgument` for the mean of no elements.
    pub fn mse_loss(&self, target: &Var, reduction: Reduction) -> Result<Var> {
        autocast!("mse_loss", [self, target], |x, target| x.mse_loss(&target, reduction));
        loss_by_element("mse_loss", self, target, reduction, |x, target| x.sub(target)?.square())
    }
}

/// A loss with one term for each element: checks the shapes, computes in the compute dtype, and reduces.
pub(super) fn loss_by_element(
    op: &'static str,
    x: &Var,
    target: &Var,
    reduction: Reduction,
    losses: impl FnOnce(&Var, &Var) -> Result<Var>,
) -> Result<Var> {
    Error::require_shapes(x.shape() == target.shape(), op, "target", x.shape(), target.shape())?;
    not_empty(op, "input", x.value(), reduction)?;
    computed(x, target, |x, target| reduction.apply(losses(x, target)?))
}

/// The samples of a loss by element; the targets are between 0.1 and 0.8.
pub(super) fn by_element(d: &Draw, f: fn(&Var, &Var, Reduction) -> Result<Var>) -> Result<Vec<Sample>> {
    let target = |shape: &[usize]| d.positive(shape)?.mul_scalar(0.4)?.add_scalar(-0.1);
    let of = |name, shape: &[usize], reduction| -> Result<Sample> {
        Ok(sample(name, [d.nonzero(shape)?, target(shape)?], move |v| f(&v[0], &v[1], reduction)))
    };
    Ok(vec![
        of("mean", &[2, 3], Reduction::Mean)?,
        of("sum", &[2, 3], Reduction::Sum)?,
        of("none", &[2, 3], Reduction::None)?,
        of("one", &[1], Reduction::Mean)?,
        of("odd", &[17], Reduction::Mean)?,
        of("scalar", &[], Reduction::Mean)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let (x, target) = (vector(&[1.0, 2.0])?, vector(&[0.0, 4.0])?);
        close(&x.mse_loss(&target, Reduction::None)?, &[1.0, 4.0])?;
        close(&x.mse_loss(&target, Reduction::Sum)?, &[5.0])?;
        let mean = x.mse_loss(&target, Reduction::Mean)?;
        close(&mean, &[2.5])?;
        close_values(&gradient(&mean, &x)?, &[1.0, -2.0]);
        assert!(x.mse_loss(&leaf(&[1.0, 2.0], &[2, 1])?, Reduction::Mean).is_err());
        assert!(leaf(&[], &[0])?.mse_loss(&leaf(&[], &[0])?, Reduction::Mean).is_err());
        Ok(())
    }
}
