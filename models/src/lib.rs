//! Layers, losses, optimizers, data and checkpoints.
//!
//! A model is a [`Module`]; its parameters are [`autograd::Var`] leaves. An [`Optimizer`] updates their
//! storage in place, so every clone of a parameter sees the new values, and a graph recorded before the
//! update answers `VersionMismatch` instead of a wrong gradient.
//!
//! ```
//! use models::{Batches, Digits, Module, Optimizer, Sgd, SgdOptions, cross_entropy, digits_mlp};
//! # fn main() -> device::Result<()> {
//! let device = device::Device::cpu();
//! let model = digits_mlp(7, &device)?;
//! let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
//! let (train, _test) = Digits::load()?.split(0.2, 7)?;
//! for batch in Batches::new(train, 64, 7, &device)?.epoch(0).take(3) {
//!     let batch = batch?;
//!     let logits = model.forward(&batch.input())?;
//!     let gradients = cross_entropy(&logits, &batch.labels)?.backward()?;
//!     sgd.step(&gradients)?;
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod autoencoder;
mod branches;
pub mod checkpoint;
pub mod compare;
pub mod data;
mod dlrm;
pub mod file;
mod gpt;
pub mod layers;
mod loss;
mod module;
pub mod optim;
mod random;
pub mod workloads;
mod zoo;

pub use autoencoder::{EncoderDecoder, PyramidOptions, decoder, encoder, pixel_cross_entropy};
pub use branches::Branches;
pub use data::{
    Batch, Batches, ClickLog, ClickOptions, Digits, Images, InMemory, Ragged, RaggedBatch, StepBatches, Text,
    TextBatch, Windows,
};
pub use dlrm::{Dlrm, DlrmOptions};
pub use gpt::{Gpt, GptBlock, GptOptions};
pub use layers::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm2d, BatchNormOptions, Conv2d, Conv2dOptions, ConvTranspose2d,
    Dropout, Embedding, EmbeddingBag, EmbeddingOptions, Flatten, Gelu, GroupNorm, LayerNorm, Linear,
    LinearOptions, MaxPool2d, MultiheadAttention, MultiheadOptions, Relu, RmsNorm, Sequential, Sigmoid, Silu,
    Tanh, Unflatten,
};
pub use loss::{accuracy, correct, cross_entropy, mse};
pub use module::{Module, Parts};
pub use optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, Lion, LionOptions, LrSchedule, Optimizer, OptimizerState,
    RmsProp, RmsPropOptions, Sgd, SgdOptions, clip_grad_norm, clip_grad_value,
};
pub use workloads::{Evaluation, Model, Overlap, Workload};
pub use zoo::{digits_mlp, lenet, mlp};
