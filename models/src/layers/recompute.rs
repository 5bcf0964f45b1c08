//! A module whose activations are computed again in the backward pass.

use std::sync::Arc;

use autograd::{Var, recompute};
use device::{AtCaller, Result};

use crate::{Forward, Module};

/// A module that keeps none of its activations for the backward pass, and computes them again there:
/// [`recompute`](autograd::recompute). Its parameters have the names that they have without.
///
/// ```
/// use models::{Linear, Module, Recompute, Sequential, Tanh};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let block = || Ok::<_, device::Error>(Sequential::new().push(Linear::new(8, 8, &dev)?).push(Tanh));
/// let model = Sequential::new().push(Recompute::new(block()?)).push(Recompute::new(block()?));
/// assert_eq!(model.named_parameters()[2].0, "1.0.weight");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Module)]
pub struct Recompute<M: Module> {
    #[module(flatten)]
    module: Arc<M>,
}

impl<M: Forward> Recompute<M> {
    /// The module, recomputed.
    pub fn new(module: M) -> Recompute<M> {
        Recompute { module: Arc::new(module) }
    }
}

#[derive::located]
impl<M: Forward + 'static> Forward for Recompute<M> {
    fn forward(&self, input: &Var) -> Result<Var> {
        let (module, caller) = (Arc::clone(&self.module), AtCaller::location());
        let forward = move |input: &Var| {
            let _at = module.is_located().then(|| AtCaller::enter_at(caller));
            module.forward(input)
        };
        recompute(forward, input)
    }
}
