//! A recording with its parts found by stream and by thread, as all that is computed from it needs them.

use std::collections::{BTreeMap, HashMap, HashSet};

use device::{CommandRecord, HandOffRecord, Moment, Place, RangeRecord, RangeUses, Recording, StreamId};

/// A recording and its order.
pub(super) struct RecordingIndex<'a> {
    pub(super) recording: &'a Recording,
    /// When the last step ended, or the last command if that was later.
    pub(super) end_ns: u64,
    /// The commands of each stream by tick, as indices.
    pub(super) streams: BTreeMap<StreamId, Vec<usize>>,
    /// What each command waited for, as indices.
    waits: HashMap<Moment, Vec<usize>>,
    /// What each thread did, in order, without overlap.
    threads: Vec<Vec<Span<HostWork>>>,
    /// The innermost range that each thread was in, in order, without overlap.
    ranges: Vec<Vec<Span<usize>>>,
    /// For each thread, when it came after something of another one.
    handoffs: Vec<Vec<Handoff>>,
}

/// A stretch of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span<T> {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) what: T,
}

/// A thread came at `at_ns` after what another one did until `since_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Handoff {
    pub(super) at_ns: u64,
    pub(super) since_ns: u64,
    pub(super) from: u32,
}

/// What a span is, with its index in the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostWork {
    Launch(usize),
    Sync(usize),
    DriverCall(usize),
}

/// What made a command start when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// This one ended, on its own stream or on one that it waited for.
    Command(usize),
    /// The host had launched it.
    Launch,
    /// Nothing in the recording.
    Unknown,
}

impl<'a> RecordingIndex<'a> {
    pub(super) fn new(recording: &'a Recording) -> RecordingIndex<'a> {
        let mut streams: BTreeMap<StreamId, Vec<usize>> = BTreeMap::new();
        for (at, command) in recording.commands.iter().enumerate() {
            streams.entry(command.moment.stream).or_default().push(at);
        }
        let commands = &recording.commands;
        streams.values_mut().for_each(|list| list.sort_unstable_by_key(|&at| commands[at].moment.tick));
        let last_end = commands.iter().map(|command| command.end_ns).max();
        let end_ns = match (recording.steps.last().copied(), last_end) {
            (None, None) => recording.wall_ns,
            (None, Some(end)) => end.max(recording.syncs.iter().map(|sync| sync.end_ns).max().unwrap_or(0)),
            (Some(step), end) => step.max(end.unwrap_or(0)),
        };
        let mut timeline = RecordingIndex {
            recording,
            end_ns,
            streams,
            waits: HashMap::new(),
            threads: host_spans(recording),
            ranges: innermost_ranges(recording),
            handoffs: handoffs(recording),
        };
        for wait in &recording.waits {
            if let Some(awaited) = timeline.newest(wait.awaited) {
                timeline.waits.entry(wait.waiter).or_default().push(awaited);
            }
        }
        timeline
    }

    /// The line of the program with this number.
    pub(super) fn place(&self, place: Option<u32>) -> Option<&'a Place> {
        self.recording.places.get(place? as usize)
    }

    pub(super) fn command(&self, at: usize) -> &'a CommandRecord {
        &self.recording.commands[at]
    }

    /// The last command of the moment's stream that was launched by then.
    pub(super) fn newest(&self, moment: Moment) -> Option<usize> {
        let list = self.streams.get(&moment.stream)?;
        let count = list.partition_point(|&at| self.command(at).moment.tick <= moment.tick);
        count.checked_sub(1).map(|last| list[last])
    }

    /// The command before this one in its stream.
    pub(super) fn before(&self, at: usize) -> Option<usize> {
        let Moment { stream, tick } = self.command(at).moment;
        self.newest(Moment { stream, tick: tick.checked_sub(1)? })
    }

    /// What this command waited for.
    pub(super) fn awaited(&self, at: usize) -> &[usize] {
        self.waits.get(&self.command(at).moment).map_or(&[], Vec::as_slice)
    }

    /// The commands that do something in the order of their launches, each with those that it has to come after because both use the
    /// same memory.
    pub(super) fn needs(&self) -> impl Iterator<Item = (usize, Vec<usize>)> {
        let commands = &self.recording.commands;
        let mut order: Vec<usize> = (0..commands.len()).filter(|&at| commands[at].is_work()).collect();
        order.sort_by_key(|&at| (commands[at].launch.start_ns, at));
        let mut used = RangeUses::default();
        order.into_iter().map(move |at| {
            let mut needs = Vec::new();
            for access in &commands[at].accesses {
                used.record(access.start..access.end, at, access.write, |need, _| needs.push(need));
            }
            (at, needs)
        })
    }

    /// When the host had given the command away.
    pub(super) fn launched_ns(&self, at: usize) -> u64 {
        let command = self.command(at);
        command.launch.given_ns.min(command.start_ns)
    }

    /// What was the last of all that the command came after, and when that was.
    pub(super) fn cause(&self, at: usize) -> (Cause, u64) {
        let start = self.command(at).start_ns;
        let earlier = self.before(at).into_iter().chain(self.awaited(at).iter().copied());
        let ends = earlier.map(|earlier| (self.command(earlier).end_ns.min(start), earlier));
        let launched = self.launched_ns(at);
        match ends.max() {
            Some((end, earlier)) if end > launched => (Cause::Command(earlier), end),
            // The launch is in the recording.
            _ if (self.command(at).launch.thread as usize) < self.threads.len() => (Cause::Launch, launched),
            Some((end, earlier)) => (Cause::Command(earlier), end),
            None => (Cause::Unknown, start),
        }
    }

    /// Whether the command ran within the call that launched it.
    pub(super) fn is_inline(&self, at: usize) -> bool {
        let command = self.command(at);
        command.launch.start_ns <= command.start_ns && command.end_ns <= command.launch.end_ns
    }

    /// The last span of a thread that began before `ns`.
    pub(super) fn span_before(&self, thread: u32, ns: u64) -> Option<Span<HostWork>> {
        let spans = self.spans(thread);
        let count = spans.partition_point(|span| span.start_ns < ns);
        count.checked_sub(1).map(|last| spans[last])
    }

    /// The spans of a thread, in order.
    pub(super) fn spans(&self, thread: u32) -> &[Span<HostWork>] {
        self.threads.get(thread as usize).map_or(&[], Vec::as_slice)
    }

    /// A thread's time cut where ranges begin and end, each piece with the innermost range.
    pub(super) fn pieces(&self, thread: u32, from: u64, to: u64) -> Vec<Span<Option<usize>>> {
        let ranges = self.ranges.get(thread as usize).map_or(&[][..], Vec::as_slice);
        let first = ranges.partition_point(|range| range.end_ns <= from);
        let (mut pieces, mut now) = (Vec::new(), from);
        let mut put = |now: &mut u64, end_ns: u64, what| {
            if end_ns > *now {
                pieces.push(Span { start_ns: *now, end_ns, what });
                *now = end_ns;
            }
        };
        for range in ranges[first..].iter().take_while(|range| range.start_ns < to) {
            put(&mut now, range.start_ns, None);
            put(&mut now, range.end_ns.min(to), Some(range.what));
        }
        put(&mut now, to, None);
        pieces
    }

    /// When a thread came after something of another one, in order.
    pub(super) fn handoffs_of(&self, thread: u32) -> &[Handoff] {
        self.handoffs.get(thread as usize).map_or(&[], Vec::as_slice)
    }

    /// When a thread entered the innermost range, or went on in it, that it was in until `ns`; 0 if in none.
    pub(super) fn entered_ns(&self, thread: u32, ns: u64) -> u64 {
        let ranges = self.ranges.get(thread as usize).map_or(&[][..], Vec::as_slice);
        let first = ranges.partition_point(|range| range.end_ns < ns);
        ranges.get(first).filter(|range| range.start_ns < ns).map_or(0, |range| range.start_ns)
    }

    /// The last that a thread came after between `since` and `now` that happened in that time on another one.
    pub(super) fn handoff(&self, thread: u32, since: u64, now: u64) -> Option<Handoff> {
        let handoffs = self.handoffs_of(thread);
        let first = handoffs.partition_point(|handoff| handoff.at_ns <= since);
        let later = handoffs[first..].iter().take_while(|handoff| handoff.at_ns <= now);
        let own = |handoff: &&Handoff| since.max(self.entered_ns(thread, handoff.at_ns));
        later
            .filter(|handoff| handoff.since_ns > own(handoff))
            .max_by_key(|handoff| handoff.since_ns)
            .copied()
    }

    /// The thread that the program begins and ends on: the one that named the first range, or launched or waited first.
    pub(super) fn main_thread(&self) -> u32 {
        let first = |thread: usize| self.threads[thread].first().map_or(u64::MAX, |span| span.start_ns);
        (0..self.threads.len()).min_by_key(|&thread| first(thread)).unwrap_or(0) as u32
    }
}

/// How long the streams of a recording ran commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Nanoseconds in which at least one stream ran a command.
    pub any_ns: u64,
    /// Nanoseconds in which two or more streams did.
    pub overlap_ns: u64,
}

impl Busy {
    /// Counts the commands for which `counts` returns true. A stream runs one command at a time, so commands that run at the same
    /// time belong to different streams.
    pub fn of(recording: &Recording, counts: impl Fn(&CommandRecord) -> bool) -> Busy {
        let mut edges: Vec<(u64, i32)> = Vec::new();
        for command in recording.commands.iter().filter(|command| counts(command)) {
            edges.push((command.start_ns, 1));
            edges.push((command.end_ns.max(command.start_ns), -1));
        }
        // At equal times, ends sort before starts.
        edges.sort_unstable();
        let (mut busy, mut active, mut since) = (Busy::default(), 0, 0);
        for (at, change) in edges {
            busy.any_ns += if active >= 1 { at - since } else { 0 };
            busy.overlap_ns += if active >= 2 { at - since } else { 0 };
            active += change;
            since = at;
        }
        busy
    }
}

/// What each thread did: where one span lies within another, as a launch in a wait, the outer one is cut.
fn host_spans(recording: &Recording) -> Vec<Vec<Span<HostWork>>> {
    let span = |thread: u32, start_ns, end_ns, what| (thread, Span { start_ns, end_ns, what });
    let launches = recording.commands.iter().map(|command| &command.launch).enumerate();
    let launches = launches.map(|(at, of)| span(of.thread, of.start_ns, of.end_ns, HostWork::Launch(at)));
    let syncs = recording.syncs.iter().enumerate();
    let syncs = syncs.map(|(at, of)| span(of.thread, of.start_ns, of.end_ns, HostWork::Sync(at)));
    let calls = recording.driver_calls.iter().enumerate();
    let calls = calls.map(|(at, of)| span(of.thread, of.start_ns, of.end_ns, HostWork::DriverCall(at)));
    by_thread(recording, launches.chain(syncs).chain(calls)).into_iter().map(flattened).collect()
}

/// The items of each thread of the recording.
fn by_thread<T: Clone>(recording: &Recording, items: impl IntoIterator<Item = (u32, T)>) -> Vec<Vec<T>> {
    let mut threads = vec![Vec::new(); recording.threads.len()];
    for (thread, item) in items {
        if let Some(items) = threads.get_mut(thread as usize) {
            items.push(item);
        }
    }
    threads
}

fn innermost_ranges(recording: &Recording) -> Vec<Vec<Span<usize>>> {
    let ranges = recording.ranges.iter().enumerate();
    let span = |(what, range): (usize, &RangeRecord)| {
        (range.thread, Span { start_ns: range.start_ns, end_ns: range.end_ns, what })
    };
    by_thread(recording, ranges.map(span)).into_iter().map(flattened).collect()
}

/// What a recording says of them. Also, the first range of a thread with its parent on another one begins after that thread asked
/// for it, and that thread goes on after the last one ended.
fn handoffs(recording: &Recording) -> Vec<Vec<Handoff>> {
    let mut found = Vec::new();
    let mut add = |thread, at_ns, since_ns, from| found.push((thread, Handoff { at_ns, since_ns, from }));
    for handoff in &recording.handoffs {
        add(handoff.thread, handoff.at_ns, handoff.since_ns, handoff.from);
    }
    let mut begun = HashSet::new();
    for range in &recording.ranges {
        let of = |parent: u32| Some((parent, recording.ranges.get(parent as usize)?));
        let Some((at, parent)) = range.parent.and_then(of).filter(|(_, p)| p.thread != range.thread) else {
            continue;
        };
        let took = |handoff: &HandOffRecord| {
            handoff.thread == range.thread && (parent.start_ns..=range.start_ns).contains(&handoff.at_ns)
        };
        if begun.insert((at, range.thread)) && !recording.handoffs.iter().any(took) {
            add(range.thread, range.start_ns, range.start_ns, parent.thread);
        }
        add(parent.thread, parent.end_ns, range.end_ns, range.thread);
    }
    found.sort_unstable();
    by_thread(recording, found)
}

/// Each piece of time once, as the innermost span that it is in.
fn flattened<T: Copy>(mut spans: Vec<Span<T>>) -> Vec<Span<T>> {
    spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.end_ns)));
    let mut flat = Vec::with_capacity(spans.len());
    let mut open: Vec<Span<T>> = Vec::new();
    let mut at = 0;
    let mut put = |what, from: u64, to: u64| {
        if to > from {
            flat.push(Span { start_ns: from, end_ns: to, what });
        }
    };
    let mut close_until = |open: &mut Vec<Span<T>>, at: &mut u64, until: u64| {
        while let Some(top) = open.last().copied() {
            let end = top.end_ns.min(until);
            put(top.what, (*at).max(top.start_ns), end);
            *at = (*at).max(end);
            if top.end_ns > until {
                break;
            }
            open.pop();
        }
        *at = (*at).max(until);
    };
    for span in spans {
        close_until(&mut open, &mut at, span.start_ns);
        open.push(span);
    }
    close_until(&mut open, &mut at, u64::MAX);
    flat
}
