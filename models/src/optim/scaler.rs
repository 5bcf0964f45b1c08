//! Scaling of losses, so that gradients of F16 do not vanish.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use autograd::{Gradients, Var};
use device::{DType, Device, Error, Result};
use tensor::{Tensor, Tensors, unscale_all_};

use super::clip::{own, put};
use super::{Optimizer, refuse_captured};

/// Multiplies losses, so that small gradients are not rounded to 0 in F16, divides the gradients again, and leaves steps out whose
/// gradients are not finite. The factor grows while they are finite, and shrinks when they are not: torch's `GradScaler`, with its
/// defaults.
///
/// The host reads one number for each step: whether a gradient is not finite.
///
/// ```
/// use autograd::{DType, Device, Var, autocast};
/// use models::{GradScaler, Sgd};
/// use tensor::Tensor;
/// # fn main() -> device::Result<()> {
/// let dev = Device::cpu();
/// let w = Var::leaf(Tensor::ones(&[3, 2], DType::F32, &dev)?);
/// let x = Var::constant(Tensor::full(&[4, 2], 0.5, DType::F32, &dev)?);
/// let mut sgd = Sgd::new(vec![w.clone()], 0.1)?;
/// let mut scaler = GradScaler::new(&dev)?;
/// let loss = autocast(DType::F16, || x.linear(&w, None)?.square()?.mean_all())?;
/// let gradients = scaler.unscale(scaler.scale(&loss)?.backward()?)?;
/// assert!(scaler.step(&mut sgd, &gradients)?);
/// scaler.update()?;
/// # Ok(())
/// # }
/// ```
///
/// A step that is captured with [`Graph`](tensor::Graph) may scale a loss and unscale its gradients, and give
/// [`UnscaledGradients`] as its result: each replay uses the factor of the moment. [`step`](Self::step) and
/// [`update`](Self::update) follow each replay; within a capture they are refused, since the host cannot read there.
#[derive(Debug)]
pub struct GradScaler {
    options: GradScalerOptions,
    /// What the device multiplies with, without axes, F32.
    scale: Tensor,
    state: GradScalerState,
    /// Whether a step since the last update found a gradient that is not finite; `None` before the first.
    found: Option<bool>,
}

/// How a [`GradScaler`] changes its factor; the defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradScalerOptions {
    /// The first factor.
    pub init_scale: f64,
    /// What the factor is multiplied by after `growth_interval` steps.
    pub growth_factor: f64,
    /// What the factor is multiplied by after gradients that were not finite.
    pub backoff_factor: f64,
    /// How many steps in a row have to be finite before the factor grows.
    pub growth_interval: u64,
}

impl Default for GradScalerOptions {
    fn default() -> Self {
        GradScalerOptions {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
        }
    }
}

/// What a [`GradScaler`] remembers between steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradScalerState {
    /// The factor.
    pub scale: f64,
    /// Steps since it was changed.
    pub growth_tracker: u64,
}

/// Gradients that a [`GradScaler`] has divided by its factor.
#[derive(Clone, Debug)]
pub struct UnscaledGradients {
    gradients: Gradients,
    /// 1 if one is not finite, else 0, without axes.
    found: Tensor,
    /// The same, once the host has read it.
    read: OnceLock<bool>,
}

impl UnscaledGradients {
    /// Whether an element of a gradient was not finite. Waits for the device the first time.
    ///
    /// # Errors
    /// `Async` if a command that led here failed; `Captured` within a captured step.
    pub fn has_non_finite(&self) -> Result<bool> {
        if let Some(&found) = self.read.get() {
            return Ok(found);
        }
        let found = self.found.item::<f32>()? != 0.0;
        Ok(*self.read.get_or_init(|| found))
    }
}

impl Deref for UnscaledGradients {
    type Target = Gradients;

    fn deref(&self) -> &Gradients {
        &self.gradients
    }
}

impl DerefMut for UnscaledGradients {
    fn deref_mut(&mut self) -> &mut Gradients {
        &mut self.gradients
    }
}

impl Tensors for UnscaledGradients {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let gradients = self.gradients.rebuild(f)?;
        Ok(UnscaledGradients { gradients, found: f(&self.found)?, read: OnceLock::new() })
    }
}

impl GradScaler {
    /// A scaler of losses on `device`, with torch's defaults.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device) -> Result<GradScaler> {
        GradScaler::with_options(GradScalerOptions::default(), device)
    }

    /// A scaler as `options` say.
    ///
    /// # Errors
    /// `InvalidArgument` unless `init_scale` is a normal number of F32 above 0, `growth_factor` finite and above 1,
    /// `0 < backoff_factor < 1` and `growth_interval > 0`; `OutOfMemory`.
    pub fn with_options(options: GradScalerOptions, device: &Device) -> Result<GradScaler> {
        let GradScalerOptions { init_scale, growth_factor, backoff_factor, growth_interval } = options;
        let grows = growth_factor > 1.0 && growth_factor.is_finite();
        Error::require(grows, OP, "growth_factor", "above 1 and finite", growth_factor)?;
        let shrinks = backoff_factor > 0.0 && backoff_factor < 1.0;
        Error::require(shrinks, OP, "backoff_factor", "between 0 and 1", backoff_factor)?;
        Error::require(growth_interval > 0, OP, "growth_interval", "at least 1", growth_interval)?;
        let state = GradScalerState { scale: init_scale, growth_tracker: 0 };
        check_scale("init_scale", state)?;
        let scale = Tensor::full(&[], init_scale, DType::F32, device)?;
        Ok(GradScaler { options, scale, state, found: None })
    }

    /// The loss times the factor, in F32. Its gradients are to be [unscaled](Self::unscale).
    ///
    /// # Errors
    /// `OutOfMemory`; what a copy to the loss's device reports.
    pub fn scale(&self, loss: &Var) -> Result<Var> {
        loss.to_dtype(loss.dtype().promote(DType::F32))?
            .mul(&Var::constant(self.scale.to_device(loss.device())?))
    }

    /// Divides gradients by the factor, in place where nobody else has them, and finds out whether one is not finite: one
    /// command. Asynchronous.
    ///
    /// What is to see the gradients as they are, such as clipping, comes after it.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no gradients; `DTypeUnsupported` for gradients that are not F32, in which they would not be
    /// finite or vanish; `DeviceMismatch` unless all are on one device.
    pub fn unscale(&self, mut gradients: Gradients) -> Result<UnscaledGradients> {
        let Some(first) = gradients.iter().next() else {
            return Err(Error::invalid(OP, "gradients", "at least one", "none"));
        };
        if let Some(other) = gradients.iter().find(|gradient| gradient.dtype() != DType::F32) {
            return Err(Error::dtype_unsupported(OP, other.dtype(), "f32"));
        }
        let scale = self.scale.to_device(first.device())?;
        let all = gradients.iter().map(own).collect::<Result<Vec<Tensor>>>()?;
        let found = unscale_all_(&all, &scale)?;
        put(&mut gradients, all)?;
        Ok(UnscaledGradients { gradients, found, read: OnceLock::new() })
    }

    /// A step of `optimizer`, unless a gradient is not finite: then nothing is changed. Returns whether the step was made.
    ///
    /// # Errors
    /// As [`Optimizer::step`] and [`UnscaledGradients::has_non_finite`].
    pub fn step(&mut self, optimizer: &mut dyn Optimizer, gradients: &UnscaledGradients) -> Result<bool> {
        refuse_captured(OP, READS)?;
        let found = gradients.has_non_finite()?;
        if !found {
            optimizer.step(gradients)?;
        }
        self.found = Some(self.found.unwrap_or(false) || found);
        Ok(!found)
    }

    /// Changes the factor for the next step, once all optimizers have made theirs: it shrinks if gradients of one of them were
    /// not finite, and grows after enough steps whose were.
    ///
    /// # Errors
    /// `InvalidArgument` if there was no step since the last update; `Captured` within a captured step.
    pub fn update(&mut self) -> Result<()> {
        refuse_captured(OP, READS)?;
        let Some(found) = self.found else {
            return Err(Error::invalid(OP, "update", "after a step", "before one"));
        };
        let GradScalerOptions { growth_factor, backoff_factor, growth_interval, .. } = self.options;
        let GradScalerState { scale, growth_tracker } = self.state;
        let next = if found {
            // Neither to 0, nor beyond what F32 holds.
            let scale = (scale * backoff_factor).max(f64::from(f32::MIN_POSITIVE));
            GradScalerState { scale, growth_tracker: 0 }
        } else if growth_tracker.saturating_add(1) < growth_interval {
            GradScalerState { scale, growth_tracker: growth_tracker + 1 }
        } else {
            let grown = scale * growth_factor;
            let scale = if (grown as f32).is_finite() { grown } else { scale };
            GradScalerState { scale, growth_tracker: 0 }
        };
        self.set(next)?;
        self.found = None;
        Ok(())
    }

    /// What the scaler remembers, for [`Progress`](crate::checkpoint::Progress).
    pub fn state(&self) -> GradScalerState {
        self.state
    }

    /// Takes over a state.
    ///
    /// # Errors
    /// `InvalidArgument` for a factor that is not a normal number of F32 above 0; `Captured` within a captured step.
    pub fn load_state(&mut self, state: GradScalerState) -> Result<()> {
        refuse_captured(OP, READS)?;
        check_scale("scale", state)?;
        self.set(state)
    }

    fn set(&mut self, state: GradScalerState) -> Result<()> {
        if state.scale != self.state.scale {
            // In place, where captured steps read it.
            self.scale.fill_(state.scale)?;
        }
        self.state = state;
        Ok(())
    }
}

const OP: &str = "grad_scaler";

fn check_scale(argument: &'static str, GradScalerState { scale, .. }: GradScalerState) -> Result<()> {
    // The inverse of a smaller one is not finite.
    let is_normal = (f32::MIN_POSITIVE..=f32::MAX).contains(&(scale as f32));
    Error::require(is_normal, OP, argument, "a normal number of F32 above 0", scale)
}

const READS: &str = "the host reads whether the gradients are finite; give them as the step's result and call it after each replay";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
