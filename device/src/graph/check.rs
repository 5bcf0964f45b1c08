//! Plans as they came out, and a check of them that sees final addresses and edges alone.

use std::collections::VecDeque;
use std::ops::Range;

use super::plan::fewest;
use super::reach::Reach;
use crate::StreamId;
use crate::audit::RangeUses;

/// A command of a plan: what it waits for, and the memory that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedCommand {
    /// The op that launched it.
    pub op: &'static str,
    /// The stream that it was captured on.
    pub stream: StreamId,
    /// Which commands it waits for, by their number: the fewest that imply all that it comes after.
    pub needs: Vec<usize>,
    /// The addresses that it uses, and whether it writes them.
    pub uses: Vec<(Range<usize>, bool)>,
    /// About how many elementary operations a CPU needs for it, 0 if it is not known.
    pub cost: usize,
}

impl PlannedCommand {
    /// Whether one of the two writes what the other uses.
    pub fn conflicts_with(&self, other: &PlannedCommand) -> bool {
        let meet = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
        let with = |(range, write): &(Range<usize>, bool)| {
            other.uses.iter().any(|(theirs, writes)| (*write || *writes) && meet(range, theirs))
        };
        self.uses.iter().any(with)
    }
}

/// Up to so many commands, what comes before what is found by a search from each, which shares nothing with the planner.
const SEARCHED: usize = 1 << 10;

/// The pairs of commands that conflict and that no edges order.
pub fn unordered(commands: &[PlannedCommand]) -> Vec<(usize, usize)> {
    // If each use comes after the last write of its memory, and each write after the reads since, all pairs are in order.
    if commands.len() > SEARCHED && follow_last_uses(commands, &reach(commands)) {
        return Vec::new();
    }
    let after = followers(commands);
    let mut pairs = Vec::new();
    for (earlier, command) in commands.iter().enumerate() {
        let reached = reached(&after, earlier);
        for (later, other) in commands.iter().enumerate().skip(earlier + 1) {
            if !reached[later] && command.conflicts_with(other) {
                pairs.push((earlier, later));
            }
        }
    }
    pairs
}

/// The edges between commands that do not conflict, and those that others imply. Edges are (earlier, later).
pub fn needless(commands: &[PlannedCommand]) -> Vec<(usize, usize)> {
    let after = followers(commands);
    let reach = (commands.len() > SEARCHED).then(|| reach(commands));
    let mut edges = Vec::new();
    for (earlier, next) in after.iter().enumerate() {
        for &later in next {
            let around = match &reach {
                Some(reach) => commands[later].needs.iter().any(|&other| reach.has(earlier, other)),
                None => next.iter().any(|&other| other != later && reached(&after, other)[later]),
            };
            if around || !commands[earlier].conflicts_with(&commands[later]) {
                edges.push((earlier, later));
            }
        }
    }
    edges
}

/// What comes before what, by the edges.
fn reach(commands: &[PlannedCommand]) -> Reach {
    let mut reach = Reach::new(commands.len());
    for (at, command) in commands.iter().enumerate() {
        fewest(&mut reach, at, &mut command.needs.iter().copied().collect());
        reach.push();
    }
    reach
}

/// Whether each command comes after what used its memory last.
fn follow_last_uses(commands: &[PlannedCommand], reach: &Reach) -> bool {
    let (mut last, mut follows) = (RangeUses::default(), true);
    for (at, command) in commands.iter().enumerate() {
        for (range, write) in &command.uses {
            last.record(range.clone(), at, *write, |other, _| follows &= other == at || reach.has(other, at));
        }
    }
    follows
}

/// For each command, those that wait for it.
fn followers(commands: &[PlannedCommand]) -> Vec<Vec<usize>> {
    let mut after = vec![Vec::new(); commands.len()];
    for (later, command) in commands.iter().enumerate() {
        command.needs.iter().for_each(|&earlier| after[earlier].push(later));
    }
    after
}

/// Which commands come after one.
fn reached(after: &[Vec<usize>], from: usize) -> Vec<bool> {
    let (mut reached, mut open) = (vec![false; after.len()], VecDeque::from([from]));
    while let Some(at) = open.pop_front() {
        for &next in &after[at] {
            if !std::mem::replace(&mut reached[next], true) {
                open.push_back(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests;
