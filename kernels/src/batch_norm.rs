//! Launchers of batch normalisation. Images are contiguous, `[n, c, ..]`; whatever follows the channels is one axis.

use device::{Error, Result, Stream};

use crate::activation::Activation;
use crate::command::{Command, for_float};
use crate::cpu::batch_norm as cpu;
use crate::cuda::batch_norm as cuda;
use crate::cuda::needs;
use crate::layout::View;
use crate::norms::Channels;

/// What normalises: each channel's mean and variance, a scale and a shift.
#[derive(Clone, Copy, Debug)]
pub struct ChannelNorm<'a> {
    /// The mean of each channel, of the type that is computed in.
    pub mean: View<'a>,
    /// Its variance, divided by the number of elements; of the same type.
    pub var: View<'a>,
    /// The scale, of the same type; 1 if there is none.
    pub weight: Option<View<'a>>,
    /// The shift, of the same type; 0 if there is none.
    pub bias: Option<View<'a>>,
    /// Added to the variance.
    pub eps: f64,
    /// Whether mean and variance are those of the images, or given.
    pub training: bool,
    /// Applied to the results.
    pub activation: Activation,
}

/// Bytes of the workspace that [`batch_norm`] and [`batch_norm_grad`] of images `[n, c, ..]` need on `stream`'s device.
pub fn batch_norm_workspace(stream: &Stream, shape: &[usize]) -> usize {
    let &[images, channels, ref rest @ ..] = shape else { return 0 };
    let channels = Channels { images, channels, size: rest.iter().product() };
    needs(stream, || cuda::workspace(&channels)).unwrap_or(0)
}

/// `out = (x - mean) / sqrt(var + eps) weight + bias` in each channel, for floats, then the activation. In training,
/// `mean` and `var` are those of `x`, and written.
///
/// Shapes: `x` and `out` `[n, c, ..]`, the others `[c]`. All contiguous. `workspace`, of type U8, has
/// [`batch_norm_workspace`] elements, and may be left out if those are none.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for operands
/// that are not contiguous, those of [`Stream::launch`].
pub fn batch_norm(
    stream: &Stream,
    x: View<'_>,
    norm: ChannelNorm<'_>,
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let op = norm.activation.op("batch_norm", "batch_norm_relu");
    let ChannelNorm { mean, var, weight, bias, eps, training, activation } = norm;
    let relu = activation.is_relu();
    let channels = channels(op, [&x, &out], [Some(&mean), Some(&var), weight.as_ref(), bias.as_ref()])?;
    let (dtype, statistics) = (x.dtype, [mean, var]);
    let workspace = View::workspace::<u8>(op, workspace, batch_norm_workspace(stream, x.shape()))?;
    for_float!(op, dtype, T => {
        let images = (x.read::<T>(), out.write::<T>());
        let affine = [weight, bias].map(|view| view.map(|view| view.read::<T>().exact()));
        let given = (!training).then(|| statistics.map(|view| view.read::<T>().exact()));
        let found = training.then(|| statistics.map(|view| view.write::<T>().exact()));
        Command::new(op, (images, affine, (given, found), workspace)).cost(out.layout.elements(), 4).run(
            stream,
            channels,
            // SAFETY: `channels` was made from the shapes of these contiguous operands; see `Command::launch`.
            move |channels, workers, (images, affine, statistics, _)| unsafe {
                cpu::forward(channels, workers, (eps, relu), images, affine, statistics);
            },
            move |channels, queue, (images, affine, (given, found), workspace)| {
                let Some(statistics) = given.or(found) else { return Ok(()) };
                let norm = cuda::ChannelNorm { statistics, affine, eps, relu };
                cuda::forward(queue, (dtype, training), channels, images, norm, workspace)
            },
        )
    })
}

/// Gradients of [`batch_norm`], for floats. With `x' = (x - mean) / sqrt(var + eps)` and sums over a channel:
/// `bias = sum g`, `weight = sum g x'`, and `x = weight / sqrt(var + eps) (g - [sum g + x' sum g x'] / m)`, where the part
/// in brackets, over the number `m` of elements, is there in training only. With a ReLU, `g` is taken as 0 where
/// `x' weight + bias <= 0`, which is found again from `x`; only that needs the bias.
///
/// Shapes: `x`, `g` and `grads[0]` `[n, c, ..]`; `grads[1]`, for the weight, and `grads[2]`, for the bias, `[c]`, of the type
/// that is computed in.
///
/// # Errors
/// As for [`batch_norm`].
pub fn batch_norm_grad(
    stream: &Stream,
    x: View<'_>,
    g: View<'_>,
    norm: ChannelNorm<'_>,
    workspace: Option<View<'_>>,
    grads: [View<'_>; 3],
) -> Result<()> {
    let op = norm.activation.op("batch_norm_grad", "batch_norm_relu_grad");
    let ChannelNorm { mean, var, weight, bias, eps, training, activation } = norm;
    let relu = activation.is_relu();
    let bias = bias.filter(|_| relu);
    let [grad, grad_weight, grad_bias] = grads;
    let vectors =
        [Some(&mean), Some(&var), weight.as_ref(), bias.as_ref(), Some(&grad_weight), Some(&grad_bias)];
    let (channels, dtype) = (channels(op, [&x, &g, &grad], vectors)?, x.dtype);
    let workspace = View::workspace::<u8>(op, workspace, batch_norm_workspace(stream, x.shape()))?;
    for_float!(op, dtype, T => {
        let images = [x, g].map(View::read::<T>);
        let statistics = [mean, var].map(|view| view.read::<T>().exact());
        let affine = [weight, bias].map(|view| view.map(|view| view.read::<T>().exact()));
        let sums = [grad_weight, grad_bias].map(|view| view.write::<T>().exact());
        let operands = (images, statistics, affine, (grad.write::<T>(), sums), workspace);
        Command::new(op, operands).cost(x.layout.elements(), 4).run(
            stream,
            channels,
            // SAFETY: `channels` was made from the shapes of these contiguous operands; see `Command::launch`.
            move |channels, workers, (images, statistics, affine, grads, _)| unsafe {
                cpu::backward(channels, workers, (eps, training, relu), images, statistics, affine, grads);
            },
            move |channels, queue, (images, statistics, affine, grads, workspace)| {
                let norm = cuda::ChannelNorm { statistics, affine, eps, relu };
                cuda::backward(queue, (dtype, training), channels, images, norm, grads, workspace)
            },
        )
    })
}

/// Moves running statistics towards those of a batch, `running = (1 - momentum) running + momentum batch` with the variance
/// multiplied with `unbiased` first, and counts the batch: `count += 1`. Without a momentum the running ones are means of all
/// batches, `running += (batch - running) / count`.
///
/// Shapes: `running` and `batch`, means and variances, `[c]`, contiguous and of one float type; `count` is one I64.
///
/// # Errors
/// As for [`batch_norm`].
pub fn follow_statistics(
    stream: &Stream,
    running: [View<'_>; 2],
    count: View<'_>,
    batch: [View<'_>; 2],
    unbiased: f64,
    momentum: Option<f64>,
) -> Result<()> {
    const OP: &str = "follow_statistics";
    let &[channels] = running[0].shape() else {
        return Err(Error::shape_mismatch(OP, "", running[0].shape(), &[]));
    };
    running.iter().chain(&batch).try_for_each(|view| {
        view.expect_shape(OP, &[channels])?;
        view.expect_contiguous(OP, "operands")
    })?;
    count.expect_shape(OP, &[])?;
    let dtype = running[0].dtype;
    for_float!(OP, dtype, T => {
        let operands = (
            running.map(|view| view.write::<T>().exact().keep(true)),
            count.write::<i64>().exact().keep(true),
            batch.map(|view| view.read::<T>().exact()),
        );
        Command::new(OP, operands).cost(channels, 4).run(
            stream,
            channels,
            // SAFETY: the shapes were checked: one element for each channel in all operands but the count, which has
            // one; see `Command::launch`.
            move |&channels, _, (running, count, batch)| unsafe {
                cpu::follow(channels, (unbiased, momentum), running, count, batch);
            },
            move |&channels, queue, ([mean, var], count, [batch_mean, batch_var])| {
                let operands = [mean, var, count, batch_mean, batch_var];
                cuda::follow(queue, dtype, channels, unbiased, momentum, operands)
            },
        )
    })
}

/// The channels of images, with an element for each in all vectors that there are.
fn channels<const N: usize, const M: usize>(
    op: &'static str,
    images: [&View<'_>; N],
    vectors: [Option<&View<'_>>; M],
) -> Result<Channels> {
    let &[count, channels, ref rest @ ..] = images[0].shape() else {
        return Err(Error::shape_mismatch(op, "", images[0].shape(), &[]));
    };
    images.iter().try_for_each(|view| view.expect_shape_of(op, images[0]))?;
    vectors.iter().flatten().try_for_each(|view| view.expect_shape(op, &[channels]))?;
    images
        .iter()
        .chain(vectors.iter().flatten())
        .try_for_each(|view| view.expect_contiguous(op, "operands"))?;
    Ok(Channels { images: count, channels, size: rest.iter().product() })
}

#[cfg(test)]
pub(crate) mod tests;
