//! Gradients for `tensor`: a tape that records each op's stream, and a backward pass that runs each op's gradient
//! on the stream that its forward pass ran on.
//!
//! A [`Var`] is a tensor and, where a gradient may flow, its place on the tape. Gradients are values:
//! [`Var::backward`] returns [`Gradients`], and shared leaves have no gradient field that two batches could
//! disturb.

#![forbid(unsafe_code)]

mod autocast;
mod backward;
mod derivatives;
mod gradcheck;
mod gradients;
mod mode;
pub mod ops;
pub mod pipeline;
mod place;
mod recompute;
mod tape;

pub use autocast::autocast;
pub use backward::{BackwardOptions, GradOptions, grad};
pub use derivatives::{grad_of, hvp, jacobian, jvp};
pub use gradcheck::{GradCheck, GradCheckReport, gradcheck, gradcheck_leaves, gradgradcheck};
pub use gradients::Gradients;
pub use mode::{is_recording, no_grad, with_grad};
#[doc(hidden)]
pub use ops::record_one;
pub use ops::{PadMode, Reduction};
pub use pipeline::{
    BatchResult, ConcurrentBatches, LaneOptions, LaneReport, Lanes, Pipeline, PipelineOptions,
    PipelineReport, PipelineSchedule, Prefetch, PrefetchOptions, PrefetchReport, Step, defer,
};
pub use recompute::recompute;
pub use tape::{Grads, HookHandle, Save, TapeEntry, Var, VarId, Vjp, record};
pub use tensor::{
    DType, Device, Error, ErrorKind, Graph, GraphOptions, Operand, Order, PlanReport, PlannedCommand, Result,
    Stream, Tensor, Tensors,
};
