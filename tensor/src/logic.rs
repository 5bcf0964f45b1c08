//! Truth values: of pairs, and over axes.

use device::{DType, Result};

use crate::Tensor;

#[derive::located]
impl Tensor {
    /// Whether both of each pair are true, or not 0, broadcasting.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1_i64, 2, 0], &[3], &Device::cpu())?;
    /// let y = Tensor::from_slice(&[true, false, true], &[3], &Device::cpu())?;
    /// assert_eq!(x.logical_and(&y)?.to_vec::<bool>()?, [true, false, false]);
    /// assert_eq!(x.logical_or(&y)?.to_vec::<bool>()?, [true; 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`.
    pub fn logical_and(&self, rhs: &Tensor) -> Result<Tensor> {
        Tensor::where_cond(
            &self.truth()?,
            &rhs.truth()?,
            &Tensor::full(&[], false, DType::Bool, self.device())?,
        )
    }

    /// Whether one of each pair is true, or not 0, broadcasting.
    ///
    /// # Errors
    /// As for [`logical_and`](Self::logical_and).
    pub fn logical_or(&self, rhs: &Tensor) -> Result<Tensor> {
        Tensor::where_cond(
            &self.truth()?,
            &Tensor::full(&[], true, DType::Bool, self.device())?,
            &rhs.truth()?,
        )
    }

    /// Whether exactly one of each pair is true, or not 0, broadcasting.
    ///
    /// # Errors
    /// As for [`logical_and`](Self::logical_and).
    pub fn logical_xor(&self, rhs: &Tensor) -> Result<Tensor> {
        self.truth()?.ne(&rhs.truth()?)
    }

    /// Whether any element over `axes` is true, or not 0; no axes means all of them. False without elements.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[true, false, false, false], &[2, 2], &Device::cpu())?;
    /// assert_eq!(x.any(&[1], false)?.to_vec::<bool>()?, [true, false]);
    /// assert!(!x.all(&[], false)?.item::<bool>()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Tensor::sum`].
    pub fn any(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.truth()?.sum(axes, keepdim)?.gt(0.0)
    }

    /// Whether every element over `axes` is true, or not 0; no axes means all of them. True without elements.
    ///
    /// # Errors
    /// As for [`Tensor::sum`].
    pub fn all(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.truth()?.logical_not()?.any(axes, keepdim)?.logical_not()
    }
}
