//! `y = max x` or `min x` over axes; the gradient goes to the extreme elements.

use tensor::{Result, Tensor};

use super::{Draw, Sample, kept_shape, record_one};
use crate::{Save, Var, Vjp};

#[derive::located]
impl Var {
    /// The largest element over `axes`. Equal largest elements share the gradient evenly; [`Var::max_with_indices`]
    /// passes it to the first. See [`Tensor::max`].
    ///
    /// # Errors
    /// As for [`Tensor::max`].
    pub fn max(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        let value = self.value().max(axes, keepdim)?;
        self.record_extreme("max", value, axes)
    }

    /// The smallest element over `axes`. Equal smallest elements share the gradient evenly. See [`Tensor::min`].
    ///
    /// # Errors
    /// As for [`Tensor::min`].
    pub fn min(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        let value = self.value().min(axes, keepdim)?;
        self.record_extreme("min", value, axes)
    }

    /// [`Var::max`] under torch's name.
    ///
    /// # Errors
    /// As [`Var::max`].
    pub fn amax(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        self.max(axes, keepdim)
    }

    /// [`Var::min`] under torch's name.
    ///
    /// # Errors
    /// As [`Var::min`].
    pub fn amin(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        self.min(axes, keepdim)
    }

    fn record_extreme(&self, op: &'static str, value: Tensor, axes: &[isize]) -> Result<Var> {
        let kept = kept_shape(self.shape(), axes);
        record_one(op, self, &[Save::Input(0), Save::Output], value, move |ctx, g| {
            // 16-bit floats cannot count as many ties as there may be.
            let shares = shares(ctx, &kept)?;
            let g_wide = g.to_dtype(shares.dtype())?.reshape(&kept)?;
            g_wide.mul(&shares)?.to_dtype(g.dtype())
        })
    }

    /// The largest element along one axis and the index of the first such element.
    ///
    /// The gradient goes to that element alone. Shapes: `[m, n]` along axis 1 gives twice `[m]`, or `[m, 1]`
    /// with `keepdim`; the indices are I64.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` if the axis has no elements.
    pub fn max_with_indices(&self, axis: isize, keepdim: bool) -> Result<(Var, Tensor)> {
        let indices = self.value().argmax(axis, true)?;
        let values = self.gather(axis, &indices)?;
        if keepdim {
            return Ok((values, indices));
        }
        Ok((values.squeeze(axis)?, indices.squeeze(axis)?))
    }
}

/// 1 at the extreme elements divided by their number, 0 elsewhere: a constant.
fn shares(ctx: &Vjp<'_>, kept: &[usize]) -> Result<Var> {
    let (x, y) = (ctx.saved(0), ctx.saved(1));
    let extreme = x.value().eq(&y.value().reshape(kept)?)?.to_dtype(x.dtype().compute_dtype())?;
    // Only the reduced axes differ from the kept shape.
    let count = extreme.sum_to(kept)?;
    Ok(Var::constant(extreme.div(&count)?))
}

pub(super) fn indices_samples(d: &Draw) -> Result<Vec<Sample>> {
    let values = |x: &Var, axis, keepdim| x.max_with_indices(axis, keepdim).map(|(values, _)| values);
    let along = |name, shape, axis, keepdim| {
        d.sample_of(Draw::distinct, name, &[shape], move |v| values(&v[0], axis, keepdim))
    };
    Ok(vec![
        along("first", &[3, 5], 0, false)?,
        along("last", &[3, 5], -1, false)?,
        along("middle_kept", &[2, 3, 2], 1, true)?,
        along("one", &[1], 0, false)?,
        d.sample_of(Draw::distinct, "used_twice", &[&[5, 3]], move |v| values(&v[0], 1, true)?.mul(&v[0]))?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn ties_share_evenly() -> Result<()> {
        let x = leaf(&[1.0, 3.0, 3.0, 3.0, 0.0, -1.0], &[2, 3])?;
        let (rows, all, low) = (x.max(&[1], false)?, x.max(&[], false)?, x.min(&[1], true)?);
        close(&rows, &[3.0, 3.0])?;
        close(&all, &[3.0])?;
        close(&low, &[1.0, -1.0])?;
        close_values(&gradient(&rows, &x)?, &[0.0, 0.5, 0.5, 1.0, 0.0, 0.0]);
        let third = 1.0 / 3.0;
        close_values(&gradient(&all, &x)?, &[0.0, third, third, third, 0.0, 0.0]);
        close_values(&gradient(&low, &x)?, &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        Ok(())
    }

    #[test]
    fn indices_take_the_first() -> Result<()> {
        let x = leaf(&[1.0, 3.0, 3.0, 3.0, 0.0, -1.0], &[2, 3])?;
        let (values, indices) = x.max_with_indices(-1, false)?;
        close(&values, &[3.0, 3.0])?;
        assert_eq!(indices.to_vec::<i64>()?, [1, 0]);
        assert_eq!((values.shape(), indices.shape()), (&[2][..], &[2][..]));
        close_values(&gradient(&values, &x)?, &[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
        Ok(())
    }
}
