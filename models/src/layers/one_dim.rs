//! Layers over one axis `[n, c, l]`: those of images of height 1.

use autograd::Var;
use device::{DType, Device, Error, Result};
use tensor::{AvgPool, ConvOptions, MaxPool, RandomKey};

use super::Conv;
#[cfg(doc)]
use crate::Conv2d;
use crate::{Conv2dOptions, Forward, Module};

/// A [`Conv1d`] or a [`ConvTranspose1d`].
#[derive(Module)]
pub struct Convolution1d<const TRANSPOSED: bool> {
    weight: Var,
    bias: Option<Var>,
    #[module(skip)]
    options: ConvOptions,
    #[module(skip)]
    output_padding: usize,
}

/// The convolution along one axis, `y[o, i] = b[o] + Σ w[o, c, k] x[c, stride i + dilation k - padding]`.
///
/// Shapes: x `[n, in, l]`, weight `[out, in / groups, k]`, bias `[out]` -> y `[n, out, ol]`. First values as of [`Conv2d`].
///
/// ```
/// use models::{Conv1d, Conv1dOptions, Forward};
/// use tensor::{DType, Tensor};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let layer = Conv1d::with_options(3, 8, 5, Conv1dOptions { padding: 2, ..Conv1dOptions::default() }, &dev)?;
/// let x = autograd::Var::constant(Tensor::ones(&[2, 3, 16], DType::F32, &dev)?);
/// assert_eq!(layer.forward(&x)?.shape(), [2, 8, 16]);
/// # Ok(())
/// # }
/// ```
pub type Conv1d = Convolution1d<false>;

/// The transposed convolution along one axis, which enlarges it, `y[o, stride i + dilation k - padding] += w[c, o, k] x[c, i]`.
///
/// Shapes: x `[n, in, l]`, weight `[in, out / groups, k]`, bias `[out]` -> y `[n, out, ol]`. First values as of
/// [`ConvTranspose2d`](crate::ConvTranspose2d).
///
/// ```
/// use models::{Conv1dOptions, ConvTranspose1d, Forward};
/// use tensor::{DType, Tensor};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let layer = ConvTranspose1d::with_options(3, 8, 4, Conv1dOptions { stride: 4, ..Conv1dOptions::default() }, &dev)?;
/// let x = autograd::Var::constant(Tensor::ones(&[2, 3, 16], DType::F32, &dev)?);
/// assert_eq!(layer.forward(&x)?.shape(), [2, 8, 64]);
/// # Ok(())
/// # }
/// ```
pub type ConvTranspose1d = Convolution1d<true>;

/// How to make a [`Conv1d`] or a [`ConvTranspose1d`]; the defaults are torch's.
#[derive(Clone, Copy, Debug)]
pub struct Conv1dOptions {
    /// Steps between the places of the kernel.
    pub stride: usize,
    /// Zeros at either end; of a transposed convolution, the elements that are left out of its result there.
    pub padding: usize,
    /// Steps between the elements of the kernel.
    pub dilation: usize,
    /// Groups of channels, each with filters of its own.
    pub groups: usize,
    /// Elements that a transposed convolution adds behind its result.
    pub output_padding: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// The parameters' type.
    pub dtype: DType,
    /// Where the first values come from; `None` takes the thread's next key.
    pub key: Option<RandomKey>,
}

impl Default for Conv1dOptions {
    fn default() -> Self {
        Conv1dOptions {
            stride: 1,
            padding: 0,
            dilation: 1,
            groups: 1,
            output_padding: 0,
            bias: true,
            dtype: DType::F32,
            key: None,
        }
    }
}

#[derive::located]
impl<const TRANSPOSED: bool> Convolution1d<TRANSPOSED> {
    /// A layer with a bias, in F32, that moves by one step and pads nothing.
    ///
    /// # Errors
    /// As for [`with_options`](Self::with_options).
    pub fn new(channels: usize, filters: usize, kernel: usize, device: &Device) -> Result<Self> {
        Self::with_options(channels, filters, kernel, Conv1dOptions::default(), device)
    }

    /// A layer with options.
    ///
    /// # Errors
    /// As for [`Conv2d::with_options`].
    pub fn with_options(
        channels: usize,
        filters: usize,
        kernel: usize,
        options: Conv1dOptions,
        device: &Device,
    ) -> Result<Self> {
        let Conv1dOptions { stride, padding, dilation, groups, output_padding, bias, dtype, key } = options;
        let [stride, padding, dilation] = [[1, stride], [0, padding], [1, dilation]];
        let (op, largest, expected) = match TRANSPOSED {
            true => ("conv_transpose1d", stride[1].max(dilation[1]), "below the stride or the dilation"),
            false => ("conv1d", 1, "0 in a layer that is not transposed"),
        };
        Error::require(output_padding < largest, op, "output_padding", expected, output_padding)?;
        let two = [0, output_padding];
        let two = Conv2dOptions { stride, padding, dilation, groups, output_padding: two, bias, dtype, key };
        let layer = Conv::<TRANSPOSED>::with_options(channels, filters, [1, kernel], two, device)?;
        let weight = Var::leaf(layer.weight().value().squeeze(2)?);
        let options = ConvOptions { stride, padding, dilation, groups };
        Ok(Convolution1d { weight, bias: layer.bias().cloned(), options, output_padding })
    }

    /// The weight, `[out, in / groups, k]`, or of a transposed convolution `[in, out / groups, k]`.
    pub fn weight(&self) -> &Var {
        &self.weight
    }

    /// The bias, `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Var> {
        self.bias.as_ref()
    }
}

#[derive::located]
impl<const TRANSPOSED: bool> Forward for Convolution1d<TRANSPOSED> {
    fn forward(&self, input: &Var) -> Result<Var> {
        let Convolution1d { bias, options, output_padding, .. } = self;
        let weight = self.weight.unsqueeze(2)?;
        let images = if TRANSPOSED {
            let images = as_images("conv_transpose1d", input)?;
            images.conv_transpose2d(&weight, bias.as_ref(), [0, *output_padding], options)?
        } else {
            as_images("conv1d", input)?.conv2d(&weight, bias.as_ref(), options)?
        };
        images.squeeze(2)
    }
}

applied! {
    /// The largest element at each place of a window of so many elements, which lie side by side.
    MaxPool1d(usize): |x, size| as_images("max_pool1d", x)?.max_pool2d(&MaxPool::new([1, size.0]))?.squeeze(2);

    /// The mean at each place of a window of so many elements, which lie side by side.
    AvgPool1d(usize): |x, size| as_images("avg_pool1d", x)?.avg_pool2d(&AvgPool::new([1, size.0]))?.squeeze(2);
}

/// `[n, c, 1, l]`.
fn as_images(op: &'static str, input: &Var) -> Result<Var> {
    let value = format_args!("shape {:?}", input.shape());
    Error::require(input.rank() == 3, op, "input", "[n, c, l]", value)?;
    input.unsqueeze(2)
}
