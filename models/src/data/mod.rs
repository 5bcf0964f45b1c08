//! Data sets in memory, the batches made of them, and arrays in files.

pub mod augment;
mod batches;
mod csv;
mod digits;
mod in_memory;
pub mod npy;
mod text;

pub use batches::{Batch, Batches, Epoch, StepBatches};
pub use digits::Digits;
pub use in_memory::InMemory;
pub use text::{Text, TextBatch, Windows};
