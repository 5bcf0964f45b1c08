//! Convolutional layers.

use autograd::Var;
use autograd::ops::fused::{self, Activation};
use device::{DType, Device, Error, Result};
use tensor::{ConvOptions, RandomKey};

use super::parameters::{FirstValues, expect_float};
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

impl Conv2dOptions {
    fn conv(&self) -> ConvOptions {
        let Conv2dOptions { stride, padding, dilation, groups, .. } = *self;
        ConvOptions { stride, padding, dilation, groups }
    }

    fn check(&self, op: &'static str, channels: [usize; 2], kernel: [usize; 2]) -> Result<()> {
        expect_float(op, self.dtype)?;
        let invalid = |argument, expected, value: String| Err(Error::invalid(op, argument, expected, value));
        if self.groups == 0 || channels.iter().any(|count| !count.is_multiple_of(self.groups)) {
            let value = format!("{} for {channels:?} channels", self.groups);
            return invalid("groups", "a divisor of both numbers of channels", value);
        }
        for (argument, pair) in [("kernel", kernel), ("stride", self.stride), ("dilation", self.dilation)] {
            if pair.contains(&0) {
                return invalid(argument, "at least 1", format!("{pair:?}"));
            }
        }
        Ok(())
    }

    /// Weight and bias for `filters` outputs; the weight sums over `shape[1..]`.
    fn parameters(&self, shape: [usize; 4], filters: usize, device: &Device) -> Result<(Var, Option<Var>)> {
        let first = FirstValues::new(shape[1..].iter().product(), self.key, self.dtype);
        let weight = Var::leaf(first.weight(&shape, device)?);
        let bias = if self.bias { Some(Var::leaf(first.bias(filters, device)?)) } else { None };
        Ok((weight, bias))
    }
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
#[derive(Module)]
pub struct Conv2d {
    weight: Var,
    bias: Option<Var>,
    #[module(skip)]
    options: ConvOptions,
}

#[derive::located]
impl Conv2d {
    /// A layer with a bias, in F32, that moves by one step and pads nothing.
    ///
    /// # Errors
    /// `OutOfMemory`; `InvalidArgument` for a kernel of 0.
    pub fn new(channels: usize, filters: usize, kernel: [usize; 2], device: &Device) -> Result<Conv2d> {
        Self::with_options(channels, filters, kernel, Conv2dOptions::default(), device)
    }

    /// A layer as `options` say; the output padding is not for it.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the type is a float; `InvalidArgument` for groups that do not divide the channels and
    /// filters, and for a kernel, stride or dilation of 0; `OutOfMemory`.
    pub fn with_options(
        channels: usize,
        filters: usize,
        kernel: [usize; 2],
        options: Conv2dOptions,
        device: &Device,
    ) -> Result<Conv2d> {
        options.check("conv2d", [channels, filters], kernel)?;
        let shape = [filters, channels / options.groups, kernel[0], kernel[1]];
        let (weight, bias) = options.parameters(shape, filters, device)?;
        Ok(Conv2d { weight, bias, options: options.conv() })
    }

    /// The weight, `[out, in / groups, kh, kw]`.
    pub fn weight(&self) -> &Var {
        &self.weight
    }

    /// The bias, `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Var> {
        self.bias.as_ref()
    }

    pub(super) fn with_activation(&self, input: &Var, activation: Activation) -> Result<Var> {
        fused::conv2d(input, &self.weight, self.bias.as_ref(), &self.options, activation)
    }
}

/// The transposed convolution, which enlarges images; see [`Var::conv_transpose2d`].
///
/// Shapes: x `[n, in, h, w]`, weight `[in, out / groups, kh, kw]`, bias `[out]` -> y `[n, out, oh, ow]`. Weights and biases
/// start uniform in `±1/sqrt(out / groups kh kw)`, which is torch's default.
#[derive(Module)]
pub struct ConvTranspose2d {
    weight: Var,
    bias: Option<Var>,
    #[module(skip)]
    options: ConvOptions,
    #[module(skip)]
    output_padding: [usize; 2],
}

#[derive::located]
impl ConvTranspose2d {
    /// A layer with a bias, in F32, that moves by one step and pads nothing.
    ///
    /// # Errors
    /// As for [`Conv2d::new`].
    pub fn new(
        channels: usize,
        filters: usize,
        kernel: [usize; 2],
        device: &Device,
    ) -> Result<ConvTranspose2d> {
        Self::with_options(channels, filters, kernel, Conv2dOptions::default(), device)
    }

    /// A layer as `options` say.
    ///
    /// # Errors
    /// As for [`Conv2d::with_options`]; `InvalidArgument` for an output padding that is neither below the stride nor below
    /// the dilation.
    pub fn with_options(
        channels: usize,
        filters: usize,
        kernel: [usize; 2],
        options: Conv2dOptions,
        device: &Device,
    ) -> Result<ConvTranspose2d> {
        const OP: &str = "conv_transpose2d";
        options.check(OP, [channels, filters], kernel)?;
        let Conv2dOptions { stride, dilation, output_padding, .. } = options;
        if (0..2).any(|axis| output_padding[axis] >= stride[axis].max(dilation[axis])) {
            let value = format_args!("{output_padding:?}");
            return Err(Error::invalid(OP, "output_padding", "below the stride or the dilation", value));
        }
        let shape = [channels, filters / options.groups, kernel[0], kernel[1]];
        let (weight, bias) = options.parameters(shape, filters, device)?;
        Ok(ConvTranspose2d { weight, bias, options: options.conv(), output_padding })
    }

    /// The weight, `[in, out / groups, kh, kw]`.
    pub fn weight(&self) -> &Var {
        &self.weight
    }

    /// The bias, `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Var> {
        self.bias.as_ref()
    }

    pub(super) fn with_activation(&self, input: &Var, activation: Activation) -> Result<Var> {
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        fused::conv_transpose2d(input, weight, bias, self.output_padding, &self.options, activation)
    }
}
