//! How long a step takes at best.

use ::profile::{longest_chain_ms, median};
use device::{CommandKind, CommandRecord, KernelRecord, Recording};

use crate::{ScheduleReport, StepProfile};

/// The best that a concurrent step could take, and how long its commands would keep the whole device busy, if that is known for any order
/// of them. Commands alone take as long as in `alone`, on the share of the threads that a lane has.
pub(super) fn bounds(
    serial: &ScheduleReport,
    concurrent: &ScheduleReport,
    alone: &StepProfile,
    threads: Option<usize>,
) -> (f64, Option<f64>) {
    let streams = concurrent.streams;
    let work_ms = work_ms(serial, alone, threads.map(|threads| streams.min(threads)));
    let cost = |command: &CommandRecord| alone.mean_ms(command.op).unwrap_or(0.0);
    let chain_ms = median(concurrent.recordings.iter().map(|step| longest_chain_ms(step, cost)));
    (chain_ms.max(work_ms), is_known(serial, streams, threads).then_some(work_ms))
}

/// What the busiest part of the device has to do, with durations as they are undisturbed: the share of all commands that each of so many
/// lanes abreast has, or the kernels' share of the multiprocessors, or what is copied from the host or to it.
fn work_ms(serial: &ScheduleReport, alone: &StepProfile, abreast: Option<usize>) -> f64 {
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
