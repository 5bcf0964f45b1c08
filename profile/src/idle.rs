//! When each stream had nothing to run, and why.

use device::StreamId;

use super::profile::{Profile, entry, ms};
use super::timeline::{Cause, HostWork, RecordingIndex};

/// The idle time of one stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamIdle {
    /// The stream.
    pub stream: StreamId,
    /// What it is called.
    pub name: String,
    /// Milliseconds in which one of its commands ran.
    pub busy_ms: f64,
    /// Milliseconds in which none did: those of all causes together.
    pub idle_ms: f64,
    /// The causes, in the order in which they were met.
    pub idle: Vec<Idle>,
}

/// A stretch of time in which a stream ran nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Why.
    pub cause: IdleCause,
    /// Which of the recordings it is in.
    pub recording: usize,
    /// When it began, in nanoseconds since that recording did.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// Why a stream ran nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdleCause {
    /// Its next command waited for one of another stream.
    WaitsFor {
        /// The command that waited.
        op: &'static str,
        /// The other stream.
        stream: StreamId,
        /// What ran there.
        awaited: &'static str,
    },
    /// The host had not launched the next command.
    NotLaunched {
        /// The command.
        op: &'static str,
        /// What the host did instead, on the thread that launched it.
        host: HostActivity,
    },
    /// The next command was launched, and free to start.
    Starting {
        /// The command.
        op: &'static str,
    },
    /// There was no next command.
    End,
}

/// What a thread of the host did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostActivity {
    /// It launched a command.
    Launching {
        /// The command.
        op: &'static str,
        /// The stream that it is of.
        stream: StreamId,
    },
    /// It ran a command of another stream itself.
    Running {
        /// The command.
        op: &'static str,
        /// Its stream.
        stream: StreamId,
    },
    /// It waited for the device.
    Synchronizing {
        /// As in `synchronize` or `download`.
        op: &'static str,
        /// Where, as a number among the recording's places.
        place: Option<u32>,
    },
    /// It asked the driver for memory.
    DriverCall,
    /// Something else, in this range of the recording, if in any.
    Other {
        /// The index of the range.
        range: Option<usize>,
    },
}

impl Profile {
    /// For each stream, when it had nothing to run, and why. Streams that ran nothing are left out.
    pub fn idle(&self) -> Vec<StreamIdle> {
        let mut streams: Vec<StreamIdle> = Vec::new();
        for (recording, timeline) in self.timelines().enumerate() {
            for (&stream, commands) in &timeline.streams {
                let new = || {
                    let name = self.stream_name(stream);
                    StreamIdle { stream, name, busy_ms: 0.0, idle_ms: 0.0, idle: Vec::new() }
                };
                let found = entry(&mut streams, |known| known.stream == stream, new);
                let idle = stretches(&timeline, commands);
                let idle_ns: u64 = idle.iter().map(|idle| idle.end_ns - idle.start_ns).sum();
                found.idle_ms += ms(idle_ns);
                found.busy_ms += ms(timeline.end_ns.saturating_sub(idle_ns));
                found.idle.extend(idle.into_iter().map(|idle| Idle { recording, ..idle }));
            }
        }
        streams
    }
}

/// The idle stretches of one stream.
fn stretches(timeline: &RecordingIndex<'_>, commands: &[usize]) -> Vec<Idle> {
    let mut idle = Stretches { timeline, now: 0, found: Vec::new() };
    for &at in commands {
        idle.before(at);
        idle.now = idle.now.max(timeline.command(at).end_ns);
    }
    idle.until(timeline.end_ns, IdleCause::End);
    idle.found
}

struct Stretches<'a, 'b> {
    timeline: &'a RecordingIndex<'b>,
    /// What is earlier than this has its cause.
    now: u64,
    found: Vec<Idle>,
}

impl Stretches<'_, '_> {
    /// From now until `end_ns` this is the cause.
    fn until(&mut self, end_ns: u64, cause: IdleCause) {
        if end_ns > self.now {
            self.found.push(Idle { cause, recording: 0, start_ns: self.now, end_ns });
            self.now = end_ns;
        }
    }

    /// The time until a command starts: the host had to launch it, then what it waits for had to end.
    fn before(&mut self, at: usize) {
        let timeline = self.timeline;
        let command = timeline.command(at);
        let (op, start) = (command.op, command.start_ns);
        if !matches!(timeline.cause(at).0, Cause::Unknown) {
            self.host(command.launch.thread, op, timeline.launched_ns(at));
        }
        let awaited = timeline.awaited(at).iter().map(|&awaited| timeline.command(awaited));
        if let Some(last) = awaited.max_by_key(|awaited| awaited.end_ns) {
            let (stream, awaited) = (last.moment.stream, last.op);
            self.until(last.end_ns.min(start), IdleCause::WaitsFor { op, stream, awaited });
        }
        self.until(start, IdleCause::Starting { op });
    }

    /// What a thread did until `launched`, when it had launched `op`.
    fn host(&mut self, thread: u32, op: &'static str, launched: u64) {
        let timeline = self.timeline;
        let spans = timeline.spans(thread);
        let first = spans.partition_point(|span| span.end_ns <= self.now);
        for span in spans[first..].iter().take_while(|span| span.start_ns < launched) {
            self.other(thread, op, span.start_ns.min(launched));
            let end = span.end_ns.min(launched);
            let host = match span.what {
                HostWork::Launch(index) => {
                    let other = timeline.command(index);
                    let (name, stream) = (other.op, other.moment.stream);
                    if timeline.is_inline(index) {
                        let host = HostActivity::Launching { op: name, stream };
                        self.until(other.start_ns.min(end), IdleCause::NotLaunched { op, host });
                        let host = HostActivity::Running { op: name, stream };
                        self.until(other.end_ns.min(end), IdleCause::NotLaunched { op, host });
                    }
                    HostActivity::Launching { op: name, stream }
                }
                HostWork::Sync(index) => {
                    let sync = &timeline.recording.syncs[index];
                    HostActivity::Synchronizing { op: sync.op, place: sync.place }
                }
                HostWork::DriverCall(_) => HostActivity::DriverCall,
            };
            self.until(end, IdleCause::NotLaunched { op, host });
        }
        self.other(thread, op, launched);
    }

    /// The thread did something else until `until`, cut where ranges begin and end.
    fn other(&mut self, thread: u32, op: &'static str, until: u64) {
        for piece in self.timeline.pieces(thread, self.now, until) {
            let host = HostActivity::Other { range: piece.what };
            self.until(piece.end_ns, IdleCause::NotLaunched { op, host });
        }
    }
}
