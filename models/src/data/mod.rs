//! Data sets in memory and the batches made of them.

mod batches;
mod csv;
mod digits;
mod in_memory;
mod text;

pub use batches::{Batch, Batches, Epoch, StepBatches};
pub use digits::Digits;
pub use in_memory::InMemory;
pub use text::{Text, TextBatch, Windows};
