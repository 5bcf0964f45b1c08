//! Steps of optimizers, fused: one command a device for all parameters.

use device::{Device, Result, Stream};
use kernels::{AdamStep, SgdStep};

use crate::Tensor;
use crate::check::{has_shape, is_float, same_kind};

/// One parameter's part in a step of stochastic gradient descent.
#[derive(Clone, Copy, Debug)]
pub struct SgdUpdate<'a> {
    /// The parameter, which is changed in place.
    pub param: &'a Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// The direction so far, which is changed in place; needed if there is momentum.
    pub momentum_buffer: Option<&'a Tensor>,
    /// The numbers.
    pub step: SgdStep,
}

/// One parameter's part in a step of Adam or AdamW.
#[derive(Clone, Copy, Debug)]
pub struct AdamUpdate<'a> {
    /// The parameter, which is changed in place.
    pub param: &'a Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// The running mean of the gradient, which is changed in place.
    pub m: &'a Tensor,
    /// The running mean of the gradient's square, which is changed in place.
    pub v: &'a Tensor,
    /// The numbers.
    pub step: AdamStep,
}

impl<'a> SgdUpdate<'a> {
    fn view(&self) -> kernels::SgdUpdate<'a> {
        kernels::SgdUpdate {
            param: self.param.view(),
            grad: self.grad.view(),
            buffer: self.momentum_buffer.map(Tensor::view),
            step: self.step,
        }
    }
}

impl<'a> AdamUpdate<'a> {
    fn view(&self) -> kernels::AdamUpdate<'a> {
        kernels::AdamUpdate {
            param: self.param.view(),
            grad: self.grad.view(),
            m: self.m.view(),
            v: self.v.view(),
            step: self.step,
        }
    }
}

/// One step of stochastic gradient descent on several parameters, in one command a device; see [`SgdStep`].
///
/// Shapes: gradient and buffer like their parameter. Asynchronous, on the current stream, ordered after every earlier
/// use of what it writes.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `DeviceMismatch`; `InvalidArgument` for momentum without a
/// buffer, or an expanded target. Nothing on that device is changed then.
pub fn sgd_step(updates: &[SgdUpdate<'_>]) -> Result<()> {
    const OP: &str = "sgd_";
    for update in updates {
        update.param.step_with(OP, update.grad)?;
        if let Some(buffer) = update.momentum_buffer {
            update.param.step_with(OP, buffer)?;
            buffer.writable(OP)?;
        }
    }
    on_each_device(
        updates,
        |update| update.param.device(),
        |stream, updates| {
            kernels::sgd_step(stream, &updates.iter().map(|update| update.view()).collect::<Vec<_>>())?;
            for update in updates {
                update.param.storage.bump_version();
                update.momentum_buffer.into_iter().for_each(|buffer| buffer.storage.bump_version());
            }
            Ok(())
        },
    )
}

/// One step of Adam or AdamW on several parameters, in one command a device; see [`AdamStep`].
///
/// Shapes: gradient and running means like their parameter. Asynchronous, on the current stream, ordered after every
/// earlier use of what it writes.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `DeviceMismatch`; `InvalidArgument` for step 0, or an
/// expanded target. Nothing on that device is changed then.
pub fn adam_step(updates: &[AdamUpdate<'_>]) -> Result<()> {
    const OP: &str = "adam_";
    for update in updates {
        update.param.step_with(OP, update.grad)?;
        for state in [update.m, update.v] {
            update.param.step_with(OP, state)?;
            state.writable(OP)?;
        }
    }
    on_each_device(
        updates,
        |update| update.param.device(),
        |stream, updates| {
            kernels::adam_step(stream, &updates.iter().map(|update| update.view()).collect::<Vec<_>>())?;
            for update in updates {
                [update.param, update.m, update.v].iter().for_each(|written| written.storage.bump_version());
            }
            Ok(())
        },
    )
}

/// Calls `launch` for each device with the updates of parameters on it, in their order.
fn on_each_device<U>(
    updates: &[U],
    device: impl Fn(&U) -> &Device,
    launch: impl Fn(&Stream, &[&U]) -> Result<()>,
) -> Result<()> {
    let mut rest: Vec<&U> = updates.iter().collect();
    while let Some(first) = rest.first() {
        let on = device(first);
        let (here, others): (Vec<_>, Vec<_>) = rest.iter().partition(|update| device(update) == on);
        Stream::with_current(on, |stream| launch(stream, &here))?;
        rest = others;
    }
    Ok(())
}

impl Tensor {
    /// One step of stochastic gradient descent on this parameter; see [`sgd_step`].
    ///
    /// # Errors
    /// As for [`sgd_step`].
    pub fn sgd_(&self, grad: &Tensor, momentum_buffer: Option<&Tensor>, step: SgdStep) -> Result<()> {
        sgd_step(&[SgdUpdate { param: self, grad, momentum_buffer, step }])
    }

    /// One step of Adam or AdamW on this parameter; see [`adam_step`].
    ///
    /// # Errors
    /// As for [`adam_step`].
    pub fn adam_(&self, grad: &Tensor, m: &Tensor, v: &Tensor, step: AdamStep) -> Result<()> {
        adam_step(&[AdamUpdate { param: self, grad, m, v, step }])
    }

    /// Checks a parameter and one operand of its step.
    fn step_with(&self, op: &'static str, other: &Tensor) -> Result<()> {
        is_float(op, self)?;
        same_kind(op, self, other)?;
        has_shape(op, self.shape(), other)?;
        self.writable(op)
    }
}
