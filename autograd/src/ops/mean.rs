//! `y = Σ x / n` over axes; the gradient repeats `g / n` along them.

use tensor::Result;

use super::{Dims, kept_shape, record_one, reduced_elements, spread};
use crate::Var;

#[derive::located]
impl Var {
    /// The mean over `axes`. See [`Tensor::mean`](tensor::Tensor::mean).
    ///
    /// # Errors
    /// As for [`Tensor::mean`](tensor::Tensor::mean).
    pub fn mean(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        let value = self.value().mean(axes, keepdim)?;
        let shape = Dims::from_slice(self.shape());
        let kept = kept_shape(&shape, axes);
        let scale = (reduced_elements(&shape, axes) as f64).recip();
        record_one("mean", self, &[], value, move |_, g| spread(&g.mul_scalar(scale)?, &kept, &shape))
    }

    /// The mean of all elements, a scalar.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn mean_all(&self) -> Result<Var> {
        self.mean(&[], false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn over_each_axis() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        close(&x.mean(&[0], false)?, &[2.5, 3.5, 4.5])?;
        close(&x.mean(&[1], true)?, &[2.0, 5.0])?;
        close(&x.mean_all()?, &[3.5])?;
        close_values(&gradient(&x.mean(&[1], false)?, &x)?, &[1.0 / 3.0; 6]);
        Ok(())
    }
}
