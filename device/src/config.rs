//! What a device and a stream can be asked to be, and what a device counts.

use std::ops::Sub;
use std::sync::Arc;

use crate::{MemoryDriver, Policy};

/// How a CPU device runs its commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schedule {
    /// The default stream runs on the calling thread, every other stream on a worker of its own.
    #[default]
    Inline,
    /// Every stream runs on a worker of its own, the default stream included.
    Threads,
    /// As [`Threads`](Self::Threads), with pauses before commands, and before and after waits: a race under real threads
    /// that takes bad luck becomes likely. For tests: slow, and the results have to be the same.
    Delay {
        /// Decides where the pauses are and how long. The threads' own timing remains.
        seed: u64,
    },
    /// Commands run one at a time, in an order that a policy picks, when somebody synchronises. Fresh memory is
    /// filled with a pattern. For tests: every order that may be picked has to give the same results.
    Explore(Policy),
}

impl Schedule {
    /// Where a stream runs that is wanted at `wanted`.
    pub(crate) fn placement(self, wanted: Placement) -> Placement {
        if self == Schedule::Inline { wanted } else { Placement::Worker }
    }
}

/// What a CPU device is made of.
#[derive(Clone, Default)]
pub struct CpuConfig {
    /// Threads that one large kernel may be split over, at most 1024; more count as that many. By default
    /// `STREAMGRAD_THREADS`, or else the number of cores.
    pub threads: Option<usize>,
    /// How commands are run.
    pub schedule: Schedule,
    /// Where memory comes from. By default the system's allocator.
    pub memory: Option<Arc<dyn MemoryDriver>>,
    /// The first choices of an explored schedule, as streams in the order of their creation; the policy goes on from
    /// there. With the choices of an earlier run, replays it.
    pub choices: Arc<[usize]>,
    /// Leaves out the wait with this number, counted from 0, of those that an explored device inserts: a bug on purpose,
    /// to see that a test notices.
    pub drop_wait: Option<usize>,
}

debug_fields!(CpuConfig { threads, schedule });

/// How urgent a stream's work is against that of other streams. CPU devices accept and ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// After other work.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before other work.
    High,
}

/// Which thread runs the commands of a CPU stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// A worker thread of the stream.
    #[default]
    Worker,
    /// The launching thread, whenever the stream is idle and the command's needs are met; a worker otherwise.
    Caller,
}

/// What a stream can be asked to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamOptions {
    /// How urgent its work is.
    pub priority: Priority,
    /// Which thread runs its commands.
    pub placement: Placement,
    /// Threads that one kernel on it may be split over; the device's number if `None`.
    pub threads: Option<usize>,
}

/// Who keeps commands of different streams in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// The device: it inserts every wait.
    #[default]
    Auto,
    /// The user's own waits. A command that they leave in a race is `Race` and is not
    /// launched. Memory that is handed out again is still kept safe.
    Manual,
}

/// Counts of what a device was asked to do, and of what it took to keep it in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncStats {
    /// Commands launched.
    pub launches: u64,
    /// Events recorded, by the user or for a wait.
    pub events_recorded: u64,
    /// Waits of one stream for another.
    pub waits_inserted: u64,
    /// Needs across streams that took no wait: covered by the clock, implied by another wait, or passed.
    pub waits_elided: u64,
    /// Times that the host waited for the device.
    pub host_syncs: u64,
}

impl SyncStats {
    /// Adds the counts of another interval or device.
    pub fn add(&mut self, other: SyncStats) {
        *self = self.each(other, u64::wrapping_add);
    }

    /// Combines each count with that of `other`.
    fn each(self, other: SyncStats, f: impl Fn(u64, u64) -> u64) -> SyncStats {
        SyncStats {
            launches: f(self.launches, other.launches),
            events_recorded: f(self.events_recorded, other.events_recorded),
            waits_inserted: f(self.waits_inserted, other.waits_inserted),
            waits_elided: f(self.waits_elided, other.waits_elided),
            host_syncs: f(self.host_syncs, other.host_syncs),
        }
    }
}

impl Sub for SyncStats {
    type Output = SyncStats;

    /// What was counted between two readings of one device.
    fn sub(self, earlier: SyncStats) -> SyncStats {
        self.each(earlier, u64::saturating_sub)
    }
}
