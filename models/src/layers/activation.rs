//! Layers without parameters.

use autograd::Var;
use autograd::ops::fused::Activation;
use device::Result;

use crate::module::Fusion;
use crate::{Forward, Module};

/// `y = max(x, 0)`, element by element; NaN stays NaN.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Relu;

#[derive::located]
impl Forward for Relu {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.relu()
    }

    fn fusion(&self) -> Fusion<'_> {
        Fusion::Activation(Activation::Relu)
    }
}

/// `y = x * Phi(x)`, exact by default, or with the tanh approximation: `Gelu(tensor::Gelu::Tanh)`.
#[derive(Clone, Copy, Debug, Module)]
pub struct Gelu(#[module(skip)] pub tensor::Gelu);

impl Default for Gelu {
    fn default() -> Self {
        Gelu(tensor::Gelu::Erf)
    }
}

#[derive::located]
impl Forward for Gelu {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.gelu(self.0)
    }
}

/// `y = x / (1 + exp(-x))`, element by element.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Silu;

#[derive::located]
impl Forward for Silu {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.silu()
    }
}

/// `y = tanh(x)`, element by element.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Tanh;

#[derive::located]
impl Forward for Tanh {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.tanh()
    }
}

/// `y = 1 / (1 + exp(-x))`, element by element.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Sigmoid;

#[derive::located]
impl Forward for Sigmoid {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.sigmoid()
    }
}
