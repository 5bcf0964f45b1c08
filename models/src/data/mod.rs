//! Data sets, the loader that makes batches of them, and arrays in files.

pub mod augment;
mod batch;
#[cfg(feature = "csv")]
mod csv;
mod digits;
pub mod idx;
mod in_memory;
mod loader;
pub mod npy;
#[cfg(feature = "npz")]
pub mod npz;
mod ragged;
mod rows;
mod sampler;
mod stored;
mod subset;
mod tensors;
mod text;

use std::fmt::Display;

use device::{DType, Error, ErrorKind, Result};

pub use batch::Batch;
#[cfg(feature = "csv")]
pub use csv::{Column, CsvOptions};
pub use digits::Digits;
pub use in_memory::InMemory;
pub use loader::{DataLoader, Dataset, LoaderIter, LoaderOptions, LoaderSteps, Position};
pub use ragged::{Ragged, RaggedBatch};
pub use sampler::WeightedSampler;
pub use subset::{Lengths, Subset, random_split};
pub use tensors::TensorDataset;
pub use text::{Text, TextBatch, Windows};

/// Elements' bytes in the order of files, from that of the host, and back.
pub(crate) fn little_endian(mut bytes: Vec<u8>, dtype: DType) -> Vec<u8> {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.size_bytes()).for_each(<[u8]>::reverse);
    }
    bytes
}

/// A file whose content is not what it should be.
#[cold]
#[track_caller]
pub(crate) fn malformed(path: impl Display, detail: impl Display) -> Error {
    Error::new(ErrorKind::Format { path: path.to_string().into(), detail: detail.to_string().into() })
}

/// A row that a data set does not have.
#[cold]
#[track_caller]
fn no_row(op: &'static str, index: usize, size: usize) -> Error {
    Error::new(ErrorKind::IndexOutOfRange {
        op,
        operand: "row",
        index: i64::try_from(index).unwrap_or(i64::MAX),
        size,
    })
}

/// Refuses numbers outside `0..size`.
#[track_caller]
pub(crate) fn check_below(
    op: &'static str,
    operand: &'static str,
    numbers: &[i64],
    size: usize,
) -> Result<()> {
    let is_outside = |&&number: &&i64| usize::try_from(number).map_or(true, |number| number >= size);
    let outside = |&index| Err(Error::new(ErrorKind::IndexOutOfRange { op, operand, index, size }));
    numbers.iter().find(is_outside).map_or(Ok(()), outside)
}
