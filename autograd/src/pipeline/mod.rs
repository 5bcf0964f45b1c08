//! Steps whose parts run at once.

mod concurrent;
mod deferred;

pub use concurrent::{ConcurrentBatches, Step};
pub use deferred::defer;
