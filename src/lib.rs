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
//! | activation checkpointing | [`recompute`], [`Recompute`] |
//! | mixed precision | [`autocast`], [`GradScaler`] |
//! | batches at once | [`ConcurrentBatches`] |
//! | stages at once, batches made ahead | [`Pipeline`], [`Prefetch`] |
//! | where the time goes | [`Profile`], [`diagnose`], [`autograd::profile`] |
//! | layers and models of one's own | [`Linear`], [`Sequential`], [`Module`], [`Forward`] |
//! | ranks, collectives, data parallel training | [`Communicator`], [`DataParallel`] |
//! | optimizers, data, checkpoints | [`Sgd`], [`Adam`], [`DataLoader`], [`checkpoint`] |
//! | how long something takes, and how fast the device is | [`benchmark`], [`MeasuredPeaks`] |
//! | example programs, one stream against several | [`workloads`], [`workloads::compare`] |
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

pub use ::{allocator, autograd, comm, device, kernels, models, tensor};

pub use allocator::{AllocatorConfig, DeviceMemory, MemoryStats, ReusePolicy, Snapshot, allocate};
pub use autograd::{
    BackwardOptions, ConcurrentBatches, GradCheck, GradCheckReport, GradOptions, Gradients, Grads,
    LaneOptions, LaneReport, Lanes, PadMode, Pipeline, PipelineOptions, PipelineReport, PipelineSchedule,
    Prefetch, PrefetchOptions, PrefetchReport, Profile, ProfileOptions, ProfileSchedule, Profiler, Reduction,
    Save, Step, TapeEntry, Var, Vjp, autocast, defer, diagnose, grad, gradcheck, gradgradcheck, is_recording,
    no_grad, ops, recompute, record, report,
};
pub use comm::{CommModel, CommOptions, Communicator, NcclId, Reduce, ReduceOrder, Rendezvous};
pub use device::{
    Audit, CpuConfig, CudaConfig, DType, Device, DeviceKind, Element, Error, Event, Hazard, HiddenSync, Hold,
    IpcEvent, IpcHandle, Moment, Peaks, Placement, Policy, Priority, Recording, Result, Schedule, Stream,
    StreamId, StreamOptions, SyncDebug, SyncMode, SyncStats, Team, bf16, f16,
};
pub use models::data::Position;
pub use models::{
    Adam, AdamOptions, AdamW, AdamWOptions, AdaptiveAvgPool2d, AvgPool2d, Batch, BatchNorm2d,
    BatchNormOptions, Conv2d, Conv2dOptions, ConvTranspose2d, DataLoader, DataParallel, DataParallelOptions,
    Dataset, Digits, Dropout, Embedding, EmbeddingBag, EmbeddingOptions, Flatten, Forward, Gelu, GradScaler,
    GradScalerOptions, GradScalerState, GroupNorm, InMemory, LayerNorm, Linear, LinearOptions, Lion,
    LionOptions, LoaderOptions, LrSchedule, MaxPool2d, Module, MultiheadAttention, MultiheadOptions,
    Optimizer, OptimizerState, Parts, Ragged, RaggedBatch, Recompute, Relu, RmsNorm, RmsProp, RmsPropOptions,
    Sequential, Sgd, SgdOptions, Sigmoid, Silu, Tanh, TensorDataset, Text, TextBatch, Training, Unflatten,
    UnscaledGradients, Windows, accuracy, checkpoint, clip_grad_norm, clip_grad_value, correct,
    cross_entropy, data, mlp, mse, workloads,
};
pub use tensor::{
    AvgPool, BatchStatistics, ConvOptions, Explore, ExploreReport, Generator, Graph, GraphCache,
    GraphOptions, Graphs, HostCopy, Input, Layout, MaxPool, MeasuredPeaks, Order, PlanReport, PlannedCommand,
    RandomKey, Scalar, Tensor, Tensors, Timing, benchmark, explore, explore_all, next_key, seed,
    with_generator,
};

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
    pub use crate::{
        Adam, AdamOptions, AdamW, AdamWOptions, AdaptiveAvgPool2d, AvgPool2d, Batch, BatchNorm2d,
        BatchNormOptions, Communicator, ConcurrentBatches, Conv2d, Conv2dOptions, ConvTranspose2d, DType,
        DataLoader, DataParallel, Dataset, Device, DeviceMemory, Digits, Dropout, Embedding, EmbeddingBag,
        EmbeddingOptions, Event, Flatten, Forward, Gelu, GradCheck, GradScaler, Gradients, GroupNorm,
        InMemory, Lanes, LayerNorm, Linear, LinearOptions, Lion, LionOptions, LoaderOptions, LrSchedule,
        MaxPool2d, MeasuredPeaks, Module, MultiheadAttention, MultiheadOptions, Optimizer, Pipeline,
        Position, Prefetch, Profile, ProfileOptions, Recompute, Reduce, Relu, RmsNorm, RmsProp,
        RmsPropOptions, Save, Sequential, Sgd, SgdOptions, Sigmoid, Silu, Stream, Tanh, Tensor,
        TensorDataset, Text, TextBatch, Unflatten, Var, Windows, accuracy, autocast, benchmark, checkpoint,
        clip_grad_norm, clip_grad_value, cross_entropy, grad, gradcheck, gradgradcheck, mlp, mse, no_grad,
        recompute, record,
    };
}
