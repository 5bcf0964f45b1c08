//! Layers without parameters.

use autograd::Var;
use device::Result;

use crate::Module;

/// `y = max(x, 0)`, element by element; NaN stays NaN.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relu;

impl Module for Relu {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.relu()
    }
}

/// `y = x * Phi(x)`, exact by default, or with the tanh approximation: `Gelu(tensor::Gelu::Tanh)`.
#[derive(Clone, Copy, Debug)]
pub struct Gelu(pub tensor::Gelu);

impl Default for Gelu {
    fn default() -> Self {
        Gelu(tensor::Gelu::Erf)
    }
}

impl Module for Gelu {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.gelu(self.0)
    }
}

/// `y = x / (1 + exp(-x))`, element by element.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silu;

impl Module for Silu {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.silu()
    }
}

/// `y = tanh(x)`, element by element.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tanh;

impl Module for Tanh {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.tanh()
    }
}

/// `y = 1 / (1 + exp(-x))`, element by element.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sigmoid;

impl Module for Sigmoid {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.sigmoid()
    }
}
