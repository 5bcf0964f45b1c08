//! Steps whose parts run at once.

mod around;
mod concurrent;
mod deferred;
mod lines;
mod prefetch;
mod stages;

pub use concurrent::{ConcurrentBatches, Step};
pub use deferred::defer;
pub use prefetch::{Prefetch, PrefetchOptions, PrefetchReport};
pub use stages::{Pipeline, PipelineOptions, PipelineReport, PipelineSchedule, StageReport};
