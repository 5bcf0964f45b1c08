//! Steps whose parts run at once.

mod concurrent;

pub use concurrent::{ConcurrentBatches, Step};
