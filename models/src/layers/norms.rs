//! Normalization of each row by itself: layer norm, RMS norm, group norm.

use autograd::Var;
use device::{DType, Device, Error, Result};

use super::parameters::filled;
use crate::{Forward, Module};

/// Options of [`LayerNorm`], [`RmsNorm`] and [`GroupNorm`].
#[derive(Clone, Copy, Debug)]
pub struct NormOptions {
    /// Added to the variance or mean square. `None` is 1e-5 and, for [`RmsNorm`], the difference between 1 and the next larger
    /// number of the type.
    pub eps: Option<f64>,
    /// Whether there is a bias; [`RmsNorm`] never has one.
    pub bias: bool,
    /// The element type of the parameters.
    pub dtype: DType,
}

impl Default for NormOptions {
    fn default() -> Self {
        NormOptions { eps: None, bias: true, dtype: DType::F32 }
    }
}

/// The `eps` of norms that subtract the mean.
const EPS: f64 = 1e-5;

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of each row over the last axes, of sizes `normalized_shape`.
///
/// The weight starts at 1 and the bias at 0.
#[derive(Module)]
pub struct LayerNorm {
    #[module(skip)]
    normalized_shape: Vec<usize>,
    weight: Var,
    bias: Option<Var>,
    #[module(skip)]
    eps: f64,
}

#[derive::located]
impl LayerNorm {
    /// A layer in F32 with weight, bias, and an `eps` of 1e-5.
    ///
    /// # Errors
    /// As [`LayerNorm::with_options`].
    pub fn new(normalized_shape: &[usize], device: &Device) -> Result<Self> {
        Self::with_options(normalized_shape, NormOptions::default(), device)
    }

    /// [`new`](Self::new) with options.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the type is a float type, `OutOfMemory`.
    pub fn with_options(normalized_shape: &[usize], options: NormOptions, device: &Device) -> Result<Self> {
        let NormOptions { eps, bias, dtype } = options;
        dtype.require_float("layer_norm")?;
        let weight = filled(normalized_shape, 1.0, dtype, device)?;
        let bias = bias.then(|| filled(normalized_shape, 0.0, dtype, device)).transpose()?;
        Ok(LayerNorm { normalized_shape: normalized_shape.into(), weight, bias, eps: eps.unwrap_or(EPS) })
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
/// The weight starts at 1.
#[derive(Module)]
pub struct RmsNorm {
    #[module(skip)]
    normalized_shape: Vec<usize>,
    weight: Var,
    #[module(skip)]
    eps: Option<f64>,
}

#[derive::located]
impl RmsNorm {
    /// A layer in F32.
    ///
    /// # Errors
    /// As [`RmsNorm::with_options`].
    pub fn new(normalized_shape: &[usize], device: &Device) -> Result<Self> {
        Self::with_options(normalized_shape, NormOptions::default(), device)
    }

    /// [`new`](Self::new) with options.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the type is a float type, `OutOfMemory`.
    pub fn with_options(normalized_shape: &[usize], options: NormOptions, device: &Device) -> Result<Self> {
        options.dtype.require_float("rms_norm")?;
        let weight = filled(normalized_shape, 1.0, options.dtype, device)?;
        Ok(RmsNorm { normalized_shape: normalized_shape.into(), weight, eps: options.eps })
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
    bias: Option<Var>,
    #[module(skip)]
    eps: f64,
}

#[derive::located]
impl GroupNorm {
    /// A layer in F32 with an `eps` of 1e-5.
    ///
    /// # Errors
    /// As [`GroupNorm::with_options`].
    pub fn new(num_groups: usize, num_channels: usize, device: &Device) -> Result<Self> {
        Self::with_options(num_groups, num_channels, NormOptions::default(), device)
    }

    /// Each channel as a group: PyTorch's `InstanceNorm` with `affine`.
    ///
    /// # Errors
    /// As [`GroupNorm::with_options`].
    pub fn instance(num_channels: usize, device: &Device) -> Result<Self> {
        Self::new(num_channels, num_channels, device)
    }

    /// [`new`](Self::new) with options.
    ///
    /// # Errors
    /// `InvalidArgument` unless the groups divide the channels, `DTypeUnsupported` unless the type is a float type,
    /// `OutOfMemory`.
    pub fn with_options(
        num_groups: usize,
        num_channels: usize,
        options: NormOptions,
        device: &Device,
    ) -> Result<Self> {
        let NormOptions { eps, bias, dtype } = options;
        dtype.require_float("group_norm")?;
        let value = format_args!("{num_groups} for {num_channels} channels");
        let is_valid = num_groups > 0 && num_channels.is_multiple_of(num_groups);
        Error::require(is_valid, "group_norm", "num_groups", "a divisor of the channels", value)?;
        let of = |value| filled(&[num_channels], value, dtype, device);
        let bias = bias.then(|| of(0.0)).transpose()?;
        Ok(GroupNorm { num_groups, weight: of(1.0)?, bias, eps: eps.unwrap_or(EPS) })
    }
}

#[derive::located]
impl Forward for GroupNorm {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.group_norm(self.num_groups, Some(&self.weight), self.bias.as_ref(), self.eps)
    }
}
