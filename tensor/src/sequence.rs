//! Cumulative sums, and rotation by place.

use device::{DType, Result};
use kernels::{Dims, Rotation, normalize_axis};

use crate::Tensor;
use crate::check::{same_kind, wrong_shape};

#[derive::located]
impl Tensor {
    /// The sums of the elements up to each position of `axis`; bool and U8 sum to I64. I64 wraps around.
    ///
    /// The order of additions is part of the contract, see [`kernels::cumsum`]: results have the same bits on every
    /// device, and an error that grows with the logarithm of the position.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1_i64, 2, 3], &[3], &Device::cpu())?;
    /// assert_eq!(x.cumsum(0)?.to_vec::<i64>()?, [1, 3, 6]);
    /// assert_eq!(x.cumsum_from_end(0)?.to_vec::<i64>()?, [6, 5, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn cumsum(&self, axis: isize) -> Result<Tensor> {
        self.cumulated(axis, false)
    }

    /// The sums of the elements from each place of `axis` to its end: the gradient of [`Tensor::cumsum`].
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn cumsum_from_end(&self, axis: isize) -> Result<Tensor> {
        self.cumulated(axis, true)
    }

    fn cumulated(&self, axis: isize, reverse: bool) -> Result<Tensor> {
        if matches!(self.dtype, DType::Bool | DType::U8) {
            return self.to_dtype(DType::I64)?.cumulated(axis, reverse);
        }
        if self.rank() == 0 {
            normalize_axis("cumsum", axis, 1)?;
            return Ok(self.clone());
        }
        let len = self.shape()[normalize_axis("cumsum", axis, self.rank())?];
        self.produce_like(self.shape(), |stream, out| {
            let bytes = kernels::cumsum_workspace(stream, self.elements(), len);
            Tensor::with_workspace(stream, bytes, |memory| {
                kernels::cumsum(stream, self.view(), axis, reverse, (memory, out))
            })
        })
    }

    /// Rotates the pairs `(i, i + d / 2)` of the last axis, or `(2 i, 2 i + 1)` if `interleaved`, by the angles whose
    /// cosines and sines are given; `inverse` rotates back.
    ///
    /// Shapes: `[.., s, d]` with an even `d`; `cos` and `sin` broadcast to `[.., s, d / 2]`.
    ///
    /// # Errors
    /// `InvalidArgument` for an odd `d`; `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`; `DTypeUnsupported` unless
    /// the elements are floats.
    pub fn rotary_embedding(
        &self,
        cos: &Tensor,
        sin: &Tensor,
        interleaved: bool,
        inverse: bool,
    ) -> Result<Tensor> {
        const OP: &str = "rotary_embedding";
        self.dtype().require_float(OP)?;
        same_kind(OP, self, cos, "cos")?;
        same_kind(OP, self, sin, "sin")?;
        let mut shape = Dims::from_slice(self.shape());
        match shape.last_mut() {
            Some(width) if width.is_multiple_of(2) => *width /= 2,
            _ => return Err(wrong_shape(OP, "input", "an even last axis", self)),
        }
        let (cos, sin) = (cos.expand(&shape)?, sin.expand(&shape)?);
        self.produce_like(self.shape(), |stream, out| {
            let rotation = Rotation { interleaved, inverse };
            kernels::rotary(stream, self.view(), (cos.view(), sin.view()), rotation, out)
        })
    }
}
