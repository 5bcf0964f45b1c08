//! The numbers that the diagnosis goes by, put together from both schedules.

use device::{CommandKind, CommandRecord, KernelRecord, Recording};

use super::ScheduleReport;
use super::machine::Others;
use super::profile::{Profile, critical_path_ms};
use ::profile::median;

/// Everything that [`diagnose`](super::diagnosis::diagnose) looks at.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) lanes: usize,
    /// The host's threads that run commands; none if a processor of its own does, which takes all lanes at once.
    pub(super) threads: Option<usize>,
    /// Steps that were measured.
    pub(super) steps: usize,
    pub(super) serial_ms: f64,
    /// What nine tenths of the serial steps stay below.
    pub(super) serial_p90_ms: f64,
    /// What other programs had of the machine while steps were measured, if that is known.
    pub(super) others: Option<Others>,
    pub(super) concurrent_ms: f64,
    /// The part of the concurrent step until the host has launched everything.
    pub(super) launch_ms: f64,
    /// Commands of a step.
    pub(super) launches: f64,
    /// How much faster the serial schedule is for having all threads.
    pub(super) split_gain: f64,
    /// The share of busy time in which lanes run at once.
    pub(super) overlap: f64,
    /// How long a step's commands, as they are timed one by one, would keep the whole device busy, if that is known.
    pub(super) work_ms: Option<f64>,
    /// The best that a concurrent step could take.
    pub(super) bound_ms: f64,
    /// The chain of commands that the concurrent step did take.
    pub(super) chain_ms: f64,
    /// Commands on the busiest lane and after it.
    pub(super) chain_commands: f64,
    pub(super) inflation: f64,
    pub(super) lanes_ms: Vec<f64>,
    pub(super) outside_ms: f64,
    pub(super) outside_op: &'static str,
    pub(super) intruders: Vec<(&'static str, f64)>,
    pub(super) lane_waits: Vec<(&'static str, &'static str, f64)>,
    /// The most of both schedules.
    pub(super) host_syncs: f64,
    pub(super) driver_allocations: u64,
    pub(super) peak_reserved_bytes: usize,
}

impl Facts {
    pub(super) fn new(
        serial: &ScheduleReport,
        concurrent: &ScheduleReport,
        alone: &Profile,
        threads: Option<usize>,
    ) -> Facts {
        let profile = &concurrent.profile;
        let outside = profile.outside.clone().unwrap_or_default();
        // An undisturbed lane has its share of the threads, so this many lanes fit beside each other.
        let streams = concurrent.streams;
        let work_ms = work_ms(serial, alone, threads.map(|threads| streams.min(threads)));
        let busiest = profile.lanes.iter().max_by(|a, b| a.busy_ms.total_cmp(&b.busy_ms));
        Facts {
            lanes: concurrent.streams,
            threads,
            steps: serial.losses.len(),
            serial_ms: serial.step_ms.median,
            serial_p90_ms: serial.step_ms.p90,
            others: None,
            concurrent_ms: concurrent.step_ms.median,
            launch_ms: concurrent.launch_ms,
            launches: concurrent.launches_per_step,
            // Both traced.
            split_gain: alone.wall_ms / serial.profile.wall_ms,
            overlap: profile.overlap,
            work_ms: is_known(serial, streams, threads).then_some(work_ms),
            bound_ms: chain_ms(concurrent, alone).max(work_ms),
            chain_ms: profile.critical_path_ms,
            chain_commands: busiest.map_or(0.0, |lane| lane.commands) + outside.commands,
            inflation: inflation(profile, alone),
            lanes_ms: profile.lanes.iter().map(|lane| lane.busy_ms).collect(),
            outside_ms: outside.busy_ms,
            outside_op: outside.longest_op,
            intruders: profile.intruders.clone(),
            lane_waits: profile.lane_waits.clone(),
            host_syncs: serial.host_syncs_per_step.max(concurrent.host_syncs_per_step),
            driver_allocations: serial.driver_allocations.max(concurrent.driver_allocations),
            peak_reserved_bytes: serial.peak_reserved_bytes.max(concurrent.peak_reserved_bytes),
        }
    }
}

/// What the busiest part of the device has to do, with durations as they are undisturbed: the share of all commands that each of so many
/// lanes abreast has, or the kernels' share of the multiprocessors, or what is copied from the host or to it.
fn work_ms(serial: &ScheduleReport, alone: &Profile, abreast: Option<usize>) -> f64 {
    match abreast {
        Some(abreast) => {
            alone.ops.iter().map(|op| op.count * op.mean_ms).sum::<f64>() / abreast.max(1) as f64
        }
        None => median(serial.recordings.iter().map(|step| engine_ms(step).max(copies_ms(step)))),
    }
}

/// Whether [`work_ms`] is known for any order of a step's commands: commands alone had one thread of all, or all kernels are known.
fn is_known(serial: &ScheduleReport, streams: usize, threads: Option<usize>) -> bool {
    let mut commands = serial.recordings.iter().flat_map(|step| &step.commands);
    threads.map_or_else(|| commands.all(|command| command.library_calls == 0), |threads| threads <= streams)
}

/// The longest chain of commands on streams, each as long as it takes undisturbed.
fn chain_ms(concurrent: &ScheduleReport, alone: &Profile) -> f64 {
    let lanes: Vec<_> = concurrent.profile.lanes.iter().filter_map(|lane| lane.stream).collect();
    let cost = |command: &CommandRecord| alone.mean_ms(command.op).unwrap_or(0.0);
    median(concurrent.recordings.iter().map(|step| critical_path_ms(step, &lanes, &cost)))
}

/// How long the busier copy engine works in a step.
pub(super) fn copies_ms(step: &Recording) -> f64 {
    let spent = |is_one: fn(CommandKind) -> bool| {
        let copies = step.commands.iter().filter(|command| is_one(command.kind));
        copies.map(CommandRecord::duration_ns).sum::<u64>() as f64 / 1e6
    };
    let uploads = spent(|kind| matches!(kind, CommandKind::Upload { .. }));
    uploads.max(spent(|kind| matches!(kind, CommandKind::Download { .. })))
}

/// How long a step's kernels would keep all multiprocessors busy. Kernels of a command that are not timed by themselves count as if all
/// filled the device as the one of them that fills it least, for the time that the others leave; a command with kernels that are not
/// known counts nothing. Kernels that always have as many blocks as there is room for, as some of libraries, count in full, though they
/// might do with less.
pub(super) fn engine_ms(step: &Recording) -> f64 {
    let fill = |kernel: &KernelRecord| kernel.fill(step.device.multiprocessors);
    let filled_ns = |command: &CommandRecord| {
        let timed = |kernel: &KernelRecord| Some((kernel.duration_ns? as f64, fill(kernel)));
        let all = || command.kernels.iter().filter_map(timed);
        let left = command.duration_ns() as f64 - all().map(|(ns, _)| ns).sum::<f64>();
        let untimed = command.kernels.iter().filter(|kernel| kernel.duration_ns.is_none());
        let least = untimed.map(fill).reduce(f64::min).unwrap_or(0.0);
        all().map(|(ns, fill)| ns * fill).sum::<f64>() + left.max(0.0) * least
    };
    let known = step.commands.iter().filter(|command| command.library_calls == 0);
    known.map(filled_ns).sum::<f64>() / 1e6
}

/// Mean duration beside other lanes over that alone, for the same mix of ops.
fn inflation(concurrent: &Profile, alone: &Profile) -> f64 {
    let mut beside = 0.0;
    let mut undisturbed = 0.0;
    for op in &concurrent.ops {
        if let Some(mean_ms) = alone.mean_ms(op.op) {
            beside += op.count * op.mean_ms;
            undisturbed += op.count * mean_ms;
        }
    }
    if undisturbed > 0.0 { beside / undisturbed } else { 1.0 }
}
