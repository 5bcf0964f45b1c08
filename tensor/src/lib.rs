//! Strided tensors on streams, with every op that needs no gradient.
//!
//! A [`Tensor`] is a shared storage, a [`Layout`] over it and a [`DType`]. Ops run on the current [`Stream`]
//! of the tensors' device and return at once; the device orders them by what they read and write, so a
//! tensor may be used on any stream. A host read waits only for the last write of what it reads.
//!
//! - Names, broadcasting, negative axes and the treatment of NaN follow torch and NumPy.
//! - Elementwise ops of two operands, comparisons and choices promote mixed types, see [`Tensor::result_type`]; elsewhere,
//!   and in place, mixed types are `DTypeMismatch`. Scalars take the tensor's type.
//! - BF16 and F16 are computed in F32, sums too, and each result is rounded once, to nearest even.
//! - `+`, `-`, `*` and `/` are the methods of their names, and take numbers and results; see [`Operand`].
//! - Tensors are values; the ops whose name ends in `_` write in place and count the storage's version up.
//!
//! ```
//! use tensor::{DType, Device, Tensor};
//!
//! # fn main() -> tensor::Result<()> {
//! let device = Device::cpu();
//! let x = Tensor::arange(0, 6, 1, DType::F32, &device)?.reshape(&[2, 3])?;
//! let bias = Tensor::from_slice(&[10.0_f32, 20.0, 30.0], &[3], &device)?;
//! let y = x.add(&bias)?.sum(&[1], false)?;
//! assert_eq!(y.to_vec::<f32>()?, [63.0, 72.0]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod attention;
mod batch_norm;
mod bytes;
mod check;
mod clip;
mod command;
mod conv;
mod create;
mod custom;
mod display;
mod elementwise;
mod embedding_bag;
/// Ops with their activation in the same command, for `autograd`.
#[doc(hidden)]
pub mod fused {
    pub use kernels::Activation;

    pub use crate::batch_norm::batch_norm;
    pub use crate::conv::{conv_transpose2d, conv2d};
    pub use crate::matmul::linear;
}
pub mod grad;
mod graph;
mod graphs;
mod image;
mod index;
mod inplace;
mod ipc;
mod logic;
mod loss;
mod matmul;
#[cfg(feature = "ndarray")]
mod ndarray;
mod normalize;
mod operators;
mod optim;
mod order;
mod pad;
mod pool;
mod random;
mod rearrange;
mod reduce;
mod sequence;
mod tensor;
mod transfer;
mod triangle;
mod unary;
mod view;

pub use attention::{Attended, Attention};
pub use batch_norm::BatchStatistics;
pub use clip::{scale_all_, total_norm, unscale_all_};
pub use conv::ConvOptions;
pub use custom::custom;
pub use device::{
    Capture, DType, Device, Element, Error, ErrorKind, GraphOptions, IpcHandle, Order, PlanReport,
    PlannedCommand, Result, Stream, bf16, f16,
};
pub use elementwise::Comparand;
pub use embedding_bag::Bags;
pub use graph::{EachReplay, Graph, Input, Tensors, each_replay, fresh_slot};
pub use graphs::{GraphCache, Graphs};
pub use index::check_picked;
pub use kernels::{
    Arg, BinaryGradOp, BinaryOp, CompareOp, CustomKernel, Dropout, Grid, KernelLaunch, Layout, NormRows,
    Program, RandomKey, Rule, RuleStep, RuleValue, Sampling, Saves, Scalar, StepNumbers, UnaryOp, View,
    philox, preload,
};
pub use normalize::{Norm, NormGradients, Normalized};
pub use operators::Operand;
pub use optim::{Update, accumulate, optimizer_step};
pub use pool::{AvgPool, MaxPool};
pub use random::{Generator, draw_as_rank, next_child, next_key, seed, with_generator};
pub use tensor::Tensor;
pub use transfer::HostCopy;
pub use unary::GeluKind;
