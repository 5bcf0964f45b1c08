//! Plans as they came out, and a check of them that sees final addresses and edges alone.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::reach::Reach;
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
        let mut needs = command.needs.clone();
        needs.sort_unstable_by(|a, b| b.cmp(a));
        for need in needs {
            if !reach.has(need, at) {
                reach.add(need);
            }
        }
        reach.push();
    }
    reach
}

/// Some bytes, by where they start: where they end, the command that wrote them last, and those that read them since.
type LastUses = BTreeMap<usize, (usize, Option<usize>, Vec<usize>)>;

/// Whether each command comes after what used its memory last.
fn follow_last_uses(commands: &[PlannedCommand], reach: &Reach) -> bool {
    let mut last = LastUses::new();
    commands.iter().enumerate().all(|(at, command)| {
        command.uses.iter().filter(|(range, _)| !range.is_empty()).all(|(range, write)| {
            let is_over = |other: usize| other == at || reach.has(other, at);
            [range.start, range.end].into_iter().for_each(|edge| split(&mut last, edge));
            let mut all = last.range(range.clone()).map(|(_, uses)| uses);
            let follows = all.all(|(_, writer, readers)| {
                writer.is_none_or(is_over) && (!*write || readers.iter().all(|&reader| is_over(reader)))
            });
            if *write {
                let over: Vec<usize> = last.range(range.clone()).map(|(&start, _)| start).collect();
                over.iter().for_each(|start| drop(last.remove(start)));
                last.insert(range.start, (range.end, Some(at), Vec::new()));
            } else {
                read(&mut last, range.clone(), at);
            }
            follows
        })
    })
}

/// Has what spans an address begin there anew.
fn split(last: &mut LastUses, at: usize) {
    if let Some((_, (end, writer, readers))) = last.range_mut(..at).next_back()
        && *end > at
    {
        let second = (std::mem::replace(end, at), *writer, readers.clone());
        last.insert(at, second);
    }
}

/// Notes a reader of bytes, also where nobody used them yet.
fn read(last: &mut LastUses, range: Range<usize>, reader: usize) {
    let mut start = range.start;
    let mut fresh = Vec::new();
    for (&at, (end, _, readers)) in last.range_mut(range.clone()) {
        if start < at {
            fresh.push((start, at));
        }
        readers.push(reader);
        start = *end;
    }
    if start < range.end {
        fresh.push((start, range.end));
    }
    last.extend(fresh.into_iter().map(|(start, end)| (start, (end, None, vec![reader]))));
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
