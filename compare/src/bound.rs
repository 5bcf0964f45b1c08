//! How long a step takes at best.

use ::profile::{longest_chain_ms, median};
use device::{CommandKind, CommandRecord, KernelRecord, Recording};

use crate::{ScheduleReport, StepProfile};

/// The best that a concurrent step could take, at most what it did take, and how long its commands would keep the busiest part of the
/// device busy, if that is known for any order of them: the share of all commands that each of so many lanes abreast has, or the kernels'
/// share of the multiprocessors, or what is copied from the host or to it. Commands alone take as long as in `alone`, on the share of
/// the threads that a lane has.
pub(super) fn bounds(
    serial: &ScheduleReport,
    concurrent: &ScheduleReport,
    alone: &StepProfile,
    threads: Option<usize>,
) -> (f64, Option<f64>) {
    let streams = concurrent.streams;
    // What a disturbed measurement says of commands alone is no bound, if they took less beside others.
    let cost = |op: &str| {
        let alone = alone.mean_ms(op).unwrap_or(0.0);
        concurrent.profile.mean_ms(op).map_or(alone, |beside| alone.min(beside))
    };
    let work_ms = match threads {
        Some(threads) => {
            let total: f64 = alone.ops.iter().map(|op| op.count * cost(op.op)).sum();
            total / streams.min(threads).max(1) as f64
        }
        None => median(serial.recordings.iter().map(|step| engine_ms(step).max(copies_ms(step)))),
    };
    let of_chain = |step| longest_chain_ms(step, |command: &CommandRecord| cost(command.op));
    let chain_ms = median(concurrent.recordings.iter().map(of_chain));
    let bound_ms = chain_ms.max(work_ms).min(concurrent.step_ms.median);
    (bound_ms, is_known(serial, streams, threads).then_some(work_ms))
}

/// Whether that is known for any order of a step's commands: commands alone had one thread of all, or all kernels are known.
fn is_known(serial: &ScheduleReport, streams: usize, threads: Option<usize>) -> bool {
    let mut commands = serial.recordings.iter().flat_map(|step| &step.commands);
    threads.map_or_else(|| commands.all(|command| command.library_calls == 0), |threads| threads <= streams)
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
pub(super) fn inflation(concurrent: &StepProfile, alone: &StepProfile) -> f64 {
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
