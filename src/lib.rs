//! A tensor and autograd engine in which streams are first-class.
//!
//! The tape records the stream of each op, so a backward pass runs where its forward pass ran; a caching allocator
//! defers frees across streams; two batches run forward and backward at once. What waits for what is worked out from
//! what each op reads and writes: a program on several streams gives, bit for bit, what it gives on one.
//!
//! ```
//! use streamgrad::prelude::*;
//!
//! # fn main() -> streamgrad::Result<()> {
//! let dev = Device::best();
//! let model = mlp(&[64, 128, 10], 7, &dev)?;
//! let mut sgd = Sgd::new(model.parameters(), 0.05)?;
//! let options = LoaderOptions { batch: 64, device: dev.clone(), ..LoaderOptions::default() };
//! let loader = DataLoader::new(Digits::load()?, options)?;
//! let lanes = ConcurrentBatches::new(&dev, 2)?;
//! for pair in loader.steps(2, Position::default())?.take(20) {
//!     // Forward and backward of an even and an odd batch, each on a stream of its own.
//!     let step = lanes.step(pair?, |batch| cross_entropy(&model.forward(&batch.input())?, &batch.labels))?;
//!     sgd.step(&step.gradients)?;
//! }
//! println!("{} bytes are live", dev.memory_stats().allocated_bytes);
//! # Ok(())
//! # }
//! ```
//!
//! | what | where |
//! |---|---|
//! | devices, streams, events | [`Device`], [`Stream`], [`Event`] |
//! | memory: statistics, limits, snapshots | [`DeviceMemory`] |
//! | data | [`Tensor`], [`tensor::Operand`] for `+`, `-`, `*` and `/` |
//! | gradients | [`Var`], [`Gradients`], [`grad`], [`gradcheck`], [`ops`] |
//! | activation checkpointing | [`recompute`], [`nn::Recompute`] |
//! | mixed precision | [`autocast`], [`optim::GradScaler`] |
//! | batches at once | [`ConcurrentBatches`] |
//! | stages at once, batches made ahead | [`Pipeline`], [`Prefetch`] |
//! | layers and models of one's own | [`nn`], [`Module`], [`Forward`] |
//! | optimizers, data, checkpoints | [`optim`], [`DataLoader`], [`checkpoint`] |
//! | where the time goes, and how long something takes (feature `profile`) | `streamgrad::profile` |
//! | ranks, collectives, data parallel training (feature `comm`) | `streamgrad::comm` |
//! | one stream against several, and every schedule (feature `compare`) | `streamgrad::compare` |
//!
//! Each crate below is there under its own name, too, as in [`mod@tensor`], with all that its items mention. Examples beside
//! these items begin with those names, and so compile behind
//!
//! ```
//! use streamgrad::{allocator, autograd, device, kernels, models, tensor};
//!
//! // As beside the items of `models`:
//! use models::{Module, mlp};
//! let model = mlp(&[64, 128, 10], 7, &device::Device::cpu())?;
//! assert_eq!(model.parameters().len(), 4);
//! # Ok::<(), device::Error>(())
//! ```
#![forbid(unsafe_code)]

pub use ::{allocator, autograd, device, kernels, models, tensor};
#[cfg(feature = "comm")]
pub use ::comm;
#[cfg(feature = "compare")]
pub use ::compare;
#[cfg(feature = "profile")]
pub use ::profile;

pub use allocator::{AllocatorConfig, DeviceMemory, MemoryStats, ReusePolicy, Snapshot, allocate};
pub use autograd::{
    BackwardOptions, BatchResult, ConcurrentBatches, GradCheck, GradCheckReport, GradOptions, Gradients,
    Grads, LaneOptions, LaneReport, Lanes, PadMode, Pipeline, PipelineOptions, PipelineReport,
    PipelineSchedule, Prefetch, PrefetchOptions, PrefetchReport, Reduction, Save, Step, TapeEntry, Var, Vjp,
    autocast, defer, grad, grad_of, gradcheck, gradcheck_leaves, gradgradcheck, hvp, is_recording, jacobian,
    jvp, no_grad, ops, recompute, record, with_grad,
};
pub use device::{
    Audit, CpuConfig, CudaConfig, DType, Device, DeviceKind, Element, Error, ErrorKind, Event, Hazard,
    HiddenSync, Hold, IpcEvent, IpcHandle, Moment, Peaks, Placement, Policy, Priority, Recording, Result,
    Schedule, Stream, StreamId, StreamOptions, SyncDebug, SyncMode, SyncStats, Team, bf16, f16,
};
pub use models::data::Position;
pub use models::{
    Batch, DataLoader, Dataset, Digits, Direction, EarlyStopping, Forward, InMemory, LayerSummary,
    LoaderOptions, Module, Parts, PartsMut, Ragged, RaggedBatch, Subset, Summary, TensorDataset, Text,
    TextBatch, Training, WeightedSampler, Windows, accuracy, checkpoint, copy_parameters, correct,
    cross_entropy, data, gradcheck_module, lerp_parameters, log, metrics, mse, random_split, summary,
};
pub use tensor::{
    AvgPool, BatchStatistics, ConvOptions, Generator, Graph, GraphCache, GraphOptions, Graphs, HostCopy,
    Input, Layout, MaxPool, Order, PlanReport, PlannedCommand, RandomKey, Scalar, Tensor, Tensors, next_key,
    seed, with_generator,
};

/// Layers.
pub mod nn {
    pub use models::{
        AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, BatchNorm1d, BatchNorm2d, BatchNormOptions, Conv1d,
        Conv1dOptions, Conv2d, Conv2dOptions, ConvTranspose1d, ConvTranspose2d, Dropout, Embedding,
        EmbeddingBag, EmbeddingOptions, Flatten, Gelu, GroupNorm, Gru, LayerNorm, Linear, LinearOptions,
        Lstm, MaxPool1d, MaxPool2d, MultiheadAttention, MultiheadOptions, NormOptions, Recompute, Recurrent,
        RecurrentOptions, Relu, Residual, RmsNorm, Rnn, Sequential, Sigmoid, Silu, Tanh, Unflatten, Upsample,
        UpsampleMode, UpsampleSize, init, mlp, sequential,
    };
    pub use tensor::GeluKind;
}

/// Optimizers, learning rates, gradient clipping and scaling.
pub mod optim {
    pub use models::{
        Adagrad, AdagradOptions, Adam, AdamOptions, AdamW, AdamWOptions, GradScaler, GradScalerOptions,
        GradScalerState, Groups, Lion, LionOptions, LrSchedule, Optimizer, OptimizerState, Plateau, RmsProp,
        RmsPropOptions, Sgd, SgdOptions, UnscaledGradients, clip_grad_norm, clip_grad_value,
    };
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/streams.md")]
struct StreamContract;

#[cfg(doctest)]
#[doc = include_str!("../docs/distributed.md")]
struct Distributed;

#[cfg(doctest)]
#[doc = include_str!("../docs/mixed-precision.md")]
struct MixedPrecision;

#[cfg(doctest)]
#[doc = include_str!("../docs/profiling.md")]
struct Profiling;

#[cfg(doctest)]
#[doc = include_str!("../docs/adding-an-op.md")]
struct AddingAnOp;

/// What a training loop and an op of one's own need: `use streamgrad::prelude::*;`.
///
/// [`Result`] and [`Error`] stay at `streamgrad::`, so that they do not hide those of the standard library.
pub mod prelude {
    #[cfg(feature = "comm")]
    pub use crate::comm::{Communicator, DataParallel, Reduce, TensorCollectives, VarCollectives};
    pub use crate::nn::*;
    pub use crate::optim::{
        Adagrad, AdagradOptions, Adam, AdamOptions, AdamW, AdamWOptions, GradScaler, Groups, Lion,
        LionOptions, LrSchedule, Optimizer, RmsProp, RmsPropOptions, Sgd, SgdOptions, clip_grad_norm,
        clip_grad_value,
    };
    #[cfg(feature = "profile")]
    pub use crate::profile::{MeasuredPeaks, Profile, ProfileOptions, benchmark};
    pub use crate::{
        Batch, ConcurrentBatches, DType, DataLoader, Dataset, Device, DeviceMemory, Digits, Event, Forward,
        GradCheck, Gradients, InMemory, Lanes, LoaderOptions, Module, Pipeline, Position, Prefetch, Save,
        Stream, Tensor, TensorDataset, Text, TextBatch, Var, Windows, accuracy, autocast, checkpoint,
        cross_entropy, grad, grad_of, gradcheck, gradcheck_module, gradgradcheck, hvp, jacobian, jvp, mse,
        no_grad, recompute, record,
    };
}
