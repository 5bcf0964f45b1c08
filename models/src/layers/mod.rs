//! Layers: the modules that models are made of.

mod activation;
mod attention;
mod dropout;
mod embedding;
mod linear;
mod norms;
mod parameters;
mod sequential;

pub use activation::{Flatten, Gelu, Relu, Sigmoid, Silu, Tanh};
pub use attention::{MultiheadAttention, MultiheadOptions};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingBag, EmbeddingOptions};
pub use linear::{Linear, LinearOptions};
pub use norms::{GroupNorm, LayerNorm, RmsNorm};
pub(crate) use parameters::part_of;
pub use sequential::Sequential;

#[cfg(test)]
mod sequence_tests;
#[cfg(test)]
mod tests;
