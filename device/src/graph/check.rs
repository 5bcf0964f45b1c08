//! Plans as they came out, and a check of them that shares nothing with how they were made: it sees final addresses and edges.

use std::collections::VecDeque;
use std::ops::Range;

use crate::StreamId;

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
        let meet = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        let with = |(range, write): &(Range<usize>, bool)| {
            other.uses.iter().any(|(theirs, writes)| (*write || *writes) && meet(range, theirs))
        };
        self.uses.iter().any(with)
    }
}

/// The pairs of commands that conflict and that no edges order.
pub fn unordered(commands: &[PlannedCommand]) -> Vec<(usize, usize)> {
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
    let mut edges = Vec::new();
    for (earlier, next) in after.iter().enumerate() {
        for &later in next {
            let around = next.iter().any(|&other| other != later && reached(&after, other)[later]);
            if around || !commands[earlier].conflicts_with(&commands[later]) {
                edges.push((earlier, later));
            }
        }
    }
    edges
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
