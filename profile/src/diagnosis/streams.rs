//! Causes in how work is spread over streams.

use std::collections::HashMap;

use device::{Access, CommandKind, CommandRecord, KernelRecord, Moment, Place, StreamId};

use super::super::averages::kernel_name;
use super::super::idle::{HostActivity, IdleCause};
use super::super::profile::share;
use super::{Busy, Evidence, Extents, Facts, Stretch, at, ms, sums};

/// An op on the default stream while side streams are at work: in the same step one of them was launched before, one after.
pub(super) fn default_stream(facts: &Facts<'_>) -> Vec<Evidence> {
    let sides = facts.side_streams();
    let Some(default) = facts.default_stream().filter(|_| sides.len() > 1) else { return Vec::new() };
    let mut between = Vec::new();
    for window in &facts.windows {
        let step = |command: &CommandRecord| window.step_at(command.launch.start_ns);
        // The first and the last launch on the others in each step.
        let mut launches: HashMap<usize, (u64, u64)> = HashMap::new();
        for (_, command) in window.work().filter(|(_, command)| sides.contains(&command.moment.stream)) {
            let at = command.launch.start_ns;
            let (first, last) = launches.entry(step(command)).or_insert((at, at));
            (*first, *last) = ((*first).min(at), (*last).max(at));
        }
        let of_default = window.work().filter(|(_, command)| command.moment.stream == default);
        for (index, command) in of_default {
            let (step, launch) = (step(command), command.launch.start_ns);
            if launches.get(&step).is_some_and(|&(first, last)| first < launch && launch < last) {
                let place = window.place(command.launch.place);
                between.push(((command.op, place), held_up(window, index, &sides)));
            }
        }
    }
    let evidence = |((op, place), ns, count): ((&str, Option<Place>), u64, usize)| {
        let text = format!(
            "{op}{} runs on the default stream {:.1} times a step while other streams are at work, and they wait {:.3} ms a step for it",
            at(place.as_ref()),
            count as f64 / facts.steps,
            ms(ns) / facts.steps
        );
        Evidence::new(ms(ns), place, text)
    };
    sums(between).into_iter().map(evidence).collect()
}

/// How long streams of `sides` waited for a command, and it for them.
fn held_up(window: &Stretch<'_>, index: usize, sides: &[StreamId]) -> u64 {
    let followers = window.commands().filter(|(at, command)| {
        sides.contains(&command.moment.stream) && window.timeline.awaited(*at).contains(&index)
    });
    followers.map(|(at, _)| window.waited_ns(at, index)).sum()
}

/// Waits between streams beside the default one: for memory that both write, for anything if the streams are independent, or that the
/// program asked for and no data need.
pub(super) fn over_synchronised(facts: &Facts<'_>) -> Vec<Evidence> {
    let sides = facts.side_streams();
    let are_independent = facts.schedules.is_some_and(|schedules| schedules.are_independent);
    let mut found = Vec::new();
    for window in &facts.windows {
        for (at, command) in window.commands().filter(|(_, command)| sides.contains(&command.moment.stream)) {
            for &awaited in window.timeline.awaited(at) {
                let other = window.timeline.command(awaited);
                let why = match command.kind {
                    CommandKind::Wait if !is_needed(window, at, awaited) => "no data need that",
                    CommandKind::Wait => continue,
                    _ if !sides.contains(&other.moment.stream) => continue,
                    _ if only_both_write(command, other) => "both write the same memory",
                    _ if are_independent => "the batches share what they write",
                    _ => continue,
                };
                let place = window.place(command.launch.place);
                found.push(((command.op, other.op, why, place), window.waited_ns(at, awaited)));
            }
        }
    }
    let evidence =
        |((op, awaited, why, place), ns, count): ((&str, &str, &str, Option<Place>), u64, usize)| {
            let text = format!(
                "{op}{} waits for another stream's {awaited}, {:.1} times and {:.3} ms a step, and {why}",
                at(place.as_ref()),
                count as f64 / facts.steps,
                ms(ns) / facts.steps
            );
            Evidence::new(ms(ns), place, text)
        };
    sums(found).into_iter().map(evidence).collect()
}

/// Whether something behind the wait uses what was done before the awaited command, it included.
fn is_needed(window: &Stretch<'_>, wait: usize, awaited: usize) -> bool {
    let (timeline, waiter) = (&window.timeline, window.timeline.command(wait).moment);
    let until = timeline.command(awaited).moment;
    let accesses = |keep: &dyn Fn(Moment) -> bool| -> Vec<Access> {
        let commands = window.commands().filter(|(_, command)| keep(command.moment));
        commands.flat_map(|(_, command)| command.accesses.iter().copied()).collect()
    };
    let earlier = accesses(&|moment| moment.stream == until.stream && moment.tick <= until.tick);
    let behind = accesses(&|moment| moment.stream == waiter.stream && moment.tick > waiter.tick);
    let bytes = |access: &Access| (access.start as u64, access.end as u64);
    let written = Extents::new(earlier.iter().filter(|access| access.write).map(bytes));
    let used = Extents::new(earlier.iter().map(bytes));
    behind.iter().any(|access| if access.write { &used } else { &written }.meets(bytes(access)))
}

/// Whether two commands are in order only because of memory that both write, not for what the later one reads, or reads and writes,
/// of the earlier one's results, nor for what the earlier one reads.
fn only_both_write(command: &CommandRecord, earlier: &CommandRecord) -> bool {
    let meet = |later_writes: bool, earlier_writes: bool| {
        let mut others = earlier.accesses.iter().filter(|access| access.write == earlier_writes);
        others.any(|a| {
            let mut own = command.accesses.iter().filter(|access| access.write == later_writes);
            own.any(|b| a.start < b.end && b.start < a.end)
        })
    };
    meet(true, true) && !meet(false, true) && !meet(true, false)
}

/// A stream that is idle while its thread launches or runs the commands of another one.
pub(super) fn depth_first(facts: &Facts<'_>) -> Option<Evidence> {
    let sides = facts.side_streams();
    let of_other = |own: StreamId, cause: &IdleCause| match cause {
        IdleCause::NotLaunched {
            op,
            host: HostActivity::Launching { stream, .. } | HostActivity::Running { stream, .. },
        } if sides.contains(&own) && sides.contains(stream) && *stream != own => Some((*op, own, *stream)),
        _ => None,
    };
    let mut found = Vec::new();
    for stream in facts.profile.idle() {
        found.extend(stream.idle.into_iter().filter_map(|idle| {
            Some((idle.recording, of_other(stream.stream, &idle.cause)?, (idle.start_ns, idle.end_ns)))
        }));
    }
    let ns: u64 = found.iter().map(|(_, _, times)| times.1 - times.0).sum();
    let first = found.iter().max_by_key(|(_, _, times)| times.1 - times.0)?;
    let (recording, (op, own, other), times) = first;
    let window = &facts.windows[*recording];
    let next = window.commands().filter(|(_, c)| c.moment.stream == *own && c.start_ns >= times.1);
    let place =
        next.min_by_key(|(_, command)| command.start_ns).and_then(|(_, c)| window.place(c.launch.place));
    let text = format!(
        "{} has nothing to do for {:.3} ms a step while the same thread launches or runs what is on {}; its {op}{} could have been \
         launched before",
        facts.name(*own),
        ms(ns) / facts.steps,
        facts.name(*other),
        at(place.as_ref())
    );
    Some(Evidence::new(ms(ns), place, text))
}

pub(super) fn imbalance(facts: &Facts<'_>) -> Option<Evidence> {
    let mut sides = facts.side_streams();
    // A stream of copies has no work for others.
    sides.retain(|&stream| facts.work_of(stream).any(|(command, _)| command.computes()));
    let busy_ns = |stream| facts.work_of(stream).map(|(command, _)| command.duration_ns()).sum();
    let times: Vec<(u64, StreamId)> = sides.into_iter().map(|stream| (busy_ns(stream), stream)).collect();
    let (longest, busiest) = times.iter().copied().max()?;
    let total: u64 = times.iter().map(|(ns, _)| ns).sum();
    let mean = total / times.len() as u64;
    let ops = facts.work_of(busiest).map(|(command, place)| ((command.op, place), command.duration_ns()));
    let ((op, place), ..) = sums(ops).into_iter().next()?;
    let text = format!(
        "the streams are uneven: {} has {:.3} ms of a step, the mean is {:.3} ms; its longest is {op}{}. All of them at once are at most \
         {:.2}x as fast as one after the other",
        facts.name(busiest),
        ms(longest) / facts.steps,
        ms(mean) / facts.steps,
        at(place.as_ref()),
        share(total as f64, longest as f64)
    );
    Some(Evidence::new(ms(longest - mean), place, text))
}

/// A kernel that fills the device while another stream has work.
pub(super) fn filled(facts: &Facts<'_>) -> Option<Evidence> {
    let device = facts.device()?;
    let fills = |kernel: &KernelRecord| {
        let room = u64::from(device.multiprocessors) * u64::from(kernel.blocks_per_multiprocessor);
        kernel.block_count() >= room.max(1)
    };
    let mut beside = Vec::new();
    for window in &facts.windows {
        for (_, command) in window.commands() {
            let Some(kernel) = command.kernels.iter().find(|kernel| fills(kernel)) else { continue };
            let ns = window.beside_ns(command, |other| other.kind == CommandKind::Compute);
            let ns = ns.min(command.duration_ns());
            beside.push(((command.op, kernel.clone(), window.place(command.launch.place)), ns));
        }
    }
    let ((op, kernel, place), ns, _) = sums(beside).into_iter().next()?;
    let text = format!(
        "the kernel {} of {op}{} leaves no room beside it, and {:.3} ms a step other streams run while it does: it has {} blocks of {} \
         threads; the device's {} multiprocessors hold {} each, limited by {} ({} registers a thread, {} bytes of shared memory a \
         block)",
        kernel_name(&kernel),
        at(place.as_ref()),
        ms(ns) / facts.steps,
        kernel.block_count(),
        kernel.block_threads(),
        device.multiprocessors,
        kernel.blocks_per_multiprocessor,
        limit(&kernel, device.multiprocessor_threads),
        kernel.registers,
        kernel.shared_bytes
    );
    Some(Evidence::new(ms(ns), place, text))
}

/// What keeps a multiprocessor from holding more blocks, as far as the numbers tell.
fn limit(kernel: &KernelRecord, threads: u32) -> &'static str {
    let by_threads = threads / kernel.block_threads().max(1);
    if kernel.blocks_per_multiprocessor >= by_threads {
        "threads"
    } else if kernel.shared_bytes > kernel.registers * kernel.block_threads() * 4 {
        "shared memory"
    } else {
        "registers"
    }
}

/// Streams of a comparison always want to run at once; those of other programs do so when they are seen to.
pub(super) fn more_streams_than_threads(facts: &Facts<'_>) -> Option<Evidence> {
    let (streams, threads) = match facts.schedules {
        Some(schedules) => (schedules.streams, schedules.threads?),
        None => (facts.side_streams().len(), facts.device()?.host_threads?),
    };
    (streams > threads).then(|| {
        let text = format!(
            "{streams} streams share {threads} thread{}: at most that many run at once",
            if threads == 1 { "" } else { "s" }
        );
        let recordings = facts.profile.recordings();
        let crowded: u64 = recordings.map(|one| Busy::of(one, CommandRecord::is_work).overlap_ns).sum();
        let cost_ms = ms(crowded) * (1.0 - threads as f64 / streams as f64);
        let cost_ms = facts.schedules.is_none().then_some(cost_ms);
        Evidence { cost_ms, ..Evidence::of_unknown_cost(text) }
    })
}
