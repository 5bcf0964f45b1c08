//! Layers, losses, optimizers, data and checkpoints.
//!
//! A model is a [`Module`], and most are [`Forward`], too; its parameters are [`autograd::Var`] leaves. An [`Optimizer`] updates their
//! storage in place, so every clone of a parameter sees the new values, and a graph recorded before the
//! update answers `VersionMismatch` instead of a wrong gradient.
//!
//! ```
//! use models::{DataLoader, Digits, Forward, LoaderOptions, Module, Optimizer, Sgd, cross_entropy, mlp};
//! # fn main() -> device::Result<()> {
//! let device = device::Device::cpu();
//! let model = mlp(&[64, 128, 10], 7, &device)?;
//! let mut sgd = Sgd::new(model.parameters(), 0.1)?;
//! let (train, _test) = Digits::load()?.split(0.2, 7)?;
//! let loader = DataLoader::new(train, LoaderOptions { batch: 64, seed: 7, ..LoaderOptions::default() })?;
//! for batch in loader.epoch(0).take(3) {
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

// What `derive(Module)` writes begins with the name of the facade, which has all that it mentions; here, too.
extern crate self as streamgrad;

pub mod checkpoint;
mod copies;
pub mod data;
mod early_stopping;
mod gradcheck;
pub mod init;
pub mod layers;
pub mod log;
mod loss;
pub mod metrics;
mod module;
pub mod optim;
pub mod random;
mod summary;

pub use copies::{copy_parameters, lerp_parameters};
pub use data::{
    Batch, DataLoader, Dataset, Digits, InMemory, LoaderOptions, Ragged, RaggedBatch, Subset, TensorDataset,
    Text, TextBatch, WeightedSampler, Windows, random_split,
};
pub use derive::Module;
pub use device::file;
pub use early_stopping::{Direction, EarlyStopping};
pub use gradcheck::gradcheck_module;
pub use layers::{
    AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, BatchNorm1d, BatchNorm2d, BatchNormOptions, Conv1d,
    Conv1dOptions, Conv2d, Conv2dOptions, ConvTranspose1d, ConvTranspose2d, Convolution1d, Dropout,
    Embedding, EmbeddingBag, EmbeddingOptions, Flatten, Gelu, GroupNorm, Gru, LayerNorm, Linear,
    LinearOptions, Lstm, MaxPool1d, MaxPool2d, MultiheadAttention, MultiheadOptions, NormOptions, Recompute,
    Recurrent, RecurrentOptions, Relu, Residual, RmsNorm, Rnn, Sequential, Sigmoid, Silu, Tanh, Unflatten,
    Upsample, UpsampleMode, UpsampleSize, mlp,
};
pub use loss::{accuracy, correct, cross_entropy, mse};
pub use module::{Forward, Module, Parts, PartsMut, Training};
pub use optim::{
    Adagrad, AdagradOptions, Adam, AdamOptions, AdamW, AdamWOptions, GradScaler, GradScalerOptions,
    GradScalerState, Groups, Lion, LionOptions, LrSchedule, Optimizer, OptimizerState, Plateau, RmsProp,
    RmsPropOptions, Sgd, SgdOptions, UnscaledGradients, clip_grad_norm, clip_grad_value,
};
pub use summary::{LayerSummary, Summary, summary};
