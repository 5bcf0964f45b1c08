//! Where the memory of a plan lies: two memories share a place only if every use of one comes before the other's first.

use smallvec::SmallVec;

use super::capture::{ALIGNMENT, Memory};
use super::plan::{Layout, Plan};
use super::reach::Reach;

/// One range of memory for all that a plan allocates.
pub(super) struct Arena {
    offsets: Vec<Option<usize>>,
    /// The commands that use each memory, in the program's order.
    users: Vec<SmallVec<[usize; 4]>>,
    /// What has a place, by where that starts.
    placed: Vec<usize>,
    bytes: usize,
    limit: usize,
}

/// A run of free bytes.
#[derive(Clone, Copy)]
struct Gap {
    start: usize,
    bytes: usize,
}

impl Arena {
    pub(super) fn new(plan: &Plan, limit: usize) -> Arena {
        Arena {
            offsets: vec![None; plan.memories.len()],
            users: users(plan),
            placed: Vec::new(),
            bytes: 0,
            limit,
        }
    }

    /// Places for all memory where it is known already which command `comes_before` which: the largest first, which fit worst.
    pub(super) fn with_all(plan: &Plan, comes_before: impl Fn(usize, usize) -> bool) -> Arena {
        let mut arena = Arena::new(plan, usize::MAX);
        let planned = |memory: &usize| matches!(plan.memories[*memory], Memory::Planned { .. });
        let mut all: Vec<usize> = (0..plan.memories.len()).filter(planned).collect();
        all.retain(|&memory| !arena.users[memory].is_empty());
        all.sort_by_key(|&memory| std::cmp::Reverse(plan.memories[memory].bytes()));
        // All uses of a memory come after the first.
        let over = |users: &[usize], by: &[usize]| users.iter().all(|&user| comes_before(user, by[0]));
        for memory in all {
            let (bytes, users) = (size(plan.memories[memory].bytes()), &arena.users[memory]);
            let start = arena.gap(plan, bytes, |others| over(others, users) || over(users, others));
            arena.put(memory, start, bytes);
        }
        arena
    }

    /// Who used the places before of what the command `at` is the first to use, beside what `reach` has before it.
    pub(super) fn former(&self, plan: &Plan, at: usize, reach: &Reach) -> SmallVec<[usize; 8]> {
        let own = plan.commands[at].uses.iter().map(|(memory, _)| *memory);
        let first = own.filter(|&memory| self.users[memory].first() == Some(&at));
        let places =
            first.filter_map(|memory| Some((self.offsets[memory]?, size(plan.memories[memory].bytes()))));
        let users = places.flat_map(|(start, bytes)| self.users_of(plan, start, bytes));
        users.filter(|&user| user < at && !reach.has(user, at)).collect()
    }

    fn put(&mut self, memory: usize, start: usize, bytes: usize) {
        self.offsets[memory] = Some(start);
        let index = self.placed.partition_point(|&other| self.offsets[other] <= Some(start));
        self.placed.insert(index, memory);
        self.bytes = self.bytes.max(start + bytes);
    }

    /// Finds places for what the command `at` is the first to use. Names what it then has to come after, beside what `reach`
    /// has: who used the place before.
    pub(super) fn place(&mut self, plan: &Plan, at: usize, reach: &Reach) -> SmallVec<[usize; 8]> {
        let mut more = SmallVec::new();
        let mut own: Vec<usize> = plan.commands[at].uses.iter().map(|(memory, _)| *memory).collect();
        // The largest first, which fit worst.
        own.sort_by_key(|&memory| std::cmp::Reverse(plan.memories[memory].bytes()));
        for memory in own {
            let Memory::Planned { bytes, .. } = plan.memories[memory] else { continue };
            if self.offsets[memory].is_some() {
                continue;
            }
            let bytes = size(bytes);
            // Everything that uses it comes after `at`, so what is over by then is out of its way.
            let over = |user: &usize| reach.has(*user, at);
            let start = self.gap(plan, bytes, |users| users.iter().all(over));
            let start = if start + bytes > self.limit {
                // What the program would have done with it by then.
                let earlier = self.gap(plan, bytes, |users| users.iter().all(|&user| user < at));
                more.extend(self.users_of(plan, earlier, bytes).filter(|user| !reach.has(*user, at)));
                earlier
            } else {
                start
            };
            self.put(memory, start, bytes);
        }
        more
    }

    /// The start of the smallest gap that holds `bytes`, between memories whose users are not `over`; behind all of them if
    /// there is none.
    fn gap(&self, plan: &Plan, bytes: usize, over: impl Fn(&[usize]) -> bool) -> usize {
        let mut best: Option<Gap> = None;
        let mut end = 0;
        for &memory in self.placed.iter().filter(|&&memory| !over(&self.users[memory])) {
            let start = self.offsets[memory].unwrap_or(0);
            if start >= end + bytes && best.is_none_or(|best| start - end < best.bytes) {
                best = Some(Gap { start: end, bytes: start - end });
            }
            end = end.max(start + size(plan.memories[memory].bytes()));
        }
        best.map_or(end, |gap| gap.start)
    }

    /// The users of memories that have a part of these bytes.
    fn users_of<'a>(
        &'a self,
        plan: &'a Plan,
        start: usize,
        bytes: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let shares = move |memory: &&usize| {
            let other = self.offsets[**memory].unwrap_or(0);
            other < start + bytes && start < other + size(plan.memories[**memory].bytes())
        };
        self.placed.iter().filter(shares).flat_map(|&memory| self.users[memory].iter().copied())
    }

    pub(super) fn finish(self, needs: Vec<SmallVec<[u32; 4]>>) -> Layout {
        Layout { needs, offsets: self.offsets, bytes: self.bytes }
    }

    /// The most bytes that are in use at once if the commands run in the program's order.
    pub(super) fn needed(plan: &Plan) -> usize {
        let mut changes = vec![0isize; plan.len() + 1];
        for (memory, users) in plan.memories.iter().zip(users(plan)) {
            if let (Memory::Planned { bytes, .. }, Some(first), Some(last)) =
                (memory, users.first(), users.last())
            {
                changes[*first] += size(*bytes) as isize;
                changes[last + 1] -= size(*bytes) as isize;
            }
        }
        let mut now = 0;
        changes
            .into_iter()
            .map(|change| {
                now += change;
                now
            })
            .max()
            .unwrap_or(0) as usize
    }
}

/// The commands that use each memory, in the program's order.
pub(super) fn users(plan: &Plan) -> Vec<SmallVec<[usize; 4]>> {
    let mut users = vec![SmallVec::new(); plan.memories.len()];
    for (at, command) in plan.commands.iter().enumerate() {
        command.uses.iter().for_each(|(memory, _)| users[*memory].push(at));
    }
    users
}

fn size(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}
