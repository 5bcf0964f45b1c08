//! What ends the program early.

use std::io;
use std::path::Path;

use thiserror::Error;

/// Shown as one line.
#[derive(Debug, Error)]
pub(super) enum Failure {
    /// Arguments that make no sense.
    #[error("{0}")]
    Usage(String),
    /// An error of the library.
    #[error(transparent)]
    Engine(#[from] streamgrad::Error),
    /// A file of the program's own.
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    /// A run that came to nothing.
    #[error("{0}")]
    Run(String),
    /// Another program's end, with the status that is passed on.
    #[error("{message}")]
    Ended { message: String, status: u8 },
}

/// What was checked does not hold, or a run failed.
pub(super) const FAILED: u8 = 1;
/// The arguments make no sense.
const USAGE: u8 = 2;

impl Failure {
    /// The status with which the program ends.
    pub(super) fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) => USAGE,
            Failure::Ended { status, .. } => *status,
            Failure::Engine(_) | Failure::File { .. } | Failure::Run(_) => FAILED,
        }
    }

    /// The failure, unless all is well.
    pub(super) fn unless(is_well: bool, failure: impl FnOnce() -> Failure) -> Result<(), Failure> {
        if is_well { Ok(()) } else { Err(failure()) }
    }

    pub(super) fn file(path: &Path, source: io::Error) -> Failure {
        Failure::File { path: path.display().to_string(), source }
    }
}
