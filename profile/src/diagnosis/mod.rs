//! What takes the time of a program that need not: rules over a profile.
//!
//! Each rule looks for one cause and says what it costs. Time that a cause explains is not counted for what follows from it: the
//! launches after a synchronisation are the synchronisation's.

mod copies;
mod host;
mod streams;

use device::{CommandRecord, DeviceFacts, Place, RangeRecord, StreamId};

use super::path::{Link, PathSegment, walk};
use super::timeline::Timeline;
use super::{Profile, ms};

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

/// Part of a step below which a cause is not worth a word.
const NOTABLE: f64 = 0.05;

/// What takes time in a profile that need not, the costliest first. Nothing is found where nothing is.
///
/// | code | what was found |
/// |---|---|
/// | `hidden-sync` | A value is read in the step, which makes the host wait, and the device after it. |
/// | `synchronize` | The same, by a call that says so. |
/// | `memory-wait` | An allocation waits for memory that queued commands still use. |
/// | `driver-allocation` | The driver is asked for memory after the first step. |
/// | `launch-bound` | The device waits for launches. |
/// | `host-bound` | The device waits for what else the host does. |
/// | `exposed-copy` | Nothing computes while bytes are copied. |
/// | `pageable-copy` | The host copies bytes to where a CUDA device can read them. |
/// | `exposed-communication` | Nothing else runs while ranks exchange tensors. |
/// | `one-copy-engine` | Copies wait for each other, since the device has one engine for them. |
/// | `default-stream` | Streams beside each other wait for an op on the default stream. |
/// | `over-synchronised` | A wait that no data need, or two streams that write the same memory. |
/// | `imbalance` | One of the streams has more to do than the others. |
/// | `depth-first` | A stream has nothing to do while another one's commands are launched. |
/// | `no-room` | A kernel leaves no room beside it, or there are more streams than threads. |
///
/// Costs are of one step. They are estimates, and two findings may be about the same time.
pub fn diagnose(profile: &Profile) -> Vec<Finding> {
    let facts = Facts::new(profile);
    let rules: [fn(&Facts<'_>) -> Vec<Finding>; 12] = [
        host::synchronisation,
        host::driver_calls,
        host::launch_bound,
        host::host_bound,
        copies::exposed,
        copies::pageable,
        copies::one_engine,
        copies::communication,
        streams::default_stream,
        streams::over_synchronised,
        streams::uneven,
        streams::no_room,
    ];
    let mut findings: Vec<Finding> = rules.iter().flat_map(|rule| rule(&facts)).collect();
    for finding in &mut findings {
        finding.cost_ms /= facts.steps;
    }
    findings.sort_by(|a, b| b.cost_ms.total_cmp(&a.cost_ms));
    findings
}

/// What the rules look at.
struct Facts<'a> {
    profile: &'a Profile,
    windows: Vec<Stretch<'a>>,
    steps: f64,
    /// The wall time without what recording took of it.
    wall_ms: f64,
}

/// A recording with what was computed of it.
struct Stretch<'a> {
    timeline: Timeline<'a>,
    path: Vec<PathSegment>,
    /// When no command ran because the host had waited for the device and had to launch anew.
    bubbles: Vec<host::Bubble>,
}

impl<'a> Facts<'a> {
    fn new(profile: &'a Profile) -> Facts<'a> {
        let windows = profile.timelines().map(|timeline| {
            let (path, bubbles) = (host::join_launches(walk(&timeline)), host::bubbles(&timeline));
            Stretch { timeline, path, bubbles }
        });
        let windows: Vec<Stretch<'_>> = windows.collect();
        let recorder_ms = ms(windows.iter().map(Stretch::recorder_ns).sum());
        let wall_ms = profile.wall_ms() - recorder_ms;
        Facts { profile, windows, steps: profile.steps().max(1) as f64, wall_ms }
    }

    fn is_notable(&self, cost_ms: f64) -> bool {
        cost_ms > NOTABLE * self.wall_ms
    }

    fn device(&self) -> Option<&'a DeviceFacts> {
        self.windows.first().map(|window| &window.timeline.recording.device)
    }

    /// The streams that did something beside the default one.
    fn side_streams(&self) -> Vec<StreamId> {
        let default = self.device().and_then(|device| device.default_stream);
        let mut streams: Vec<StreamId> = self.windows.iter().flat_map(Stretch::working_streams).collect();
        streams.retain(|stream| Some(*stream) != default);
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    fn name(&self, stream: StreamId) -> String {
        self.profile.stream_name(stream)
    }
}

impl<'a> Stretch<'a> {
    fn commands(&self) -> impl Iterator<Item = (usize, &'a CommandRecord)> {
        self.timeline.recording.commands.iter().enumerate()
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

    fn working_streams(&self) -> Vec<StreamId> {
        self.commands()
            .filter(|(_, command)| command.is_work())
            .map(|(_, command)| command.moment.stream)
            .collect()
    }

    fn place(&self, place: Option<u32>) -> Option<Place> {
        place.and_then(|place| self.timeline.recording.places.get(place as usize)).cloned()
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

/// `at file:line`, or nothing.
fn at(place: Option<&Place>) -> String {
    place.map(|place| format!(" at {place}")).unwrap_or_default()
}

/// How long the two stretches of time are at once.
fn common_ns(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

/// Stretches of time or of memory, to be asked often.
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

    /// Whether one of them has something in common with this one.
    fn meets(&self, (start, end): (u64, u64)) -> bool {
        self.last_end(end) > start
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
