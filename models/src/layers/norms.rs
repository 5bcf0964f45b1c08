//! Normalization of each row by itself: layer norm, RMS norm, group norm.

use autograd::Var;
use device::{DType, Device, Error, Result};

use super::parameters::{expect_float, filled};
use crate::{Forward, Module};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of each row over the last axes, of sizes `normalized_shape`.
///
/// The weight starts at 1 and the bias at 0. The usual `eps` is 1e-5.
#[derive(Module)]
pub struct LayerNorm {
    #[module(skip)]
    normalized_shape: Vec<usize>,
    weight: Var,
    bias: Option<Var>,
    #[module(skip)]
    eps: f64,
}

impl LayerNorm {
    /// A layer in F32 with weight, bias, and an `eps` of 1e-5.
    ///
    /// # Errors
    /// As [`LayerNorm::with_options`].
    pub fn new(normalized_shape: &[usize], device: &Device) -> Result<Self> {
        Self::with_options(normalized_shape, 1e-5, true, DType::F32, device)
    }

    /// A layer with or without a bias.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless `dtype` is a float type, `OutOfMemory`.
    pub fn with_options(
        normalized_shape: &[usize],
        eps: f64,
        bias: bool,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        expect_float("layer_norm", dtype)?;
        let weight = filled(normalized_shape, 1.0, dtype, device)?;
        let bias = bias.then(|| filled(normalized_shape, 0.0, dtype, device)).transpose()?;
        Ok(LayerNorm { normalized_shape: normalized_shape.into(), weight, bias, eps })
    }
}

#[derive::located]
impl Forward for LayerNorm {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.layer_norm(&self.normalized_shape, Some(&self.weight), self.bias.as_ref(), self.eps)
    }
}

/// `x / sqrt(mean(x^2) + eps) * weight` of each row over the last axes, of sizes `normalized_shape`.
///
/// The weight starts at 1. Without `eps` it is the difference between 1 and the next larger number of the type.
#[derive(Module)]
pub struct RmsNorm {
    #[module(skip)]
    normalized_shape: Vec<usize>,
    weight: Var,
    #[module(skip)]
    eps: Option<f64>,
}

impl RmsNorm {
    /// A layer in F32.
    ///
    /// # Errors
    /// As [`RmsNorm::with_options`].
    pub fn new(normalized_shape: &[usize], device: &Device) -> Result<Self> {
        Self::with_options(normalized_shape, None, DType::F32, device)
    }

    /// A layer with an `eps` and an element type.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless `dtype` is a float type, `OutOfMemory`.
    pub fn with_options(
        normalized_shape: &[usize],
        eps: Option<f64>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        expect_float("rms_norm", dtype)?;
        let weight = filled(normalized_shape, 1.0, dtype, device)?;
        Ok(RmsNorm { normalized_shape: normalized_shape.into(), weight, eps })
    }
}

#[derive::located]
impl Forward for RmsNorm {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.rms_norm(&self.normalized_shape, Some(&self.weight), self.eps)
    }
}

/// [`LayerNorm`] of each group of channels, with a weight and a bias for each channel.
///
/// Shapes: `[n, c, ..]`. The weight starts at 1 and the bias at 0.
#[derive(Module)]
pub struct GroupNorm {
    #[module(skip)]
    num_groups: usize,
    weight: Var,
    bias: Var,
    #[module(skip)]
    eps: f64,
}

impl GroupNorm {
    /// A layer in F32 with an `eps` of 1e-5.
    ///
    /// # Errors
    /// As [`GroupNorm::with_options`].
    pub fn new(num_groups: usize, num_channels: usize, device: &Device) -> Result<Self> {
        Self::with_options(num_groups, num_channels, 1e-5, DType::F32, device)
    }

    /// A layer with an `eps` and an element type.
    ///
    /// # Errors
    /// `InvalidArgument` unless the groups divide the channels, `DTypeUnsupported` unless `dtype` is a float type,
    /// `OutOfMemory`.
    pub fn with_options(
        num_groups: usize,
        num_channels: usize,
        eps: f64,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        expect_float("group_norm", dtype)?;
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            return Err(Error::invalid(
                "group_norm",
                "num_groups",
                "a divisor of the channels",
                format_args!("{num_groups} for {num_channels} channels"),
            ));
        }
        let of = |value| filled(&[num_channels], value, dtype, device);
        Ok(GroupNorm { num_groups, weight: of(1.0)?, bias: of(0.0)?, eps })
    }
}

#[derive::located]
impl Forward for GroupNorm {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.group_norm(self.num_groups, Some(&self.weight), Some(&self.bias), self.eps)
    }
}
