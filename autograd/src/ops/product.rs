//! `prod`, `cumprod`: products of elements, as a tree of `mul`, whose gradients are right at zeros, too.

use tensor::{DType, Result, Tensor};

use super::sum::reductions;
use super::{Dims, Draw, Sample, kept_shape, position, sample, scalar_like, widened};
use crate::Var;

#[derive::located]
impl Var {
    /// The product over `axes`; no axes means all of them, and the product of no elements is 1. The gradient of an element is the
    /// product of the others, also where elements are 0.
    ///
    /// # Errors
    /// As for [`Tensor::prod`](tensor::Tensor::prod).
    pub fn prod(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        const OP: &str = "prod";
        autocast!("prod", [self], |x| x.prod(axes, keepdim));
        let shape = self.value().reduced(OP, axes, keepdim)?;
        if !self.dtype().is_float() {
            return Ok(Var::constant(self.value().prod(axes, keepdim)?));
        }
        if self.dtype().is_half() {
            return widened(self, |x| x.prod(axes, keepdim));
        }
        let kept = kept_shape(self.shape(), axes);
        let mut y = self.clone();
        for axis in (0..self.rank()).filter(|&axis| kept[axis] == 1) {
            y = y.product_along(axis as isize)?;
        }
        y.reshape(&shape)
    }

    /// The product along an axis, which stays with size 1: of its two halves, until one element is left.
    fn product_along(&self, axis: isize) -> Result<Var> {
        let mut y = self.clone();
        loop {
            let size = y.shape()[axis as usize];
            if size == 1 {
                return Ok(y);
            }
            if size == 0 {
                let mut one = Dims::from_slice(y.shape());
                one[axis as usize] = 1;
                return scalar_like(y.value(), 1.0)?.expand(&one);
            }
            let half = size / 2;
            let pairs = y.narrow(axis, 0, half)?.mul(&y.narrow(axis, half, half)?)?;
            y = match size % 2 {
                0 => pairs,
                _ => Var::cat(&[&pairs, &y.narrow(axis, size - 1, 1)?], axis)?,
            };
        }
    }

    /// The products of the elements up to each position of `axis`, and their gradients, also where elements are 0.
    ///
    /// Formed in `log2(n)` steps of `n` products. Bool and U8 are multiplied as I64.
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn cumprod(&self, axis: isize) -> Result<Var> {
        const OP: &str = "cumprod";
        autocast!("cumprod", [self], |x| x.cumprod(axis));
        if self.rank() == 0 {
            return self.reshape(&[1])?.cumprod(axis)?.reshape(&[]);
        }
        self.value().bounds(OP, axis, ..)?;
        if matches!(self.dtype(), DType::Bool | DType::U8) {
            return self.to_dtype(DType::I64)?.cumprod(axis);
        }
        if self.dtype().is_half() {
            return widened(self, |x| x.cumprod(axis));
        }
        let size = self.shape()[position(axis, self.rank())];
        let mut y = self.clone();
        let mut by = 1;
        // Each element is the product of the last `by` ones up to it.
        while by < size {
            let rest = y.narrow(axis, by, size - by)?.mul(&y.narrow(axis, 0, size - by)?)?;
            y = Var::cat(&[&y.narrow(axis, 0, by)?, &rest], axis)?;
            by *= 2;
        }
        Ok(y)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let mut samples = reductions(d, Draw::nonzero, Var::prod)?;
    let zeros =
        d.nonzero(&[2, 3])?.mul(&Tensor::from_slice(&[1.0, 0.0, 1.0, 0.0, 0.0, 1.0], &[2, 3], &d.device)?)?;
    samples.push(sample("zeros", [zeros], |v| v[0].prod(&[1], false)));
    Ok(samples)
}

pub(super) fn cumprod_samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shape, axis| d.sample_of(Draw::nonzero, name, &[shape], move |v| v[0].cumprod(axis));
    let zeros = d.nonzero(&[2, 5])?.mul(&Tensor::from_slice(&[1.0, 0.0, 1.0, 0.0, 1.0], &[5], &d.device)?)?;
    Ok(vec![
        of("last", &[2, 5], -1)?,
        of("first", &[4, 2], 0)?,
        of("one", &[1], 0)?,
        of("scalar", &[], 0)?,
        sample("zeros", [zeros], |v| v[0].cumprod(1)),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn gradients_are_products_of_the_others() -> Result<()> {
        let x = leaf(&[2.0, 3.0, 4.0, 0.0, 5.0, 6.0], &[2, 3])?;
        let rows = x.prod(&[1], false)?;
        close(&rows, &[24.0, 0.0])?;
        close_values(&gradient(&rows, &x)?, &[12.0, 8.0, 6.0, 30.0, 0.0, 0.0]);
        close(&x.prod(&[], true)?, &[0.0])?;
        assert_eq!(x.prod(&[], true)?.shape(), [1, 1]);
        let up_to = x.cumprod(1)?;
        close(&up_to, &[2.0, 6.0, 24.0, 0.0, 0.0, 0.0])?;
        close_values(&gradient(&up_to, &x)?, &[16.0, 10.0, 6.0, 36.0, 0.0, 0.0]);
        assert!(x.prod(&[2], false).is_err() && x.cumprod(2).is_err());
        Ok(())
    }

    #[test]
    fn products_of_bytes_are_wide() -> Result<()> {
        let x = Var::constant(Tensor::from_slice(&[20_u8, 20], &[2], &tensor::Device::cpu())?);
        assert_eq!(x.prod(&[], false)?.item::<i64>()?, 400);
        assert_eq!(x.cumprod(0)?.to_vec::<i64>()?, [20, 400]);
        Ok(())
    }

    #[test]
    fn a_product_of_nothing_is_one() -> Result<()> {
        let x = leaf(&[], &[2, 0])?;
        close(&x.prod(&[1], false)?, &[1.0, 1.0])?;
        close(&x.prod(&[], false)?, &[1.0])?;
        assert!(x.cumprod(1)?.value().is_empty());
        Ok(())
    }
}
