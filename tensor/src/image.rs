//! Images: warps and blurs of whole batches, without gradient.

use device::Result;
use kernels::Sampling;

use crate::Tensor;
use crate::check::{same_device, wrong_shape};

#[derive::located]
impl Tensor {
    /// Samples each image at an affine map of the output's pixels: `out[n, c, i, j] = self[n, c, y, x]` with
    /// `(y, x) = matrices[n] (i, j, 1)`, in pixels, the centre of the first one at 0.
    ///
    /// Shapes: `self [n, c, h, w]`, `matrices [n, 2, 3]`, `size [i, j]` -> `[n, c, i, j]`; F32. Asynchronous, on the
    /// current stream. The same bits on every device.
    ///
    /// ```
    /// # use tensor::{DType, Device, Sampling, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let x = Tensor::arange(0, 4, 1, DType::F32, &device)?.reshape(&[1, 1, 2, 2])?;
    /// let mirror = Tensor::from_slice(&[1.0_f32, 0.0, 0.0, 0.0, -1.0, 1.0], &[1, 2, 3], &device)?;
    /// assert_eq!(x.warp(&mirror, [2, 2], Sampling::Nearest)?.to_vec::<f32>()?, [1.0, 0.0, 3.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`; `InvalidArgument` for images without pixels or with 2^31 of
    /// them; `OutOfMemory`.
    pub fn warp(&self, matrices: &Tensor, size: [usize; 2], sampling: Sampling) -> Result<Tensor> {
        const OP: &str = "warp";
        same_device(OP, self, matrices, "matrices")?;
        let &[samples, channels, ..] = self.shape() else {
            return Err(wrong_shape(OP, "images", "of rank 4", self));
        };
        let (x, matrices) = (self.contiguous()?, matrices.contiguous()?);
        self.produce_like(&[samples, channels, size[0], size[1]], |stream, out| {
            kernels::warp(stream, x.view(), matrices.view(), sampling, out)
        })
    }

    /// Blurs each image with a separable filter of its own, `weights[n]` along both axes; beyond an edge the image is
    /// reflected, the edge not repeated.
    ///
    /// Shapes: `self [n, c, h, w]`, `weights [n, k]` with odd `k` -> `[n, c, h, w]`; F32. Asynchronous, on the current
    /// stream. The same bits on every device.
    ///
    /// # Errors
    /// As [`Tensor::warp`]; `InvalidArgument` also if `k` is even, or half of it not below height and width.
    pub fn blur(&self, weights: &Tensor) -> Result<Tensor> {
        self.blur_normalized(weights, 0.0, 1.0)
    }

    /// `(y - mean) / std` of the blurred images `y`, in one command.
    ///
    /// # Errors
    /// As [`Tensor::blur`].
    pub fn blur_normalized(&self, weights: &Tensor, mean: f64, std: f64) -> Result<Tensor> {
        same_device("blur", self, weights, "weights")?;
        let (x, weights) = (self.contiguous()?, weights.contiguous()?);
        self.produce_like(self.shape(), |stream, out| {
            kernels::blur(stream, x.view(), weights.view(), (mean as f32, std as f32), out)
        })
    }
}
