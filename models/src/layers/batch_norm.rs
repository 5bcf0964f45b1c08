//! Batch normalisation, with running statistics.

use std::sync::atomic::{AtomicBool, Ordering};

use autograd::{Var, defer};
use device::{DType, Device, Error, Result};
use tensor::{BatchStatistics, Tensor};

use super::parameters::expect_float;
use crate::{Module, Parts};

/// Normalises each channel of images: `y = (x - mean) / sqrt(var + eps) weight + bias`.
///
/// Shapes: x `[n, c, h, w]` -> y alike; weight, bias and the running statistics `[c]`.
///
/// In training, mean and variance are those of the batch, and move the running ones: `running = (1 - momentum) running +
/// momentum batch`, where the variance is the unbiased one. In evaluation the running ones are used. Lanes of
/// [`ConcurrentBatches`](autograd::ConcurrentBatches) move them in the order of the batches, when their step ends, so that
/// they are those of the serial schedule, bit for bit; a step that fails leaves them as they were.
pub struct BatchNorm2d {
    weight: Option<Var>,
    bias: Option<Var>,
    running: Option<Running>,
    options: BatchNormOptions,
    training: AtomicBool,
}

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
#[derive(Clone)]
struct Running {
    mean: Tensor,
    var: Tensor,
    batches: Tensor,
}

impl Running {
    /// Moves towards a batch of `elements` elements in a channel.
    fn follow(&self, batch: &BatchStatistics, elements: usize, momentum: Option<f64>) -> Result<()> {
        self.batches.add_scalar_(1.0)?;
        let unbiased = batch.var.mul_scalar(elements as f64 / (elements as f64 - 1.0))?;
        for (running, new) in [(&self.mean, &batch.mean), (&self.var, &unbiased)] {
            match momentum {
                Some(momentum) => {
                    running.mul_scalar_(1.0 - momentum)?;
                    running.add_(&new.mul_scalar(momentum)?)?;
                }
                None => {
                    let share = self.batches.to_dtype(running.dtype())?.reciprocal()?;
                    running.add_(&new.sub(running)?.mul(&share)?)?;
                }
            }
        }
        Ok(())
    }
}

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
        expect_float(OP, dtype)?;
        if let Some(momentum) = momentum.filter(|momentum| !(0.0..=1.0).contains(momentum)) {
            return Err(Error::InvalidArgument {
                op: OP,
                argument: "momentum",
                expected: "between 0 and 1",
                value: momentum.to_string().into(),
            });
        }
        let vector = |value: f64, dtype: DType| Tensor::full(&[channels], value, dtype, device);
        let running = if track_running_stats {
            let batches = Tensor::zeros(&[], DType::I64, device)?;
            let kept = dtype.compute_dtype();
            Some(Running { mean: vector(0.0, kept)?, var: vector(1.0, kept)?, batches })
        } else {
            None
        };
        let parameter = |value| -> Result<Option<Var>> {
            if affine { Ok(Some(Var::leaf(vector(value, dtype)?))) } else { Ok(None) }
        };
        Ok(BatchNorm2d {
            weight: parameter(1.0)?,
            bias: parameter(0.0)?,
            running,
            options,
            training: AtomicBool::new(true),
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
}

impl Module for BatchNorm2d {
    fn forward(&self, input: &Var) -> Result<Var> {
        let &[n, _, h, w] = input.shape() else {
            return Err(Error::InvalidArgument {
                op: "batch_norm",
                argument: "input",
                expected: "[n, c, h, w]",
                value: format!("shape {:?}", input.shape()).into(),
            });
        };
        let (weight, bias, eps) = (self.weight.as_ref(), self.bias.as_ref(), self.options.eps);
        let training = self.training.load(Ordering::Relaxed);
        if let (Some(running), false) = (&self.running, training) {
            return input.batch_norm_with(&running.mean, &running.var, weight, bias, eps);
        }
        let (value, statistics) = input.batch_norm(weight, bias, eps)?;
        if let (Some(running), true) = (&self.running, training) {
            let (running, momentum) = (running.clone(), self.options.momentum);
            defer(move || running.follow(&statistics, n * h * w, momentum))?;
        }
        Ok(value)
    }

    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        if let (Some(weight), Some(bias)) = (&self.weight, &self.bias) {
            parts.parameter("weight", weight);
            parts.parameter("bias", bias);
        }
        if let Some(running) = &self.running {
            parts.buffer("running_mean", &running.mean);
            parts.buffer("running_var", &running.var);
            parts.buffer("num_batches_tracked", &running.batches);
        }
    }

    fn set_training(&self, training: bool) {
        self.training.store(training, Ordering::Relaxed);
    }
}
