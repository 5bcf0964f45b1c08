//! Causes in copies between memories and between ranks.

use std::collections::HashSet;

use device::{CommandKind, CommandRecord, Place, StreamId};

use super::super::averages::launch_ns;
use super::{Facts, Finding, at, mib, ms, sums};

fn is_copy(command: &CommandRecord) -> bool {
    command.kind.copied_bytes().is_some()
}

pub(super) fn exposed(facts: &Facts<'_>) -> Vec<Finding> {
    let (mut exposed_ns, mut exposed) = (0, Vec::new());
    for window in &facts.windows {
        let all = window.timeline.busy(|command| command.computes() || is_copy(command)).any_ns;
        exposed_ns += all - window.timeline.busy(CommandRecord::computes).any_ns;
        let computing = window.commands().map(|(_, command)| command);
        let computing: HashSet<StreamId> =
            computing.filter(|command| command.computes()).map(|command| command.moment.stream).collect();
        let copies = window.commands().filter(|(_, command)| is_copy(command));
        exposed.extend(copies.map(|(_, command)| {
            let computes = computing.contains(&command.moment.stream);
            ((command.op, window.place(command.launch.place), computes), command.duration_ns())
        }));
    }
    if !facts.is_notable(ms(exposed_ns)) {
        return Vec::new();
    }
    let Some(((op, place, computes), ..)) = sums(exposed).into_iter().next() else { return Vec::new() };
    let where_to = if computes {
        "it is on a stream that computes: copy the next batch on a stream of its own, as a stage of a `Pipeline` does"
    } else {
        "copy one batch ahead, so that another one is computed meanwhile"
    };
    let message = format!(
        "nothing computes for {:.3} ms a step while bytes are copied, mostly by {op}{}; {where_to}",
        ms(exposed_ns) / facts.steps,
        at(place.as_ref())
    );
    vec![Finding { place, cost_ms: ms(exposed_ns), ..Finding::new("exposed-copy", message) }]
}

/// Collectives beside which nothing runs.
pub(super) fn communication(facts: &Facts<'_>) -> Vec<Finding> {
    let found = facts.profile.communication();
    let exposed_ms: f64 = found.iter().map(|of_op| of_op.exposed_ms).sum();
    let Some(most) = found.into_iter().next().filter(|_| facts.is_notable(exposed_ms)) else {
        return Vec::new();
    };
    let message = format!(
        "nothing else runs for {:.3} ms a step while ranks exchange tensors, mostly by {}{}; have another batch computed meanwhile, on \
         lanes with a communicator each, or gradients averaged while the backward pass goes on, as `DataParallel::backward` does",
        exposed_ms / facts.steps,
        most.op,
        at(most.place.as_ref())
    );
    vec![Finding { place: most.place, cost_ms: exposed_ms, ..Finding::new("exposed-communication", message) }]
}

/// Only where a device reads the host's memory by itself does it make a difference where that lies.
pub(super) fn pageable(facts: &Facts<'_>) -> Vec<Finding> {
    if facts.device().is_none_or(|device| device.host_threads.is_some()) {
        return Vec::new();
    }
    let uploads = facts.windows.iter().flat_map(|window| {
        window.commands().filter_map(move |(_, command)| match command.kind {
            CommandKind::Upload { bytes, pinned: false } => {
                Some(((window.place(command.launch.place), bytes), launch_ns(command)))
            }
            _ => None,
        })
    });
    let notable = sums(uploads).into_iter().filter(|&(_, ns, _)| facts.is_notable(ms(ns)));
    let finding = |((place, bytes), ns, count): ((Option<Place>, usize), u64, usize)| {
        let message = format!(
            "the host copies {:.1} MiB{} to pinned memory first, which blocks it for {:.0} us each time, and so cannot overlap with \
             what it would launch; have the bytes in pinned memory, or upload on another thread, as a stage of a `Pipeline`",
            mib(bytes),
            at(place.as_ref()),
            ns as f64 / 1e3 / count as f64
        );
        Finding { place, cost_ms: ms(ns), ..Finding::new("pageable-copy", message) }
    };
    notable.map(finding).collect()
}

pub(super) fn one_engine(facts: &Facts<'_>) -> Vec<Finding> {
    if facts.device().is_none_or(|device| device.copy_engines != 1) {
        return Vec::new();
    }
    let mut shared = Vec::new();
    for window in &facts.windows {
        for (_, copy) in window.commands().filter(|(_, command)| is_copy(command)) {
            // Each pair once.
            let counts = |other: &CommandRecord| is_copy(other) && other.moment.stream < copy.moment.stream;
            let ns = window.beside_ns(copy, counts);
            shared.push(((copy.op, window.place(copy.launch.place)), ns));
        }
    }
    let ns: u64 = shared.iter().map(|(_, ns)| ns).sum();
    if !facts.is_notable(ms(ns)) {
        return Vec::new();
    }
    let place = sums(shared).into_iter().next().and_then(|((_, place), ..)| place);
    let message = format!(
        "copies on two streams share the device's one copy engine for {:.3} ms a step{}: one waits for the other there, whatever \
         the streams",
        ms(ns) / facts.steps,
        at(place.as_ref())
    );
    vec![Finding { place, cost_ms: ms(ns), ..Finding::new("one-copy-engine", message) }]
}
