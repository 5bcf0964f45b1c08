//! `permute`, `transpose`, `t`: axes in another order; the gradient's axes go back.

use smallvec::SmallVec;
use tensor::Result;

use super::{Draw, Sample, position, record_one};
use crate::Var;

#[derive::located]
impl Var {
    /// Reorders the axes, as a view. See [`Tensor::permute`](tensor::Tensor::permute).
    ///
    /// # Errors
    /// As for [`Tensor::permute`](tensor::Tensor::permute).
    pub fn permute(&self, axes: &[isize]) -> Result<Var> {
        let value = self.value().permute(axes)?;
        let mut inverse: SmallVec<[isize; 4]> = SmallVec::from_elem(0, axes.len());
        for (to, &from) in (0..).zip(axes) {
            inverse[position(from, axes.len())] = to;
        }
        record_one("permute", self, &[], value, move |_, g| g.permute(&inverse))
    }

    /// Swaps two axes, as a view. See [`Tensor::transpose`](tensor::Tensor::transpose).
    ///
    /// # Errors
    /// As for [`Tensor::transpose`](tensor::Tensor::transpose).
    pub fn transpose(&self, a: isize, b: isize) -> Result<Var> {
        let value = self.value().transpose(a, b)?;
        record_one("transpose", self, &[], value, move |_, g| g.transpose(a, b))
    }

    /// The transposed matrix, as a view. See [`Tensor::t`](tensor::Tensor::t).
    ///
    /// # Errors
    /// As for [`Tensor::t`](tensor::Tensor::t).
    pub fn t(&self) -> Result<Var> {
        let value = self.value().t()?;
        if self.shape().len() < 2 {
            return Ok(self.clone());
        }
        record_one("t", self, &[], value, |_, g| g.t())
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("cycle", &[&[2, 3, 4]], |v| v[0].permute(&[2, 0, 1])),
        ("negative_axes", &[&[2, 3, 1, 2]], |v| v[0].permute(&[-1, 0, -2, 1])),
        ("same", &[&[2, 3]], |v| v[0].permute(&[0, 1])?.mul(&v[0])),
        ("scalar", &[&[]], |v| v[0].permute(&[])),
    ])
}

pub(super) fn transpose_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("matrix", &[&[2, 3]], |v| v[0].transpose(0, 1)),
        ("outer_axes", &[&[2, 3, 4]], |v| v[0].transpose(0, -1)),
        ("same_axis", &[&[2, 3]], |v| v[0].transpose(1, 1)),
        ("gram", &[&[3, 3]], |v| v[0].transpose(0, 1)?.mul(&v[0])),
        ("t", &[&[2, 3]], |v| v[0].t()),
        ("t_of_vector", &[&[3]], |v| v[0].t()?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn reorders() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        let expected = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
        close(&x.t()?, &expected)?;
        close(&x.transpose(0, 1)?, &expected)?;
        close(&x.permute(&[1, 0])?, &expected)?;
        close_values(&gradient(&x.t()?.square()?, &x)?, &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        Ok(())
    }
}
