//! The last uses of each range of memory, for the checks of launches and of plans, and for profiles.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

/// The newest write and the reads since, as numbers of commands.
#[derive(Clone, Default)]
pub(crate) struct LastUses {
    write: Option<usize>,
    reads: SmallVec<[usize; 4]>,
}

impl LastUses {
    pub(crate) fn is_none(&self) -> bool {
        self.write.is_none() && self.reads.is_empty()
    }

    /// Logs a use by `command`, and names what it has to come after.
    pub(crate) fn record(&mut self, command: usize, write: bool, mut need: impl FnMut(usize)) {
        self.write.into_iter().for_each(&mut need);
        if write {
            self.reads.drain(..).for_each(&mut need);
            self.write = Some(command);
        } else {
            self.reads.push(command);
        }
    }
}

/// Ranges by their start, cut where accesses begin and end.
#[derive(Default)]
pub struct RangeUses(BTreeMap<usize, Uses>);

#[derive(Clone)]
struct Uses {
    end: usize,
    last: LastUses,
}

impl RangeUses {
    /// Records an access of a command, and calls `meet` with each earlier command that it has to come after and the range
    /// that both use.
    pub fn record(
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
            let Uses { end, last } =
                self.0.entry(at).or_insert_with(|| Uses { end: next, last: LastUses::default() });
            last.record(command, write, |earlier| meet(earlier, at..*end));
            at = *end;
        }
        if write && !range.is_empty() {
            let replaced: Vec<usize> = self.0.range(range.clone()).map(|(&start, _)| start).collect();
            replaced.iter().for_each(|start| _ = self.0.remove(start));
            let last = LastUses { write: Some(command), reads: SmallVec::new() };
            self.0.insert(range.start, Uses { end: range.end, last });
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
