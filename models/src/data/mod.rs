//! Data sets, the loader that makes batches of them, and arrays in files.

pub mod augment;
mod batch;
mod csv;
mod digits;
mod in_memory;
mod loader;
pub mod npy;
mod ragged;
mod rows;
mod tensors;
mod text;

pub use batch::Batch;
pub use digits::Digits;
pub use in_memory::InMemory;
pub use loader::{DataLoader, Dataset, LoaderIter, LoaderOptions, LoaderSteps, Position};
pub use ragged::{Ragged, RaggedBatch};
pub use tensors::TensorDataset;
pub use text::{Text, TextBatch, Windows};
