//! What a group of ranks failed with, and the errors of ranks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device::Device;
use parking_lot::Mutex;

use crate::{Error, ErrorKind, Result};

/// The op of an error whose collective is not known.
pub(crate) const ANY_OP: &str = "collective";

/// The first error of a group. Its ranks cannot be used any more once it is set.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    has_failed: AtomicBool,
    first: Mutex<Option<Error>>,
    /// The failure of the group that this one was split from.
    parent: Option<Arc<Failure>>,
}

impl Failure {
    /// The failure of a group that was split from the one with the failure `parent`.
    pub(crate) fn of_part(parent: &Arc<Failure>) -> Arc<Failure> {
        Arc::new(Failure { parent: Some(Arc::clone(parent)), ..Failure::default() })
    }

    pub(crate) fn get(&self) -> Option<Error> {
        if self.has_failed.load(Ordering::Acquire) { self.first.lock().clone() } else { None }
    }

    /// Sets the failure unless there is one. Returns the first one.
    pub(crate) fn set(&self, error: Error) -> Error {
        let first = self.first.lock().get_or_insert(error).clone();
        self.has_failed.store(true, Ordering::Release);
        first
    }

    /// The error for the others when `rank` leaves. A rank that leaves because a parent group failed passes that error on.
    pub(crate) fn of_leaving(&self, rank: usize, reason: &str) -> Error {
        self.inherited().unwrap_or_else(|| lost(ANY_OP, rank, reason))
    }

    fn inherited(&self) -> Option<Error> {
        let parent = self.parent.as_deref()?;
        parent.get().or_else(|| parent.inherited())
    }
}

/// Why a communicator is dropped.
pub(crate) fn reason_of_drop() -> &'static str {
    if std::thread::panicking() { "its thread panicked" } else { "its communicator was dropped" }
}

#[cold]
#[track_caller]
pub(crate) fn unavailable(reason: impl fmt::Display) -> Error {
    Error::new(ErrorKind::CommUnavailable { reason: reason.to_string().into() })
}

/// `CommUnavailable` unless `is_available`.
#[track_caller]
pub(crate) fn expect_available(is_available: bool, reason: impl fmt::Display) -> Result<()> {
    if is_available { Ok(()) } else { Err(unavailable(reason)) }
}

#[cold]
#[track_caller]
pub(crate) fn lost(op: &'static str, rank: usize, reason: &str) -> Error {
    Error::new(ErrorKind::RankLost { op, rank, reason: reason.into() })
}

/// The error for ranks that did not come within `timeout`.
#[cold]
#[track_caller]
pub(crate) fn late(op: &'static str, timeout: Duration, missing: impl Into<Box<[usize]>>) -> Error {
    let waited_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    Error::new(ErrorKind::CollectiveTimeout { op, waited_ms, missing: missing.into() })
}

/// One side of a mismatch: a rank, and the call that it made.
pub(crate) struct Side<C> {
    pub(crate) rank: usize,
    pub(crate) call: C,
}

/// The error for two ranks whose calls with this number differ.
#[cold]
#[track_caller]
pub(crate) fn mismatch(
    number: u64,
    first: Side<impl fmt::Display>,
    second: Side<impl fmt::Display>,
) -> Error {
    Error::new(ErrorKind::CollectiveMismatch {
        number,
        rank: first.rank,
        call: first.call.to_string().into(),
        other: second.rank,
        other_call: second.call.to_string().into(),
    })
}

/// The failure of a group as the error of the op that meets it.
#[cold]
#[track_caller]
pub(crate) fn met_by(op: &'static str, failure: Error) -> Error {
    Error::new(match failure.into_kind() {
        ErrorKind::RankLost { rank, reason, .. } => ErrorKind::RankLost { op, rank, reason },
        kind => kind,
    })
}

#[track_caller]
pub(crate) fn expect_rank(op: &'static str, rank: usize, size: usize) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    let index = i64::try_from(rank).unwrap_or(i64::MAX);
    Err(Error::new(ErrorKind::IndexOutOfRange { op, operand: "rank", index, size }))
}

/// Checks that there are devices, and that they differ.
#[track_caller]
pub(crate) fn expect_different(op: &'static str, devices: &[Device]) -> Result<()> {
    Error::require(!devices.is_empty(), op, "devices", "at least 1", 0)?;
    match (0..devices.len()).find(|&rank| devices[..rank].contains(&devices[rank])) {
        Some(rank) => {
            let value = format_args!("that of rank {rank} twice");
            Err(Error::invalid(op, "devices", "a device for each rank", value))
        }
        None => Ok(()),
    }
}
