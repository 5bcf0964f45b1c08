//! Launchers of softmax, its logarithm, and their gradients.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu::lanes::Lanes;
use crate::cpu::softmax::{Rows, log_softmax as log_softmax_cpu, log_softmax_grad as log_softmax_grad_cpu};
use crate::cpu::softmax::{softmax as softmax_cpu, softmax_grad as softmax_grad_cpu};
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{LoopAxis, Loops, View, normalize_axis};
use crate::par::workers;

/// `out = exp(x - max x) / sum exp(x - max x)` along an axis, for floats.
///
/// Shapes: `out` like `x`. The sum is taken in the order of [`reduce`](crate::reduce).
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], those of
/// [`Stream::launch`].
pub fn softmax(stream: &Stream, x: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    unary(stream, "softmax", false, x, axis, out)
}

/// `out = x - max x - log(sum exp(x - max x))` along an axis, for floats.
///
/// Shapes and order as for [`softmax`].
///
/// # Errors
/// As for [`softmax`].
pub fn log_softmax(stream: &Stream, x: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    unary(stream, "log_softmax", true, x, axis, out)
}

/// Gradient of [`softmax`], whose output is `y`: `out = y (g - sum(g y))` along an axis, for floats.
///
/// Shapes: `g` and `out` like `y`. The sum is taken in the order of [`reduce`](crate::reduce).
///
/// # Errors
/// As for [`softmax`].
pub fn softmax_grad(stream: &Stream, y: View<'_>, g: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    gradient(stream, "softmax_grad", false, y, g, axis, out)
}

/// Gradient of [`log_softmax`], whose output is `y`: `out = g - exp(y) sum(g)` along an axis, for floats.
///
/// Shapes and order as for [`softmax_grad`].
///
/// # Errors
/// As for [`softmax`].
pub fn log_softmax_grad(stream: &Stream, y: View<'_>, g: View<'_>, axis: isize, out: View<'_>) -> Result<()> {
    gradient(stream, "log_softmax_grad", true, y, g, axis, out)
}

fn unary(
    stream: &Stream,
    op: &'static str,
    log: bool,
    x: View<'_>,
    axis: isize,
    out: View<'_>,
) -> Result<()> {
    match out.dtype.compute_dtype() {
        DType::F32 => unary_of::<f32>(stream, op, log, x, axis, out),
        DType::F64 => unary_of::<f64>(stream, op, log, x, axis, out),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

fn unary_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    log: bool,
    x: View<'_>,
    axis: isize,
    out: View<'_>,
) -> Result<()> {
    let rows = rows(op, [&out, &x], axis)?;
    let from = Operand::<T>::of(op, &x, out.dtype)?;
    let to = Operand::<T>::of_mut(op, &out, out.dtype)?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    if stream.is_cuda() {
        return cuda::softmax::unary(stream, (op, log), &rows, [out, x]);
    }
    let workers = workers(stream, out.layout.elements(), 8);
    stream.launch(op, &[Use::read(x.buffer), Use::write(out.buffer)], move || {
        // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
        unsafe {
            let stage = Stage::new(&workers);
            let (to, from) = (stage.write(&to), stage.read(&from));
            if log {
                log_softmax_cpu(&rows, &workers, to, from);
            } else {
                softmax_cpu(&rows, &workers, to, from);
            }
        }
    })
}

fn gradient(
    stream: &Stream,
    op: &'static str,
    log: bool,
    y: View<'_>,
    g: View<'_>,
    axis: isize,
    out: View<'_>,
) -> Result<()> {
    match out.dtype.compute_dtype() {
        DType::F32 => gradient_of::<f32>(stream, op, log, (y, g), axis, out),
        DType::F64 => gradient_of::<f64>(stream, op, log, (y, g), axis, out),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

fn gradient_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    log: bool,
    (y, g): (View<'_>, View<'_>),
    axis: isize,
    out: View<'_>,
) -> Result<()> {
    let rows = rows(op, [&out, &y, &g], axis)?;
    let from_y = Operand::<T>::of(op, &y, out.dtype)?;
    let from_g = Operand::<T>::of(op, &g, out.dtype)?;
    let to = Operand::<T>::of_mut(op, &out, out.dtype)?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    if stream.is_cuda() {
        return cuda::softmax::gradient(stream, (op, log), &rows, [out, y, g]);
    }
    let workers = workers(stream, out.layout.elements(), 8);
    stream.launch(op, &[Use::read(y.buffer), Use::read(g.buffer), Use::write(out.buffer)], move || {
        // SAFETY: as in `unary_of`.
        unsafe {
            let stage = Stage::new(&workers);
            let (to, from_y, from_g) = (stage.write(&to), stage.read(&from_y), stage.read(&from_g));
            if log {
                log_softmax_grad_cpu(&rows, &workers, to, from_y, from_g);
            } else {
                softmax_grad_cpu(&rows, &workers, to, from_y, from_g);
            }
        }
    })
}

/// The rows along `axis`; operand 0 is the output, to which the others must be equal in shape.
pub(crate) fn rows<const N: usize>(op: &'static str, views: [&View<'_>; N], axis: isize) -> Result<Rows<N>> {
    let shape = views[0].shape();
    views.iter().try_for_each(|view| view.expect_shape(op, shape))?;
    let axis = normalize_axis(op, axis, shape.len())?;
    let at = |i: usize| LoopAxis { size: shape[i], strides: views.map(|view| view.layout.strides()[i]) };
    let kept = Loops::from_axes((0..shape.len()).filter(|&i| i != axis).map(at));
    Ok(Rows { kept, len: shape[axis], steps: at(axis).strides })
}

#[cfg(test)]
#[path = "softmax_tests.rs"]
mod tests;
