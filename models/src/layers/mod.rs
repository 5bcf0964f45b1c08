//! Layers: the modules that models are made of.

mod activation;
mod dropout;
mod linear;
mod sequential;

pub use activation::{Flatten, Gelu, Relu, Sigmoid, Silu, Tanh};
pub use dropout::Dropout;
pub use linear::{Linear, LinearOptions};
pub use sequential::Sequential;

#[cfg(test)]
mod tests;
