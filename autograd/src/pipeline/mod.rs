//! Steps whose parts run at once.

mod concurrent;
mod deferred;
mod lines;
mod stages;

pub use concurrent::{ConcurrentBatches, Step};
pub use deferred::defer;
pub(crate) use deferred::discard_deferred;
pub use stages::{Pipeline, PipelineOptions, PipelineReport, PipelineSchedule, StageReport};
