//! Images in other sizes: the nearest pixel, or the weighted mean of four; the gradient goes back by the same weights.

use tensor::grad::{self, Means};
use tensor::{Result, Tensor};

use super::{Draw, Sample, last_two, record_pair};
use crate::Var;

#[derive::located]
impl Var {
    /// The nearest pixel for each of `size`. See
    /// [`Tensor::upsample_nearest2d`](tensor::Tensor::upsample_nearest2d).
    ///
    /// # Errors
    /// As for [`Tensor::upsample_nearest2d`](tensor::Tensor::upsample_nearest2d).
    pub fn upsample_nearest2d(&self, size: [usize; 2]) -> Result<Var> {
        autocast!("upsample", [self], |x| x.upsample_nearest2d(size));
        let image = last_two(self);
        let enlarged = move |x: &Tensor, _: &[&Tensor]| x.upsample_nearest2d(size);
        const GRAD: &str = "upsample_nearest2d_grad";
        let summed = move |g: &Tensor, _: &[&Tensor]| grad::resized(GRAD, g, Means::Nearest, image);
        record_pair(["upsample_nearest2d", GRAD], self, &[], enlarged, summed)
    }

    /// The mean of the four pixels around each position. See
    /// [`Tensor::upsample_bilinear2d`](tensor::Tensor::upsample_bilinear2d).
    ///
    /// # Errors
    /// As for [`Tensor::upsample_bilinear2d`](tensor::Tensor::upsample_bilinear2d).
    pub fn upsample_bilinear2d(&self, size: [usize; 2], align_corners: bool) -> Result<Var> {
        autocast!("upsample", [self], |x| x.upsample_bilinear2d(size, align_corners));
        let mean = move |x: &Tensor, _: &[&Tensor]| x.upsample_bilinear2d(size, align_corners);
        const GRAD: &str = "upsample_bilinear2d_grad";
        let (image, means) = (last_two(self), Means::Bilinear { align_corners });
        let shared = move |g: &Tensor, _: &[&Tensor]| grad::resized(GRAD, g, means, image);
        record_pair(["upsample_bilinear2d", GRAD], self, &[], mean, shared)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("nearest", &[&[1, 2, 2, 3]], |v| v[0].upsample_nearest2d([4, 5])?.square()),
        ("nearest_smaller", &[&[5, 4]], |v| v[0].upsample_nearest2d([2, 3])?.square()),
        ("bilinear", &[&[1, 2, 2, 3]], |v| v[0].upsample_bilinear2d([4, 5], false)?.square()),
        ("bilinear_corners", &[&[2, 2, 3]], |v| v[0].upsample_bilinear2d([3, 7], true)?.square()),
        ("bilinear_smaller", &[&[4, 5]], |v| v[0].upsample_bilinear2d([1, 3], false)?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn sizes() -> Result<()> {
        let x = leaf(&[0.0, 4.0], &[1, 2])?;
        let y = x.upsample_nearest2d([2, 4])?;
        close(&y, &[0.0, 0.0, 4.0, 4.0, 0.0, 0.0, 4.0, 4.0])?;
        close_values(&gradient(&y, &x)?, &[4.0, 4.0]);
        close(&x.upsample_bilinear2d([1, 4], false)?, &[0.0, 1.0, 3.0, 4.0])?;
        close(&x.upsample_bilinear2d([1, 5], true)?, &[0.0, 1.0, 2.0, 3.0, 4.0])?;
        close(&x.upsample_bilinear2d([1, 1], true)?, &[0.0])?;
        close(&x.upsample_bilinear2d([1, 1], false)?, &[2.0])?;
        assert!(x.upsample_nearest2d([0, 1]).is_err());
        Ok(())
    }
}
