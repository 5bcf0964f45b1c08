//! Steps whose parts run at once.

mod around;
mod concurrent;
mod deferred;
mod lines;
mod measured;
mod prefetch;
mod progress;
mod stages;

pub(crate) use around::Around;
pub use concurrent::{BatchResult, ConcurrentBatches, LaneOptions, Lanes, Step};
pub use deferred::defer;
pub(crate) use deferred::discard_deferred;
pub use measured::LaneReport;
pub use prefetch::{Prefetch, PrefetchOptions, PrefetchReport};
pub use stages::{Pipeline, PipelineOptions, PipelineReport, PipelineSchedule, StageReport};
