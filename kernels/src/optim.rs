//! Launchers of optimizer steps: one pass over parameter, gradient and state, in place.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu::lanes::Lanes;
use crate::cpu::optim::{adam, sgd};
use crate::cuda;
use crate::layout::{Dst, Loops, View};
use crate::par::workers;

/// The numbers of a step of stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub lr: f64,
    /// Share of the buffer that is kept. With 0 there is no buffer.
    pub momentum: f64,
    /// Share of the gradient that does not go into the buffer.
    pub dampening: f64,
    /// Share of the parameter that is added to the gradient.
    pub weight_decay: f64,
    /// Whether the step looks ahead along the buffer.
    pub nesterov: bool,
    /// Whether this is the buffer's first step: it takes the gradient as it is.
    pub first: bool,
}

/// The numbers of a step of Adam or AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Number of this step, from 1.
    pub step: u64,
    /// Learning rate.
    pub lr: f64,
    /// Share of the mean gradient that is kept.
    pub beta1: f64,
    /// Share of the mean squared gradient that is kept.
    pub beta2: f64,
    /// Added to the divisor.
    pub eps: f64,
    /// Share of the parameter that is added to the gradient or, if decoupled, taken off the parameter.
    pub weight_decay: f64,
    /// AdamW: the decay does not pass through the gradient.
    pub decoupled: bool,
}

/// One step of stochastic gradient descent as in torch, in place, for F32 and F64:
/// `d = grad + weight_decay param`, `buffer = momentum buffer + (1 - dampening) d`,
/// `d = d + momentum buffer` if nesterov, else `buffer`, `param = param - lr d`.
///
/// Shapes: all the same. It is fastest where all have the same strides without gaps, in whatever order.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`]; [`Error::InvalidArgument`] if there
/// is momentum without a buffer; those of [`Stream::launch`].
pub fn sgd_step(
    stream: &Stream,
    param: View<'_>,
    grad: View<'_>,
    buffer: Option<View<'_>>,
    step: SgdStep,
) -> Result<()> {
    match param.dtype {
        DType::F32 => sgd_of::<f32>(stream, param, grad, buffer, step),
        DType::F64 => sgd_of::<f64>(stream, param, grad, buffer, step),
        dtype => Err(Error::DTypeUnsupported { op: "sgd", dtype }),
    }
}

/// One step of Adam or AdamW as in torch, in place, for F32 and F64, with `m` and `v` the running means of the gradient
/// and of its square: `g = grad + weight_decay param`, or `param = (1 - lr weight_decay) param` if decoupled;
/// `m = m + (1 - beta1) (g - m)`, `v = beta2 v + (1 - beta2) g^2`,
/// `param = param - lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)`.
///
/// Shapes: as for [`sgd_step`].
///
/// # Errors
/// As for [`sgd_step`]; [`Error::InvalidArgument`] for step 0.
pub fn adam_step(
    stream: &Stream,
    param: View<'_>,
    grad: View<'_>,
    m: View<'_>,
    v: View<'_>,
    step: AdamStep,
) -> Result<()> {
    match param.dtype {
        DType::F32 => adam_of::<f32>(stream, param, grad, m, v, step),
        DType::F64 => adam_of::<f64>(stream, param, grad, m, v, step),
        dtype => Err(Error::DTypeUnsupported { op: "adam", dtype }),
    }
}

fn sgd_of<T: Lanes>(
    stream: &Stream,
    param: View<'_>,
    grad: View<'_>,
    buffer: Option<View<'_>>,
    step: SgdStep,
) -> Result<()> {
    let op = "sgd";
    grad.expect_shape(op, param.shape())?;
    // The gradient is only read, but travels with the others.
    let (p, g) = (param.dst::<T>(op)?, Dst(grad.src::<T>(op)?.0.cast_mut()));
    let elements = param.layout.elements();
    let workers = workers(stream, elements, 2);
    match buffer {
        Some(buffer) if step.momentum != 0.0 => {
            buffer.expect_shape(op, param.shape())?;
            let b = buffer.dst::<T>(op)?;
            if stream.is_cuda() {
                return cuda::optim::momentum(stream, T::DTYPE, &[[param, grad, buffer]], &step);
            }
            let loops = Loops::in_memory_order([param.layout, grad.layout, buffer.layout]);
            let uses = [Use::write(param.buffer), Use::read(grad.buffer), Use::write(buffer.buffer)];
            // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
            stream.launch(op, &uses, move || unsafe { sgd(&loops, &workers, [p, g, b], step) })
        }
        None if step.momentum != 0.0 => Err(Error::InvalidArgument {
            op,
            argument: "buffer",
            expected: "given, as there is momentum",
            value: "none".into(),
        }),
        _ if stream.is_cuda() => cuda::optim::sgd(stream, T::DTYPE, &[[param, grad]], &step),
        _ => {
            let loops = Loops::in_memory_order([param.layout, grad.layout]);
            let uses = [Use::write(param.buffer), Use::read(grad.buffer)];
            // SAFETY: as above.
            stream.launch(op, &uses, move || unsafe { sgd(&loops, &workers, [p, g], step) })
        }
    }
}

fn adam_of<T: Lanes>(
    stream: &Stream,
    param: View<'_>,
    grad: View<'_>,
    m: View<'_>,
    v: View<'_>,
    step: AdamStep,
) -> Result<()> {
    let op = "adam";
    for view in [&grad, &m, &v] {
        view.expect_shape(op, param.shape())?;
    }
    if step.step == 0 {
        return Err(Error::InvalidArgument {
            op,
            argument: "step",
            expected: "at least 1",
            value: "0".into(),
        });
    }
    // The gradient is only read, but travels with the others.
    let (p, g) = (param.dst::<T>(op)?, Dst(grad.src::<T>(op)?.0.cast_mut()));
    let (m_to, v_to) = (m.dst::<T>(op)?, v.dst::<T>(op)?);
    if stream.is_cuda() {
        return cuda::optim::adam(stream, T::DTYPE, &[[param, grad, m, v]], &step);
    }
    let loops = Loops::in_memory_order([param.layout, grad.layout, m.layout, v.layout]);
    let workers = workers(stream, param.layout.elements(), 4);
    let operands = [p, g, m_to, v_to];
    let uses = [Use::write(param.buffer), Use::read(grad.buffer), Use::write(m.buffer), Use::write(v.buffer)];
    // SAFETY: as in `sgd_of`.
    stream.launch(op, &uses, move || unsafe { adam(&loops, &workers, operands, step) })
}

#[cfg(test)]
#[path = "optim_tests.rs"]
mod tests;
