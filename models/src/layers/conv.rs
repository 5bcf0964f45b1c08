//! Convolutional layers.

use autograd::Var;
use autograd::ops::fused::{self, Activation};
use device::{DType, Device, Error, Result};
use tensor::{ConvOptions, RandomKey};

use super::parameters::FirstValues;
use crate::Module;

/// How to make a [`Conv2d`] or a [`ConvTranspose2d`]; every pair is for the axes `[h, w]`.
#[derive(Clone, Copy, Debug)]
pub struct Conv2dOptions {
    /// Steps from one place of a filter to the next.
    pub stride: [usize; 2],
    /// Rows and columns of zeros around the images; of a transposed convolution, those that are left out of its result.
    pub padding: [usize; 2],
    /// Steps between the elements that a filter sees.
    pub dilation: [usize; 2],
    /// Groups of channels, each of which is seen by filters of its own.
    pub groups: usize,
    /// Rows and columns that a transposed convolution adds behind its result.
    pub output_padding: [usize; 2],
    /// Whether there is a bias.
    pub bias: bool,
    /// The parameters' type.
    pub dtype: DType,
    /// Where the first values come from; `None` takes the thread's next key.
    pub key: Option<RandomKey>,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        let ConvOptions { stride, padding, dilation, groups } = ConvOptions::default();
        Conv2dOptions {
            stride,
            padding,
            dilation,
            groups,
            output_padding: [0; 2],
            bias: true,
            dtype: DType::F32,
            key: None,
        }
    }
}

/// A [`Conv2d`] or a [`ConvTranspose2d`].
#[derive(Module)]
pub struct Conv<const TRANSPOSED: bool> {
    weight: Var,
    bias: Option<Var>,
    #[module(skip)]
    options: ConvOptions,
    #[module(skip)]
    output_padding: [usize; 2],
}

/// Filters over images, `y = weight * x + bias`; see [`Var::conv2d`].
///
/// Shapes: x `[n, in, h, w]`, weight `[out, in / groups, kh, kw]`, bias `[out]` -> y `[n, out, oh, ow]`. Weights and biases
/// start uniform in `±1/sqrt(in / groups kh kw)`, which is torch's default.
///
/// ```
/// use models::{Conv2d, Conv2dOptions, Forward};
/// use tensor::{DType, Tensor};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let same = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
/// let layer = Conv2d::with_options(3, 16, [3, 3], same, &dev)?;
/// let images = autograd::Var::constant(Tensor::ones(&[2, 3, 8, 8], DType::F32, &dev)?);
/// assert_eq!(layer.forward(&images)?.shape(), [2, 16, 8, 8]);
/// # Ok(())
/// # }
/// ```
pub type Conv2d = Conv<false>;

/// The transposed convolution, which enlarges images; see [`Var::conv_transpose2d`].
///
/// Shapes: x `[n, in, h, w]`, weight `[in, out / groups, kh, kw]`, bias `[out]` -> y `[n, out, oh, ow]`. Weights and biases
/// start uniform in `±1/sqrt(out / groups kh kw)`, which is torch's default.
pub type ConvTranspose2d = Conv<true>;

#[derive::located]
impl<const TRANSPOSED: bool> Conv<TRANSPOSED> {
    /// A layer with a bias, in F32, that moves by one step and pads nothing.
    ///
    /// # Errors
    /// `OutOfMemory`; `InvalidArgument` for a kernel of 0.
    pub fn new(channels: usize, filters: usize, kernel: [usize; 2], device: &Device) -> Result<Self> {
        Self::with_options(channels, filters, kernel, Conv2dOptions::default(), device)
    }

    /// A layer with options; the output padding is for transposed convolutions only.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the type is a float; `InvalidArgument` for groups that do not divide the channels and
    /// filters, for a kernel, stride or dilation of 0, and for an output padding of a transposed convolution that is neither
    /// below the stride nor below the dilation; `OutOfMemory`.
    pub fn with_options(
        channels: usize,
        filters: usize,
        kernel: [usize; 2],
        options: Conv2dOptions,
        device: &Device,
    ) -> Result<Self> {
        let Conv2dOptions { stride, padding, dilation, groups, output_padding, bias, dtype, key } = options;
        let op = if TRANSPOSED { "conv_transpose2d" } else { "conv2d" };
        dtype.require_float(op)?;
        let divides = groups > 0 && channels.is_multiple_of(groups) && filters.is_multiple_of(groups);
        let value = format_args!("{groups} for {:?} channels", [channels, filters]);
        Error::require(divides, op, "groups", "a divisor of both numbers of channels", value)?;
        for (argument, pair) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
            Error::require(!pair.contains(&0), op, argument, "at least 1", format_args!("{pair:?}"))?;
        }
        let fits = !TRANSPOSED || (0..2).all(|axis| output_padding[axis] < stride[axis].max(dilation[axis]));
        let value = format_args!("{output_padding:?}");
        Error::require(fits, op, "output_padding", "below the stride or the dilation", value)?;
        let [outer, inner] = if TRANSPOSED { [channels, filters] } else { [filters, channels] };
        let shape = [outer, inner / groups, kernel[0], kernel[1]];
        let first = FirstValues::new(shape[1..].iter().product(), key, dtype);
        let weight = Var::leaf(first.weight(&shape, device)?);
        let bias = if bias { Some(Var::leaf(first.bias(filters, device)?)) } else { None };
        let options = ConvOptions { stride, padding, dilation, groups };
        Ok(Conv { weight, bias, options, output_padding })
    }

    /// The weight, `[out, in / groups, kh, kw]`, or of a transposed convolution `[in, out / groups, kh, kw]`.
    pub fn weight(&self) -> &Var {
        &self.weight
    }

    /// The bias, `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Var> {
        self.bias.as_ref()
    }

    pub(super) fn with_activation(&self, input: &Var, activation: Activation) -> Result<Var> {
        let Conv { weight, bias, options, output_padding } = self;
        if TRANSPOSED {
            fused::conv_transpose2d(input, weight, bias.as_ref(), *output_padding, options, activation)
        } else {
            fused::conv2d(input, weight, bias.as_ref(), options, activation)
        }
    }
}
