//! The newest things that happened, for whoever wants to see them in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use device::StreamId;
use serde::Serialize;

/// What happened to a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A buffer got it.
    Allocate,
    /// A buffer gave it back. Streams may still use it; nobody else gets it before they are done.
    Free,
    /// The driver gave it.
    Obtain,
    /// The driver took it.
    Release,
    /// It was asked for and not to be had.
    OutOfMemory,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Its place in the order of things.
    pub sequence: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
    /// What it was.
    pub action: Action,
    /// Address of the first byte, 0 for memory that was not to be had.
    pub address: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// The stream whose memory it is.
    pub stream: StreamId,
}

/// The newest entries of one arena; arenas share a counter.
pub(crate) struct History {
    entries: VecDeque<HistoryEntry>,
    capacity: usize,
    clock: Arc<AtomicU64>,
}

impl History {
    pub(crate) fn new(capacity: usize, clock: Arc<AtomicU64>) -> Self {
        History { entries: VecDeque::new(), capacity, clock }
    }

    pub(crate) fn note(&mut self, action: Action, address: usize, bytes: usize, stream: StreamId) {
        if self.entries.len() >= self.capacity {
            self.entries.pop_front();
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.entries.push_back(HistoryEntry {
            sequence: self.clock.fetch_add(1, Ordering::Relaxed),
            time_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            action,
            address,
            bytes,
            stream,
        });
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = HistoryEntry> + '_ {
        self.entries.iter().copied()
    }
}
