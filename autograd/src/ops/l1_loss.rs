//! `loss = |x - target|`, and the same rounded off near 0: `d² / 2β` where `d = |x - target|` is below `β`, `d - β / 2`
//! elsewhere.

use tensor::{Error, Result};

use super::mse_loss::{by_element, loss_by_element};
use super::{Draw, Reduction, Sample};
use crate::Var;

#[derive::located]
impl Var {
    /// The absolute error `|x - target|`.
    ///
    /// Shapes: both the same; the result is a scalar, or has that shape with [`Reduction::None`].
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `InvalidArgument` for the mean of no elements.
    pub fn l1_loss(&self, target: &Var, reduction: Reduction) -> Result<Var> {
        autocast!("l1_loss", [self, target], |x, target| x.l1_loss(&target, reduction));
        loss_by_element("l1_loss", self, target, reduction, |x, target| x.sub(target)?.abs())
    }

    /// The absolute error, squared below `beta`: `d² / 2β` for `d = |x - target| < β`, `d - β / 2` elsewhere. The usual
    /// `beta` is 1; with 0 it is [`Var::l1_loss`].
    ///
    /// # Errors
    /// As [`Var::l1_loss`]; `InvalidArgument` for a negative `beta`.
    pub fn smooth_l1_loss(&self, target: &Var, beta: f64, reduction: Reduction) -> Result<Var> {
        autocast!("smooth_l1_loss", [self, target], |x, target| x.smooth_l1_loss(&target, beta, reduction));
        const OP: &str = "smooth_l1_loss";
        Error::require(beta >= 0.0, OP, "beta", "not negative", beta)?;
        if beta == 0.0 {
            return self.l1_loss(target, reduction);
        }
        loss_by_element(OP, self, target, reduction, |x, target| {
            let distance = x.sub(target)?.abs()?;
            // c (d - c / 2) / β with c = min(d, β) is both.
            let near = distance.clamp(f64::NEG_INFINITY, beta)?;
            near.div_scalar(beta)?.mul(&distance.sub(&near.mul_scalar(0.5)?)?)
        })
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let shifted = |x: &Var, target: &Var, reduction| x.mul_scalar(3.0)?.l1_loss(target, reduction);
    by_element(d, shifted)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let (x, target) = (vector(&[1.0, 2.0, 0.0, 5.0])?, vector(&[1.5, 0.0, 0.0, 3.0])?);
        close(&x.l1_loss(&target, Reduction::None)?, &[0.5, 2.0, 0.0, 2.0])?;
        let mean = x.l1_loss(&target, Reduction::Mean)?;
        close(&mean, &[1.125])?;
        close_values(&gradient(&mean, &x)?, &[-0.25, 0.25, 0.0, 0.25]);
        let smooth = x.smooth_l1_loss(&target, 1.0, Reduction::None)?;
        close(&smooth, &[0.125, 1.5, 0.0, 1.5])?;
        close_values(&gradient(&smooth, &x)?, &[-0.5, 1.0, 0.0, 1.0]);
        close(&x.smooth_l1_loss(&target, 4.0, Reduction::Sum)?, &[0.25 / 8.0 + 1.0])?;
        close(&x.smooth_l1_loss(&target, 0.0, Reduction::Sum)?, &[4.5])
    }

    #[test]
    fn bad_input_is_an_error() -> Result<()> {
        let (x, other) = (vector(&[1.0])?, leaf(&[1.0], &[1, 1])?);
        assert!(x.l1_loss(&other, Reduction::Mean).is_err());
        assert!(x.smooth_l1_loss(&other, 1.0, Reduction::Mean).is_err());
        assert!(x.smooth_l1_loss(&x, -1.0, Reduction::Mean).is_err());
        assert!(x.smooth_l1_loss(&x, f64::NAN, Reduction::Mean).is_err());
        Ok(())
    }
}
