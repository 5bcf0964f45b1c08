//! The fused cross-entropy.

use device::{Result, Stream};

use crate::Tensor;
use crate::check::{has_shape, matrix, same_device, same_kind};

#[derive::located]
impl Tensor {
    /// `-log_softmax(self)[label]` of each row, and `logsumexp(self)` of each, which the gradient needs. Both have the
    /// logits' [`DType::compute_dtype`](crate::DType::compute_dtype).
    ///
    /// Shapes: `self [n, c]`, `labels [n]` I64 -> `([n], [n])`.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let logits = Tensor::zeros(&[2, 4], DType::F64, &device)?;
    /// let labels = Tensor::from_slice(&[0_i64, 3], &[2], &device)?;
    /// let (losses, log_sums) = logits.cross_entropy(&labels)?;
    /// assert!((losses.to_vec::<f64>()?[1] - 4_f64.ln()).abs() < 1e-12);
    /// assert!((log_sums.to_vec::<f64>()?[0] - 4_f64.ln()).abs() < 1e-12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats, `DTypeMismatch` unless the labels are I64, `InvalidArgument`
    /// unless `self` has rank 2, `ShapeMismatch`, `DeviceMismatch`. `IndexOutOfRange` for a label outside `0..c` if the
    /// labels are known on the host; otherwise the next synchronising call reports `Async`.
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<(Tensor, Tensor)> {
        const OP: &str = "cross_entropy";
        let (n, c) = self.rows("cross_entropy")?;
        labels.check_labels(OP, self, [n, c])?;
        Stream::with_current(self.device(), |stream| {
            let of_rows = || Tensor::allocate(stream, &[n], self.dtype.compute_dtype());
            let (losses, log_sums) = (of_rows()?, of_rows()?);
            kernels::cross_entropy(stream, self.view(), labels.view(), losses.view(), log_sums.view())?;
            Ok((losses, log_sums))
        })
    }

    fn rows(&self, op: &'static str) -> Result<(usize, usize)> {
        self.dtype().require_float(op)?;
        matrix(op, "logits", self)
    }
}

/// `(e ^ (logits - log_sums) - one_hot(label)) * g` of each row, for `log_sums` of [`Tensor::cross_entropy`] and `g` the gradient
/// of its losses.
///
/// Shapes: `logits [n, c]`, `log_sums [n]`, `labels [n]` i64, `g [n]` -> `[n, c]`.
///
/// # Errors
/// As [`Tensor::cross_entropy`].
pub fn cross_entropy_grad(logits: &Tensor, log_sums: &Tensor, labels: &Tensor, g: &Tensor) -> Result<Tensor> {
    const OP: &str = "cross_entropy_grad";
    let (n, c) = logits.rows(OP)?;
    labels.check_labels(OP, logits, [n, c])?;
    same_device(OP, logits, g, "gradient")?;
    has_shape(OP, &[n], g, "gradient")?;
    same_kind(OP, g, log_sums, "log_sums")?;
    has_shape(OP, &[n], log_sums, "log_sums")?;
    let log_sums = log_sums.contiguous()?;
    logits.produce_like(&[n, c], |stream, out| {
        kernels::cross_entropy_grad(stream, logits.view(), log_sums.view(), labels.view(), g.view(), out)
    })
}
