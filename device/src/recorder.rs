//! The recorder that profiles read: when each command ran, and what waited for what.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::cuda::TimedEvent;
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
    /// The commands of driver's streams, and the event at which the recording began.
    timed: Mutex<(Option<TimedEvent>, Vec<Timed>)>,
}

/// A command between two events.
struct Timed {
    op: &'static str,
    moment: Moment,
    start: TimedEvent,
    end: TimedEvent,
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
    pub(crate) fn timed(&self, op: &'static str, moment: Moment, start: TimedEvent, end: TimedEvent) {
        self.timed.lock().1.push(Timed { op, moment, start, end });
    }

    /// The commands between events as records, in the order in which they ended. They have all run.
    fn take_timed(&self) -> Vec<CommandRecord> {
        let (origin, timed) = std::mem::take(&mut *self.timed.lock());
        let Some(origin) = origin else { return Vec::new() };
        let ns = |event: &TimedEvent| origin.elapsed_ms(event).map(|ms| (ms * 1e6).max(0.0) as u64);
        let record = |timed: &Timed| {
            let (start_ns, end_ns) = (ns(&timed.start).ok()?, ns(&timed.end).ok()?);
            Some(CommandRecord { op: timed.op, moment: timed.moment, start_ns, end_ns })
        };
        let mut records: Vec<_> = timed.iter().filter_map(record).collect();
        records.sort_by_key(|record| record.end_ns);
        records
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
        if let Some(driver) = self.core().default.driver_stream() {
            // Without an origin the recording has no commands.
            let origin = self.synchronize().and_then(|()| driver.bind()).and_then(|()| driver.record_timed());
            *recorder.timed.lock() = (origin.ok(), Vec::new());
        }
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
        recording.commands.extend(recorder.take_timed());
        recording
    }
}
