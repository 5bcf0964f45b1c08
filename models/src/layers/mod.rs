//! Layers: the modules that models are made of.

mod activation;
mod attention;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod linear;
mod norms;
mod parameters;
mod pool;
mod recompute;
mod sequential;
mod shape;

pub use activation::{Gelu, Relu, Sigmoid, Silu, Tanh};
pub use attention::{MultiheadAttention, MultiheadOptions};
pub use batch_norm::{BatchNorm2d, BatchNormOptions};
pub use conv::{Conv2d, Conv2dOptions, ConvTranspose2d};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingBag, EmbeddingOptions};
pub use linear::{Linear, LinearOptions};
pub use norms::{GroupNorm, LayerNorm, NormOptions, RmsNorm};
pub use parameters::part_of;
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
pub use recompute::Recompute;
pub use sequential::{Sequential, mlp};
pub use shape::{Flatten, Unflatten};

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod sequence_tests;
#[cfg(test)]
mod tests;
