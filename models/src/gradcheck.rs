//! Gradients of a module's parameters against numeric derivatives.

use autograd::{GradCheck, GradCheckReport, Var, gradcheck_leaves};
use device::{AtCaller, Error, Result};

use crate::Module;

/// Checks the gradients of a loss with respect to every parameter of `model` that is not frozen, against numeric derivatives.
///
/// As [`gradcheck_leaves`]: parameters are changed in place, one element after the other, and have their values again
/// afterwards; of large ones a seeded sample of [`GradCheck::elements`] is checked. Errors name the parameter by its path, as in
/// `layers.0.weight`. The calling thread waits for the current stream of the parameters' devices.
///
/// ```
/// use autograd::{GradCheck, Var};
/// use device::{DType, Device, Result};
/// use models::{Forward, gradcheck_module, mlp};
/// # fn main() -> Result<()> {
/// let model = mlp(&[3, 5, 2], 7, &Device::cpu())?;
/// let x = Var::constant(tensor::Tensor::ones(&[4, 3], DType::F32, &Device::cpu())?);
/// let report = gradcheck_module(&model, |m| m.forward(&x)?.square()?.sum_all(), GradCheck::default())?;
/// assert_eq!((report.checked, report.undecided), (15 + 5 + 10 + 2, 0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`gradcheck_leaves`]; `InvalidArgument` if all parameters are frozen.
#[derive::located]
pub fn gradcheck_module<M: Module + ?Sized, O: Into<Vec<Var>>>(
    model: &M,
    loss: impl Fn(&M) -> Result<O>,
    options: GradCheck,
) -> Result<GradCheckReport> {
    let mut parameters = model.named_parameters();
    let all = parameters.len();
    parameters.retain(|(_, parameter)| parameter.requires_grad());
    let expected = "one with a parameter that is not frozen";
    let value = format_args!("one with {all} parameters, all of them frozen");
    Error::require(!parameters.is_empty(), "gradcheck_module", "model", expected, value)?;
    gradcheck_leaves(|| AtCaller::user(|| loss(model)), &parameters, options)
}

#[cfg(test)]
mod tests;
