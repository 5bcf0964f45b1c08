//! Conversions between tensors and ndarray's arrays, with the feature `ndarray`.

use device::{Device, Element, Error, Result};
use ndarray::{Array, ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::Tensor;

#[derive::located]
impl Tensor {
    /// A copy of an array on a device; the array may be of any layout.
    ///
    /// ```
    /// use ndarray::{Array2, ArrayD, array};
    /// use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let turned = array![[1.0_f32, 2.0], [3.0, 4.0]].reversed_axes();
    /// let x = Tensor::from_ndarray(&turned, &Device::cpu())?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// let back: Array2<f32> = (&x).try_into()?;
    /// assert_eq!(back, turned);
    /// let any_rank: ArrayD<f32> = (&x.sum(&[0], false)?).try_into()?;
    /// assert_eq!(any_rank.shape(), [2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `OutOfMemory`; `InvalidArgument` for a shape too large to address.
    pub fn from_ndarray<T, S, D>(array: &ArrayBase<S, D>, device: &Device) -> Result<Tensor>
    where
        T: Element,
        S: Data<Elem = T>,
        D: Dimension,
    {
        match array.as_slice() {
            Some(elements) => Tensor::from_slice(elements, array.shape(), device),
            None => Tensor::from_slice(&array.iter().copied().collect::<Vec<T>>(), array.shape(), device),
        }
    }
}

/// A copy on [`Device::cpu`]; see [`Tensor::from_ndarray`].
impl<T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&ArrayBase<S, D>> for Tensor {
    type Error = Error;

    fn try_from(array: &ArrayBase<S, D>) -> Result<Tensor> {
        Tensor::from_ndarray(array, &Device::cpu())
    }
}

/// A copy in row-major order. Waits for the last write of the tensor, as [`Tensor::to_vec`] does.
///
/// `DTypeMismatch` unless `T` is the tensor's type; `InvalidArgument` unless the array has as many axes; `Async` if a
/// command that led here failed.
impl<T: Element, D: Dimension> TryFrom<&Tensor> for Array<T, D> {
    type Error = Error;

    #[track_caller]
    fn try_from(tensor: &Tensor) -> Result<Array<T, D>> {
        let wrong =
            |expected| Error::invalid("to_ndarray", "shape", expected, format_args!("{:?}", tensor.shape()));
        let array = ArrayD::from_shape_vec(IxDyn(tensor.shape()), tensor.to_vec()?);
        let array = array.map_err(|_| wrong("one that ndarray can address"))?;
        array.into_dimensionality().map_err(|_| wrong("as many axes as the array's type has"))
    }
}
