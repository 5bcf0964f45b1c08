//! A data set of two tensors.

use std::sync::Arc;

use device::{DType, Device, Element, Error, Result, bf16, f16};
use tensor::Tensor;

use super::rows::Rows;
use super::{Batch, Dataset};

/// Rows of any types and shapes on the host, each with what is to be told of it: pixels as they are read, numbers for a
/// regression; cheap to clone.
///
/// ```
/// use models::{DataLoader, LoaderOptions, TensorDataset};
/// use tensor::{DType, Device, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let images = Tensor::zeros(&[6, 3, 8, 8], DType::U8, &Device::cpu())?;
/// let targets = Tensor::arange(0.0, 6.0, 1.0, DType::F32, &Device::cpu())?;
/// let data = TensorDataset::new(&images, &targets)?;
/// let loader = DataLoader::new(data, LoaderOptions { batch: 4, ..LoaderOptions::default() })?;
/// let batch = loader.epoch(0).next().transpose()?.ok_or(tensor::Error::new(tensor::ErrorKind::NoGradient { op: "example" }))?;
/// assert_eq!((batch.inputs.shape(), batch.inputs.dtype()), (&[4, 3, 8, 8][..], DType::U8));
/// assert_eq!((batch.labels.shape(), batch.labels.dtype()), (&[4][..], DType::F32));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TensorDataset {
    rows: usize,
    inputs: Arc<Column>,
    labels: Arc<Column>,
}

#[derive::located]
impl TensorDataset {
    /// The rows of `inputs` along its first axis, with those of `labels`. Waits for the last writes of both, and copies them.
    ///
    /// # Errors
    /// `ShapeMismatch` for tensors of rank 0 and another number of rows; `InvalidArgument` for no rows; `Async` if a command
    /// that led here failed.
    pub fn new(inputs: &Tensor, labels: &Tensor) -> Result<TensorDataset> {
        const OP: &str = "tensor data set";
        match (inputs.shape().first(), labels.shape().first()) {
            (Some(0), Some(0)) => Err(Error::invalid(OP, "rows", "at least 1", "0")),
            (Some(&rows), Some(&others)) if rows == others => {
                Ok(TensorDataset { rows, inputs: column(inputs)?, labels: column(labels)? })
            }
            _ => Err(Error::shape_mismatch(
                OP,
                "inputs [n, ..] takes labels [n, ..]",
                inputs.shape(),
                labels.shape(),
            )),
        }
    }
}

impl Dataset for TensorDataset {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.rows
    }

    fn batch(&self, rows: &[usize], key: u64, device: &Device) -> Result<Batch> {
        let (inputs, labels) = ((self.inputs)(rows, device)?, (self.labels)(rows, device)?);
        Ok(Batch { inputs, labels, bags: Vec::new(), key })
    }
}

/// Makes a tensor of some rows.
type Column = dyn Fn(&[usize], &Device) -> Result<Tensor> + Send + Sync;

fn column(tensor: &Tensor) -> Result<Arc<Column>> {
    fn of<T: Element>(tensor: &Tensor) -> Result<Arc<Column>> {
        let all = Rows::new(tensor.to_vec::<T>()?, tensor.shape()[0], &tensor.shape()[1..]);
        Ok(Arc::new(move |rows, device| all.batch(rows, device)))
    }
    match tensor.dtype() {
        DType::F32 => of::<f32>(tensor),
        DType::F64 => of::<f64>(tensor),
        DType::BF16 => of::<bf16>(tensor),
        DType::F16 => of::<f16>(tensor),
        DType::I64 => of::<i64>(tensor),
        DType::U8 => of::<u8>(tensor),
        DType::Bool => of::<bool>(tensor),
        dtype => Err(Error::dtype_unsupported("tensor data set", dtype, "floats, i64, u8 and bool")),
    }
}
