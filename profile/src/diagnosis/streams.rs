//! Causes in how work is spread over streams.

use std::collections::{HashMap, HashSet};

use device::{CommandKind, CommandRecord, KernelRecord, Moment, Place, StreamId};

use super::super::averages::kernel_name;
use super::super::idle::{HostActivity, Idle, IdleCause, StreamIdle};
use super::super::profile::share;
use super::{Busy, Evidence, Facts, NOTABLE, Stretch, at, common_ns, ms, sums};

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
        // Nobody chooses the stream of what a backward pass launches there.
        let is_blamed =
            |command: &CommandRecord| command.moment.stream == default && !command.launch.in_backward;
        let of_default = window.work().filter(|(_, command)| is_blamed(command));
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

const ONE_COMMUNICATOR: &str = "both belong to one communicator, which runs its collectives in order";

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
                    _ if only_both_write(command, other) && are_collectives(command, other) => {
                        ONE_COMMUNICATOR
                    }
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
            let advice = (why == ONE_COMMUNICATOR)
                .then_some("give each stream a duplicate of the communicator (`Communicator::duplicate`)");
            Evidence { advice, ..Evidence::new(ms(ns), place, text) }
        };
    sums(found).into_iter().map(evidence).collect()
}

/// Whether something behind the wait needs the awaited command, or one before it on its stream.
fn is_needed(window: &Stretch<'_>, wait: usize, awaited: usize) -> bool {
    let [waiter, until] = [wait, awaited].map(|at| window.timeline.command(at).moment);
    let is_behind = |moment: Moment| moment.stream == waiter.stream && moment.tick > waiter.tick;
    let is_awaited = |moment: Moment| moment.stream == until.stream && moment.tick <= until.tick;
    let mut behind = window.commands().filter(|(_, command)| is_behind(command.moment));
    behind
        .any(|(at, _)| window.needs[at].iter().any(|&need| is_awaited(window.timeline.command(need).moment)))
}

/// Whether two commands are in order only because of memory that both write, not for what the later one reads, or reads and writes,
/// of the earlier one's results, nor for what the earlier one reads.
fn only_both_write(command: &CommandRecord, earlier: &CommandRecord) -> bool {
    let meet = |later, before| share_memory((command, later), (earlier, before));
    meet(true, true) && !meet(false, true) && !meet(true, false)
}

fn are_collectives(a: &CommandRecord, b: &CommandRecord) -> bool {
    [a, b].iter().all(|command| matches!(command.kind, CommandKind::Collective { .. }))
}

/// Whether memory that one command writes, or reads, is memory that another one writes, or reads.
fn share_memory((a, a_writes): (&CommandRecord, bool), (b, b_writes): (&CommandRecord, bool)) -> bool {
    let mut of_a = a.accesses.iter().filter(|access| access.write == a_writes);
    of_a.any(|a| b.accesses.iter().any(|b| b.write == b_writes && a.start < b.end && b.start < a.end))
}

/// Time in which a stream had nothing to run while another one was at work, both beside the default one.
struct Gap<'a, 'b> {
    window: &'b Stretch<'a>,
    streams: [StreamId; 2],
    times: (u64, u64),
    ns: u64,
    /// Whether the next command was launched, and waited for one of the other stream.
    is_launched: bool,
    /// What the stream ran next.
    next: &'b [usize],
}

fn gaps<'a, 'b>(facts: &'b Facts<'a>) -> Vec<Gap<'a, 'b>> {
    let sides = facts.side_streams();
    let mut found: Vec<Gap<'_, '_>> = Vec::new();
    for StreamIdle { stream: own, idle, .. } in facts.profile.idle() {
        for Idle { cause, recording, start_ns, end_ns } in idle {
            let (other, is_launched) = match cause {
                IdleCause::WaitsFor { stream, .. } => (stream, true),
                IdleCause::NotLaunched {
                    host: HostActivity::Launching { stream, .. } | HostActivity::Running { stream, .. },
                    ..
                } => (stream, false),
                _ => continue,
            };
            if own == other || !sides.contains(&own) || !sides.contains(&other) {
                continue;
            }
            let window = &facts.windows[recording];
            let list = &window.timeline.streams[&own];
            let next = &list[list.partition_point(|&at| window.timeline.command(at).start_ns < end_ns)..];
            let (streams, times, ns) = ([own, other], (start_ns, end_ns), end_ns - start_ns);
            let gap = Gap { window, streams, times, ns, is_launched, next };
            // Stretches before the same command are one.
            let key = |gap: &Gap<'_, '_>| (gap.streams, gap.is_launched, gap.next.as_ptr());
            match found.last_mut().filter(|last| key(last) == key(&gap)) {
                Some(last) => (last.times.1, last.ns) = (end_ns, last.ns + gap.ns),
                None => found.push(gap),
            }
        }
    }
    found
}

impl Gap<'_, '_> {
    /// Whether a command needs, itself or through others, one that the other stream launched or ran meanwhile.
    fn is_needed_by(&self, command: usize) -> bool {
        let (mut open, mut seen) = (vec![command], HashSet::new());
        while let Some(at) = open.pop() {
            let command = self.window.timeline.command(at);
            let used = (command.launch.start_ns, command.end_ns);
            if command.moment.stream == self.streams[1] && common_ns(used, self.times) > 0 {
                return true;
            }
            // What was over by then needs nothing that was not.
            if command.end_ns > self.times.0 && seen.insert(at) {
                open.extend(&self.window.needs[at]);
            }
        }
        false
    }

    /// How long the next commands of the step run, up to the first that needs what the other stream did meanwhile, how long nothing runs
    /// beside them, and that one.
    fn filling(&self) -> (u64, u64, Option<usize>) {
        let (mut ns, mut alone_ns, step) = (0_u64, 0_u64, self.window.step_at(self.times.0));
        for (at, command) in self.next.iter().map(|&at| (at, self.window.timeline.command(at))) {
            if ns >= self.ns || self.window.step_at(command.launch.start_ns) > step {
                break;
            } else if command.is_work() && self.is_needed_by(at) {
                return (ns, alone_ns, Some(at));
            }
            ns += command.duration_ns();
            let beside_ns = self.window.beside_ns(command, CommandRecord::is_work);
            alone_ns += command.duration_ns().saturating_sub(beside_ns);
        }
        (ns.min(self.ns), alone_ns.min(self.ns), None)
    }

    /// The command of the other stream, not over when the time began, whose results this one reads.
    fn producer(&self, reader: usize) -> Option<usize> {
        let command = |at: usize| self.window.timeline.command(at);
        let is_producer = |&at: &usize| {
            let of_other = command(at).moment.stream == self.streams[1] && command(at).end_ns > self.times.0;
            of_other && command(at).computes() && share_memory((command(reader), false), (command(at), true))
        };
        let needs = self.window.needs[reader].iter().copied();
        needs.filter(is_producer).max_by_key(|&at| command(at).end_ns).filter(|_| command(reader).computes())
    }
}

impl Gap<'_, '_> {
    /// Whether the other stream was given further work, which does not need the reader, before that was over, as in a pipeline: the
    /// two may run at once, whether or not they did.
    fn goes_on(&self, producer: usize, reader: usize) -> bool {
        let command = |at: usize| self.window.timeline.command(at);
        let list = &self.window.timeline.streams[&self.streams[1]];
        let later = list.iter().filter(|&&at| command(at).start_ns >= command(producer).end_ns);
        let next = later.copied().find(|&at| command(at).is_work());
        next.is_some_and(|next| {
            command(next).launch.start_ns < command(reader).end_ns
                && !self.window.needs[next].contains(&reader)
        })
    }
}

/// An op and its line.
type Named = (&'static str, Option<Place>);

/// A stream that is idle since its next command reads what one of another stream writes, where the two hardly run at once otherwise.
pub(super) fn data_dependent(facts: &Facts<'_>) -> Vec<Evidence> {
    let mut pipelines = HashSet::new();
    let pair = |gap: Gap<'_, '_>| {
        let (filled_ns, _, reader) = gap.filling();
        let (reader, producer) = (reader?, gap.producer(reader?)?);
        if gap.goes_on(producer, reader) {
            pipelines.insert(gap.streams);
        }
        let named = [reader, producer].map(|at| {
            let command = gap.window.timeline.command(at);
            (command.op, gap.window.place(command.launch.place))
        });
        Some(((named, gap.streams), gap.ns - filled_ns))
    };
    let mut found = sums(gaps(facts).into_iter().filter_map(pair));
    found.retain(|((_, streams), ..)| !pipelines.contains(streams) && !run_at_once(facts, *streams));
    let evidence = |((named, streams), ns, _): (([Named; 2], [StreamId; 2]), u64, usize)| {
        let ([(op, place), (written_by, wrote)], [own, other]) = (named, streams.map(|one| facts.name(one)));
        let text = format!(
            "{own} has nothing to do for {:.3} ms a step, since its {op}{} reads what {written_by}{} writes on {other}: these two cannot \
             run at once",
            ms(ns) / facts.steps,
            at(place.as_ref()),
            at(wrote.as_ref())
        );
        Evidence::new(ms(ns), place, text)
    };
    found.into_iter().map(evidence).collect()
}

/// Whether two streams run at once for half of the time of the shorter one: what one waits for of the other is due to its pace.
fn run_at_once(facts: &Facts<'_>, streams: [StreamId; 2]) -> bool {
    let both = |command: &CommandRecord| command.is_work() && streams.contains(&command.moment.stream);
    let overlap_ns: u64 = facts.profile.recordings().map(|one| Busy::of(one, both).overlap_ns).sum();
    streams.iter().any(|&stream| 2 * overlap_ns >= facts.busy_ns(stream))
}

/// A stream that is idle while its thread launches or runs the commands of another one, which its next commands do not need. Lanes
/// have a thread each already.
pub(super) fn depth_first(facts: &Facts<'_>) -> Option<Evidence> {
    let mut gaps = if facts.has_lanes() || facts.has_one_thread() { Vec::new() } else { gaps(facts) };
    gaps.retain(|gap| !gap.is_launched);
    // What runs beside another stream already gains nothing by an earlier launch.
    let filled: Vec<_> = gaps.iter().map(|gap| (gap.filling().1, gap)).filter(|(ns, _)| *ns > 0).collect();
    let ns: u64 = filled.iter().map(|(ns, _)| ns).sum();
    let (_, Gap { window, streams, next, .. }) = filled.iter().max_by_key(|(ns, _)| *ns)?;
    let command = next.iter().map(|&at| window.timeline.command(at)).find(|command| command.is_work())?;
    let (place, [own, other]) =
        (window.place(command.launch.place), streams.map(|stream| facts.name(stream)));
    let text = format!(
        "{own} has nothing to do for {:.3} ms a step while the same thread launches or runs what is on {other}; its {}{} could have \
         been launched before",
        ms(ns) / facts.steps,
        command.op,
        at(place.as_ref())
    );
    Some(Evidence::new(ms(ns), place, text))
}

pub(super) fn imbalance(facts: &Facts<'_>) -> Option<Evidence> {
    let mut sides = facts.side_streams();
    // A stream of copies has no work for others.
    sides.retain(|&stream| facts.work_of(stream).any(|(command, _)| command.computes()));
    // Streams that wait for each other's data gain nothing by an even split.
    if data_dependent(facts).iter().any(|found| found.cost_ms > Some(NOTABLE * facts.wall_ms)) {
        return None;
    }
    let mut times: Vec<(u64, StreamId)> =
        sides.into_iter().map(|stream| (facts.busy_ns(stream), stream)).collect();
    let (longest, busiest) = times.iter().copied().max().filter(|_| !facts.has_one_thread())?;
    // A stream with little to do is a helper, not a part of the same work.
    times.retain(|(ns, _)| *ns as f64 >= HELPER * longest as f64);
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
    Some(Evidence::new(ms((longest - mean).min(spare_ns(facts, busiest))), place, text))
}

/// The part of the busiest stream's time that a stream has to have to be one of several that share work.
const HELPER: f64 = 0.1;

/// How long a stream runs with nothing beside it that another one could do: neither what others wait for, nor what waits for them.
fn spare_ns(facts: &Facts<'_>, busiest: StreamId) -> u64 {
    let sides = facts.side_streams();
    let awaited = gaps(facts).into_iter().filter(|gap| gap.is_launched && gap.streams[1] == busiest);
    let awaited_ns: u64 = awaited.map(|gap| gap.ns).sum();
    let mut spare_ns = 0;
    for window in &facts.windows {
        let mut joined = None;
        for &at in window.timeline.streams.get(&busiest).into_iter().flatten() {
            let command = window.timeline.command(at);
            let step = window.step_at(command.launch.start_ns);
            let is_of_side = |&need: &usize| {
                let stream = window.timeline.command(need).moment.stream;
                stream != busiest && sides.contains(&stream)
            };
            if window.needs[at].iter().any(is_of_side) {
                joined = Some(step);
            }
            if command.is_work() && joined != Some(step) {
                spare_ns +=
                    command.duration_ns().saturating_sub(window.beside_ns(command, CommandRecord::is_work));
            }
        }
    }
    spare_ns.saturating_sub(awaited_ns)
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
