//! `y = a` where the condition holds, `b` elsewhere; the gradient goes to the one that was taken.

use tensor::{Result, Tensor};

use super::{Dims, Draw, Sample, if_needed, scalar_like};
use crate::{Grads, Save, Var, record};

#[derive::located]
impl Var {
    /// `a` where `cond` holds and `b` elsewhere; all three broadcast. The gradient is 0 where the other value was
    /// taken. See [`Tensor::where_cond`].
    ///
    /// # Errors
    /// As for [`Tensor::where_cond`].
    pub fn where_cond(cond: &Tensor, a: &Var, b: &Var) -> Result<Var> {
        promote!(a, b, |a, b| Var::where_cond(cond, a, b));
        let value = Tensor::where_cond(cond, a.value(), b.value())?;
        let shapes = [Dims::from_slice(a.shape()), Dims::from_slice(b.shape())];
        Ok(record("where_cond", &[a, b], &[Save::Tensor(cond)], value, move |ctx, g| {
            let cond = ctx.saved(0);
            let zero = scalar_like(g.value(), 0.0)?;
            Ok(Grads::from_buf([
                if_needed(ctx, 0, || Var::where_cond(cond.value(), g, &zero)?.sum_to(&shapes[0]))?,
                if_needed(ctx, 1, || Var::where_cond(cond.value(), &zero, g)?.sum_to(&shapes[1]))?,
            ]))
        }))
    }

    /// `value` where the mask, of Bool, holds; it broadcasts. The gradient is 0 there.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `DTypeMismatch` unless the mask is Bool.
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Var> {
        Var::where_cond(mask, &scalar_like(self.value(), value)?, self)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, cond: &[usize], a, b| {
        let cond = d.normal(cond)?.gt(0.0)?;
        d.sample(name, &[a, b], move |v| Var::where_cond(&cond, &v[0], &v[1])?.mul(&v[0]))
    };
    Ok(vec![
        of("same_shape", &[2, 3], &[2, 3], &[2, 3])?,
        of("row_condition", &[3], &[2, 3], &[2, 3])?,
        of("condition_adds_axes", &[2, 3], &[3], &[1])?,
        of("row_on_the_left", &[2, 3], &[3], &[2, 3])?,
        of("column_on_the_right", &[2, 3], &[2, 3], &[2, 1])?,
        of("scalars", &[5], &[], &[])?,
        of("one", &[1], &[1], &[1])?,
    ])
}

pub(super) fn masked_fill_samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, mask: &[usize]| {
        let mask = d.normal(mask)?.gt(0.0)?;
        d.sample(name, &[&[2, 5]], move |v| v[0].masked_fill(&mask, -1.5)?.mul(&v[0]))
    };
    Ok(vec![of("same_shape", &[2, 5])?, of("row", &[5])?])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, tensor, vector};
    use super::*;

    #[test]
    fn takes_one_or_the_other() -> Result<()> {
        let cond = tensor(&[true, false, true], &[3])?;
        let (a, b) = (vector(&[1.0, 2.0, 3.0])?, vector(&[-1.0])?);
        let y = Var::where_cond(&cond, &a, &b)?;
        close(&y, &[1.0, -1.0, 3.0])?;
        close_values(&gradient(&y, &a)?, &[1.0, 0.0, 1.0]);
        close_values(&gradient(&y, &b)?, &[1.0]);
        Ok(())
    }

    #[test]
    fn infinities_not_taken_leave_no_nan() -> Result<()> {
        let cond = tensor(&[true, false], &[2])?;
        let (a, b) = (vector(&[1.0, f64::INFINITY])?, vector(&[f64::NAN, 2.0])?);
        let y = Var::where_cond(&cond, &a, &b)?;
        close(&y, &[1.0, 2.0])?;
        close_values(&gradient(&y, &a)?, &[1.0, 0.0]);
        Ok(())
    }

    #[test]
    fn masked_elements_have_no_gradient() -> Result<()> {
        let x = vector(&[1.0, 2.0, 3.0])?;
        let y = x.masked_fill(&tensor(&[false, true, false], &[3])?, -9.0)?;
        close(&y, &[1.0, -9.0, 3.0])?;
        close_values(&gradient(&y, &x)?, &[1.0, 0.0, 1.0]);
        assert!(x.masked_fill(&tensor(&[1_i64, 0, 0], &[3])?, 0.0).is_err());
        Ok(())
    }
}
