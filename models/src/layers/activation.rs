//! Layers without parameters.

use autograd::Var;
use autograd::ops::fused::Activation;
use device::Result;

use crate::{Forward, Module};

/// `y = max(x, 0)`, element by element; NaN stays NaN.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Relu;

#[derive::located]
impl Forward for Relu {
    fn forward(&self, input: &Var) -> Result<Var> {
        input.relu()
    }

    fn activation(&self) -> Activation {
        Activation::Relu
    }
}

applied! {
    /// `y = x * Phi(x)`, exact by default, or with the tanh approximation: `Gelu(tensor::GeluKind::Tanh)`.
    Gelu(tensor::GeluKind): |x, gelu| x.gelu(gelu.0);

    /// `y = x / (1 + exp(-x))`, element by element.
    #[derive(Default)]
    Silu: |x, _silu| x.silu();

    /// `y = tanh(x)`, element by element.
    #[derive(Default)]
    Tanh: |x, _tanh| x.tanh();

    /// `y = 1 / (1 + exp(-x))`, element by element.
    #[derive(Default)]
    Sigmoid: |x, _sigmoid| x.sigmoid();
}

impl Default for Gelu {
    fn default() -> Self {
        Gelu(tensor::GeluKind::Erf)
    }
}
