//! Sorts, and what is made of them.

use device::{DType, Error, Result};
use kernels::{Dims, Layout, normalize_axis};

use crate::Tensor;
use crate::check::{same_device, same_shape};

#[derive::located]
impl Tensor {
    /// The indices, of I64, that sort the elements along `axis`.
    ///
    /// The sort is stable in both directions; 0 and -0 are equal, and NaN is larger than every number.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[0.5_f32, -1.0, 0.5], &[3], &Device::cpu())?;
    /// assert_eq!(x.argsort(0, false)?.to_vec::<i64>()?, [1, 0, 2]);
    /// assert_eq!(x.argsort(0, true)?.to_vec::<i64>()?, [0, 2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for 2^31 elements, and on a CUDA device for more than 8 other axes that cannot be merged.
    pub fn argsort(&self, axis: isize, descending: bool) -> Result<Tensor> {
        let at = normalize_axis("argsort", axis, self.rank().max(1))?;
        self.first_in_order(at, self.shape().get(at).copied().unwrap_or(1), descending)
    }

    /// The elements in order along `axis`, and their indices; see [`argsort`](Self::argsort).
    ///
    /// # Errors
    /// As for [`argsort`](Self::argsort).
    pub fn sort(&self, axis: isize, descending: bool) -> Result<(Tensor, Tensor)> {
        let indices = self.argsort(axis, descending)?;
        Ok((self.gather(axis, &indices)?, indices))
    }

    /// The indices, of I64, of the `k` largest or smallest elements along `axis`, in order; see [`argsort`](Self::argsort).
    ///
    /// Shapes: that of the tensor, with `k` along the axis.
    ///
    /// # Errors
    /// As for [`argsort`](Self::argsort); `InvalidArgument` if the axis has fewer than `k` elements.
    pub fn argtopk(&self, k: usize, axis: isize, largest: bool) -> Result<Tensor> {
        const OP: &str = "topk";
        let at = normalize_axis(OP, axis, self.rank().max(1))?;
        let size = self.shape().get(at).copied().unwrap_or(1);
        let value = format_args!("{k} of an axis of size {size}");
        Error::require(k <= size, OP, "k", "at most the size of the axis", value)?;
        self.first_in_order(at, k, largest)
    }

    /// The `k` largest or smallest elements along `axis`, in order, and their indices; see [`argtopk`](Self::argtopk).
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let scores = Tensor::from_slice(&[0.1_f32, 0.7, 0.2], &[1, 3], &Device::cpu())?;
    /// let (best, classes) = scores.topk(2, -1, true)?;
    /// assert_eq!((best.to_vec::<f32>()?, classes.to_vec::<i64>()?), (vec![0.7, 0.2], vec![1, 2]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`argtopk`](Self::argtopk).
    pub fn topk(&self, k: usize, axis: isize, largest: bool) -> Result<(Tensor, Tensor)> {
        let indices = self.argtopk(k, axis, largest)?;
        Ok((self.gather(axis, &indices)?, indices))
    }

    fn first_in_order(&self, at: usize, count: usize, descending: bool) -> Result<Tensor> {
        if self.dtype() == DType::Bool {
            return self.to_dtype(DType::U8)?.first_in_order(at, count, descending);
        }
        if self.rank() == 0 {
            let first = self.reshape(&[1])?.first_in_order(at, count, descending)?;
            return if count == 1 { first.reshape(&[]) } else { Ok(first) };
        }
        let mut shape = Dims::from_slice(self.shape());
        shape[at] = count;
        if count == 0 {
            return Tensor::empty(&shape, DType::I64, self.device());
        }
        Tensor::produce(self.device(), Layout::contiguous(&shape), DType::I64, |stream, out| {
            let bytes = kernels::argsort_workspace(stream, self.elements(), self.shape()[at], count);
            Tensor::with_workspace(stream, bytes, |memory| {
                kernels::argsort(stream, self.view(), at as isize, descending, (memory, out))
            })
        })
    }

    /// The positions of the elements that are not 0, in row-major order.
    ///
    /// Shapes: `[n, rank]`, of I64, for `n` such elements. Waits for the tensor, since the shape depends on its elements.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[0_i64, 5, 7, 0], &[2, 2], &Device::cpu())?;
    /// assert_eq!(x.nonzero()?.to_vec::<i64>()?, [0, 1, 1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Tensor::item`], such as `Capture` within a captured step.
    pub fn nonzero(&self) -> Result<Tensor> {
        let mut rest = self.truth()?.places()?;
        let mut columns = Vec::with_capacity(self.rank());
        for axis in 1..=self.rank() {
            let below = self.shape()[axis..].iter().product::<usize>().max(1);
            // Places are below 2^31, for which quotients in F64 are exact enough.
            let index = rest.to_dtype(DType::F64)?.div_scalar(below as f64)?.to_dtype(DType::I64)?;
            let below = Tensor::full(&[], below as i64, DType::I64, self.device())?;
            rest = rest.sub(&index.mul(&below)?)?;
            columns.push(index);
        }
        if columns.is_empty() {
            return Tensor::zeros(&[rest.elements(), 0], DType::I64, self.device());
        }
        Tensor::stack(&columns.iter().collect::<Vec<_>>(), 1)
    }

    /// The elements where the mask, of Bool, holds, as a vector in row-major order; the mask broadcasts.
    ///
    /// Waits for the mask, since the shape depends on its elements.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `DTypeMismatch` unless the mask is Bool; those of [`Tensor::item`], such as `Capture`
    /// within a captured step.
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        self.flatten(0, -1)?.index_select(0, &self.masked_places(mask)?)
    }

    /// The places where a mask holds that broadcasts to this tensor's shape, counted in row-major order.
    ///
    /// # Errors
    /// As for [`Tensor::masked_select`].
    #[doc(hidden)]
    pub fn masked_places(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_select";
        mask.dtype().require(OP, "mask", DType::Bool)?;
        same_device(OP, self, mask, "mask")?;
        let mask =
            if same_shape(mask.shape(), self.shape()) { mask.clone() } else { mask.expand(self.shape())? };
        mask.places()
    }

    /// The places where a tensor of Bool holds, counted in row-major order.
    fn places(&self) -> Result<Tensor> {
        let flat = self.reshape(&[self.elements()])?;
        let count = usize::try_from(flat.sum(&[], false)?.item::<i64>()?).unwrap_or(0);
        flat.argtopk(count, 0, true)
    }

    /// Truth values: whether elements are not 0.
    pub(crate) fn truth(&self) -> Result<Tensor> {
        if self.dtype() == DType::Bool { Ok(self.clone()) } else { self.ne(0.0) }
    }
}
