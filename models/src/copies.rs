//! Values that go from one model to another.

use device::{Error, Result};
use tensor::Tensor;

use crate::Module;
use crate::checkpoint::{expect_fit, state, wrong};
use crate::module::same_place;

/// Copies the parameters and buffers of `from` into those of `to`, which have the same names and shapes.
///
/// # Errors
/// `Checkpoint` with the name of a parameter or buffer that only one of them has, or that has another shape or type. Nothing has
/// changed then.
#[derive::located]
pub fn copy_parameters(to: &dyn Module, from: &dyn Module) -> Result<()> {
    pairs(to, from)?.into_iter().try_for_each(|(to, from)| to.copy_(&from.to_device(to.device())?))
}

/// Moves the parameters of `to` towards those of `from` by a share of the distance, `p += weight (q - p)`, and copies buffers.
///
/// The exponential moving average of a model with the decay `d` is a second model that is moved by `1 - d` after each step;
/// so is the target network of reinforcement learning.
///
/// ```
/// # use models::{Module, copy_parameters, lerp_parameters, mlp};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let (model, average) = (mlp(&[4, 2], 1, &dev)?, mlp(&[4, 2], 2, &dev)?);
/// copy_parameters(&average, &model)?;
/// // ... a step of the optimizer, and then
/// lerp_parameters(&average, &model, 1.0 - 0.999)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As for [`copy_parameters`]; `InvalidArgument` for a weight that is not between 0 and 1.
#[derive::located]
pub fn lerp_parameters(to: &dyn Module, from: &dyn Module, weight: f64) -> Result<()> {
    Error::require((0.0..=1.0).contains(&weight), "lerp_parameters", "weight", "between 0 and 1", weight)?;
    let parameters = to.parameters();
    let is_parameter = |tensor: &Tensor| parameters.iter().any(|own| same_place(own.value(), tensor));
    pairs(to, from)?.into_iter().try_for_each(|(to, from)| {
        let from = from.to_device(to.device())?;
        if !is_parameter(&to) {
            return to.copy_(&from);
        }
        let dtype = to.dtype().compute_dtype();
        let (own, other) = (to.to_dtype(dtype)?, from.to_dtype(dtype)?);
        let way = other.sub(&own)?;
        // From the end that is nearer.
        let moved = match weight < 0.5 {
            true => own.add(&way.mul_scalar(weight)?)?,
            false => other.sub(&way.mul_scalar(1.0 - weight)?)?,
        };
        to.copy_(&moved.to_dtype(to.dtype())?)
    })
}

/// The parameters and buffers of two modules by their names.
fn pairs(to: &dyn Module, from: &dyn Module) -> Result<Vec<(Tensor, Tensor)>> {
    let (to, from) = (state(to), state(from));
    let has = |list: &[(String, Tensor)], name: &str| list.iter().any(|(other, _)| other == name);
    if let Some((name, _)) = from.iter().find(|(name, _)| !has(&to, name)) {
        return Err(wrong(name, "only the model that is copied from has it"));
    }
    let other = |name: &str| from.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor.clone());
    let pair = |(name, own): &(String, Tensor)| -> Result<(Tensor, Tensor)> {
        let other = other(name).ok_or_else(|| wrong(name, "only the model that is copied to has it"))?;
        let form = |tensor: &Tensor| format!("{}{:?}", tensor.dtype(), tensor.shape());
        let fits = own.shape() == other.shape() && own.dtype() == other.dtype();
        expect_fit(fits, name, format_args!("{}, where {} is copied", form(own), form(&other)))?;
        Ok((own.clone(), other))
    };
    to.iter().map(pair).collect()
}
