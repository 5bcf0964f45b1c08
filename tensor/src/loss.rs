//! The fused cross-entropy.

use device::{Error, Result, Stream};
use kernels::Layout;

use crate::Tensor;
use crate::check::{has_shape, is_float, same_device, same_kind};

impl Tensor {
    /// `-log_softmax(self)[label]` of each row, and the log-probabilities that the gradient needs.
    ///
    /// Shapes: `self [n, c]`, `labels [n]` i64 -> `([n], [n, c])`.
    ///
    /// ```
    /// # use tensor::{DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let logits = Tensor::zeros(&[2, 4], DType::F64, &device)?;
    /// let labels = Tensor::from_slice(&[0_i64, 3], &[2], &device)?;
    /// let (losses, log_probs) = logits.cross_entropy(&labels)?;
    /// assert!((losses.to_vec::<f64>()?[1] - 4_f64.ln()).abs() < 1e-12);
    /// assert_eq!(log_probs.shape(), [2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `DTypeUnsupported` unless floating-point, `DTypeMismatch` unless the labels are i64, `InvalidArgument`
    /// unless `self` has rank 2, `ShapeMismatch`, `DeviceMismatch`. `IndexOutOfRange` if the labels are known on
    /// the host; else the next synchronising call reports `Async`.
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<(Tensor, Tensor)> {
        const OP: &str = "cross_entropy";
        let (n, c) = self.rows("cross_entropy")?;
        same_device(OP, self, labels)?;
        labels.check_labels(OP, n, c)?;
        Stream::with_current(self.device(), |stream| {
            let losses = Tensor::allocate(stream, Layout::contiguous(&[n]), self.dtype)?;
            let log_probs = Tensor::allocate(stream, Layout::contiguous(&[n, c]), self.dtype)?;
            kernels::cross_entropy(stream, self.view(), labels.view(), losses.view(), log_probs.view())?;
            Ok((losses, log_probs))
        })
    }

    fn rows(&self, op: &'static str) -> Result<(usize, usize)> {
        is_float(op, self)?;
        match *self.shape() {
            [n, c] => Ok((n, c)),
            ref shape => Err(Error::invalid(op, "logits", "of rank 2", format_args!("shape {shape:?}"))),
        }
    }
}

/// `(e ^ log_probs - one_hot(label)) * g` of each row, for `log_probs` the log-probabilities of
/// [`Tensor::cross_entropy`] and `g` the gradient of its losses.
///
/// Shapes: `log_probs [n, c]`, `labels [n]` i64, `g [n]` -> `[n, c]`.
///
/// # Errors
/// As [`Tensor::cross_entropy`].
pub fn cross_entropy_grad(log_probs: &Tensor, labels: &Tensor, g: &Tensor) -> Result<Tensor> {
    const OP: &str = "cross_entropy_grad";
    let (n, c) = log_probs.rows(OP)?;
    same_device(OP, log_probs, labels)?;
    labels.check_labels(OP, n, c)?;
    same_kind(OP, log_probs, g)?;
    has_shape(OP, &[n], g)?;
    Tensor::produce(log_probs.device(), Layout::contiguous(&[n, c]), log_probs.dtype, |stream, out| {
        kernels::cross_entropy_grad(stream, log_probs.view(), labels.view(), g.view(), out)
    })
}
