//! What comes after what, worked out from the entries alone.

use rustc_hash::{FxHashMap, FxHashSet};

use super::range_uses::RangeUses;
use super::{AuditedCommand, Entry, Hazard};
use crate::{Moment, StreamId};

/// Finds the pairs of commands that nothing orders, as if the wait of the number `without` were not there.
pub(super) fn hazards<'a>(
    entries: impl Iterator<Item = &'a Entry> + Clone,
    without: Option<usize>,
) -> Vec<Hazard> {
    let mut order = HappensBefore::new(entries.clone(), without);
    let mut last = RangeUses::default();
    let mut found = Vec::new();
    let mut commands: Vec<&AuditedCommand> = Vec::new();
    for entry in entries {
        match entry {
            Entry::Wait(_) => {}
            Entry::Passed(moment) => order.pass(*moment),
            Entry::Ended(read) => {
                order.ended.insert(*read);
            }
            Entry::Command(command) => {
                order.place(command.moment);
                let number = commands.len();
                commands.push(command);
                for access in &command.accesses {
                    last.record(access.start..access.end, number, access.write, |earlier, range| {
                        if !order.keeps(commands[earlier].moment, command.moment) {
                            let (first, second) = (commands[earlier].clone(), command.clone());
                            found.push(Hazard { first, second, range: (range.start, range.end) });
                        }
                    });
                }
            }
        }
    }
    found
}

/// For each command the newest tick of every stream that it comes after.
#[derive(Default)]
struct HappensBefore {
    awaited: FxHashMap<Moment, Vec<Moment>>,
    /// Each stream's rows by tick, ascending.
    rows: FxHashMap<StreamId, Vec<(u64, Row)>>,
    /// What everything comes after that is launched from now on.
    passed: Row,
    /// Reads of the host that are over, each by itself: they end in any order.
    ended: FxHashSet<Moment>,
}

/// The newest tick of each stream.
type Row = FxHashMap<StreamId, u64>;

impl HappensBefore {
    fn new<'a>(entries: impl Iterator<Item = &'a Entry>, without: Option<usize>) -> HappensBefore {
        let mut order = HappensBefore::default();
        let waits = entries.filter_map(|entry| if let Entry::Wait(wait) = entry { Some(wait) } else { None });
        for (_, wait) in waits.enumerate().filter(|(number, _)| Some(*number) != without) {
            order.awaited.entry(wait.waiter).or_default().push(wait.awaited);
        }
        order
    }

    /// The newest row of the stream up to `moment`: what that command comes after, itself included.
    fn row(&self, moment: Moment) -> Option<&Row> {
        let rows = self.rows.get(&moment.stream)?;
        let after = rows.partition_point(|(tick, _)| *tick <= moment.tick);
        rows.get(after.checked_sub(1)?).map(|(_, row)| row)
    }

    /// From now on everything comes after `moment`.
    fn pass(&mut self, moment: Moment) {
        if let Some(row) = self.row(moment).cloned() {
            join(&mut self.passed, &row);
        }
    }

    /// Works out what the next command in the order of launches comes after.
    fn place(&mut self, moment: Moment) {
        let mut row = self.passed.clone();
        if let Some(before) = self.row(moment) {
            join(&mut row, before);
        }
        for &awaited in self.awaited.get(&moment).into_iter().flatten() {
            if let Some(after) = self.row(awaited) {
                join(&mut row, after);
            }
        }
        row.insert(moment.stream, moment.tick);
        self.rows.entry(moment.stream).or_default().push((moment.tick, row));
    }

    /// Whether the command at `later` comes after the one at `earlier`.
    fn keeps(&self, earlier: Moment, later: Moment) -> bool {
        let after = |row: &Row| row.get(&earlier.stream).is_some_and(|&tick| tick >= earlier.tick);
        earlier == later || self.ended.contains(&earlier) || self.row(later).is_some_and(after)
    }
}

/// The pointwise maximum.
fn join(row: &mut Row, other: &Row) {
    for (&stream, &tick) in other {
        let known = row.entry(stream).or_insert(0);
        *known = tick.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;
    use crate::{Access, audit::AuditedWait};

    fn at(stream: u64, tick: u64) -> Moment {
        Moment { stream: StreamId::from_raw(stream), tick }
    }

    fn command(moment: Moment, start: usize, end: usize, write: bool) -> Entry {
        let accesses = [Access { start, end, write }].into_iter().collect();
        Entry::Command(AuditedCommand { moment, op: "op", place: Location::caller(), accesses })
    }

    fn wait(waiter: Moment, awaited: Moment) -> Entry {
        Entry::Wait(AuditedWait { waiter, awaited })
    }

    fn pairs(entries: &[Entry]) -> Vec<(Moment, Moment)> {
        hazards(entries.iter(), None)
            .iter()
            .map(|hazard| (hazard.first.moment, hazard.second.moment))
            .collect()
    }

    #[test]
    fn a_write_and_a_read_need_an_order() {
        let program = [command(at(1, 1), 0, 8, true), command(at(2, 1), 4, 6, false)];
        let found = hazards(program.iter(), None);
        assert_eq!((found.len(), found[0].range), (1, (4, 6)));
        let waited = [program[0].clone(), program[1].clone(), wait(at(2, 1), at(1, 1))];
        assert!(pairs(&waited).is_empty());
        assert_eq!(hazards(waited.iter(), Some(0)).len(), 1);
    }

    #[test]
    fn reads_need_no_order_and_apart_ranges_neither() {
        assert!(pairs(&[command(at(1, 1), 0, 8, false), command(at(2, 1), 0, 8, false)]).is_empty());
        assert!(pairs(&[command(at(1, 1), 0, 8, true), command(at(2, 1), 8, 16, true)]).is_empty());
    }

    #[test]
    fn a_writer_has_to_come_after_every_reader() {
        let program = [
            command(at(1, 1), 0, 8, false),
            command(at(2, 1), 0, 8, false),
            command(at(3, 1), 0, 8, true),
            wait(at(3, 1), at(1, 1)),
        ];
        assert_eq!(pairs(&program), [(at(2, 1), at(3, 1))]);
    }

    #[test]
    fn an_order_goes_through_other_streams_and_the_host() {
        let through = [
            command(at(1, 1), 0, 8, true),
            command(at(2, 1), 100, 108, true),
            wait(at(2, 1), at(1, 1)),
            command(at(3, 1), 0, 8, true),
            wait(at(3, 1), at(2, 1)),
        ];
        assert!(pairs(&through).is_empty());
        let seen = [command(at(1, 1), 0, 8, true), Entry::Passed(at(1, 1)), command(at(2, 1), 0, 8, true)];
        assert!(pairs(&seen).is_empty());
        let too_old = [
            command(at(1, 1), 50, 51, true),
            command(at(1, 2), 0, 8, true),
            Entry::Passed(at(1, 1)),
            command(at(2, 1), 0, 8, true),
        ];
        assert_eq!(pairs(&too_old), [(at(1, 2), at(2, 1))]);
    }

    #[test]
    fn a_read_of_the_host_that_is_over_tells_nothing_of_another() {
        let program = [
            command(at(9, 1), 0, 8, false),
            command(at(9, 2), 8, 16, false),
            Entry::Ended(at(9, 2)),
            command(at(1, 1), 8, 16, true),
            command(at(1, 2), 0, 8, true),
            Entry::Ended(at(9, 1)),
            command(at(2, 1), 0, 8, false),
        ];
        assert_eq!(pairs(&program), [(at(9, 1), at(1, 2)), (at(1, 2), at(2, 1))]);
    }

    #[test]
    fn memory_that_is_cut_anew_keeps_its_users() {
        let program = [
            command(at(1, 1), 0, 64, true),
            command(at(1, 2), 0, 16, true),
            command(at(2, 1), 16, 32, true),
            command(at(2, 2), 8, 24, false),
        ];
        assert_eq!(pairs(&program), [(at(1, 1), at(2, 1)), (at(1, 2), at(2, 2))]);
    }
}
