//! `reshape`, `flatten`, `squeeze`, `unsqueeze`: the same elements in the same order; the gradient takes the old
//! shape.

use tensor::{Result, Tensor};

use super::{Dims, Draw, Sample, record_one};
use crate::Var;

#[derive::located]
impl Var {
    /// The same elements in row-major order under another shape. See [`Tensor::reshape`].
    ///
    /// # Errors
    /// As for [`Tensor::reshape`].
    pub fn reshape(&self, shape: &[usize]) -> Result<Var> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        self.record_reshape("reshape", self.value().reshape(shape)?)
    }

    /// Merges the axes from `start` to `end`, both included. See [`Tensor::flatten`].
    ///
    /// # Errors
    /// As for [`Tensor::flatten`].
    pub fn flatten(&self, start: isize, end: isize) -> Result<Var> {
        self.record_reshape("flatten", self.value().flatten(start, end)?)
    }

    /// Removes an axis of size 1, as a view. See [`Tensor::squeeze`].
    ///
    /// # Errors
    /// As for [`Tensor::squeeze`].
    pub fn squeeze(&self, axis: isize) -> Result<Var> {
        self.record_reshape("squeeze", self.value().squeeze(axis)?)
    }

    /// Inserts an axis of size 1 before `axis`, as a view. See [`Tensor::unsqueeze`].
    ///
    /// # Errors
    /// As for [`Tensor::unsqueeze`].
    pub fn unsqueeze(&self, axis: isize) -> Result<Var> {
        self.record_reshape("unsqueeze", self.value().unsqueeze(axis)?)
    }

    fn record_reshape(&self, op: &'static str, value: Tensor) -> Result<Var> {
        let from = Dims::from_slice(self.shape());
        record_one(op, self, &[], value, move |_, g| g.reshape(&from))
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("to_rows", &[&[2, 3]], |v| v[0].reshape(&[3, 2])),
        ("to_vector", &[&[2, 3, 1]], |v| v[0].reshape(&[6])),
        ("same", &[&[2, 3]], |v| v[0].reshape(&[2, 3])),
        ("scalar", &[&[1, 1]], |v| v[0].reshape(&[])),
        ("copying_inside", &[&[2, 3]], |v| v[0].t()?.reshape(&[2, 3])?.mul(&v[0])),
    ])
}

pub(super) fn flatten_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("all", &[&[2, 3]], |v| v[0].flatten(0, -1)),
        ("middle", &[&[2, 3, 2, 1]], |v| v[0].flatten(1, 2)),
        ("scalar", &[&[]], |v| v[0].flatten(0, -1)),
    ])
}

pub(super) fn squeeze_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("first", &[&[1, 3]], |v| v[0].squeeze(0)),
        ("last", &[&[3, 1]], |v| v[0].squeeze(-1)?.square()),
        ("not_one", &[&[3, 2]], |v| v[0].squeeze(1)),
    ])
}

pub(super) fn unsqueeze_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("first", &[&[3]], |v| v[0].unsqueeze(0)),
        ("last", &[&[3]], |v| v[0].unsqueeze(-1)?.mul(&v[0])),
        ("scalar", &[&[]], |v| v[0].unsqueeze(0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn shapes() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        assert_eq!(x.reshape(&[3, 2])?.shape(), [3, 2]);
        assert_eq!(x.flatten(0, 1)?.shape(), [6]);
        assert_eq!(x.unsqueeze(1)?.shape(), [2, 1, 3]);
        assert_eq!(x.unsqueeze(1)?.squeeze(1)?.shape(), [2, 3]);
        close(&x.transpose(0, 1)?.reshape(&[6])?, &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0])?;
        close_values(&gradient(&x.reshape(&[6])?.square()?, &x)?, &[2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert!(x.reshape(&[4]).is_err());
        Ok(())
    }
}
