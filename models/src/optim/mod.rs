//! Optimizers: in-place updates of parameters from [`Gradients`].
//!
//! A step only enqueues commands; it never waits. The engine orders each update after every command that
//! still reads the parameter, on whatever stream, so a step does not disturb a batch in flight. A parameter
//! without a gradient is left alone, with its state.
//!
//! A parameter of BF16 or F16 has its state in F32, and in it a master: the parameter in F32, which steps change. The parameter is
//! its rounded value, so that steps below a rounding error add up. Where something else has written the parameter, the master is
//! taken from it.

mod clip;
mod fused;
mod groups;
mod plateau;
mod scaler;
mod schedule;

use std::collections::HashMap;

use autograd::{Gradients, Var};
use device::{Buffer, Capture, Error, ErrorKind, Result};
use tensor::{RuleValue, Tensor};

use crate::checkpoint::{expect_fit, wrong};
use fused::zeros_in_order_of;

pub use adam::AdamKind;
pub use clip::{clip_grad_norm, clip_grad_value};
pub use fused::{Field, Fused, Kind};
pub use groups::Groups;
pub use plateau::Plateau;
pub use scaler::{GradScaler, GradScalerOptions, GradScalerState, UnscaledGradients};
pub use schedule::LrSchedule;

/// The optimizers, a file each, with the options that a learning rate stands for beside their defaults.
macro_rules! optimizers {
    ($($file:ident: $($optimizer:ident($options:ident)),+;)+) => {
        $(
            mod $file;
            pub use $file::{$($optimizer, $options),+};

            $(impl From<f64> for $options {
                /// The defaults with this learning rate.
                fn from(lr: f64) -> Self {
                    $options { lr, ..$options::default() }
                }
            })+
        )+
    };
}

optimizers! {
    adagrad: Adagrad(AdagradOptions);
    adam: Adam(AdamOptions), AdamW(AdamWOptions);
    lion: Lion(LionOptions);
    rmsprop: RmsProp(RmsPropOptions);
    sgd: Sgd(SgdOptions);
}

/// `g + weight_decay p`, or `g`.
#[inline(always)]
fn decayed<V: RuleValue>(decays: V::Flag, weight_decay: V, p: V, g: V) -> V {
    V::choose(decays, g + weight_decay * p, g)
}

/// `mean + fresh (g - mean)`; computed from the end that is nearer, which is `g` where `fresh` is at least 1/2.
#[inline(always)]
fn lerp<V: RuleValue>(near_end: V::Flag, mean: V, g: V, fresh: V) -> V {
    let way = g - mean;
    V::choose(near_end, g - way * (fresh.constant(1.0) - fresh), mean + fresh * way)
}

/// Updates parameters in place from their gradients.
pub trait Optimizer: Send + Sync {
    /// One update of every parameter that has a gradient. Those without one, such as frozen ones, are left alone.
    ///
    /// Asynchronous: ordered on the current stream after all commands that still use the parameters.
    ///
    /// # Errors
    /// `InvalidArgument` if no parameter has a gradient; `ShapeMismatch`, `DTypeMismatch` or `DeviceMismatch` for a gradient that does not fit its parameter.
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The learning rate of the next step.
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate from the next step on.
    ///
    /// # Errors
    /// `InvalidArgument` if it is negative or not finite.
    fn set_learning_rate(&mut self, lr: f64) -> Result<()>;

    /// The parameters, in the order that the state follows.
    fn parameters(&self) -> &[Var];

    /// A copy of everything that the next step depends on but parameters and gradients.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn state(&self) -> Result<OptimizerState>;

    /// Takes over a state, options and all; nothing is changed if any of it does not fit.
    ///
    /// # Errors
    /// `Checkpoint`, naming what is missing, unknown, or of the wrong kind, shape or type.
    fn load_state(&mut self, state: &OptimizerState) -> Result<()>;
}

/// A `dyn` optimizer does not know its caller; the box does.
#[derive::located]
impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        (**self).step(gradients)
    }

    fn learning_rate(&self) -> f64 {
        (**self).learning_rate()
    }

    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        (**self).set_learning_rate(lr)
    }

    fn parameters(&self) -> &[Var] {
        (**self).parameters()
    }

    fn state(&self) -> Result<OptimizerState> {
        (**self).state()
    }

    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        (**self).load_state(state)
    }
}

/// What an optimizer remembers between steps.
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// The kind of optimizer, as in `adam`.
    pub kind: String,
    /// The options with their values, flags as 0 or 1.
    pub options: Vec<(String, f64)>,
    /// Tensors named by parameter number and torch's name, as in `0.momentum_buffer`.
    pub tensors: Vec<(String, Tensor)>,
}

/// Rejects a list of parameters that no optimizer can work on.
fn check_parameters(op: &'static str, parameters: &[Var]) -> Result<()> {
    Error::require(!parameters.is_empty(), op, "parameters", "at least one", "none")?;
    // By their storage, since a model may have very many.
    let mut earlier: HashMap<*const Buffer, Vec<&Var>> = HashMap::new();
    for (number, parameter) in parameters.iter().enumerate() {
        parameter.dtype().require_float(op)?;
        let (expected, value) =
            ("leaves that require a gradient", format_args!("number {number}, which does not"));
        Error::require(parameter.is_leaf(), op, "parameters", expected, value)?;
        let earlier = earlier.entry(std::ptr::from_ref(parameter.value().buffer())).or_default();
        let is_new = !earlier.iter().any(|earlier| crate::module::same_parameter(earlier, parameter));
        Error::require(is_new, op, "parameters", "named once each", format_args!("number {number} twice"))?;
        earlier.push(parameter);
    }
    Ok(())
}

/// Reads an [`OptimizerState`] entry by entry, and knows what is left over.
struct StateReader<'a> {
    state: &'a OptimizerState,
    taken: Vec<bool>,
}

impl<'a> StateReader<'a> {
    fn new(kind: &'static str, state: &'a OptimizerState) -> Result<Self> {
        let detail = format_args!("{:?} in the state, {kind:?} expected", state.kind);
        expect_fit(state.kind == kind, "optimizer", detail)?;
        Ok(StateReader { state, taken: vec![false; state.tensors.len()] })
    }

    /// Fails for an option that the optimizer does not have.
    fn check_options(&self, is_known: impl Fn(&str) -> bool) -> Result<()> {
        let unknown = self.state.options.iter().find(|(name, _)| !is_known(name));
        let refused = |value: &f64| format!("{value} in the state, there is no such option");
        unknown.map_or(Ok(()), |(name, value)| Err(wrong(name, refused(value))))
    }

    fn option(&self, name: &str) -> Result<f64> {
        let found = self.state.options.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value).ok_or_else(|| wrong(name, "this option is missing in the state"))
    }

    /// The entry of parameter `number`, if there is one.
    fn entry(&mut self, number: usize, name: &str) -> Option<(String, &'a Tensor)> {
        let name = format!("{number}.{name}");
        let at = self.state.tensors.iter().position(|(known, _)| *known == name)?;
        self.taken[at] = true;
        Some((name, &self.state.tensors[at].1))
    }

    /// A copy of the entry of parameter `number`, in that parameter's memory order.
    fn buffer(&mut self, number: usize, name: &str, parameter: &Var) -> Result<Option<Tensor>> {
        let Some((name, tensor)) = self.entry(number, name) else { return Ok(None) };
        let (own, shape) = (tensor.shape(), parameter.shape());
        expect_fit(own == shape, &name, format_args!("shape {own:?}, the parameter has {shape:?}"))?;
        let dtype = parameter.dtype().compute_dtype();
        let detail = format_args!("type {}, the parameter's has {dtype}", tensor.dtype());
        expect_fit(tensor.dtype() == dtype, &name, detail)?;
        let copy = zeros_in_order_of(parameter.value())?;
        copy.copy_(&tensor.to_device(parameter.value().device())?)?;
        Ok(Some(copy))
    }

    /// Fails if an entry was not asked for.
    fn finish(self) -> Result<()> {
        let left = self.taken.iter().position(|taken| !taken);
        left.map_or(Ok(()), |at| Err(wrong(&self.state.tensors[at].0, "no parameter has this state")))
    }
}

/// The error for what a captured step cannot do.
#[cold]
#[track_caller]
fn refused(op: &'static str, reason: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::Captured { op, reason: reason.into() })
}

/// Refuses what replays of a captured step would not do.
#[track_caller]
fn refuse_captured(op: &'static str, reason: &'static str) -> Result<()> {
    if Capture::is_current() { Err(refused(op, reason)) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod groups_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod rule_tests;
#[cfg(test)]
mod tests;
