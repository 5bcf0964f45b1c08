//! Copies with elements in other places.

use device::{DType, Error, Result};
use kernels::{Dims, normalize_axes, normalize_axis};

use crate::Tensor;

#[derive::located]
impl Tensor {
    /// The elements in reverse order along each of `axes`.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::arange(0, 6, 1, DType::I64, &Device::cpu())?.reshape(&[2, 3])?;
    /// assert_eq!(x.flip(&[1])?.to_vec::<i64>()?, [2, 1, 0, 5, 4, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for an axis named twice.
    pub fn flip(&self, axes: &[isize]) -> Result<Tensor> {
        let axes = if axes.is_empty() { Dims::new() } else { normalize_axes("flip", axes, self.rank())? };
        axes.iter().try_fold(self.clone(), |x, &axis| x.index_select(axis as isize, &x.reversed(axis)?))
    }

    /// The indices of an axis, from the last one to 0.
    #[doc(hidden)]
    pub fn reversed(&self, axis: usize) -> Result<Tensor> {
        Tensor::arange(self.shape()[axis] as i64 - 1, -1_i64, -1_i64, DType::I64, self.device())
    }

    /// The elements moved by `shift` positions along `axis`; those that leave it enter at its other end.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::arange(0, 5, 1, DType::I64, &Device::cpu())?;
    /// assert_eq!(x.roll(2, 0)?.to_vec::<i64>()?, [3, 4, 0, 1, 2]);
    /// assert_eq!(x.roll(-1, 0)?.to_vec::<i64>()?, [1, 2, 3, 4, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn roll(&self, shift: isize, axis: isize) -> Result<Tensor> {
        let [first, second] = self.rolled("roll", shift, axis)?;
        Tensor::cat(&[&self.narrow(axis, first, second)?, &self.narrow(axis, 0, first)?], axis)
    }

    /// The position along `axis` where a [`roll`](Self::roll) cuts, and the number of elements from there on.
    #[doc(hidden)]
    pub fn rolled(&self, op: &'static str, shift: isize, axis: isize) -> Result<[usize; 2]> {
        let size = self.shape()[normalize_axis(op, axis, self.rank())?];
        let moved = shift.rem_euclid(size.max(1) as isize).unsigned_abs();
        Ok([size - moved, moved])
    }

    /// `counts[i]` copies along axis `i`, one after the other; further counts in front add axes.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1_i64, 2], &[2], &Device::cpu())?;
    /// assert_eq!(x.repeat(&[2])?.to_vec::<i64>()?, [1, 2, 1, 2]);
    /// assert_eq!(x.repeat(&[3, 1])?.shape(), [3, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for fewer counts than axes, or too many elements.
    pub fn repeat(&self, counts: &[usize]) -> Result<Tensor> {
        let [apart, copies, whole] = self.repeated(counts)?;
        self.reshape(&apart)?.expand(&copies)?.reshape(&whole)
    }

    /// The shapes of a [`repeat`](Self::repeat): with an axis before each, the same with copies, and the result's.
    #[doc(hidden)]
    pub fn repeated(&self, counts: &[usize]) -> Result<[Dims; 3]> {
        let value = format_args!("{counts:?} for shape {:?}", self.shape());
        let known = self.rank() <= counts.len();
        Error::require(known, "repeat", "counts", "a count for each axis at least", value)?;
        let sizes = vec![1; counts.len() - self.rank()].into_iter().chain(self.shape().iter().copied());
        let (mut apart, mut copies, mut whole) = (Dims::new(), Dims::new(), Dims::new());
        for (size, &count) in sizes.zip(counts) {
            apart.extend([1, size]);
            copies.extend([count, size]);
            whole.push(count.saturating_mul(size));
        }
        Ok([apart, copies, whole])
    }

    /// 1 at each index along a new last axis of `classes` elements, and 0 elsewhere, of I64.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let labels = Tensor::from_slice(&[2_i64, 0], &[2], &Device::cpu())?;
    /// assert_eq!(labels.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DTypeMismatch` unless the indices are I64; `IndexOutOfRange` or `Async` as for [`Tensor::index_select`].
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        self.dtype().require("one_hot", "input", DType::I64)?;
        crate::index::check_indices("one_hot", "class", self, classes)?;
        let mut shape = Dims::from_slice(self.shape());
        shape.push(classes);
        let index = self.unsqueeze(-1)?;
        let zeros = Tensor::zeros(&shape, DType::I64, self.device())?;
        zeros.scatter_add_to("one_hot", -1, &index, &index.ones_like()?, (false, true))
    }
}
