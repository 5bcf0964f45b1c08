//! Causes in copies between memories and between ranks.

use std::collections::HashSet;

use device::{CommandKind, CommandRecord, Place, StreamId};

use super::super::averages::launch_ns;
use super::{Busy, Evidence, Facts, at, mib, ms, sums};

fn is_copy(command: &CommandRecord) -> bool {
    command.kind.copied_bytes().is_some()
}

pub(super) fn exposed(facts: &Facts<'_>) -> Option<Evidence> {
    let (mut exposed_ns, mut exposed) = (0, Vec::new());
    for window in &facts.windows {
        let recording = window.timeline.recording;
        let all = Busy::of(recording, |command| command.computes() || is_copy(command)).any_ns;
        exposed_ns += all - Busy::of(recording, CommandRecord::computes).any_ns;
        let computing = window.commands().map(|(_, command)| command);
        let computing: HashSet<StreamId> =
            computing.filter(|command| command.computes()).map(|command| command.moment.stream).collect();
        let copies = window.commands().filter(|(_, command)| is_copy(command));
        exposed.extend(copies.map(|(_, command)| {
            let computes = computing.contains(&command.moment.stream);
            ((command.op, window.place(command.launch.place), computes), command.duration_ns())
        }));
    }
    let ((op, place, computes), ..) = sums(exposed).into_iter().next()?;
    let text = format!(
        "nothing computes for {:.3} ms a step while bytes are copied, mostly by {op}{}",
        ms(exposed_ns) / facts.steps,
        at(place.as_ref())
    );
    let advice = computes.then_some(
        "it is on a stream that computes: copy the next batch on a stream of its own, as a stage of a `Pipeline` does",
    );
    Some(Evidence { advice, ..Evidence::new(ms(exposed_ns), place, text) })
}

/// Collectives while nothing else runs.
pub(super) fn communication(facts: &Facts<'_>) -> Option<Evidence> {
    let found = facts.profile.communication();
    let exposed_ms: f64 = found.iter().map(|of_op| of_op.exposed_ms).sum();
    let most = found.into_iter().next()?;
    let text = format!(
        "nothing else runs for {:.3} ms a step while ranks exchange tensors, mostly by {}{}",
        exposed_ms / facts.steps,
        most.op,
        at(most.place.as_ref())
    );
    let advice = facts.has_lanes().then_some(
        "give each lane a communicator of its own (`Communicator::duplicate`), or exchange less often, by larger batches",
    );
    Some(Evidence { advice, ..Evidence::new(exposed_ms, most.place, text) })
}

/// Uploads from pageable memory. Of interest only where the device, not the host, runs the commands.
pub(super) fn pageable(facts: &Facts<'_>) -> Vec<Evidence> {
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
    let evidence = |((place, bytes), ns, count): ((Option<Place>, usize), u64, usize)| {
        let text = format!(
            "the host copies {:.1} MiB{} to pinned memory first, which blocks it for {:.0} us each time, and so cannot overlap with \
             what it would launch",
            mib(bytes),
            at(place.as_ref()),
            ns as f64 / 1e3 / count as f64
        );
        Evidence::new(ms(ns), place, text)
    };
    sums(uploads).into_iter().map(evidence).collect()
}

pub(super) fn one_engine(facts: &Facts<'_>) -> Option<Evidence> {
    facts.device().filter(|device| device.copy_engines == 1)?;
    let mut shared = Vec::new();
    for window in &facts.windows {
        for (_, copy) in window.commands().filter(|(_, command)| is_copy(command)) {
            // Each pair once.
            let counts = |other: &CommandRecord| is_copy(other) && other.moment.stream < copy.moment.stream;
            shared.push((window.place(copy.launch.place), window.beside_ns(copy, counts)));
        }
    }
    let ns: u64 = shared.iter().map(|(_, ns)| ns).sum();
    let (place, ..) = sums(shared).into_iter().next()?;
    let text = format!(
        "copies on two streams share the device's one copy engine for {:.3} ms a step{}",
        ms(ns) / facts.steps,
        at(place.as_ref())
    );
    Some(Evidence::new(ms(ns), place, text))
}
