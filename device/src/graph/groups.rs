//! Groups of a plan's commands that become one command each.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use smallvec::SmallVec;

use super::plan::{Needs, Order, Plan};
use super::reach::Reach;
use crate::Result;

/// Commands of a plan, each in a group that can run as one command: no path along the edges leaves a group and comes back, also
/// where each group counts as one command. Each command begins in a group of its own.
pub struct Groups {
    /// What comes before what without groups.
    reach: Reach,
    needs: Needs,
    next: Needs,
    /// For each command, the one that stands for its group.
    group: Vec<u32>,
    /// By the commands that stand for groups, their members in the program's order.
    members: Vec<SmallVec<[usize; 2]>>,
    /// An order of the groups that the edges allow, by labels that rise, and the label of each.
    order: BTreeMap<u64, u32>,
    labels: Vec<u64>,
    search: RefCell<Search>,
}

/// Edges that a query may follow: searches are local but for rare graphs.
const LIMIT: usize = 1 << 12;
/// Needs of a group that are looked up before a search.
const LOOKED_UP: usize = 64;

/// What a search has seen.
#[derive(Default)]
struct Search {
    /// For each group, twice the number of the search that saw it last, and which of its sides.
    marks: Vec<u64>,
    count: u64,
    sides: [Side; 2],
}

/// One direction of a search: the groups that it found, and the next edge to follow.
#[derive(Default)]
struct Side {
    found: Vec<u32>,
    group: usize,
    member: usize,
    edge: usize,
}

/// What lies between two groups.
enum Between {
    /// No path. These groups come after the first one, and have labels before the second.
    After(Vec<u32>),
    /// No path. These groups come before the second one, and have labels after the first.
    Before(Vec<u32>),
    /// A path, or the search was too long to tell.
    Unknown,
}

impl Side {
    fn begin(&mut self, group: usize) {
        self.found.clear();
        self.found.push(group as u32);
        (self.group, self.member, self.edge) = (0, 0, 0);
    }

    /// The next edge along `edges`: the group that it is of, and the command at its other end.
    fn next(&mut self, members: &[SmallVec<[usize; 2]>], edges: &Needs) -> Option<(usize, usize)> {
        loop {
            let group = *self.found.get(self.group)? as usize;
            let Some(&member) = members[group].get(self.member) else {
                (self.group, self.member, self.edge) = (self.group + 1, 0, 0);
                continue;
            };
            if let Some(&end) = edges[member].get(self.edge) {
                self.edge += 1;
                return Some((group, end as usize));
            }
            (self.member, self.edge) = (self.member + 1, 0);
        }
    }

    /// What was found beside the group that the search began with.
    fn others(&self) -> Vec<u32> {
        self.found[1..].to_vec()
    }
}

/// The distance between the labels of so many groups.
fn gap(count: usize) -> u64 {
    (1 << 62) / (count as u64 + 1)
}

impl Plan {
    /// Its commands, each in a group of its own, with the edges that `order` asks for.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn groups(&self, order: Order) -> Result<Groups> {
        self.has_room()?;
        let (needs, reach) = self.needs(order);
        let count = self.len();
        let mut next: Needs = vec![SmallVec::new(); count];
        for (command, needs) in needs.iter().enumerate() {
            needs.iter().for_each(|&need| next[need as usize].push(command as u32));
        }
        let labels: Vec<u64> = (1..=count as u64).map(|at| at * gap(count)).collect();
        Ok(Groups {
            reach,
            needs,
            next,
            group: (0..count as u32).collect(),
            members: (0..count).map(|command| SmallVec::from_slice(&[command])).collect(),
            order: labels.iter().copied().zip(0..).collect(),
            labels,
            search: RefCell::new(Search { marks: vec![0; count], ..Search::default() }),
        })
    }
}

impl Groups {
    /// The group of a command, in the program's order.
    pub fn of(&self, command: usize) -> &[usize] {
        &self.members[self.group(command)]
    }

    /// The groups of several commands, in the order of their first ones.
    pub fn several(&self) -> impl Iterator<Item = &[usize]> {
        self.firsts().map(|first| self.of(first)).filter(|members| members.len() > 1)
    }

    /// Whether two commands, each by itself, may run at once.
    pub fn were_unordered(&self, one: usize, other: usize) -> bool {
        one != other && !self.reach.has(one.min(other), one.max(other))
    }

    /// Whether the groups of two commands are two, and may become one: it is known that no other group lies between them.
    pub fn may_join(&self, one: usize, other: usize) -> bool {
        let [earlier, later] = self.in_order_of([one, other]);
        earlier != later
            && !self.is_known_around(earlier, later)
            && matches!(self.search([earlier, later], LIMIT), Between::After(_) | Between::Before(_))
    }

    /// Makes the groups of two commands one, which [may be](Groups::may_join).
    pub fn join(&mut self, one: usize, other: usize) {
        let [earlier, later] = self.in_order_of([one, other]);
        // The new group has the label of one of both, and the groups in between that must be on its other side go there.
        let (stays, goes) = match self.search([earlier, later], usize::MAX) {
            Between::After(moved) => {
                self.place(moved, later, 1);
                (later, earlier)
            }
            Between::Before(moved) => {
                self.place(moved, earlier, 0);
                (earlier, later)
            }
            Between::Unknown => {
                debug_assert!(false, "another group lies between the two");
                return;
            }
        };
        self.order.remove(&self.labels[goes]);
        let more = std::mem::take(&mut self.members[goes]);
        more.iter().for_each(|&member| self.group[member] = stays as u32);
        self.members[stays].extend(more);
        self.members[stays].sort_unstable();
    }

    fn group(&self, command: usize) -> usize {
        self.group[command] as usize
    }

    /// The first commands of all groups.
    fn firsts(&self) -> impl Iterator<Item = usize> {
        (0..self.group.len()).filter(|&command| self.of(command)[0] == command)
    }

    /// The groups of two commands by their labels.
    fn in_order_of(&self, commands: [usize; 2]) -> [usize; 2] {
        let [one, other] = commands.map(|command| self.group(command));
        if self.labels[one] <= self.labels[other] { [one, other] } else { [other, one] }
    }

    /// Whether a path leads by a third group also without other groups. If not, there may be one.
    fn is_known_around(&self, earlier: usize, later: usize) -> bool {
        let own = &self.members[earlier];
        let ends: SmallVec<[usize; 2]> = own.first().into_iter().chain(own.last()).copied().collect();
        let needs = self.members[later].iter().flat_map(|&member| &self.needs[member]);
        needs.take(LOOKED_UP).map(|&need| need as usize).any(|need| {
            ![earlier, later].contains(&self.group(need)) && ends.iter().any(|&end| self.reach.has(end, need))
        })
    }

    /// Looks for a path between two groups by a third one, from both sides by turns. Labels limit both.
    fn search(&self, ends: [usize; 2], limit: usize) -> Between {
        let Search { marks, count, sides } = &mut *self.search.borrow_mut();
        *count += 1;
        let mark = |side: usize| *count * 2 + side as u64;
        for side in [0, 1] {
            sides[side].begin(ends[side]);
            marks[ends[side]] = mark(side);
        }
        let between = self.labels[ends[0]]..self.labels[ends[1]];
        for step in 0..limit {
            let side = step % 2;
            let Some((from, end)) = sides[side].next(&self.members, [&self.next, &self.needs][side]) else {
                let others = sides[side].others();
                return if side == 0 { Between::After(others) } else { Between::Before(others) };
            };
            let group = self.group(end);
            if marks[group] == mark(side) || from == ends[side] && group == ends[1 - side] {
                continue;
            }
            if marks[group] == mark(1 - side) {
                return Between::Unknown;
            }
            if between.contains(&self.labels[group]) {
                marks[group] = mark(side);
                sides[side].found.push(group as u32);
            }
        }
        Between::Unknown
    }

    /// Moves groups, in the order that they are in, to before (0) or after (1) the group `at`.
    fn place(&mut self, mut moved: Vec<u32>, at: usize, side: usize) {
        moved.sort_unstable_by_key(|&group| self.labels[group as usize]);
        for &group in &moved {
            self.order.remove(&self.labels[group as usize]);
        }
        let (mut low, mut step) = self.room(moved.len(), at, side);
        if step == 0 {
            let ordered = std::mem::take(&mut self.order);
            self.label(ordered.into_values(), 0, gap(self.group.len()));
            (low, step) = self.room(moved.len(), at, side);
        }
        self.label(moved, low, step);
    }

    /// Labels for `count` groups on one side of the group `at`: the label below them, and the step from one to the next.
    fn room(&self, count: usize, at: usize, side: usize) -> (u64, u64) {
        let own = self.labels[at];
        let (low, high) = if side == 0 {
            (self.order.range(..own).next_back().map_or(0, |(&label, _)| label), own)
        } else {
            (own, self.order.range(own + 1..).next().map_or(u64::MAX, |(&label, _)| label))
        };
        (low, ((high - low) / (count as u64 + 1)).min(gap(self.group.len())))
    }

    /// Gives groups labels above `low`, at steps of `step`.
    fn label(&mut self, groups: impl IntoIterator<Item = u32>, low: u64, step: u64) {
        for (group, count) in groups.into_iter().zip(1..) {
            self.labels[group as usize] = low + count * step;
            self.order.insert(low + count * step, group);
        }
    }

    /// The groups, by their first commands, in an order that the edges allow: by their last ones, where that is one.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let mut left = vec![0_u32; self.group.len()];
        let outside = |command: usize, edges: &Needs| -> SmallVec<[usize; 8]> {
            let groups = edges[command].iter().map(|&end| self.group(end as usize));
            groups.filter(|&group| group != self.group(command)).collect()
        };
        for command in 0..self.group.len() {
            left[self.group(command)] += outside(command, &self.needs).len() as u32;
        }
        let key = |group: usize| {
            let members = &self.members[group];
            Reverse((members.last().copied(), members.first().copied(), group))
        };
        let groups = self.firsts().map(|first| self.group(first));
        let mut ready: BinaryHeap<_> = groups.filter(|&group| left[group] == 0).map(key).collect();
        let mut order = Vec::with_capacity(self.group.len());
        while let Some(Reverse((_, first, group))) = ready.pop() {
            order.extend(first);
            for after in self.members[group].iter().flat_map(|&member| outside(member, &self.next)) {
                left[after] -= 1;
                if left[after] == 0 {
                    ready.push(key(after));
                }
            }
        }
        order
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.several()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests;
