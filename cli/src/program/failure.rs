//! What ends the program early.

use std::fmt;
use std::io;
use std::path::Path;

/// Shown as one line.
#[derive(Debug)]
pub(super) enum Failure {
    /// Arguments that make no sense.
    Usage(String),
    /// What the library answered.
    Engine(streamgrad::Error),
    /// A file of the program's own.
    File { path: String, source: io::Error },
    /// A run that came to nothing.
    Run(String),
    /// Another program's end, with the status that is passed on.
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

    pub(super) fn file(path: &Path, source: io::Error) -> Failure {
        Failure::File { path: path.display().to_string(), source }
    }
}

impl From<streamgrad::Error> for Failure {
    fn from(error: streamgrad::Error) -> Failure {
        Failure::Engine(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) | Failure::Run(message) | Failure::Ended { message, .. } => {
                f.write_str(message)
            }
            Failure::Engine(error) => error.fmt(f),
            Failure::File { path, source } => write!(f, "{path}: {source}"),
        }
    }
}
