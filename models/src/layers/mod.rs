//! Layers: the modules that models are made of.

mod activation;
mod batch_norm;
mod conv;
mod dropout;
mod first_values;
mod linear;
mod pool;
mod sequential;
mod shape;

pub use activation::{Gelu, Relu, Sigmoid, Silu, Tanh};
pub use batch_norm::{BatchNorm2d, BatchNormOptions};
pub use conv::{Conv2d, Conv2dOptions, ConvTranspose2d};
pub use dropout::Dropout;
pub use linear::{Linear, LinearOptions};
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
pub use sequential::Sequential;
pub use shape::{Flatten, Unflatten};

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod tests;
