//! Collectives of ranks: how long they take, and how long nothing else runs meanwhile.

use device::{CommandKind, CommandRecord, Place};

use super::profile::{Profile, entry, ms};
use super::timeline::RecordingIndex;

/// The collectives of one op and one line of the program.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Communication {
    /// The op, as in `all_gather`.
    pub op: &'static str,
    /// The line of the program, if there is one to name.
    #[serde(skip)]
    pub place: Option<Place>,
    /// How many there were.
    pub calls: usize,
    /// The bytes of this rank's tensors, added up.
    pub bytes: usize,
    /// Milliseconds in which they ran, waiting for other ranks included.
    pub total_ms: f64,
    /// Milliseconds of these in which nothing else ran on the device; where several run at once, of the one that began first.
    pub exposed_ms: f64,
}

impl Profile {
    /// The collectives that ran, the longest exposed first.
    pub fn communication(&self) -> Vec<Communication> {
        let mut found: Vec<Communication> = Vec::new();
        for timeline in self.timelines() {
            for (command, exposed_ns) in exposed(&timeline) {
                let place = timeline.place(command.launch.place).cloned();
                let is_same = |known: &Communication| known.op == command.op && known.place == place;
                let (op, place) = (command.op, place.clone());
                let new = || Communication { op, place, calls: 0, bytes: 0, total_ms: 0.0, exposed_ms: 0.0 };
                let of_kind = entry(&mut found, is_same, new);
                of_kind.calls += 1;
                of_kind.bytes += bytes(command).unwrap_or(0);
                of_kind.total_ms += ms(command.duration_ns());
                of_kind.exposed_ms += ms(exposed_ns);
            }
        }
        found.sort_by(|a, b| b.exposed_ms.total_cmp(&a.exposed_ms));
        found
    }
}

/// The bytes of a collective.
fn bytes(command: &CommandRecord) -> Option<usize> {
    match command.kind {
        CommandKind::Collective { bytes } => Some(bytes),
        _ => None,
    }
}

/// Each collective in the order in which they began, with the nanoseconds in which nothing else ran.
fn exposed<'a>(timeline: &RecordingIndex<'a>) -> Vec<(&'a CommandRecord, u64)> {
    let (mut collectives, others): (Vec<&CommandRecord>, Vec<_>) = timeline
        .recording
        .commands
        .iter()
        .filter(|command| command.is_work())
        .partition(|command| bytes(command).is_some());
    collectives.sort_by_key(|command| (command.start_ns, command.end_ns));
    let mut busy: Vec<(u64, u64)> =
        others.into_iter().map(|command| (command.start_ns, command.end_ns)).collect();
    busy.sort_unstable();
    let (mut first, mut counted) = (0, 0);
    let exposed_ns = |command: &CommandRecord| {
        // What was before this one was before all that follow.
        while busy.get(first).is_some_and(|&(_, end)| end <= command.start_ns) {
            first += 1;
        }
        let (mut ns, mut now) = (0, command.start_ns.max(counted));
        for &(start, end) in busy[first..].iter().take_while(|&&(start, _)| start < command.end_ns) {
            ns += start.saturating_sub(now);
            now = now.max(end);
        }
        ns += command.end_ns.saturating_sub(now);
        counted = counted.max(command.end_ns);
        ns
    };
    let exposed_ns: Vec<u64> = collectives.iter().copied().map(exposed_ns).collect();
    collectives.into_iter().zip(exposed_ns).collect()
}
