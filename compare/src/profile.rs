//! What recordings of single steps say: who was busy when, and the longest chain of commands.

use std::collections::HashMap;

use device::{CommandRecord, Recording, StreamId};

use ::profile::median;

/// What the traced steps of a schedule have in common. Times are medians over the steps.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Profile {
    /// A step's wall time, traced.
    pub wall_ms: f64,
    /// The share of the wall time in which some command runs.
    pub busy: f64,
    /// The share of that time in which commands of two or more streams run.
    pub overlap: f64,
    /// The commands' durations, added up.
    pub kernel_ms: f64,
    /// The longest chain of commands that had to come one after the other.
    pub critical_path_ms: f64,
    /// Commands in a step.
    pub commands: f64,
    /// What each lane does.
    pub lanes: Vec<LaneProfile>,
    /// What the default stream does, if it is not a lane: the merge and the optimizer step.
    pub outside: Option<LaneProfile>,
    /// The ops that ran on the default stream while lanes were at work, with their number in a step.
    pub intruders: Vec<(&'static str, f64)>,
    /// Waits of one lane for another, by the op that waited and the op waited for, with their number in a step.
    pub lane_waits: Vec<(&'static str, &'static str, f64)>,
    /// The ops, the one that takes most time first.
    pub ops: Vec<OpProfile>,
}

/// One stream's part of a step.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LaneProfile {
    /// The stream.
    pub stream: Option<StreamId>,
    /// The durations of its commands, added up.
    pub busy_ms: f64,
    /// Its commands in a step.
    pub commands: f64,
    /// The op that takes most of its time.
    pub longest_op: &'static str,
}

/// One op's part of a step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OpProfile {
    /// The op.
    pub op: &'static str,
    /// How often it runs in a step.
    pub count: f64,
    /// How long one run takes on average, over the quicker half of the steps.
    pub mean_ms: f64,
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn duration_ms(command: &CommandRecord) -> f64 {
    ms(command.end_ns.saturating_sub(command.start_ns))
}

impl Profile {
    /// Of recordings of one step each. `lanes` are the streams of the batches; any other stream is outside of them.
    pub fn of(steps: &[Recording], lanes: &[StreamId]) -> Profile {
        let over = |value: &dyn Fn(&Recording) -> f64| median(steps.iter().map(value));
        let of_stream = |stream: StreamId| LaneProfile {
            stream: Some(stream),
            busy_ms: over(&|step| commands_of(step, stream).map(duration_ms).sum()),
            commands: over(&|step| commands_of(step, stream).count() as f64),
            longest_op: longest_op(steps, stream),
        };
        let outside = steps.iter().flat_map(|step| &step.commands).map(|command| command.moment.stream);
        let outside = outside.into_iter().find(|stream| !lanes.contains(stream));
        Profile {
            wall_ms: over(&|step| ms(step.wall_ns)),
            busy: over(&|step| ratio(activity(step).busy_ns, step.wall_ns)),
            overlap: over(&|step| ratio(activity(step).overlap_ns, activity(step).busy_ns)),
            kernel_ms: over(&|step| step.commands.iter().map(duration_ms).sum()),
            critical_path_ms: over(&|step| critical_path_ms(step, lanes, &duration_ms)),
            commands: over(&|step| step.commands.len() as f64),
            lanes: lanes.iter().map(|&stream| of_stream(stream)).collect(),
            outside: outside.map(of_stream),
            intruders: intruders(steps, lanes),
            lane_waits: lane_waits(steps, lanes),
            ops: ops(steps),
        }
    }

    /// How long one run of `op` takes on average.
    pub fn mean_ms(&self, op: &str) -> Option<f64> {
        self.ops.iter().find(|known| known.op == op).map(|known| known.mean_ms)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn commands_of(step: &Recording, stream: StreamId) -> impl Iterator<Item = &CommandRecord> {
    step.commands.iter().filter(move |command| command.moment.stream == stream)
}

pub(super) struct Activity {
    /// Time with at least one stream active.
    pub(super) busy_ns: u64,
    /// Time with at least two.
    pub(super) overlap_ns: u64,
}

/// A stream runs one command at a time, so commands at once are streams at once.
pub(super) fn activity(step: &Recording) -> Activity {
    let mut edges: Vec<(u64, i32)> = Vec::with_capacity(2 * step.commands.len());
    for command in &step.commands {
        edges.push((command.start_ns, 1));
        edges.push((command.end_ns.max(command.start_ns), -1));
    }
    // At one time, ends come before starts.
    edges.sort_unstable();
    let mut found = Activity { busy_ns: 0, overlap_ns: 0 };
    let (mut active, mut since) = (0, 0);
    for (at, change) in edges {
        found.busy_ns += if active >= 1 { at - since } else { 0 };
        found.overlap_ns += if active >= 2 { at - since } else { 0 };
        active += change;
        since = at;
    }
    found
}

/// The longest chain of commands, each as long as `cost` says.
///
/// A command comes after the one before it in its stream, after what it waited for, and, between a lane and a stream
/// outside, after what had ended when it started: there the host orders them.
pub(super) fn critical_path_ms(
    step: &Recording,
    lanes: &[StreamId],
    cost: &dyn Fn(&CommandRecord) -> f64,
) -> f64 {
    let mut commands: Vec<&CommandRecord> = step.commands.iter().collect();
    commands.sort_unstable_by_key(|command| (command.start_ns, command.end_ns));
    let waits: Vec<_> = step.waits.iter().map(|wait| (wait.waiter, wait.awaited)).collect();
    let is_lane = |command: &CommandRecord| lanes.contains(&command.moment.stream);
    let mut done: Vec<(&CommandRecord, f64)> = Vec::with_capacity(commands.len());
    for command in commands {
        let after = |earlier: &CommandRecord| {
            earlier.moment.stream == command.moment.stream
                || waits.contains(&(command.moment, earlier.moment))
                || (is_lane(earlier) != is_lane(command) && earlier.end_ns <= command.start_ns)
        };
        let before =
            done.iter().filter(|(earlier, _)| after(earlier)).map(|(_, end)| *end).fold(0.0, f64::max);
        done.push((command, before + cost(command)));
    }
    done.iter().map(|(_, end)| *end).fold(0.0, f64::max)
}

fn longest_op(steps: &[Recording], stream: StreamId) -> &'static str {
    let mut totals: HashMap<&'static str, f64> = HashMap::new();
    for command in steps.iter().flat_map(|step| commands_of(step, stream)) {
        *totals.entry(command.op).or_default() += duration_ms(command);
    }
    totals.into_iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(a.0))).map_or("", |(op, _)| op)
}

fn intruders(steps: &[Recording], lanes: &[StreamId]) -> Vec<(&'static str, f64)> {
    let mut counts: HashMap<&'static str, f64> = HashMap::new();
    for step in steps {
        let is_lane = |command: &&CommandRecord| lanes.contains(&command.moment.stream);
        let last_end = step.commands.iter().filter(is_lane).map(|command| command.end_ns).max().unwrap_or(0);
        for command in step.commands.iter().filter(|command| !is_lane(command) && command.start_ns < last_end)
        {
            *counts.entry(command.op).or_default() += 1.0 / steps.len() as f64;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    counts
}

fn lane_waits(steps: &[Recording], lanes: &[StreamId]) -> Vec<(&'static str, &'static str, f64)> {
    let mut counts: HashMap<(&'static str, &'static str), f64> = HashMap::new();
    for step in steps {
        for wait in &step.waits {
            if lanes.contains(&wait.waiter.stream) && lanes.contains(&wait.awaited.stream) {
                let awaited = step.commands.iter().find(|command| command.moment == wait.awaited);
                let awaited = awaited.map_or("an earlier step", |command| command.op);
                *counts.entry((wait.op, awaited)).or_default() += 1.0 / steps.len() as f64;
            }
        }
    }
    let mut counts: Vec<_> = counts.into_iter().map(|((waiter, awaited), n)| (waiter, awaited, n)).collect();
    counts.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
    counts
}

/// Over the quicker half of the steps, so that a step that was disturbed by others does not count.
fn ops(steps: &[Recording]) -> Vec<OpProfile> {
    let mut quickest: Vec<&Recording> = steps.iter().collect();
    quickest.sort_by_key(|step| step.wall_ns);
    quickest.truncate(steps.len().div_ceil(2));
    let mut totals: HashMap<&'static str, (u64, f64)> = HashMap::new();
    for command in quickest.iter().flat_map(|step| &step.commands) {
        let (count, total) = totals.entry(command.op).or_default();
        *count += 1;
        *total += duration_ms(command);
    }
    let mut ops: Vec<OpProfile> = totals
        .into_iter()
        .map(|(op, (count, total))| OpProfile {
            op,
            count: count as f64 / quickest.len() as f64,
            mean_ms: total / count as f64,
        })
        .collect();
    ops.sort_by(|a, b| (b.count * b.mean_ms).total_cmp(&(a.count * a.mean_ms)).then(a.op.cmp(b.op)));
    ops
}
