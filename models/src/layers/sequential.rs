//! Modules one after another.

use autograd::Var;
use device::Result;

use crate::{Module, Parts};

/// Feeds each module's output to the next; parameters are named by position, as in `0.weight`.
///
/// ```
/// use models::{Linear, Module, Relu, Sequential};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let model = Sequential::new().push(Linear::new(4, 8, &dev)?).push(Relu).push(Linear::new(8, 2, &dev)?);
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Sequential {
    modules: Vec<Box<dyn Module>>,
}

impl Sequential {
    /// No modules yet: the identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module at the end.
    #[must_use]
    pub fn push(mut self, module: impl Module + 'static) -> Self {
        self.modules.push(Box::new(module));
        self
    }

    /// The number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether there are no modules.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }
}

impl Module for Sequential {
    fn forward(&self, input: &Var) -> Result<Var> {
        let Some((first, rest)) = self.modules.split_first() else { return Ok(input.clone()) };
        rest.iter().try_fold(first.forward(input)?, |value, module| module.forward(&value))
    }

    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        for (index, module) in self.modules.iter().enumerate() {
            parts.child(index.to_string(), module);
        }
    }
}
