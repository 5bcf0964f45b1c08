//! Launchers of optimizer steps: one pass over parameter, gradient and state, in place.

use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use crate::cpu::lanes::Lanes;
use crate::cpu::optim::{adam, sgd};
use crate::cuda;
use crate::layout::{Dst, Loops, View};
use crate::par::{Workers, workers};

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

/// One parameter's part in a step of stochastic gradient descent. All shapes are the same.
#[derive(Clone, Copy, Debug)]
pub struct SgdUpdate<'a> {
    /// What is changed.
    pub param: View<'a>,
    /// Its gradient.
    pub grad: View<'a>,
    /// The direction so far, if there is momentum.
    pub buffer: Option<View<'a>>,
    /// The numbers.
    pub step: SgdStep,
}

/// One parameter's part in a step of Adam or AdamW. All shapes are the same.
#[derive(Clone, Copy, Debug)]
pub struct AdamUpdate<'a> {
    /// What is changed.
    pub param: View<'a>,
    /// Its gradient.
    pub grad: View<'a>,
    /// The running mean of the gradient.
    pub m: View<'a>,
    /// The running mean of the gradient's square.
    pub v: View<'a>,
    /// The numbers.
    pub step: AdamStep,
}

/// One parameter's work in a command.
type Part = Box<dyn FnOnce(&Workers) + Send>;

/// One step of stochastic gradient descent as in torch, in place, for F32 and F64, in one command for all parameters:
/// `d = grad + weight_decay param`, `buffer = momentum buffer + (1 - dampening) d`,
/// `d = d + momentum buffer` if nesterov, else `buffer`, `param = param - lr d`.
///
/// It is fastest where the views of a parameter have the same strides without gaps, in whatever order.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`]; [`Error::InvalidArgument`] if there
/// is momentum without a buffer; those of [`Stream::launch`]. Nothing is changed then.
pub fn sgd_step(stream: &Stream, updates: &[SgdUpdate<'_>]) -> Result<()> {
    let mut uses: Uses<'_> = SmallVec::new();
    let mut parts = Vec::with_capacity(updates.len());
    for update in updates {
        parts.push(match update.param.dtype {
            DType::F32 => sgd_part::<f32>(update)?,
            DType::F64 => sgd_part::<f64>(update)?,
            dtype => return Err(Error::DTypeUnsupported { op: "sgd", dtype }),
        });
        uses.extend([Use::write(update.param.buffer), Use::read(update.grad.buffer)]);
        uses.extend(update.buffer.map(|buffer| Use::write(buffer.buffer)));
    }
    if stream.is_cuda() {
        return cuda::optim::sgd_step(stream, updates);
    }
    let elements = updates.iter().map(|update| update.param.layout.elements());
    launch(stream, "sgd", &uses, parts, 2 * elements.sum::<usize>())
}

/// One step of Adam or AdamW as in torch, in place, for F32 and F64, in one command for all parameters, with `m` and
/// `v` the running means of the gradient and of its square: `g = grad + weight_decay param`, or
/// `param = (1 - lr weight_decay) param` if decoupled;
/// `m = m + (1 - beta1) (g - m)`, `v = beta2 v + (1 - beta2) g^2`,
/// `param = param - lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)`.
///
/// # Errors
/// As for [`sgd_step`]; [`Error::InvalidArgument`] for step 0.
pub fn adam_step(stream: &Stream, updates: &[AdamUpdate<'_>]) -> Result<()> {
    let mut uses: Uses<'_> = SmallVec::new();
    let mut parts = Vec::with_capacity(updates.len());
    for update in updates {
        parts.push(match update.param.dtype {
            DType::F32 => adam_part::<f32>(update)?,
            DType::F64 => adam_part::<f64>(update)?,
            dtype => return Err(Error::DTypeUnsupported { op: "adam", dtype }),
        });
        uses.extend([Use::write(update.param.buffer), Use::read(update.grad.buffer)]);
        uses.extend([Use::write(update.m.buffer), Use::write(update.v.buffer)]);
    }
    if stream.is_cuda() {
        return cuda::optim::adam_step(stream, updates);
    }
    let elements = updates.iter().map(|update| update.param.layout.elements());
    launch(stream, "adam", &uses, parts, 4 * elements.sum::<usize>())
}

type Uses<'a> = SmallVec<[Use<'a>; 16]>;

/// One command that does all parts in their order.
fn launch(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    parts: Vec<Part>,
    operations: usize,
) -> Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let workers = workers(stream, operations, 1);
    stream.launch(op, uses, move || parts.into_iter().for_each(|part| part(&workers)))
}

/// Checks the operands of one parameter. The command that runs the part must name their buffers.
fn sgd_part<T: Lanes>(update: &SgdUpdate<'_>) -> Result<Part> {
    let op = "sgd";
    let SgdUpdate { param, grad, buffer, step } = *update;
    grad.expect_shape(op, param.shape())?;
    // The gradient is only read, but travels with the others.
    let (p, g) = (param.dst::<T>(op)?, Dst(grad.src::<T>(op)?.0.cast_mut()));
    match buffer {
        Some(buffer) if step.momentum != 0.0 => {
            buffer.expect_shape(op, param.shape())?;
            let b = buffer.dst::<T>(op)?;
            let loops = Loops::in_memory_order([param.layout, grad.layout, buffer.layout]);
            // SAFETY: the views were checked, and the launch orders the command with others on their buffers.
            Ok(Box::new(move |workers| unsafe { sgd(&loops, workers, [p, g, b], step) }))
        }
        None if step.momentum != 0.0 => Err(Error::InvalidArgument {
            op,
            argument: "buffer",
            expected: "given, as there is momentum",
            value: "none".into(),
        }),
        _ => {
            let loops = Loops::in_memory_order([param.layout, grad.layout]);
            // SAFETY: as above.
            Ok(Box::new(move |workers| unsafe { sgd(&loops, workers, [p, g], step) }))
        }
    }
}

/// Checks the operands of one parameter. The command that runs the part must name their buffers.
fn adam_part<T: Lanes>(update: &AdamUpdate<'_>) -> Result<Part> {
    let op = "adam";
    let AdamUpdate { param, grad, m, v, step } = *update;
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
    let operands = [p, g, m.dst::<T>(op)?, v.dst::<T>(op)?];
    let loops = Loops::in_memory_order([param.layout, grad.layout, m.layout, v.layout]);
    // SAFETY: as in `sgd_part`.
    Ok(Box::new(move |workers| unsafe { adam(&loops, workers, operands, step) }))
}

#[cfg(test)]
#[path = "optim_tests.rs"]
mod tests;
