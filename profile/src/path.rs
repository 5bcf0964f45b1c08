//! The critical path: the chain of launches, commands and waits without which the program would have been over sooner.
//!
//! It is walked from the end. A command started when the last of three things had happened: the command before it in its stream
//! had ended, or one that it waited for, or the host had launched it. The walk goes on there. On the host it goes
//! back along the thread; a wait for the device leads to the command that ended it, the end of lanes to the lane that was last, and
//! the beginning of a lane to who started it. Every nanosecond lies in one link, so the links add up to the wall time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;

use device::{CommandRecord, Recording, StreamId};

use super::profile::{Profile, ms, share};
use super::timeline::{Cause, HostWork, RecordingIndex, Span};

/// The critical path of what was recorded.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CriticalPath {
    /// Its links, from the beginning to the end, one recording after the other.
    pub segments: Vec<PathSegment>,
    /// What it is made of, the largest part first.
    pub shares: Vec<PathShare>,
    /// Its length in milliseconds: the wall time.
    pub wall_ms: f64,
    /// Steps that were recorded.
    pub steps: usize,
}

/// One link of the path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSegment {
    /// What it is.
    pub link: Link,
    /// Which of the recordings it is in.
    pub recording: usize,
    /// When it began, in nanoseconds since that recording did.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// What a link of the path is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Link {
    /// A command ran.
    Command {
        /// Its op.
        op: &'static str,
        /// Its stream.
        stream: StreamId,
        /// Its index in the recording.
        index: usize,
    },
    /// A command was free to start and had not started yet.
    Latency {
        /// Its op.
        op: &'static str,
        /// Its index in the recording.
        index: usize,
    },
    /// The host launched a command.
    Launch {
        /// Its op.
        op: &'static str,
        /// Its index in the recording.
        index: usize,
    },
    /// The host was about to go on after a wait, or had nothing to wait for.
    Sync {
        /// Its index among the recording's waits of the host.
        index: usize,
    },
    /// The driver was asked for memory.
    DriverCall {
        /// Its index in the recording.
        index: usize,
    },
    /// The host did something else.
    Host {
        /// The innermost range that it was in, as an index in the recording.
        range: Option<usize>,
    },
}

/// A part of the path.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PathShare {
    /// What it is, as in `matmul` or `launching matmul`.
    pub what: String,
    /// Whether it is the device's time, not the host's.
    pub on_device: bool,
    /// How many links it has.
    pub links: usize,
    /// Milliseconds, of all steps together.
    pub ms: f64,
    /// Its part of the wall time.
    pub share: f64,
}

impl Profile {
    /// The critical path through launches, commands and waits.
    ///
    /// Waits of one stream for another, of the host for the device, and of the host for lanes are known exactly. What the host
    /// waits for otherwise, as for a lock or a file, is its own time here.
    pub fn critical_path(&self) -> CriticalPath {
        let mut path =
            CriticalPath { steps: self.steps(), wall_ms: self.wall_ms(), ..CriticalPath::default() };
        let mut totals: HashMap<(String, bool), (usize, u64)> = HashMap::new();
        for (recording, timeline) in self.timelines().enumerate() {
            for segment in walk(&timeline) {
                let named = (segment.link.name(&timeline), segment.link.on_device());
                let (links, ns) = totals.entry(named).or_default();
                *links += 1;
                *ns += segment.end_ns - segment.start_ns;
                path.segments.push(PathSegment { recording, ..segment });
            }
        }
        path.shares = totals
            .into_iter()
            .map(|((what, on_device), (links, ns))| PathShare {
                what,
                on_device,
                links,
                ms: ms(ns),
                share: share(ms(ns), path.wall_ms),
            })
            .collect();
        path.shares.sort_by(|a, b| b.ms.total_cmp(&a.ms).then_with(|| a.what.cmp(&b.what)));
        path
    }
}

impl Link {
    fn name(&self, timeline: &RecordingIndex<'_>) -> String {
        match self {
            Link::Command { op, .. } => (*op).to_owned(),
            Link::Latency { op, .. } => format!("starting {op}"),
            Link::Launch { op, .. } => format!("launching {op}"),
            Link::Sync { index } => {
                let sync = &timeline.recording.syncs[*index];
                let place = timeline.place(sync.place).map(|place| format!(" at {place}"));
                format!("{}{}", sync.op, place.unwrap_or_default())
            }
            Link::DriverCall { .. } => "memory from the driver".to_owned(),
            Link::Host { range: Some(range) } => {
                format!("host in {}", timeline.recording.ranges[*range].name)
            }
            Link::Host { range: None } => "host".to_owned(),
        }
    }

    fn on_device(&self) -> bool {
        matches!(self, Link::Command { .. } | Link::Latency { .. })
    }
}

/// Where the walk is.
#[derive(Clone, Copy)]
enum At {
    Command(usize),
    Host(u32),
}

/// The links of one recording, the first one first.
pub(super) fn walk(timeline: &RecordingIndex<'_>) -> Vec<PathSegment> {
    let mut walk = Walk { timeline, now: timeline.end_ns, links: Vec::new() };
    let last = (0..timeline.recording.commands.len()).max_by_key(|&at| timeline.command(at).end_ns);
    let mut at = match last {
        Some(last) if timeline.command(last).end_ns >= timeline.end_ns => At::Command(last),
        _ => At::Host(timeline.main_thread()),
    };
    // Each turn goes back in time, or to another place that does at the next turn.
    let records =
        timeline.recording.commands.len() + timeline.recording.syncs.len() + timeline.recording.ranges.len();
    for _ in 0..8 * (records + 2) {
        if walk.now == 0 {
            break;
        }
        at = match at {
            At::Command(index) => walk.command(index),
            At::Host(thread) => walk.host(thread),
        };
    }
    let rest = walk.now;
    walk.link(rest, 0, Link::Host { range: None });
    walk.links.reverse();
    walk.links
}

struct Walk<'a, 'b> {
    timeline: &'a RecordingIndex<'b>,
    /// What is later than this is linked.
    now: u64,
    links: Vec<PathSegment>,
}

impl Walk<'_, '_> {
    /// From `from` until now it was this.
    fn link(&mut self, end_ns: u64, from: u64, link: Link) {
        let start_ns = from.min(end_ns);
        if end_ns > start_ns {
            self.links.push(PathSegment { link, recording: 0, start_ns, end_ns });
        }
        self.now = start_ns;
    }

    /// Back over a command, to what it came after.
    fn command(&mut self, index: usize) -> At {
        let command = self.timeline.command(index);
        let (op, stream) = (command.op, command.moment.stream);
        self.link(self.now, command.start_ns, Link::Command { op, stream, index });
        let (cause, since) = self.timeline.cause(index);
        self.link(self.now, since, Link::Latency { op, index });
        match cause {
            Cause::Command(earlier) => At::Command(earlier),
            Cause::Launch => At::Host(command.launch.thread),
            Cause::Unknown => At::Host(self.timeline.main_thread()),
        }
    }

    /// Back over what a thread did last.
    fn host(&mut self, thread: u32) -> At {
        let timeline = self.timeline;
        let span = timeline.span_before(thread, self.now);
        let idle_since = span.map_or(0, |span| span.end_ns.min(self.now));
        if idle_since < self.now {
            return self.idle_host(thread, idle_since);
        }
        let Some(Span { start_ns, what, .. }) = span else { return At::Host(thread) };
        match what {
            HostWork::Launch(index) => {
                let command = timeline.command(index);
                let ran_here =
                    timeline.is_inline(index) && command.end_ns > start_ns && command.start_ns < self.now;
                let until = if ran_here { command.end_ns.min(self.now) } else { start_ns };
                self.link(self.now, until, Link::Launch { op: command.op, index });
                if ran_here { At::Command(index) } else { At::Host(thread) }
            }
            HostWork::Sync(index) => {
                let awaited = timeline.recording.syncs[index].awaited.iter();
                let awaited = awaited.filter_map(|&moment| timeline.newest(moment));
                let ended = awaited.map(|at| (timeline.command(at).end_ns.min(self.now), at)).max();
                let waited_for = ended.filter(|&(end, _)| end > start_ns);
                let until = waited_for.map_or(start_ns, |(end, _)| end);
                self.link(self.now, until, Link::Sync { index });
                waited_for.map_or(At::Host(thread), |(_, at)| At::Command(at))
            }
            HostWork::DriverCall(index) => {
                self.link(self.now, start_ns, Link::DriverCall { index });
                At::Host(thread)
            }
        }
    }

    /// Back over time in which nothing is known of a thread but its ranges: to where it began, or to the lanes that it waited for.
    fn idle_host(&mut self, thread: u32, since: u64) -> At {
        let found = self.timeline.handoff(thread, since, self.now);
        let from = found.map_or(since, |handoff| handoff.since_ns);
        for piece in self.timeline.pieces(thread, from, self.now).into_iter().rev() {
            self.link(piece.end_ns, piece.start_ns, Link::Host { range: piece.what });
        }
        At::Host(found.map_or(thread, |handoff| handoff.from))
    }
}

/// Milliseconds of the longest chain of dependent commands, where `cost` returns the milliseconds of each; the host takes no time.
///
/// A command depends on its predecessor in its stream and on what it waits for. The host orders the default stream and the others:
/// between them, a command also depends on every command that had ended when it started.
pub fn longest_chain_ms(recording: &Recording, cost: impl Fn(&CommandRecord) -> f64) -> f64 {
    let timeline = RecordingIndex::new(recording);
    let command = |index| timeline.command(index);
    let is_default = |index| Some(command(index).moment.stream) == recording.device.default_stream;
    let mut order: Vec<usize> = (0..recording.commands.len()).collect();
    order.sort_unstable_by_key(|&index| (command(index).start_ns, command(index).end_ns, index));
    let mut chains = vec![0.0; order.len()];
    let mut running = BinaryHeap::new();
    // The longest chain that has ended, of other streams and of the default stream.
    let mut ended = [0.0; 2];
    for index in order {
        while running.peek().is_some_and(|&Reverse((end_ns, _))| end_ns <= command(index).start_ns) {
            if let Some(Reverse((_, earlier))) = running.pop() {
                let ended: &mut f64 = &mut ended[usize::from(is_default(earlier))];
                *ended = ended.max(chains[earlier]);
            }
        }
        let before = timeline.before(index).into_iter().chain(timeline.awaited(index).iter().copied());
        let by_host = ended[usize::from(!is_default(index))];
        chains[index] = before.map(|earlier| chains[earlier]).fold(by_host, f64::max) + cost(command(index));
        running.push(Reverse((command(index).end_ns, index)));
    }
    chains.into_iter().fold(0.0, f64::max)
}

impl fmt::Display for CriticalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.max(1) as f64;
        writeln!(f, "{:.3} ms a step, of which", self.wall_ms / steps)?;
        for PathShare { what, ms, share, on_device, .. } in &self.shares {
            let side = if *on_device { "device" } else { "host" };
            writeln!(f, "{:>9.3} ms {:>5.1} %  {side:<6}  {what}", ms / steps, 100.0 * share)?;
        }
        Ok(())
    }
}
