//! The last uses of each range of memory, for the checks of launches and of plans.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges by their start, cut where accesses begin and end.
#[derive(Default)]
pub(crate) struct RangeUses(BTreeMap<usize, Uses>);

/// The uses of one range: its newest write, and the reads since, as numbers of commands.
#[derive(Clone, Default)]
struct Uses {
    end: usize,
    write: Option<usize>,
    reads: Vec<usize>,
}

impl RangeUses {
    /// Records an access of a command, and calls `meet` with each earlier command that it has to come after and the range
    /// that both use.
    pub(crate) fn record(
        &mut self,
        range: Range<usize>,
        command: usize,
        write: bool,
        mut meet: impl FnMut(usize, Range<usize>),
    ) {
        self.cut(range.start);
        self.cut(range.end);
        let mut at = range.start;
        while at < range.end {
            let next = self.0.range(at..range.end).next().map_or(range.end, |(&next, _)| next);
            // Nothing used the bytes before `next` yet.
            let uses = self.0.entry(at).or_insert_with(|| Uses { end: next, ..Uses::default() });
            let readers = uses.reads.iter().filter(|_| write);
            uses.write.iter().chain(readers).for_each(|&earlier| meet(earlier, at..uses.end));
            at = uses.end;
            if !write {
                uses.reads.push(command);
            }
        }
        if write && !range.is_empty() {
            let replaced: Vec<usize> = self.0.range(range.clone()).map(|(&start, _)| start).collect();
            replaced.iter().for_each(|start| _ = self.0.remove(start));
            self.0.insert(range.start, Uses { end: range.end, write: Some(command), reads: Vec::new() });
        }
    }

    /// Cuts the range that `at` lies within.
    fn cut(&mut self, at: usize) {
        if let Some((_, uses)) = self.0.range_mut(..at).next_back()
            && uses.end > at
        {
            let rest = uses.clone();
            uses.end = at;
            self.0.insert(at, rest);
        }
    }
}
