//! Rules over a profile: what takes time that it need not.
//!
//! Each rule looks for one cause and what it costs. Time that a cause explains is not counted again for its consequences: launches
//! after a synchronisation are the synchronisation's.

mod copies;
mod host;
mod schedules;
mod show;
mod streams;

use device::{CommandRecord, DeviceFacts, Place, RangeRecord, StreamId};

use super::path::{Link, PathSegment, walk};
use super::profile::{Profile, ms};
use super::timeline::{Busy, RecordingIndex};
pub use schedules::{OtherPrograms, Schedules};

/// One finding of a diagnosis.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// What kind of finding, as in `hidden-sync`.
    pub code: &'static str,
    /// What was measured and what follows from it.
    pub message: String,
    /// The line of the program, if there is one to blame.
    pub place: Option<Place>,
    /// About how many milliseconds of a step it takes, 0 if that is not known.
    pub cost_ms: f64,
}

impl Finding {
    /// A finding about no line in particular.
    pub fn new(code: &'static str, message: impl Into<String>) -> Finding {
        Finding { code, message: message.into(), ..Finding::default() }
    }
}

/// Part of the wall time above which a cause is reported.
const NOTABLE: f64 = 0.05;
/// The same for the host, which always takes some time.
const HOST_BOUND: f64 = 0.2;

struct Rule {
    code: &'static str,
    /// Part of the wall time above which evidence is reported.
    threshold: f64,
    advice: &'static str,
    find: fn(&Facts<'_>) -> Vec<Evidence>,
}

/// What a rule measured.
#[derive(Default)]
struct Evidence {
    text: String,
    /// Replaces the rule's advice.
    advice: Option<&'static str>,
    place: Option<Place>,
    /// Milliseconds of all steps; unknown cost is always reported.
    cost_ms: Option<f64>,
}

impl Evidence {
    fn new(cost_ms: f64, place: Option<Place>, text: String) -> Evidence {
        Evidence { text, advice: None, place, cost_ms: Some(cost_ms) }
    }

    fn of_unknown_cost(text: String) -> Evidence {
        Evidence { text, ..Evidence::default() }
    }
}

/// Makes [`RULES`], and the table in the documentation of [`diagnose`].
macro_rules! rules {
    (|$facts:ident| $($code:literal > $threshold:expr, $cause:literal, $advice:literal, $evidence:expr;)*) => {
        const RULES: &[Rule] = &[$(Rule {
            code: $code,
            threshold: $threshold,
            advice: $advice,
            find: |$facts| $evidence.into_iter().collect(),
        }),*];

        /// What takes time in a profile that it need not, the costliest first; nothing where there is no such time.
        ///
        /// | code | what was found | what to do |
        /// |---|---|---|
        $(#[doc = concat!("| `", $code, "` | ", $cause, " | ", $advice, " |")])*
        ///
        /// Costs are estimates, of one step. Two findings may be about the same time.
        pub fn diagnose(profile: &Profile) -> Vec<Finding> {
            findings(&Facts::new(profile, None))
        }
    };
}

rules! { |facts|
    "busy" > 0.0, "In a comparison: other programs had processors",
        "so the speed-up says little: measure again on an idle machine",
        facts.schedules.and_then(schedules::busy);
    "hidden-sync" > NOTABLE, "Reading a value makes the host wait in the step, and then the device",
        "read results after the step, or every so many steps",
        host::waits(facts, |op| op == "download").into_iter().chain(facts.schedules.and_then(schedules::hidden_syncs));
    "synchronize" > NOTABLE, "The same, by a call that says so",
        "leave the wait out: reading a result waits for it",
        host::waits(facts, |op| !matches!(op, "download" | "wait_for_memory"));
    "memory-wait" > NOTABLE, "An allocation waits for memory that queued commands still use",
        "raise the memory limit, or keep less alive",
        host::waits(facts, |op| op == "wait_for_memory");
    "driver-allocation" > 0.0, "The driver is asked for memory after the first step",
        "keep what was freed, or reserve before the first step, in the scope of the stream that allocates",
        host::driver_calls(facts).into_iter().chain(facts.schedules.and_then(schedules::driver_allocations));
    "launch-bound" > HOST_BOUND, "The device waits for launches",
        "capture the step (`Graph::capture`), or give each command more to do, as with larger batches",
        host::launch_bound(facts);
    "host-bound" > HOST_BOUND, "The device waits for other work of the host",
        "do it on another thread, one batch ahead, as the stages of a `Pipeline` do, or give each step more to do",
        host::host_bound(facts);
    "exposed-copy" > NOTABLE, "Nothing computes while bytes are copied",
        "copy one batch ahead, so that another one is computed meanwhile",
        copies::exposed(facts);
    "pageable-copy" > NOTABLE, "The host copies bytes to where a CUDA device can read them",
        "have the bytes in pinned memory, or upload on another thread, as a stage of a `Pipeline`",
        copies::pageable(facts);
    "exposed-communication" > NOTABLE, "Nothing else runs while ranks exchange tensors",
        "compute another batch meanwhile, on lanes with a communicator each, or average gradients during the backward pass, as \
         `DataParallel::backward` does",
        copies::communication(facts);
    "one-copy-engine" > NOTABLE, "Copies wait for each other, since the device has one engine for them",
        "one waits for the other there, whatever the streams",
        copies::one_engine(facts);
    "default-stream" > NOTABLE, "Concurrent streams wait for an op on the default stream",
        "put it in the scope of one of them",
        streams::default_stream(facts);
    "over-synchronised" > NOTABLE, "A wait that no data need, or two streams that write the same memory",
        "leave out waits that no data need, and give each stream its own memory to write",
        streams::over_synchronised(facts);
    "data-dependent" > NOTABLE, "A stream waits for the data of another one, so the two cannot run at once",
        "one stream does as well; overlap needs independent work, as another batch on each stream",
        streams::data_dependent(facts);
    "imbalance" > NOTABLE, "One of the streams has more to do than the others",
        "split the work evenly",
        streams::imbalance(facts);
    "depth-first" > NOTABLE, "A stream has nothing to do while the commands of another one are launched",
        "take turns, or launch each stream's work on a thread of its own, as `ConcurrentBatches` does",
        streams::depth_first(facts);
    "no-room" > NOTABLE, "A kernel leaves no room beside it, or there are more streams than threads",
        "more streams gain nothing there",
        streams::filled(facts).into_iter().chain(streams::more_streams_than_threads(facts));
    "lanes-apart" > 0.0, "In a comparison: streams with a thread each hardly ever run at once",
        "measure again on an idle machine",
        facts.schedules.and_then(schedules::lanes_apart);
    "kernels-fill-device" > 0.0, "In a comparison: the kernels of the serial schedule use all threads already",
        "there is less room beside them",
        facts.schedules.and_then(schedules::kernels_fill_device);
    "inflation" > NOTABLE, "In a comparison: a command takes longer beside other streams than alone",
        "the streams share caches, memory and clock",
        schedules::inflation(facts);
    "serial-part" > NOTABLE, "In a comparison: merging gradients and the optimizer take time after the streams have joined",
        "do less there, or give the streams more to do",
        schedules::serial_part(facts);
}

/// [`diagnose`] for the recorded steps of a concurrent schedule that was compared with a serial one. The last finding is `limit`: what
/// takes the time of the concurrent step.
pub fn diagnose_schedules(profile: &Profile, schedules: &Schedules) -> Vec<Finding> {
    let facts = Facts::new(profile, Some(schedules));
    let mut findings = findings(&facts);
    findings.push(Finding::new("limit", schedules::limit(&facts, schedules)));
    findings
}

fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let of_rule = |rule: &'static Rule| (rule.find)(facts).into_iter().map(move |evidence| (rule, evidence));
    let mut found: Vec<_> = RULES.iter().flat_map(of_rule).collect();
    found.retain(|(rule, evidence)| {
        evidence.cost_ms.is_none_or(|cost_ms| cost_ms > rule.threshold * facts.wall_ms)
    });
    let cost_ms = |evidence: &Evidence| evidence.cost_ms.unwrap_or(f64::INFINITY);
    found.sort_by(|(_, a), (_, b)| cost_ms(b).total_cmp(&cost_ms(a)));
    let finding = |(rule, evidence): (&Rule, Evidence)| Finding {
        code: rule.code,
        message: format!("{}; {}", evidence.text, evidence.advice.unwrap_or(rule.advice)),
        place: evidence.place,
        cost_ms: evidence.cost_ms.unwrap_or(0.0) / facts.steps,
    };
    found.into_iter().map(finding).collect()
}

/// What the rules look at.
struct Facts<'a> {
    profile: &'a Profile,
    schedules: Option<&'a Schedules>,
    windows: Vec<Stretch<'a>>,
    steps: f64,
    /// The wall time without what recording took of it.
    wall_ms: f64,
}

/// A recording with what was computed of it.
struct Stretch<'a> {
    timeline: RecordingIndex<'a>,
    path: Vec<PathSegment>,
    /// When no command ran because the host had waited for the device and had to launch anew.
    bubbles: Vec<host::Bubble>,
    /// What each command has to come after because of the memory that it uses.
    needs: Vec<Vec<usize>>,
}

impl<'a> Facts<'a> {
    fn new(profile: &'a Profile, schedules: Option<&'a Schedules>) -> Facts<'a> {
        let windows = profile.timelines().map(|timeline| {
            let (path, bubbles) = (host::join_launches(walk(&timeline)), host::bubbles(&timeline));
            let mut needs = vec![Vec::new(); timeline.recording.commands.len()];
            timeline.needs().for_each(|(at, of_command)| needs[at] = of_command);
            Stretch { timeline, path, bubbles, needs }
        });
        let windows: Vec<Stretch<'_>> = windows.collect();
        let recorder_ms = ms(windows.iter().map(Stretch::recorder_ns).sum());
        let wall_ms = profile.wall_ms() - recorder_ms;
        Facts { profile, schedules, windows, steps: profile.steps().max(1) as f64, wall_ms }
    }

    fn device(&self) -> Option<&'a DeviceFacts> {
        self.windows.first().map(|window| &window.timeline.recording.device)
    }

    /// Whether the device is the host with one thread, on which no two streams run at once.
    fn has_one_thread(&self) -> bool {
        self.device().is_some_and(|device| device.host_threads == Some(1))
    }

    fn default_stream(&self) -> Option<StreamId> {
        self.device().and_then(|device| device.default_stream)
    }

    /// The streams other than the default one that did something.
    fn side_streams(&self) -> Vec<StreamId> {
        let default = self.default_stream();
        let work = self.windows.iter().flat_map(Stretch::work);
        let mut streams: Vec<StreamId> = work.map(|(_, command)| command.moment.stream).collect();
        streams.retain(|stream| Some(*stream) != default);
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// The commands of a stream that do something, with what launched each.
    fn work_of(&self, stream: StreamId) -> impl Iterator<Item = (&'a CommandRecord, Option<Place>)> {
        let commands =
            self.windows.iter().flat_map(|window| window.commands().zip(std::iter::repeat(window)));
        let of_stream = commands.filter(move |((_, command), _)| command.moment.stream == stream);
        of_stream.map(|((_, command), window)| (command, window.place(command.launch.place)))
    }

    /// How long a stream ran commands.
    fn busy_ns(&self, stream: StreamId) -> u64 {
        self.work_of(stream).map(|(command, _)| command.duration_ns()).sum()
    }

    /// Whether the program runs batches on lanes already.
    fn has_lanes(&self) -> bool {
        let mut ranges = self.profile.recordings().flat_map(|recording| &recording.ranges);
        ranges.any(|range| &*range.name == "ConcurrentBatches::step")
    }

    fn name(&self, stream: StreamId) -> String {
        self.profile.stream_name(stream)
    }
}

impl<'a> Stretch<'a> {
    fn commands(&self) -> impl Iterator<Item = (usize, &'a CommandRecord)> {
        self.timeline.recording.commands.iter().enumerate()
    }

    /// The commands that do something.
    fn work(&self) -> impl Iterator<Item = (usize, &'a CommandRecord)> {
        self.commands().filter(|(_, command)| command.is_work())
    }

    /// How long commands of other streams that count ran while this one did, each by itself.
    fn beside_ns(&self, command: &CommandRecord, counts: impl Fn(&CommandRecord) -> bool) -> u64 {
        let times = (command.start_ns, command.end_ns);
        let others = self.timeline.streams.iter().filter(|(stream, _)| **stream != command.moment.stream);
        let of_stream = |(_, list): (_, &Vec<usize>)| -> u64 {
            // Commands of a stream run one after the other.
            let first = list.partition_point(|&at| self.timeline.command(at).end_ns <= times.0);
            let beside = list[first..].iter().map(|&at| self.timeline.command(at));
            beside
                .take_while(|other| other.start_ns < times.1)
                .filter(|other| counts(other))
                .map(|other| common_ns(times, (other.start_ns, other.end_ns)))
                .sum()
        };
        others.map(of_stream).sum()
    }

    /// How long a command that had nothing else to wait for waited for another one.
    fn waited_ns(&self, waiter: usize, awaited: usize) -> u64 {
        let timeline = &self.timeline;
        let since = timeline.before(waiter).map_or(0, |before| timeline.command(before).end_ns);
        timeline.command(awaited).end_ns.saturating_sub(since.max(timeline.launched_ns(waiter)))
    }

    fn place(&self, place: Option<u32>) -> Option<Place> {
        self.timeline.place(place).cloned()
    }

    fn range(&self, range: usize) -> &'a RangeRecord {
        &self.timeline.recording.ranges[range]
    }

    /// Which step a time is in.
    fn step_at(&self, ns: u64) -> usize {
        self.timeline.recording.steps.partition_point(|&end| end <= ns)
    }

    /// What recording itself took of the path.
    fn recorder_ns(&self) -> u64 {
        self.path.iter().map(|segment| self.recorder_ns_of(segment)).sum()
    }

    fn recorder_ns_of(&self, segment: &PathSegment) -> u64 {
        match segment.link {
            Link::Launch { index, .. } => {
                let launch = &self.timeline.command(index).launch;
                launch.recorder_ns.min(segment.end_ns - segment.start_ns)
            }
            _ => 0,
        }
    }

    /// The links of the path that `of` names, as far as they lie in no bubble, with how long they are.
    fn links(&self, of: impl Fn(&Link) -> bool) -> impl Iterator<Item = (&PathSegment, u64)> {
        let outside = |segment: &PathSegment| {
            let within = |bubble: &host::Bubble| {
                bubble.end_ns.min(segment.end_ns).saturating_sub(bubble.start_ns.max(segment.start_ns))
            };
            let length = segment.end_ns - segment.start_ns;
            length.saturating_sub(self.bubbles.iter().map(within).sum())
        };
        let named = self.path.iter().filter(move |segment| of(&segment.link));
        named.map(move |segment| (segment, outside(segment))).filter(|(_, length)| *length > 0)
    }
}

/// The values of a key added up, the largest sum first.
fn sums<K: PartialEq>(values: impl IntoIterator<Item = (K, u64)>) -> Vec<(K, u64, usize)> {
    let mut sums: Vec<(K, u64, usize)> = Vec::new();
    for (key, value) in values {
        match sums.iter_mut().find(|(known, ..)| *known == key) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + value, *count + 1),
            None => sums.push((key, value, 1)),
        }
    }
    sums.sort_by_key(|&(_, sum, _)| std::cmp::Reverse(sum));
    sums
}

/// ` at file:line`, or nothing.
fn at(place: Option<&Place>) -> String {
    place.map(|place| format!(" at {place}")).unwrap_or_default()
}

/// `, mostly at file:line`, or nothing.
fn mostly_at(place: Option<&Place>) -> String {
    place.map(|place| format!(", mostly at {place}")).unwrap_or_default()
}

/// How long the two stretches of time are at once.
fn common_ns(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// Stretches of time, to be asked often.
struct Extents {
    /// By start, with the last end of those up to there.
    extents: Vec<(u64, u64)>,
}

impl Extents {
    fn new(extents: impl IntoIterator<Item = (u64, u64)>) -> Extents {
        let mut extents: Vec<(u64, u64)> = extents.into_iter().collect();
        extents.sort_unstable();
        let mut last = 0;
        for (_, end) in &mut extents {
            last = last.max(*end);
            *end = last;
        }
        Extents { extents }
    }

    /// The last end of those that start before; 0 if none does.
    fn last_end(&self, before: u64) -> u64 {
        let count = self.extents.partition_point(|&(start, _)| start < before);
        count.checked_sub(1).map_or(0, |last| self.extents[last].1)
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
