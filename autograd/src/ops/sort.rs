//! `sort`, `topk`, `masked_select`: elements in order, or those of a mask; the gradient goes back to where they were.

use tensor::{Result, Tensor};

use super::{Draw, Sample};
use crate::Var;

#[derive::located]
impl Var {
    /// The elements in order along `axis`, and their indices. See [`Tensor::sort`].
    ///
    /// # Errors
    /// As for [`Tensor::sort`].
    pub fn sort(&self, axis: isize, descending: bool) -> Result<(Var, Tensor)> {
        let indices = self.value().argsort(axis, descending)?;
        Ok((self.gather_of("gather", axis, &indices, true)?, indices))
    }

    /// The `k` largest or smallest elements along `axis`, in order, and their indices. See [`Tensor::topk`].
    ///
    /// # Errors
    /// As for [`Tensor::topk`].
    pub fn topk(&self, k: usize, axis: isize, largest: bool) -> Result<(Var, Tensor)> {
        let indices = self.value().argtopk(k, axis, largest)?;
        Ok((self.gather_of("gather", axis, &indices, true)?, indices))
    }

    /// The elements where the mask, of Bool, holds, as a vector; the mask broadcasts. Waits for the mask. See
    /// [`Tensor::masked_select`].
    ///
    /// # Errors
    /// As for [`Tensor::masked_select`].
    pub fn masked_select(&self, mask: &Tensor) -> Result<Var> {
        let places = self.value().masked_places(mask)?;
        self.flatten(0, -1)?.index_select(0, &places)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shape, axis, descending| {
        d.sample_of(Draw::distinct, name, &[shape], move |v| v[0].sort(axis, descending)?.0.square())
    };
    Ok(vec![
        of("rows", &[3, 5], 1, false)?,
        of("columns", &[3, 5], 0, true)?,
        of("middle", &[2, 3, 2], 1, false)?,
        of("scalar", &[], -1, false)?,
        d.sample_of(Draw::distinct, "used_twice", &[&[5]], |v| v[0].sort(0, true)?.0.mul(&v[0]))?,
    ])
}

pub(super) fn topk_samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shape, k, axis, largest| {
        d.sample_of(Draw::distinct, name, &[shape], move |v| v[0].topk(k, axis, largest)?.0.square())
    };
    Ok(vec![
        of("largest", &[3, 5], 2, 1, true)?,
        of("smallest", &[3, 5], 1, 0, false)?,
        of("none", &[3, 5], 0, 1, true)?,
        of("scalar", &[], 1, 0, true)?,
    ])
}

pub(super) fn masked_select_samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, mask: &[bool], shape: &[usize]| {
        let mask = Tensor::from_slice(mask, shape, &d.device)?;
        d.sample(name, &[&[2, 3]], move |v| v[0].masked_select(&mask)?.square())
    };
    Ok(vec![
        of("some", &[true, false, true, false, false, true], &[2, 3])?,
        of("columns", &[true, false, true], &[3])?,
        of("none", &[false], &[1])?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, tensor, vector};
    use super::*;

    #[test]
    fn gradients_return_to_their_elements() -> Result<()> {
        let x = vector(&[2.0, -1.0, 2.0, 5.0])?;
        let (sorted, indices) = x.sort(0, true)?;
        close(&sorted, &[5.0, 2.0, 2.0, -1.0])?;
        assert_eq!(indices.to_vec::<i64>()?, [3, 0, 2, 1]);
        let weighted = sorted.mul(&vector(&[1.0, 2.0, 3.0, 4.0])?)?;
        close_values(&gradient(&weighted, &x)?, &[2.0, 4.0, 3.0, 1.0]);
        let (best, indices) = x.topk(2, 0, true)?;
        close(&best, &[5.0, 2.0])?;
        assert_eq!(indices.to_vec::<i64>()?, [3, 0]);
        close_values(&gradient(&best, &x)?, &[1.0, 0.0, 0.0, 1.0]);
        assert!(x.topk(5, 0, true).is_err());
        Ok(())
    }

    #[test]
    fn a_mask_selects_in_row_major_order() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        let y = x.masked_select(&tensor(&[true, false, true], &[3])?)?;
        close(&y, &[1.0, 3.0, 4.0, 6.0])?;
        close_values(&gradient(&y, &x)?, &[1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
        assert!(x.masked_select(&tensor(&[1_i64], &[1])?).is_err());
        Ok(())
    }
}
