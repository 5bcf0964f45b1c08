//! `z = atan2(y, x)`; `y' = g x / (x^2 + y^2)`, `x' = -g y / (x^2 + y^2)`.

use tensor::{BinaryGradOp, Result};

use super::{binary_slope, if_needed, record_binary};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The angles of the points `(x, y)` with `y` of `self`, in `-pi..=pi`, with broadcasting. The gradient at the origin is NaN. See
    /// [`Tensor::atan2`](tensor::Tensor::atan2).
    ///
    /// # Errors
    /// As for [`Tensor::atan2`](tensor::Tensor::atan2).
    pub fn atan2(&self, x: &Var) -> Result<Var> {
        promote!(self, x, Var::atan2);
        let value = self.value().atan2(x.value())?;
        let saved = [Save::Input(0), Save::Input(1)];
        Ok(record_binary("atan2", self, x, &saved, value, |ctx, g| {
            let (y, x) = (ctx.saved(0), ctx.saved(1));
            let slope = |of: &Var, other: &Var| binary_slope(BinaryGradOp::Atan2First, of, other, g);
            Ok([if_needed(ctx, 0, || slope(&y, &x))?, if_needed(ctx, 1, || slope(&x, &y)?.neg())?])
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn angles_of_all_quadrants() -> Result<()> {
        let (y, x) =
            (vector(&[1.0, 1.0, -1.0, 0.0, -0.0, 2.0])?, vector(&[1.0, -1.0, -1.0, -1.0, -1.0, 0.0])?);
        let z = y.atan2(&x)?;
        close(&z, &[FRAC_PI_4, 3.0 * FRAC_PI_4, -3.0 * FRAC_PI_4, PI, -PI, FRAC_PI_2])?;
        close_values(&gradient(&z, &y)?, &[0.5, -0.5, -0.5, -1.0, -1.0, 0.0]);
        close_values(&gradient(&z, &x)?, &[-0.5, -0.5, 0.5, 0.0, 0.0, -0.5]);
        Ok(())
    }

    /// Squares that overflow or underflow by themselves.
    #[test]
    fn far_points() -> Result<()> {
        let (y, x) =
            (vector(&[3e200, 3e-200, 0.0, 0.0, 1.0])?, vector(&[4e200, 4e-200, 1e-300, 0.0, f64::INFINITY])?);
        let z = y.atan2(&x)?.mul_scalar(1e3)?;
        close_values(&gradient(&z, &y)?[3..], &[f64::NAN, f64::NAN]);
        let scaled: Vec<f64> =
            gradient(&z, &y)?.iter().zip([1e197, 1e-203, 1e-303]).map(|(g, unit)| g * unit).collect();
        close_values(&scaled, &[0.16, 0.16, 1.0]);
        close_values(&gradient(&z, &x)?[2..], &[0.0, f64::NAN, 0.0]);
        Ok(())
    }
}
