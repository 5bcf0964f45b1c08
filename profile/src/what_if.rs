//! What a step would take if something were otherwise: the recording run again, with other durations or on more streams.
//!
//! The host keeps its pace between what it launches and waits for, commands keep their durations and how late they start after
//! what they come after. With nothing changed, that gives the recording.

use std::collections::HashMap;

use device::CommandRecord;

use super::profile::{Profile, ms};
use super::timeline::{HostWork, RecordingIndex};

/// What is otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change<'a> {
    /// Nothing.
    Nothing,
    /// An op takes no time on the device.
    Free(&'a str),
    /// Launching, with what ops do on the host between two launches, takes no time, as when the step is captured and replayed.
    Graph,
    /// There is one more stream, and each command is on the one that is free first. What data need stays in order. No bound by
    /// what the device has room for.
    OneMoreStream,
}

/// The host's code between two launches that belongs to the ops themselves takes no longer than this.
const BETWEEN_LAUNCHES_NS: u64 = 100_000;

impl Profile {
    /// Milliseconds of a step if something were otherwise: an estimate, and for [`Change::Graph`] and
    /// [`Change::OneMoreStream`] what it could be at best.
    pub fn what_if(&self, change: Change<'_>) -> f64 {
        let steps = self.steps().max(1) as f64;
        let of_all = |end: &dyn Fn(&RecordingIndex<'_>) -> f64| {
            self.timelines().map(|timeline| end(&timeline)).sum::<f64>()
        };
        if change == Change::OneMoreStream {
            let scheduled = |more: usize| {
                of_all(&|timeline| scheduled_ns(timeline, timeline.streams.len() + more) as f64)
            };
            let (now, more) = (scheduled(0), scheduled(1));
            let gain = if more > 0.0 { (now / more).max(1.0) } else { 1.0 };
            return self.wall_ms() / gain / steps;
        }
        of_all(&|timeline| ms(Rerun::new(timeline, change, &|_| None).end_ns())) / steps
    }

    /// Milliseconds of a step if commands took as long as `took` says, in milliseconds; `None` for what they took.
    pub fn what_if_took(&self, took: impl Fn(&CommandRecord) -> Option<f64>) -> f64 {
        let took = |command: &CommandRecord| took(command).map(|ms| (1e6 * ms.max(0.0)) as u64);
        let end_ms =
            |timeline: RecordingIndex<'_>| ms(Rerun::new(&timeline, Change::Nothing, &took).end_ns());
        self.timelines().map(end_ms).sum::<f64>() / self.steps().max(1) as f64
    }
}

type Took<'a> = dyn Fn(&CommandRecord) -> Option<u64> + 'a;

/// A recording run again.
struct Rerun<'a, 'b> {
    timeline: &'a RecordingIndex<'b>,
    change: Change<'a>,
    /// How long commands take, where that is not what they took.
    took: &'a Took<'a>,
    /// When each command ends now.
    ends: Vec<u64>,
    /// By how much each thread is later than it was, from some time on.
    shifts: Vec<Vec<(u64, i64)>>,
}

/// Something that moves a thread or a command, at the time at which it happened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Command(usize),
    /// The thread and its span.
    Span(u32, usize),
    /// The thread that comes after another one until so long.
    Handoff(u32, u64, u32),
}

fn shifted(ns: u64, shift: i64) -> u64 {
    ns.saturating_add_signed(shift)
}

fn later(now: u64, then: u64) -> i64 {
    now as i64 - then as i64
}

impl<'a, 'b> Rerun<'a, 'b> {
    fn new(timeline: &'a RecordingIndex<'b>, change: Change<'a>, took: &'a Took<'a>) -> Self {
        let threads = timeline.recording.threads.len();
        let ends = timeline.recording.commands.iter().map(|command| command.end_ns).collect();
        let mut rerun = Rerun { timeline, change, took, ends, shifts: vec![vec![(0, 0)]; threads] };
        for (at, event) in rerun.events() {
            match event {
                Event::Command(index) => rerun.command(index),
                Event::Span(thread, number) => rerun.span(thread, number),
                Event::Handoff(thread, since, from) => rerun.handoff(thread, at, since, from),
            }
        }
        rerun
    }

    fn events(&self) -> Vec<(u64, Event)> {
        let timeline = self.timeline;
        let commands = timeline.recording.commands.iter().enumerate();
        let mut events: Vec<(u64, Event)> =
            commands.map(|(at, c)| (c.start_ns, Event::Command(at))).collect();
        for thread in 0..self.shifts.len() as u32 {
            let spans = timeline.spans(thread).iter().enumerate();
            events.extend(spans.map(|(number, span)| (span.end_ns, Event::Span(thread, number))));
            let handoffs = timeline.handoffs_of(thread).iter();
            events.extend(handoffs.map(|h| (h.at_ns, Event::Handoff(thread, h.since_ns, h.from))));
        }
        events.sort_unstable();
        events
    }

    /// What a thread's clock said at `ns` says now.
    fn host(&self, thread: u32, ns: u64) -> u64 {
        let Some(shifts) = self.shifts.get(thread as usize) else { return ns };
        let count = shifts.partition_point(|&(from, _)| from <= ns);
        shifts[..count].last().map_or(ns, |&(_, shift)| shifted(ns, shift))
    }

    /// From `ns` on the thread is at `now`.
    fn shift(&mut self, thread: u32, ns: u64, now: u64) {
        self.shifts[thread as usize].push((ns, later(now, ns)));
    }

    fn command(&mut self, index: usize) {
        let timeline = self.timeline;
        let command = timeline.command(index);
        let earlier = timeline.before(index).into_iter().chain(timeline.awaited(index).iter().copied());
        let launched = timeline.launched_ns(index);
        let (mut then, mut now) = (launched, self.host(command.launch.thread, launched));
        for other in earlier {
            then = then.max(timeline.command(other).end_ns.min(command.start_ns));
            now = now.max(self.ends[other]);
        }
        let latency = if self.change == Change::Graph { 0 } else { command.start_ns - then };
        let duration = match self.change {
            Change::Free(op) if op == command.op => 0,
            _ => (self.took)(command).unwrap_or_else(|| command.duration_ns()),
        };
        self.ends[index] = now + latency + duration;
        if timeline.is_inline(index) && (command.launch.thread as usize) < self.shifts.len() {
            self.shift(command.launch.thread, command.end_ns, self.ends[index]);
        }
    }

    /// The end of something that a thread did.
    fn span(&mut self, thread: u32, number: usize) {
        let timeline = self.timeline;
        let spans = timeline.spans(thread);
        let span = spans[number];
        match span.what {
            HostWork::Sync(index) => {
                let awaited = timeline.recording.syncs[index].awaited.iter();
                let awaited: Vec<usize> = awaited.filter_map(|&moment| timeline.newest(moment)).collect();
                let ended = awaited.iter().map(|&at| timeline.command(at).end_ns.min(span.end_ns)).max();
                let then = span.start_ns.max(ended.unwrap_or(0));
                let ends = awaited.iter().map(|&at| self.ends[at]).max();
                let now = self.host(thread, span.start_ns).max(ends.unwrap_or(0));
                self.shift(thread, span.end_ns, now + (span.end_ns - then));
            }
            HostWork::Launch(index) if self.change == Change::Graph => {
                let command = timeline.command(index);
                let mut gone = span.end_ns - span.start_ns;
                if timeline.is_inline(index) {
                    gone -= gone.min(command.duration_ns());
                }
                if let Some(before) = number.checked_sub(1).map(|before| spans[before])
                    && matches!(before.what, HostWork::Launch(_))
                    && span.start_ns - before.end_ns < BETWEEN_LAUNCHES_NS
                {
                    gone += span.start_ns - before.end_ns;
                }
                let now = self.host(thread, span.end_ns).saturating_sub(gone);
                self.shift(thread, span.end_ns, now);
            }
            HostWork::Launch(_) | HostWork::DriverCall(_) => {}
        }
    }

    /// The thread goes on once another one is where it was at `since`.
    fn handoff(&mut self, thread: u32, at: u64, since: u64, from: u32) {
        let last = self.timeline.span_before(thread, at).map_or(0, |span| span.end_ns.min(at));
        let own = last.max(self.timeline.entered_ns(thread, at));
        let then = own.max(since);
        let now = self.host(thread, own).max(self.host(from, since));
        self.shift(thread, at, now + (at - then));
    }

    fn end_ns(&self) -> u64 {
        let host = self.host(self.timeline.main_thread(), self.timeline.end_ns);
        let commands = self.ends.iter().copied().max().unwrap_or(0);
        let ends_with_host = self.timeline.recording.commands.iter().all(|c| c.end_ns < self.timeline.end_ns);
        if ends_with_host { host.max(commands) } else { commands }
    }
}

/// How long all commands take on so many streams, where each comes after what its data need and its launch.
fn scheduled_ns(timeline: &RecordingIndex<'_>, streams: usize) -> u64 {
    let mut free = vec![0u64; streams.max(1)];
    let mut ends: HashMap<usize, u64> = HashMap::new();
    for (at, needs) in timeline.needs() {
        let ready = needs.iter().filter_map(|need| ends.get(need)).max().copied().unwrap_or(0);
        let first = (0..free.len()).min_by_key(|&stream| free[stream]).unwrap_or(0);
        let start = if timeline.is_inline(at) { 0 } else { timeline.launched_ns(at) };
        free[first] = free[first].max(ready).max(start) + timeline.command(at).duration_ns();
        ends.insert(at, free[first]);
    }
    free.into_iter().max().unwrap_or(0)
}
