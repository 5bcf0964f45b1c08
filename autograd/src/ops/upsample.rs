//! Images in other sizes: the nearest pixel, or the weighted mean of four; the gradient goes back by the same weights.

use tensor::grad::{self, Means};
use tensor::{Result, Tensor};

use super::{Draw, Sample, last_two, record_pair};
use crate::Var;

/// The size that [`Var::interpolate`] gives to images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpsampleSize {
    /// Rows and columns of the result.
    To([usize; 2]),
    /// Factors of rows and columns, whose products are rounded down.
    By([f64; 2]),
}

impl From<[usize; 2]> for UpsampleSize {
    fn from(size: [usize; 2]) -> Self {
        UpsampleSize::To(size)
    }
}

/// One factor for both.
impl From<f64> for UpsampleSize {
    fn from(factor: f64) -> Self {
        UpsampleSize::By([factor; 2])
    }
}

/// How [`Var::interpolate`] finds the pixels of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpsampleMode {
    /// The nearest pixel; see [`Var::upsample_nearest2d`].
    Nearest,
    /// The mean of four pixels by their distance; see [`Var::upsample_bilinear2d`].
    Bilinear {
        /// Whether the corners of both images lie on each other, rather than their edges.
        align_corners: bool,
    },
}

#[derive::located]
impl Var {
    /// Images of another size, which is `[rows, columns]` or a factor of both. Positions follow from the two sizes: a factor is as
    /// with PyTorch's `recompute_scale_factor`.
    ///
    /// Shapes: `[.., h, w] -> [.., size..]`.
    ///
    /// ```
    /// use autograd::{Var, ops::UpsampleMode};
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Var::constant(Tensor::from_slice(&[0.0_f32, 4.0], &[1, 2], &Device::cpu())?);
    /// let twice = x.interpolate(2.0, UpsampleMode::Bilinear { align_corners: false })?;
    /// assert_eq!(twice.to_vec::<f32>()?, [0.0, 1.0, 3.0, 4.0, 0.0, 1.0, 3.0, 4.0]);
    /// assert_eq!(x.interpolate([1, 3], UpsampleMode::Nearest)?.to_vec::<f32>()?, [0.0, 0.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Tensor::upsample_nearest2d`](tensor::Tensor::upsample_nearest2d); `DTypeUnsupported` for means of other elements than
    /// floats.
    pub fn interpolate(&self, size: impl Into<UpsampleSize>, mode: UpsampleMode) -> Result<Var> {
        let size = match size.into() {
            UpsampleSize::To(size) => size,
            UpsampleSize::By(factors) => {
                let [h, w] = last_two(self);
                [(h as f64 * factors[0]) as usize, (w as f64 * factors[1]) as usize]
            }
        };
        match mode {
            UpsampleMode::Nearest => self.upsample_nearest2d(size),
            UpsampleMode::Bilinear { align_corners } => self.upsample_bilinear2d(size, align_corners),
        }
    }

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
        let factors = UpsampleSize::By([3.0, 1.75]);
        assert_eq!(x.interpolate(factors, UpsampleMode::Nearest)?.shape(), [3, 3]);
        for factor in [0.4, -1.0, f64::NAN, f64::INFINITY] {
            assert!(x.interpolate(factor, UpsampleMode::Nearest).is_err(), "{factor}");
        }
        Ok(())
    }
}
