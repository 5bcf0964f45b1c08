//! Launchers of batch normalisation. Images are contiguous, `[n, c, ..]`; whatever follows the channels is one axis.

use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use crate::cpu::batch_norm as cpu;
use crate::cpu::lanes::Lanes;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{View, shape_mismatch};
use crate::par::old_workers;

/// Images as channels see them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channels {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    /// Elements of a channel of one image.
    pub(crate) size: usize,
}

impl Channels {
    /// Elements that a channel has in all images.
    pub(crate) fn each(&self) -> usize {
        self.images * self.size
    }

    /// From images `x`, others like them, vectors of their type, and vectors of the type that is computed in.
    fn of(
        op: &'static str,
        x: View<'_>,
        others: &[View<'_>],
        vectors: &[View<'_>],
        statistics: [View<'_>; 2],
    ) -> Result<Channels> {
        let &[images, channels, ref rest @ ..] = x.shape() else {
            return Err(shape_mismatch(op, x.shape(), &[]));
        };
        for other in others {
            other.expect_shape_of(op, &x)?;
            other.expect_dtype(op, x.dtype)?;
        }
        for vector in vectors.iter().chain(&statistics) {
            vector.expect_shape(op, &[channels])?;
        }
        for vector in vectors {
            vector.expect_dtype(op, x.dtype)?;
        }
        for view in [&x].into_iter().chain(others).chain(vectors).chain(&statistics) {
            view.expect_contiguous(op, "operands")?;
        }
        Ok(Channels { images, channels, size: rest.iter().product() })
    }
}

/// What normalises: each channel's mean and variance, a scale and a shift.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// The mean of each channel, of the type that is computed in.
    pub mean: View<'a>,
    /// Its variance, divided by the number of elements; of the same type.
    pub var: View<'a>,
    /// The scale; 1 if there is none.
    pub weight: Option<View<'a>>,
    /// The shift; 0 if there is none.
    pub bias: Option<View<'a>>,
    /// Added to the variance.
    pub eps: f64,
    /// Whether mean and variance are those of the images, or given.
    pub training: bool,
}

impl<'a> Norm<'a> {
    fn statistics(&self) -> [View<'a>; 2] {
        [self.mean, self.var]
    }

    fn affine(&self) -> SmallVec<[View<'a>; 4]> {
        [self.weight, self.bias].into_iter().flatten().collect()
    }
}

/// `out = (x - mean) / sqrt(var + eps) weight + bias` in each channel, for floats. In training, `mean` and `var` are
/// those of `x`, and written.
///
/// Shapes: `x` and `out` `[n, c, ..]`, the others `[c]`. All contiguous.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], [`Error::InvalidArgument`] for operands
/// that are not contiguous, those of [`Stream::launch`].
pub fn batch_norm(stream: &Stream, x: View<'_>, norm: Norm<'_>, out: View<'_>) -> Result<()> {
    const OP: &str = "batch_norm";
    let channels = Channels::of(OP, x, &[out], &norm.affine(), norm.statistics())?;
    match x.dtype.compute_dtype() {
        DType::F32 => forward_of::<f32>(stream, OP, channels, x, norm, out),
        DType::F64 => forward_of::<f64>(stream, OP, channels, x, norm, out),
        dtype => Err(Error::DTypeUnsupported { op: OP, dtype }),
    }
}

fn forward_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    channels: Channels,
    x: View<'_>,
    norm: Norm<'_>,
    out: View<'_>,
) -> Result<()> {
    let read = |view: View<'_>| Operand::<T>::old(op, &view, x.dtype);
    let (from, to) = (read(x)?, Operand::<T>::old_mut(op, &out, x.dtype)?);
    let affine = [norm.weight.map(read).transpose()?, norm.bias.map(read).transpose()?];
    let (mean, var) = (norm.mean.dst::<T>(op)?, norm.var.dst::<T>(op)?);
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let (eps, training) = (norm.eps, norm.training);
    let statistics = if training { Use::write } else { Use::read };
    let mut uses: SmallVec<[Use<'_>; 6]> = SmallVec::new();
    uses.extend([Use::read(x.buffer), statistics(norm.mean.buffer), statistics(norm.var.buffer)]);
    uses.extend([norm.weight, norm.bias].into_iter().flatten().map(|view| Use::read(view.buffer)));
    uses.push(Use::write(out.buffer));
    if stream.is_cuda() {
        return cuda::batch_norm::forward(stream, op, &uses, &channels, x, &norm, out);
    }
    let workers = old_workers(stream, out.layout.elements(), 4);
    // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
    stream.launch_host(op, &uses, move || unsafe {
        let stage = Stage::new(&workers);
        let [weight, bias] = affine.each_ref().map(|from| from.as_ref().map(|from| stage.read(from)));
        let (x, out) = (stage.read(&from), stage.write(&to));
        let operands = cpu::Forward { x, mean, var, weight, bias, out, eps, training };
        cpu::forward(&channels, &workers, &operands);
    })
}

/// Gradients of [`batch_norm`], for floats. With `x' = (x - mean) / sqrt(var + eps)` and sums over a channel:
/// `bias = sum g`, `weight = sum g x'`, and `x = weight / sqrt(var + eps) (g - [sum g + x' sum g x'] / m)`, where the part
/// in brackets, over the number `m` of elements, is there in training only.
///
/// Shapes: `x`, `g` and `grads[0]` `[n, c, ..]`; `grads[1]`, for the weight, and `grads[2]`, for the bias, `[c]`.
///
/// # Errors
/// As for [`batch_norm`].
pub fn batch_norm_grad(
    stream: &Stream,
    x: View<'_>,
    g: View<'_>,
    norm: Norm<'_>,
    grads: [View<'_>; 3],
) -> Result<()> {
    const OP: &str = "batch_norm_grad";
    let norm = Norm { bias: None, ..norm };
    let mut vectors = norm.affine();
    vectors.extend([grads[1], grads[2]]);
    let channels = Channels::of(OP, x, &[g, grads[0]], &vectors, norm.statistics())?;
    match x.dtype.compute_dtype() {
        DType::F32 => backward_of::<f32>(stream, OP, channels, [x, g], norm, grads),
        DType::F64 => backward_of::<f64>(stream, OP, channels, [x, g], norm, grads),
        dtype => Err(Error::DTypeUnsupported { op: OP, dtype }),
    }
}

fn backward_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    channels: Channels,
    [x, g]: [View<'_>; 2],
    norm: Norm<'_>,
    grads: [View<'_>; 3],
) -> Result<()> {
    let read = |view: View<'_>| Operand::<T>::old(op, &view, x.dtype);
    let write = |view: View<'_>| Operand::<T>::old_mut(op, &view, x.dtype);
    let (from, weight) = ([read(x)?, read(g)?], norm.weight.map(read).transpose()?);
    let (mean, var) = (norm.mean.src::<T>(op)?, norm.var.src::<T>(op)?);
    let to = [write(grads[0])?, write(grads[1])?, write(grads[2])?];
    let (eps, training) = (norm.eps, norm.training);
    if channels.channels == 0 {
        return Ok(());
    }
    let mut uses: SmallVec<[Use<'_>; 8]> = SmallVec::new();
    let read = [Some(x), Some(g), Some(norm.mean), Some(norm.var), norm.weight];
    uses.extend(read.into_iter().flatten().map(|view| Use::read(view.buffer)));
    uses.extend(grads.map(|view| Use::write(view.buffer)));
    if stream.is_cuda() {
        return cuda::batch_norm::backward(stream, op, &uses, &channels, [x, g], &norm, grads);
    }
    let workers = old_workers(stream, x.layout.elements(), 4);
    // SAFETY: as in `forward_of`.
    stream.launch_host(op, &uses, move || unsafe {
        let stage = Stage::new(&workers);
        let [x, g] = from.each_ref().map(|from| stage.read(from));
        let weight = weight.as_ref().map(|from| stage.read(from));
        let [grad, grad_weight, grad_bias] = to.each_ref().map(|to| stage.write(to));
        let operands = cpu::Backward { x, g, mean, var, weight, grad, grad_weight, grad_bias, eps, training };
        cpu::backward(&channels, &workers, &operands);
    })
}

#[cfg(test)]
#[path = "batch_norm_tests.rs"]
pub(crate) mod tests;
