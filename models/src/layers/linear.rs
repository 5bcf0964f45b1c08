//! The affine layer.

use autograd::Var;
use autograd::ops::fused::{self, Activation};
use device::{DType, Device, Error, Result};
use tensor::RandomKey;

use super::parameters::FirstValues;
use crate::Module;

/// `y = x W^T + b`.
///
/// Shapes: x `[.., in]`, W `[out, in]`, b `[out]` -> y `[.., out]`.
///
/// W has torch's shape, but its memory is that of `[in, out]`: then `W^T` is the plain row-major operand of
/// the forward product. Weights and biases start uniform in `±1/sqrt(in)`, which is torch's default
/// (He et al. 2015 with a = sqrt(5)).
#[derive(Module)]
pub struct Linear {
    weight: Var,
    bias: Option<Var>,
}

/// How to make a [`Linear`].
#[derive(Clone, Copy, Debug)]
pub struct LinearOptions {
    /// Whether there is a bias.
    pub bias: bool,
    /// The parameters' type.
    pub dtype: DType,
    /// Where the first values come from; `None` takes the thread's next key.
    pub key: Option<RandomKey>,
}

impl Default for LinearOptions {
    fn default() -> Self {
        LinearOptions { bias: true, dtype: DType::F32, key: None }
    }
}

#[derive::located]
impl Linear {
    /// A layer with a bias, in F32; its first values come from the thread's next key.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(in_features: usize, out_features: usize, device: &Device) -> Result<Self> {
        Self::with_options(in_features, out_features, LinearOptions::default(), device)
    }

    /// As [`new`](Linear::new), with a key: the same key gives the same values on every device.
    ///
    /// Use another key for each layer, such as `RandomKey { seed, op: layer_number }`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn keyed(in_features: usize, out_features: usize, key: RandomKey, device: &Device) -> Result<Self> {
        let options = LinearOptions { key: Some(key), ..LinearOptions::default() };
        Self::with_options(in_features, out_features, options, device)
    }

    /// A layer as `options` say.
    ///
    /// # Errors
    /// `DTypeUnsupported` if `options.dtype` is not a float type, `OutOfMemory`.
    pub fn with_options(
        in_features: usize,
        out_features: usize,
        options: LinearOptions,
        device: &Device,
    ) -> Result<Self> {
        options.dtype.require_float("linear")?;
        let first = FirstValues::new(in_features, options.key, options.dtype);
        let weight = first.weight(&[in_features, out_features], device)?.t()?;
        let bias = if options.bias { Some(first.bias(out_features, device)?) } else { None };
        Ok(Linear { weight: Var::leaf(weight), bias: bias.map(Var::leaf) })
    }

    /// A layer with parameters that are there already, as when two layers share a weight.
    ///
    /// # Errors
    /// `ShapeMismatch` unless the weight is `[out, in]` and the bias `[out]`; `DTypeMismatch` if they differ.
    pub fn from_parts(weight: Var, bias: Option<Var>) -> Result<Self> {
        let shape = weight.shape();
        let mismatch = |other: &[usize]| {
            Error::shape_mismatch("linear", "weight [out, in] takes bias [out]", shape, other)
        };
        if shape.len() != 2 {
            return Err(mismatch(&[]));
        }
        if let Some(bias) = &bias {
            if bias.shape() != &shape[..1] {
                return Err(mismatch(bias.shape()));
            }
            bias.dtype().require("linear", "bias", weight.dtype())?;
        }
        Ok(Linear { weight, bias })
    }

    /// The weight, `[out, in]`.
    pub fn weight(&self) -> &Var {
        &self.weight
    }

    /// The bias, `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Var> {
        self.bias.as_ref()
    }

    pub(super) fn with_activation(&self, input: &Var, activation: Activation) -> Result<Var> {
        fused::linear(input, &self.weight, self.bias.as_ref(), activation)
    }
}
