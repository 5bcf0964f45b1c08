//! The recorder that profiles read: when each command ran, and what waited for what.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::{Device, Moment};

/// One command that ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommandRecord {
    /// The op that launched it.
    pub op: &'static str,
    /// Its stream and tick.
    pub moment: Moment,
    /// When it started, in nanoseconds since the recording began.
    pub start_ns: u64,
    /// When it ended, in nanoseconds since the recording began.
    pub end_ns: u64,
}

/// One wait of a stream for another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitRecord {
    /// The op whose command waited.
    pub op: &'static str,
    /// The command that waited.
    pub waiter: Moment,
    /// What it waited for.
    pub awaited: Moment,
}

/// What a device did while it was recorded.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The commands that ran, in the order in which they ended.
    pub commands: Vec<CommandRecord>,
    /// The waits that were inserted.
    pub waits: Vec<WaitRecord>,
    /// How long the recording took, in nanoseconds.
    pub wall_ns: u64,
}

/// Off, it costs one load a command.
#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    log: Mutex<Option<(Instant, Recording)>>,
}

impl Recorder {
    /// When a command starts, if that is recorded.
    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        self.is_on().then(Instant::now)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn ran(&self, op: &'static str, moment: Moment, start: Instant) {
        let end = Instant::now();
        if let Some((origin, recording)) = &mut *self.log.lock() {
            let ns = |at: Instant| at.saturating_duration_since(*origin).as_nanos() as u64;
            recording.commands.push(CommandRecord { op, moment, start_ns: ns(start), end_ns: ns(end) });
        }
    }

    #[cold]
    pub(crate) fn waited(&self, op: &'static str, waiter: Moment, awaited: Moment) {
        if let Some((_, recording)) = &mut *self.log.lock() {
            recording.waits.push(WaitRecord { op, waiter, awaited });
        }
    }
}

impl Device {
    /// Records every command that runs from now on. A recording that is under way starts anew.
    pub fn start_recording(&self) {
        let recorder = &self.core().recorder;
        *recorder.log.lock() = Some((Instant::now(), Recording::default()));
        recorder.on.store(true, Ordering::Release);
    }

    /// Ends the recording and returns it; empty if none was under way. Commands that are still pending are not in it,
    /// so synchronise first.
    pub fn stop_recording(&self) -> Recording {
        let recorder = &self.core().recorder;
        recorder.on.store(false, Ordering::Release);
        let Some((origin, mut recording)) = recorder.log.lock().take() else { return Recording::default() };
        recording.wall_ns = origin.elapsed().as_nanos() as u64;
        recording
    }
}
