//! Data sets in memory, the batches made of them, and arrays in files.

pub mod augment;
mod batches;
mod csv;
mod digits;
mod in_memory;
pub mod npy;
mod ragged;
mod text;

pub use batches::{Batch, Batches, Epoch, StepBatches};
pub use digits::Digits;
pub use in_memory::InMemory;
pub use ragged::{Ragged, RaggedBatch};
pub use text::{Text, TextBatch, Windows};
