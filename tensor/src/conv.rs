//! Convolutions over the last two axes.

use device::{Error, Result, Stream};
use kernels::{Activation, Conv2d, ConvPass, Layout, Window, conv2d_wants_channels_last};

use crate::Tensor;
use crate::check::{elements_of, has_shape, same_kind};

/// Options of a convolution; every pair is for the axes `[h, w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Steps between neighbouring positions of a filter.
    pub stride: [usize; 2],
    /// Rows and columns of zeros added on each side of the images.
    pub padding: [usize; 2],
    /// Steps between neighbouring elements of a filter's window.
    pub dilation: [usize; 2],
    /// Number of groups of channels; each has its own group of filters.
    pub groups: usize,
}

impl Default for ConvOptions {
    fn default() -> Self {
        ConvOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

impl ConvOptions {
    fn window(&self, kernel: [usize; 2]) -> Window {
        Window { kernel, stride: self.stride, padding: self.padding, dilation: self.dilation }
    }

    /// The sizes of what [`Tensor::conv_transpose2d`] makes of images of these sizes,
    /// `(size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1`.
    ///
    /// # Errors
    /// `InvalidArgument` if that is below 1, or an output padding is neither below the stride nor below the dilation.
    pub fn transposed_size(
        &self,
        size: [usize; 2],
        kernel: [usize; 2],
        output_padding: [usize; 2],
    ) -> Result<[usize; 2]> {
        const OP: &str = "conv_transpose2d";
        let window = self.window(kernel);
        window.check(OP)?;
        let mut image = [0; 2];
        for axis in 0..2 {
            let expected = "below the stride or the dilation";
            let value = format_args!("{output_padding:?}");
            let is_valid = output_padding[axis] < self.stride[axis].max(self.dilation[axis]);
            Error::require(is_valid, OP, "output_padding", expected, value)?;
            let spread = size[axis].saturating_sub(1).saturating_mul(self.stride[axis]);
            let whole = spread.saturating_add(window.extent(axis)).saturating_add(output_padding[axis]);
            match whole.checked_sub(2 * self.padding[axis]) {
                Some(size) if size > 0 => image[axis] = size,
                _ => {
                    let value = format_args!("{self:?}");
                    return Err(Error::invalid(OP, "padding", "less than the result", value));
                }
            }
        }
        Ok(image)
    }
}

fn rank_4<'a>(op: &'static str, x: &'a Tensor, other: &Tensor) -> Result<&'a [usize; 4]> {
    x.shape()
        .try_into()
        .map_err(|_| Error::shape_mismatch(op, "both must have 4 axes", x.shape(), other.shape()))
}

/// The two sizes of a window.
fn kernel_of(op: &'static str, weight: &Tensor, other: &Tensor) -> Result<[usize; 2]> {
    let &[_, _, kh, kw] = rank_4(op, weight, other)?;
    Ok([kh, kw])
}

#[derive::located]
impl Tensor {
    /// Two-dimensional convolution: for each filter, at each position of its window, the sum of `weight * x` over the
    /// window, plus the filter's bias.
    ///
    /// Shapes: `self [n, c, h, w]`, `weight [f, c / groups, kh, kw]`, `bias [f]` -> `[n, f, oh, ow]`, with
    /// `oh = floor((h + 2 padding - dilation (kh - 1) - 1) / stride) + 1`, and `ow` alike.
    ///
    /// ```
    /// # use tensor::{ConvOptions, DType, Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let device = Device::cpu();
    /// let image = Tensor::arange(0, 9, 1, DType::F32, &device)?.reshape(&[1, 1, 3, 3])?;
    /// let sum = Tensor::ones(&[1, 1, 2, 2], DType::F32, &device)?;
    /// let y = image.conv2d(&sum, None, &ConvOptions::default())?;
    /// assert_eq!(y.to_vec::<f32>()?, [8.0, 12.0, 20.0, 24.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`; `DTypeUnsupported` unless the elements are floats;
    /// `InvalidArgument` for a stride or dilation of 0, and for filters that are larger than the padded images.
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Result<Tensor> {
        conv2d(self, weight, bias, options, Activation::None)
    }

    /// Transposed convolution: the gradient of [`Tensor::conv2d`] with the same weight with respect to its images. Each
    /// element of `self`, times a filter, is added to the filter's window.
    ///
    /// Shapes: `self [n, c, h, w]`, `weight [c, f / groups, kh, kw]`, `bias [f]` -> `[n, f, oh, ow]` with
    /// `oh = (h - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1`, and `ow` alike; see
    /// [`ConvOptions::transposed_size`].
    ///
    /// # Errors
    /// As for [`Tensor::conv2d`]; `InvalidArgument` for a result without elements, and for an output padding that is
    /// neither below the stride nor below the dilation.
    pub fn conv_transpose2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        output_padding: [usize; 2],
        options: &ConvOptions,
    ) -> Result<Tensor> {
        conv_transpose2d(self, weight, bias, output_padding, options, Activation::None)
    }
}

/// [`Tensor::conv2d`] and an activation in the same command: the bits are those of separate ops.
///
/// # Errors
/// As for [`Tensor::conv2d`].
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions,
    activation: Activation,
) -> Result<Tensor> {
    let op = activation.op("conv2d", "conv2d_relu");
    let (&[n, _, h, w], &[f, ..]) = (rank_4(op, x, weight)?, rank_4(op, weight, x)?);
    let window = options.window(kernel_of(op, weight, x)?);
    let [oh, ow] = window.places(op, [h, w])?;
    let call = ConvCall { op, pass: ConvPass::Forward, how: (window, options.groups), activation };
    call.make([n, f, oh, ow], [x, weight], bias)
}

/// [`Tensor::conv_transpose2d`] and an activation in the same command: the bits are those of separate ops.
///
/// # Errors
/// As for [`Tensor::conv_transpose2d`].
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    output_padding: [usize; 2],
    options: &ConvOptions,
    activation: Activation,
) -> Result<Tensor> {
    const OP: &str = "conv_transpose2d";
    let (&[_, _, h, w], kernel) = (rank_4(OP, x, weight)?, kernel_of(OP, weight, x)?);
    let fit = "input [n, c, h, w] takes weight [c, f / groups, kh, kw]";
    Error::require_shapes(x.shape()[1] == weight.shape()[0], OP, fit, x.shape(), weight.shape())?;
    let image = options.transposed_size([h, w], kernel, output_padding)?;
    let op = activation.op("conv2d_input_grad", "conv_transpose2d_relu");
    images(op, x, weight, bias, image, options, activation)
}

/// One of the three maps between images, filters and results.
struct ConvCall {
    op: &'static str,
    pass: ConvPass,
    how: (Window, usize),
    activation: Activation,
}

impl ConvCall {
    /// What one command makes of two operands: a fresh tensor, with its channels last where that is quicker. Filters' gradients
    /// become contiguous again, as the filters are.
    fn make(&self, shape: [usize; 4], [x, y]: [&Tensor; 2], bias: Option<&Tensor>) -> Result<Tensor> {
        let ConvCall { op, pass, how, activation } = *self;
        x.dtype().require_float(op)?;
        // The weight belongs to a layer, so errors are about the input.
        same_kind(op, y, x, "input")?;
        if let Some(bias) = bias {
            same_kind(op, x, bias, "bias")?;
            has_shape(op, &shape[1..2], bias, "bias")?;
        }
        elements_of(op, &shape)?;
        let (a, b) = (*rank_4(op, x, y)?, *rank_4(op, y, x)?);
        let shapes = match pass {
            ConvPass::InputGrad => [shape, a, b],
            ConvPass::WeightGrad => [a, shape, b],
            ConvPass::Forward => [a, b, shape],
        };
        let last = Stream::with_current(x.device(), |stream| {
            conv2d_wants_channels_last(stream, (op, pass), x.dtype, shapes, (how, bias.is_some()))
        })?;
        let bias = bias
            .map(|bias| if last { aligned(bias)?.contiguous() } else { bias.contiguous() })
            .transpose()?;
        let [x, y] = [stored(x, last)?, stored(y, last)?];
        let made = Stream::with_current(x.device(), |stream| {
            let layout = if last { Layout::channels_last(shape) } else { Layout::contiguous(&shape) };
            let out = Tensor { layout, ..Tensor::allocate(stream, &shape, x.dtype)? };
            let (a, b, bias, to) = (x.view(), y.view(), bias.as_ref().map(Tensor::view), out.view());
            let conv = match pass {
                ConvPass::Forward => kernels::conv2d(stream, a, b, bias, how, to)?.activated(activation),
                ConvPass::InputGrad => {
                    kernels::conv2d_input_grad(stream, b, a, bias, how, to)?.activated(activation)
                }
                ConvPass::WeightGrad => kernels::conv2d_weight_grad(stream, a, b, how, to),
            };
            launch(stream, &x, conv?)?;
            Ok(out)
        })?;
        if pass == ConvPass::WeightGrad { made.contiguous() } else { Ok(made) }
    }
}

/// An operand without gaps, in row-major order or aligned with its channels last.
fn stored(x: &Tensor, channels_last: bool) -> Result<Tensor> {
    if channels_last { aligned(x)?.channels_last() } else { x.contiguous() }
}

/// The elements where a library's vectors may begin.
fn aligned(x: &Tensor) -> Result<Tensor> {
    let is_aligned = (x.layout.offset() * x.dtype.size_bytes()).is_multiple_of(16);
    if is_aligned { Ok(x.clone()) } else { x.copy() }
}

/// Launches a convolution of elements like those of `like`, with memory for it to work in.
fn launch(stream: &Stream, like: &Tensor, conv: Conv2d<'_>) -> Result<()> {
    let elements = conv.workspace();
    if elements == 0 {
        return conv.launch(None);
    }
    elements_of("conv2d", &[elements])?;
    let memory = Tensor::allocate(stream, &[elements], like.dtype.compute_dtype())?;
    conv.launch(Some(memory.view()))
}

/// The gradient of [`Tensor::conv2d`] with respect to its images, of sizes `image`, for `g` the gradient of its
/// value.
///
/// Shapes: `g [n, f, oh, ow]`, `weight [f, c / groups, kh, kw]` -> `[n, c, h, w]`. There may be fewer
/// places `oh`, `ow` than the convolution has: what would come from others is left out.
///
/// # Errors
/// As for [`Tensor::conv2d`].
pub fn conv2d_input_grad(
    g: &Tensor,
    weight: &Tensor,
    image: [usize; 2],
    options: &ConvOptions,
) -> Result<Tensor> {
    images("conv2d_input_grad", g, weight, None, image, options, Activation::None)
}

/// The images, of sizes `image`, whose convolution has the gradient `g`, and an activation of them.
fn images(
    op: &'static str,
    g: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    image: [usize; 2],
    options: &ConvOptions,
    activation: Activation,
) -> Result<Tensor> {
    let (&[n, ..], &[_, per_group, ..]) = (rank_4(op, g, weight)?, rank_4(op, weight, g)?);
    let shape = [n, per_group.saturating_mul(options.groups), image[0], image[1]];
    let how = (options.window(kernel_of(op, weight, g)?), options.groups);
    ConvCall { op, pass: ConvPass::InputGrad, how, activation }.make(shape, [weight, g], bias)
}

/// The gradient of [`Tensor::conv2d`] with respect to its weight, for images `x` and the gradient `g` of its value.
///
/// Shapes: `x [n, c, h, w]`, `g [n, f, oh, ow]` -> `[f, c / groups, kernel..]`; `oh` and `ow` as for
/// [`conv2d_input_grad`].
///
/// # Errors
/// As for [`Tensor::conv2d`].
pub fn conv2d_weight_grad(
    x: &Tensor,
    g: &Tensor,
    kernel: [usize; 2],
    options: &ConvOptions,
) -> Result<Tensor> {
    const OP: &str = "conv2d_weight_grad";
    let (&[_, c, ..], &[_, f, ..]) = (rank_4(OP, x, g)?, rank_4(OP, g, x)?);
    let shape = [f, c / options.groups.max(1), kernel[0], kernel[1]];
    let how = (options.window(kernel), options.groups);
    let call = ConvCall { op: OP, pass: ConvPass::WeightGrad, how, activation: Activation::None };
    call.make(shape, [x, g], None)
}
