//! Batch normalisation.

use device::{DeviceKind, Error, Result, Stream};
use kernels::{Activation, ChannelNorm, batch_norm_workspace};

use crate::Tensor;
use crate::check::{expect_parameter, has_shape, same_device, same_kind, wrong_shape};

/// Each channel's mean and variance, and whether they are those of the images that they normalise. For BF16 and F16
/// images they are F32.
#[derive(Clone, Debug)]
pub struct BatchStatistics {
    /// The means, `[c]`.
    pub mean: Tensor,
    /// The variances, divided by the number of elements, `[c]`.
    pub var: Tensor,
    /// Whether they follow from the images, or are given.
    pub training: bool,
}

impl BatchStatistics {
    /// Moves running statistics towards these, in place, and counts them: `running = (1 - momentum) running + momentum batch` or,
    /// without a momentum, the mean over all batches, `running += (batch - running) / count`. The variance is multiplied with
    /// `unbiased` first.
    ///
    /// Shapes: `mean` and `var` `[c]`, `count` one I64.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`; `InvalidArgument` unless all are contiguous.
    pub fn followed_by(
        &self,
        mean: &Tensor,
        var: &Tensor,
        count: &Tensor,
        unbiased: f64,
        momentum: Option<f64>,
    ) -> Result<()> {
        const OP: &str = "follow_statistics";
        for other in [mean, var, count, &self.var] {
            same_device(OP, &self.mean, other, "statistics")?;
        }
        Stream::with_current(self.mean.device(), |stream| {
            let (running, batch) = ([mean.view(), var.view()], [self.mean.view(), self.var.view()]);
            kernels::follow_statistics(stream, running, count.view(), batch, unbiased, momentum)
        })?;
        [mean, var, count].iter().for_each(|changed| changed.storage.bump_version());
        Ok(())
    }
}

/// The pixels of images with their channels last as images of one element, `[n h w, c]`, where kernels read those as fast.
fn pixels(x: &Tensor) -> Result<Option<Tensor>> {
    if x.is_contiguous() || x.device().kind() == DeviceKind::Cpu || !x.layout.is_channels_last() {
        return Ok(None);
    }
    x.permute(&[0, 2, 3, 1])?.reshape(&[x.elements() / x.shape()[1], x.shape()[1]]).map(Some)
}

/// Such pixels as the images, of this shape, that they are of.
fn images(pixels: &Tensor, shape: &[usize]) -> Result<Tensor> {
    pixels.reshape(&[shape[0], shape[2], shape[3], shape[1]])?.permute(&[0, 3, 1, 2])
}

/// The channels of images `[n, c, ..]`.
fn channels(op: &'static str, x: &Tensor) -> Result<usize> {
    x.dtype().require_float(op)?;
    match *x.shape() {
        [_, c, ..] => Ok(c),
        _ => Err(wrong_shape(op, "input", "[n, c, ..]", x)),
    }
}

/// Weight and bias in the type that is computed in.
fn vectors(
    op: &'static str,
    x: &Tensor,
    [weight, bias]: [Option<&Tensor>; 2],
) -> Result<[Option<Tensor>; 2]> {
    let vector = |name: &'static str, given: &Tensor| {
        let channels = &x.shape()[1..2];
        if name == "weight" {
            let fit = "input [n, c, ..] takes weight [c]";
            Error::require_shapes(given.shape() == channels, op, fit, x.shape(), given.shape())?;
        }
        has_shape(op, channels, given, name)?;
        expect_parameter(op, x, given, name)?;
        given.to_dtype(x.dtype.compute_dtype())?.contiguous()
    };
    let of = |name, given: Option<&Tensor>| given.map(|given| vector(name, given)).transpose();
    Ok([of("weight", weight)?, of("bias", bias)?])
}

fn statistic(op: &'static str, x: &Tensor, given: &Tensor) -> Result<Tensor> {
    same_device(op, x, given, "statistics")?;
    given.dtype().require(op, "statistics", x.dtype.compute_dtype())?;
    has_shape(op, &x.shape()[1..2], given, "statistics")?;
    given.contiguous()
}

#[derive::located]
impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` in each channel, with the channel's own mean and variance over
    /// all other axes. The variance is divided by the number of elements. Returns these statistics, too.
    ///
    /// Shapes: `[n, c, ..]`, `weight [c]`, `bias [c]` -> `[n, c, ..]`. Weight and bias have the elements' type or its
    /// [`DType::compute_dtype`](crate::DType::compute_dtype), so they may be F32 for 16-bit images.
    ///
    /// ```
    /// # use tensor::{Device, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::from_slice(&[1.0_f64, 3.0], &[2, 1], &Device::cpu())?;
    /// let (y, statistics) = x.batch_norm(None, None, 0.0)?;
    /// assert_eq!(y.to_vec::<f64>()?, [-1.0, 1.0]);
    /// assert_eq!(statistics.mean.to_vec::<f64>()?, [2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than two axes, or fewer than two elements in a channel; `ShapeMismatch`,
    /// `DTypeMismatch`, `DeviceMismatch`; `DTypeUnsupported` unless the elements are floats.
    pub fn batch_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<(Tensor, BatchStatistics)> {
        batch_norm(self, None, [weight, bias], eps, Activation::None)
    }

    /// [`Tensor::batch_norm`] with given statistics, of the elements'
    /// [`DType::compute_dtype`](crate::DType::compute_dtype).
    ///
    /// Shapes: as for [`Tensor::batch_norm`], `mean [c]`, `var [c]`.
    ///
    /// # Errors
    /// As for [`Tensor::batch_norm`], except that a channel may have fewer than two elements.
    pub fn batch_norm_with(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        Ok(batch_norm(self, Some([mean, var]), [weight, bias], eps, Activation::None)?.0)
    }
}

/// [`Tensor::batch_norm`], or [`Tensor::batch_norm_with`] for a `given` mean and variance, and an activation in the same pass: the
/// bits are those of separate ops. Returns the statistics, too.
///
/// # Errors
/// As for [`Tensor::batch_norm`].
pub fn batch_norm(
    x: &Tensor,
    given: Option<[&Tensor; 2]>,
    affine: [Option<&Tensor>; 2],
    eps: f64,
    activation: Activation,
) -> Result<(Tensor, BatchStatistics)> {
    let op = activation.op("batch_norm", "batch_norm_relu");
    let c = channels(op, x)?;
    if let Some(pixels) = pixels(x)? {
        let (y, statistics) = batch_norm(&pixels, given, affine, eps, activation)?;
        return Ok((images(&y, x.shape())?, statistics));
    }
    let statistics = match given {
        Some([mean, var]) => {
            let (mean, var) = (statistic(op, x, mean)?, statistic(op, x, var)?);
            BatchStatistics { mean, var, training: false }
        }
        None if c > 0 && x.elements() / c < 2 => {
            return Err(wrong_shape(op, "input", "of several elements in a channel", x));
        }
        // Written by the same command as the value.
        None => Stream::with_current(x.device(), |stream| {
            let fresh = || Tensor::allocate(stream, &[c], x.dtype.compute_dtype());
            Ok(BatchStatistics { mean: fresh()?, var: fresh()?, training: true })
        })?,
    };
    let (x, affine) = (x.contiguous()?, vectors(op, x, affine)?);
    let norm = norm(&statistics, &affine, eps, activation);
    let y = x.produce_like(x.shape(), |stream, out| {
        Tensor::with_workspace(stream, batch_norm_workspace(stream, x.shape()), |memory| {
            kernels::batch_norm(stream, x.view(), norm, memory, out)
        })
    })?;
    Ok((y, statistics))
}

fn norm<'a>(
    statistics: &'a BatchStatistics,
    affine: &'a [Option<Tensor>; 2],
    eps: f64,
    activation: Activation,
) -> ChannelNorm<'a> {
    ChannelNorm {
        mean: statistics.mean.view(),
        var: statistics.var.view(),
        weight: affine[0].as_ref().map(Tensor::view),
        bias: affine[1].as_ref().map(Tensor::view),
        eps,
        training: statistics.training,
        activation,
    }
}

/// The gradients of [`Tensor::batch_norm`] with an activation, for the gradient `g` of its value: for the images and, of
/// [`DType::compute_dtype`](crate::DType::compute_dtype), for the weight and the bias. Where the activation's input was positive is
/// found again from `x`, before it is rounded to 16 bits; only that reads the bias.
///
/// # Errors
/// As for [`Tensor::batch_norm_with`].
pub fn batch_norm_grad(
    x: &Tensor,
    g: &Tensor,
    affine: [Option<&Tensor>; 2],
    statistics: &BatchStatistics,
    eps: f64,
    activation: Activation,
) -> Result<[Tensor; 3]> {
    let op = activation.op("batch_norm_grad", "batch_norm_relu_grad");
    let c = channels(op, x)?;
    same_kind(op, x, g, "gradient")?;
    has_shape(op, x.shape(), g, "gradient")?;
    if let Some(x_pixels) = pixels(x)? {
        let g = g.channels_last()?.permute(&[0, 2, 3, 1])?.reshape(x_pixels.shape())?;
        let [grad, weight, bias] = batch_norm_grad(&x_pixels, &g, affine, statistics, eps, activation)?;
        return Ok([images(&grad, x.shape())?, weight, bias]);
    }
    let (x, g, affine) = (x.contiguous()?, g.contiguous()?, vectors(op, x, affine)?);
    let norm = norm(statistics, &affine, eps, activation);
    Stream::with_current(x.device(), |stream| {
        let sum = || Tensor::allocate(stream, &[c], x.dtype.compute_dtype());
        let grads = [Tensor::allocate(stream, x.shape(), x.dtype)?, sum()?, sum()?];
        let views = [grads[0].view(), grads[1].view(), grads[2].view()];
        Tensor::with_workspace(stream, batch_norm_workspace(stream, x.shape()), |memory| {
            kernels::batch_norm_grad(stream, x.view(), g.view(), norm, memory, views)
        })?;
        Ok(grads)
    })
}
