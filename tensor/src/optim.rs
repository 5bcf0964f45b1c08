//! Steps of optimizers, fused: one command a device for all parameters.

use device::{DType, Device, Result, Stream};
use kernels::{Accumulated, RuleStep};

use crate::Tensor;
use crate::check::same_device;

/// One parameter's part in a step.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The parameter, which is changed in place.
    pub param: &'a Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// The parameter in F32, if it is BF16 or F16 itself: what is stepped, and then rounded to the parameter. Elements that do not
    /// round to the parameter are taken from it first, so that it may be zeros before the first step.
    pub master: Option<&'a Tensor>,
    /// What the rule remembers, and changes in place: one for each of [`RuleStep::states`], zeros before the first step.
    pub states: &'a [Tensor],
    /// What is done, with its numbers.
    pub step: RuleStep,
}

impl<'a> Update<'a> {
    /// What it is launched with: those of one device and one type, if they have masters.
    fn form(&self) -> (&'a Device, Option<DType>) {
        (self.param.device(), self.master.map(|_| self.param.dtype))
    }

    fn view(&self) -> kernels::Update<'a> {
        kernels::Update {
            param: self.param.view(),
            grad: self.grad.view(),
            master: self.master.map(Tensor::view),
            states: self.states.iter().map(Tensor::view).collect(),
            step: self.step,
        }
    }
}

/// `sum += addend` for each pair, in place: one command a device for those of F32 and F64.
///
/// Shapes and types: alike in each pair. Asynchronous, on the current stream.
///
/// # Errors
/// As for [`optimizer_step`].
#[derive::located]
pub fn accumulate(pairs: &[(Tensor, Tensor)]) -> Result<()> {
    let step = RuleStep::new(Accumulated, [], []);
    let mut updates = Vec::with_capacity(pairs.len());
    for (sum, addend) in pairs {
        match sum.dtype {
            DType::F32 | DType::F64 => {
                updates.push(Update { param: sum, grad: addend, master: None, states: &[], step })
            }
            _ => sum.add_(addend)?,
        }
    }
    optimizer_step(&updates)
}

/// One step of optimizers' rules on several parameters, in one command a device, and one for each type of those with masters.
///
/// Shapes: gradient, states and master like their parameter. Asynchronous, on the current stream, ordered after every earlier
/// use of what it writes.
///
/// ```
/// use tensor::{Device, Rule, RuleStep, RuleValue, Tensor, Update, optimizer_step};
///
/// struct Descent;
///
/// impl Rule<0, 1> for Descent {
///     const OP: &'static str = "descent";
///     const STATES: [&'static str; 0] = [];
///
///     fn step<V: RuleValue>([lr]: [V; 1], _: [V::Flag; 0], p: V, g: V, _: [V; 0]) -> (V, [V; 0]) {
///         (p - lr * g, [])
///     }
/// }
///
/// # fn main() -> tensor::Result<()> {
/// let [param, grad] = [3.0, 2.0].map(|value: f64| Tensor::scalar(value, &Device::cpu()));
/// let (param, grad) = (param?, grad?);
/// let step = RuleStep::new(Descent, [0.5], []);
/// optimizer_step(&[Update { param: &param, grad: &grad, master: None, states: &[], step }])?;
/// assert_eq!(param.item::<f64>()?, 2.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `DeviceMismatch`; `InvalidArgument` if there are not as many
/// states as the rule has, or for an expanded target. Nothing on that device is changed then.
#[derive::located]
pub fn optimizer_step(updates: &[Update<'_>]) -> Result<()> {
    for Update { param, grad, master, states, step } in updates {
        states
            .iter()
            .chain([*grad])
            .chain(*master)
            .try_for_each(|other| same_device(step.op(), param, other, "gradient or state"))?;
    }
    let mut rest: Vec<&Update<'_>> = updates.iter().collect();
    while let Some(first) = rest.first() {
        let form = first.form();
        let (here, others): (Vec<&Update<'_>>, _) =
            rest.iter().copied().partition(|update| update.form() == form);
        let views: Vec<_> = here.iter().map(|update| update.view()).collect();
        Stream::with_current(form.0, |stream| kernels::optimizer_step(stream, &views))?;
        for update in here {
            let written = update.states.iter().chain([update.param]).chain(update.master);
            written.for_each(|written| written.storage.bump_version());
        }
        rest = others;
    }
    Ok(())
}
