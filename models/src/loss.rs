//! Losses and figures of merit, as functions.

use autograd::{Reduction, Var};
use device::{DType, Error, Result};
use tensor::Tensor;

/// Mean over the batch of `-log softmax(logits)[label]`.
///
/// Shapes: logits `[n, c]`, labels `[n]` (I64) -> `[]`.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, and `IndexOutOfRange` for a label outside `0..c`.
#[derive::located]
pub fn cross_entropy(logits: &Var, labels: &Tensor) -> Result<Var> {
    logits.cross_entropy(labels, Reduction::Mean)
}

/// Mean over all elements of `(prediction - target)^2`.
///
/// Shapes: any two that are equal -> `[]`.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`.
#[derive::located]
pub fn mse(prediction: &Var, target: &Var) -> Result<Var> {
    prediction.mse_loss(target, Reduction::Mean)
}

/// How many rows have their largest logit at the label; stays on the device, without a host read.
///
/// Shapes: logits `[n, c]`, labels `[n]` (I64) -> `[]` (I64).
///
/// # Errors
/// `ShapeMismatch` unless there is one label a row, `DTypeMismatch` unless labels are I64.
#[derive::located]
pub fn correct(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let fit = logits.rank() == 2 && labels.shape() == &logits.shape()[..1];
    Error::require_shapes(fit, "accuracy", "logits [n, c] takes labels [n]", logits.shape(), labels.shape())?;
    labels.dtype().require("accuracy", "labels", DType::I64)?;
    logits.argmax(1, false)?.eq(labels)?.to_dtype(DType::I64)?.sum(&[], false)
}

/// The share of rows whose largest logit is at the label; reads one number back to the host.
///
/// # Errors
/// As [`correct`]; `InvalidArgument` for an empty batch.
#[derive::located]
pub fn accuracy(logits: &Tensor, labels: &Tensor) -> Result<f64> {
    let count = correct(logits, labels)?.item::<i64>()?;
    match labels.elements() {
        0 => Err(Error::invalid("accuracy", "rows", "at least 1", "0")),
        rows => Ok(count as f64 / rows as f64),
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_abs_diff_eq;
    use device::Device;

    use super::*;
    use device::ErrorKind;

    #[test]
    fn accuracy_counts_rows_and_checks_shapes() {
        let dev = Device::cpu();
        let logits = Tensor::from_slice(&[0.0f32, 1.0, 3.0, 2.0, -1.0, -2.0], &[3, 2], &dev).unwrap();
        let labels = Tensor::from_slice(&[1i64, 1, 0], &[3], &dev).unwrap();
        assert_eq!(correct(&logits, &labels).unwrap().item::<i64>().unwrap(), 2);
        assert_abs_diff_eq!(accuracy(&logits, &labels).unwrap(), 2.0 / 3.0, epsilon = 1e-15);
        let short = Tensor::from_slice(&[1i64, 1], &[2], &dev).unwrap();
        assert!(matches!(
            accuracy(&logits, &short).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { .. })
        ));
        let floats = Tensor::from_slice(&[1.0f32, 1.0, 0.0], &[3], &dev).unwrap();
        assert!(matches!(
            accuracy(&logits, &floats).as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeMismatch { .. })
        ));
        let empty = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &dev).unwrap();
        let none = accuracy(&empty(&[0, 2], DType::F32), &empty(&[0], DType::I64));
        assert!(matches!(
            none.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "rows", .. })
        ));
    }

    #[test]
    fn losses_have_their_values() {
        let dev = Device::cpu();
        let logits = Var::constant(Tensor::zeros(&[2, 4], DType::F64, &dev).unwrap());
        let labels = Tensor::from_slice(&[3i64, 0], &[2], &dev).unwrap();
        let loss = cross_entropy(&logits, &labels).unwrap();
        assert!(loss.shape().is_empty());
        assert_abs_diff_eq!(loss.value().item::<f64>().unwrap(), 4f64.ln(), epsilon = 1e-15);
        let outside = Tensor::from_slice(&[4i64, 0], &[2], &dev).unwrap();
        assert!(matches!(
            cross_entropy(&logits, &outside).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 4, size: 4, .. })
        ));
        let target = Var::constant(Tensor::full(&[2, 4], 3.0f64, DType::F64, &dev).unwrap());
        assert_eq!(mse(&logits, &target).unwrap().value().item::<f64>().unwrap(), 9.0);
    }
}
