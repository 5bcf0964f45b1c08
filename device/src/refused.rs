//! Errors of captured steps.

use crate::{Error, ErrorKind};

#[cold]
pub(crate) fn refused(op: &'static str, reason: &str) -> Error {
    Error::new(ErrorKind::Captured { op, reason: reason.into() })
}

/// For a use of planned memory outside of its capture.
#[cold]
pub(crate) fn of_another_step(op: &'static str) -> Error {
    refused(op, "it uses a tensor that was made within a captured step, which has no value outside of it")
}
