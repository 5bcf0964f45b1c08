//! `y = Σ x` over axes; the gradient repeats along them. `sum_to` is the reverse of broadcasting.

use tensor::Result;

use super::{Dims, Draw, Drawn, Sample, kept_shape, record_one, spread, unary};
use crate::Var;

#[derive::located]
impl Var {
    /// The sum over `axes`. See [`Tensor::sum`](tensor::Tensor::sum).
    ///
    /// # Errors
    /// As for [`Tensor::sum`](tensor::Tensor::sum).
    pub fn sum(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        autocast!("sum", [self], |x| x.sum(axes, keepdim));
        let value = self.value().sum(axes, keepdim)?;
        let shape = Dims::from_slice(self.shape());
        let kept = kept_shape(&shape, axes);
        record_one("sum", self, &[], value, move |_, g| spread(g, &kept, &shape))
    }

    /// The sum of all elements, a scalar.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    pub fn sum_all(&self) -> Result<Var> {
        self.sum(&[], false)
    }

    /// The sum over the axes along which `shape` would be broadcast to this shape. See [`Tensor::sum_to`](tensor::Tensor::sum_to).
    ///
    /// # Errors
    /// As for [`Tensor::sum_to`](tensor::Tensor::sum_to).
    pub fn sum_to(&self, shape: &[usize]) -> Result<Var> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let value = self.value().sum_to(shape)?;
        let from = Dims::from_slice(self.shape());
        record_one("sum_to", self, &[], value, move |_, g| g.expand(&from))
    }
}

/// The samples of a reduction over axes.
pub(super) fn reductions(
    d: &Draw,
    draw: Drawn,
    f: fn(&Var, &[isize], bool) -> Result<Var>,
) -> Result<Vec<Sample>> {
    let over = |name, shape, axes: &'static [isize], keepdim| {
        d.sample_of(draw, name, &[shape], move |v| f(&v[0], axes, keepdim))
    };
    Ok(vec![
        over("first", &[3, 5], &[0], false)?,
        over("all", &[2, 3], &[], false)?,
        over("all_kept", &[2, 3], &[], true)?,
        over("last", &[3, 5], &[-1], false)?,
        over("last_kept", &[3, 5], &[1], true)?,
        over("middle", &[2, 3, 4], &[1], false)?,
        over("first_and_last", &[2, 3, 4], &[0, -1], false)?,
        over("first_and_last_kept", &[2, 3, 4], &[2, 0], true)?,
        over("odd", &[17], &[0], false)?,
        over("scalar", &[], &[], false)?,
        over("scalar_along_its_only_axis", &[], &[0], true)?,
        over("size_one_kept", &[3, 1, 2], &[1], true)?,
        over("two_of_one_row", &[1, 2], &[1], false)?,
        d.sample_of(draw, "narrowed_inside", &[&[3, 5]], move |v| f(&v[0].narrow(1, 1, 3)?, &[0], false))?,
        d.sample_of(draw, "used_twice", &[&[3, 2]], move |v| v[0].mul(&f(&v[0], &[1], true)?))?,
    ])
}

pub(super) fn to_samples(d: &Draw) -> Result<Vec<Sample>> {
    let mut samples = unary(d, Draw::normal, |x| x.sum_to(&[]))?;
    samples.extend(d.samples(&[
        ("row", &[&[2, 3]], |v| v[0].sum_to(&[3])?.mul(&v[0])),
        ("column", &[&[2, 3]], |v| v[0].sum_to(&[2, 1])?.mul(&v[0])),
        ("same", &[&[2, 3]], |v| v[0].sum_to(&[2, 3])),
        ("leading", &[&[4, 2, 3]], |v| v[0].sum_to(&[2, 3])),
        ("leading_and_middle", &[&[4, 2, 3]], |v| v[0].sum_to(&[1, 3])),
    ])?);
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn over_each_axis() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        close(&x.sum(&[0], false)?, &[5.0, 7.0, 9.0])?;
        close(&x.sum(&[-1], true)?, &[6.0, 15.0])?;
        assert_eq!(x.sum(&[-1], true)?.shape(), [2, 1]);
        close(&x.sum_all()?, &[21.0])?;
        close(&x.sum_to(&[2, 1])?, &[6.0, 15.0])?;
        close_values(&gradient(&x.sum(&[0], false)?, &x)?, &[1.0; 6]);
        Ok(())
    }

    #[test]
    fn of_nothing_is_zero() -> Result<()> {
        let x = leaf(&[], &[0, 2])?;
        close(&x.sum(&[0], false)?, &[0.0, 0.0])?;
        close_values(&gradient(&x.sum_all()?, &x)?, &[]);
        Ok(())
    }
}
