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

/// Layers that are a method of [`Var`] without arguments.
macro_rules! elementwise {
    ($($(#[$doc:meta])* $layer:ident: $op:ident;)+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Module)]
        pub struct $layer;

        #[derive::located]
        impl Forward for $layer {
            fn forward(&self, input: &Var) -> Result<Var> {
                input.$op()
            }
        })+
    };
}

elementwise! {
    /// `y = x / (1 + exp(-x))`, element by element.
    Silu: silu;

    /// `y = tanh(x)`, element by element.
    Tanh: tanh;

    /// `y = 1 / (1 + exp(-x))`, element by element.
    Sigmoid: sigmoid;
}
