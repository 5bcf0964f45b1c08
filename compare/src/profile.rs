//! Figures of recorded steps: busy time, overlap, the longest chain of commands, and the time of each op.

use std::collections::HashMap;

use ::profile::{Busy, longest_chain_ms, median};
use device::{CommandRecord, Recording, StreamId};

/// What the traced steps of a schedule have in common. Times are medians over the steps.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StepProfile {
    /// A step's wall time, traced.
    pub wall_ms: f64,
    /// The share of the wall time in which some command runs.
    pub busy: f64,
    /// The share of that time in which commands of two or more streams run.
    pub overlap: f64,
    /// The commands' durations, added up.
    pub kernel_ms: f64,
    /// The [longest chain](longest_chain_ms) of dependent commands.
    pub critical_path_ms: f64,
    /// Commands in a step.
    pub commands: f64,
    /// What each lane does.
    pub lanes: Vec<LaneProfile>,
    /// The ops, the one that takes most time first.
    pub ops: Vec<OpProfile>,
}

/// One lane's part of a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaneProfile {
    /// The stream.
    pub stream: StreamId,
    /// The durations of its commands, added up.
    pub busy_ms: f64,
    /// Its commands in a step.
    pub commands: f64,
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
    ms(command.duration_ns())
}

impl StepProfile {
    /// Of recordings of one step each, where `lanes` are the streams of the batches.
    pub fn of(steps: &[Recording], lanes: &[StreamId]) -> StepProfile {
        let over = |value: &dyn Fn(&Recording) -> f64| median(steps.iter().map(value));
        let busy = |step: &Recording| Busy::of(step, |_| true);
        let lane = |&stream: &StreamId| LaneProfile {
            stream,
            busy_ms: over(&|step| commands_of(step, stream).map(duration_ms).sum()),
            commands: over(&|step| commands_of(step, stream).count() as f64),
        };
        StepProfile {
            wall_ms: over(&|step| ms(step.wall_ns)),
            busy: over(&|step| ratio(busy(step).any_ns, step.wall_ns)),
            overlap: over(&|step| ratio(busy(step).overlap_ns, busy(step).any_ns)),
            kernel_ms: over(&|step| step.commands.iter().map(duration_ms).sum()),
            critical_path_ms: over(&|step| longest_chain_ms(step, duration_ms)),
            commands: over(&|step| step.commands.len() as f64),
            lanes: lanes.iter().map(lane).collect(),
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
