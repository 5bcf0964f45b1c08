//! Layers: the modules that models are made of.

/// Layers that are a method of [`Var`], with the options that they consist of.
macro_rules! applied {
    ($($(#[$attribute:meta])* $layer:ident $(($options:ty))?: |$input:ident, $own:ident| $value:expr;)+) => {
        $($(#[$attribute])*
        #[derive(Clone, Copy, Debug, Module)]
        pub struct $layer $((#[module(skip)] pub $options))?;

        #[derive::located]
        impl Forward for $layer {
            fn forward(&self, $input: &Var) -> Result<Var> {
                let $own = self;
                $value
            }
        })+
    };
}

mod activation;
mod attention;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod linear;
mod norms;
mod one_dim;
mod parameters;
mod pool;
mod recompute;
mod recurrent;
mod sequential;
mod shape;

use autograd::Var;
use autograd::ops::fused::Activation;
use device::Result;

use crate::Forward;

pub use autograd::ops::{UpsampleMode, UpsampleSize};

pub use activation::{Gelu, Relu, Sigmoid, Silu, Tanh};
pub use attention::{MultiheadAttention, MultiheadOptions};
pub use batch_norm::{BatchNorm1d, BatchNorm2d, BatchNormOptions};
pub use conv::{Conv, Conv2d, Conv2dOptions, ConvTranspose2d};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingBag, EmbeddingOptions};
pub use linear::{Linear, LinearOptions};
pub use norms::{GroupNorm, LayerNorm, NormOptions, RmsNorm};
pub use one_dim::{AvgPool1d, Conv1d, Conv1dOptions, ConvTranspose1d, Convolution1d, MaxPool1d};
pub use parameters::part_of;
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d, Upsample};
pub use recompute::Recompute;
pub use recurrent::{Gru, Lstm, Recurrent, RecurrentOptions, Rnn};
pub use sequential::{Residual, Sequential, mlp};
pub use shape::{Flatten, Unflatten};

/// `Forward` of layers that apply an activation in the same command.
macro_rules! fusing {
    ($($layer:ident)+) => {
        $(#[derive::located]
        impl Forward for $layer {
            fn forward(&self, input: &Var) -> Result<Var> {
                self.with_activation(input, Activation::None)
            }

            fn activated(&self, input: &Var, activation: Activation) -> Option<Result<Var>> {
                Some(self.with_activation(input, activation))
            }
        })+
    };
}
fusing!(BatchNorm2d Conv2d ConvTranspose2d Linear);

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod recurrent_tests;
#[cfg(test)]
mod sequence_tests;
#[cfg(test)]
mod tests;
