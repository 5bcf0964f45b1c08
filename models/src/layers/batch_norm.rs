//! Batch normalisation, with running statistics.

use autograd::ops::fused::{self, Activation};
use autograd::{Var, defer};
use device::{DType, Device, Error, Result};
use tensor::Tensor;

use super::parameters::filled;
use crate::{Module, Training};

/// Normalises each channel of images: `y = (x - mean) / sqrt(var + eps) weight + bias`.
///
/// Shapes: x `[n, c, h, w]` -> y alike; weight, bias and the running statistics `[c]`.
///
/// In training, mean and variance are those of the batch, and move the running ones: `running = (1 - momentum) running +
/// momentum batch`, where the variance is the unbiased one. In evaluation the running ones are used. Lanes of
/// [`ConcurrentBatches`](autograd::ConcurrentBatches) move them in the order of the batches, when their step ends, so that
/// they are those of the serial schedule, bit for bit; a step that fails leaves them as they were.
#[derive(Module)]
pub struct BatchNorm2d {
    weight: Option<Var>,
    bias: Option<Var>,
    #[module(flatten)]
    running: Option<Running>,
    #[module(skip)]
    options: BatchNormOptions,
    training: Training,
}

/// [`BatchNorm2d`] under PyTorch's name for inputs `[n, c]` and `[n, c, l]`.
pub type BatchNorm1d = BatchNorm2d;

/// How to make a [`BatchNorm2d`].
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions {
    /// Added to the variance.
    pub eps: f64,
    /// How far the running statistics move with each batch; `None` makes them the mean over all batches.
    pub momentum: Option<f64>,
    /// Whether there is a weight, at first 1, and a bias, at first 0.
    pub affine: bool,
    /// Whether there are running statistics; without, the batch's own serve in evaluation, too.
    pub track_running_stats: bool,
    /// The type of the parameters; running statistics are of [`DType::compute_dtype`].
    pub dtype: DType,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        BatchNormOptions {
            eps: 1e-5,
            momentum: Some(0.1),
            affine: true,
            track_running_stats: true,
            dtype: DType::F32,
        }
    }
}

/// The statistics of all batches so far. They are changed in place; clones share them.
#[derive(Clone, Module)]
struct Running {
    running_mean: Tensor,
    running_var: Tensor,
    num_batches_tracked: Tensor,
}

#[derive::located]
impl BatchNorm2d {
    /// A layer for images of so many channels, with torch's defaults.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(channels: usize, device: &Device) -> Result<BatchNorm2d> {
        Self::with_options(channels, BatchNormOptions::default(), device)
    }

    /// A layer as `options` say.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the type is a float; `InvalidArgument` for a momentum outside of `0..=1`; `OutOfMemory`.
    pub fn with_options(channels: usize, options: BatchNormOptions, device: &Device) -> Result<BatchNorm2d> {
        const OP: &str = "batch_norm";
        let BatchNormOptions { momentum, affine, track_running_stats, dtype, .. } = options;
        dtype.require_float(OP)?;
        let share = momentum.unwrap_or_default();
        Error::require((0.0..=1.0).contains(&share), OP, "momentum", "between 0 and 1", share)?;
        let statistic = |value: f64| Tensor::full(&[channels], value, dtype.compute_dtype(), device);
        let running = || -> Result<Running> {
            Ok(Running {
                running_mean: statistic(0.0)?,
                running_var: statistic(1.0)?,
                num_batches_tracked: Tensor::zeros(&[], DType::I64, device)?,
            })
        };
        let parameter = |value| affine.then(|| filled(&[channels], value, dtype, device)).transpose();
        Ok(BatchNorm2d {
            weight: parameter(1.0)?,
            bias: parameter(0.0)?,
            running: track_running_stats.then(running).transpose()?,
            options,
            training: Training::default(),
        })
    }

    /// The weight, `[c]`, if there is one.
    pub fn weight(&self) -> Option<&Var> {
        self.weight.as_ref()
    }

    /// The bias, `[c]`, if there is one.
    pub fn bias(&self) -> Option<&Var> {
        self.bias.as_ref()
    }

    pub(super) fn with_activation(&self, input: &Var, activation: Activation) -> Result<Var> {
        let (n, h, w) = match *input.shape() {
            [n, _, h, w] => (n, h, w),
            [n, c, ref rest @ ..] => {
                let images = input.reshape(&[n, c, 1, rest.iter().product()])?;
                return self.with_activation(&images, activation)?.reshape(input.shape());
            }
            _ => {
                let value = format_args!("shape {:?}", input.shape());
                return Err(Error::invalid("batch_norm", "input", "[n, c, ..]", value));
            }
        };
        let affine = [self.weight.as_ref(), self.bias.as_ref()];
        let training = self.training.is_on();
        let running = self.running.as_ref();
        let given =
            running.filter(|_| !training).map(|running| [&running.running_mean, &running.running_var]);
        let (value, statistics) = fused::batch_norm(input, given, affine, self.options.eps, activation)?;
        if let (Some(running), true) = (running, training) {
            let (running, momentum, elements) = (running.clone(), self.options.momentum, (n * h * w) as f64);
            let unbiased = elements / (elements - 1.0);
            defer(move || {
                let Running { running_mean, running_var, num_batches_tracked } = &running;
                statistics.followed_by(running_mean, running_var, num_batches_tracked, unbiased, momentum)
            })?;
        }
        Ok(value)
    }
}
