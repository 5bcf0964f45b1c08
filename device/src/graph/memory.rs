//! Where the memory of a plan lies: two memories share a place only if every use of one comes before the other's first.

use std::cell::Cell;
use std::cmp::Reverse;

use smallvec::SmallVec;

use super::commands::{ALIGNMENT, StepMemory};
use super::plan::{GraphOptions, Layout, Needs, Plan};
use super::reach::Reach;

/// One range of memory for all that a plan allocates.
pub(super) struct Arena<'a> {
    plan: &'a Plan,
    offsets: Vec<Option<usize>>,
    /// The commands that use each memory, in the program's order.
    users: Vec<SmallVec<[usize; 4]>>,
    ends: Vec<End>,
    /// What has a place, by where that starts.
    blocks: Vec<Block>,
    places: usize,
    /// The most places among which a gap is looked for. Where there are more, it is looked for near some of them.
    most: usize,
    bytes: usize,
}

/// What is known of the end of a memory.
#[derive(Clone, Default)]
struct End {
    /// A command that comes after all of its users.
    after: Cell<Option<usize>>,
    /// Which of its users was found not to be over last.
    user: Cell<usize>,
}

/// Neighbouring places.
#[derive(Default)]
struct Block {
    places: Vec<Slot>,
    /// Where the last one ends.
    end: usize,
}

/// A range of bytes, and the memories that have it one after the other.
struct Slot {
    start: usize,
    bytes: usize,
    /// By their first users.
    memories: SmallVec<[usize; 2]>,
}

/// A run of free bytes.
#[derive(Clone, Copy)]
struct Gap {
    start: usize,
    bytes: usize,
}

/// The most places of a block.
const BLOCK: usize = 64;
/// Places that all searches for gaps may look at together, and the fewest of one.
const LOOKS: usize = 1 << 20;
const FEWEST: usize = 64;
/// How many places to look around, and how many commands are asked for them.
const HINTS: usize = 2;
const ASKED: usize = 16;

impl Plan {
    /// The most bytes that are in use at once if the commands run in the program's order.
    pub(super) fn needed_bytes(&self) -> usize {
        let mut changes = vec![0isize; self.len() + 1];
        for (memory, users) in self.memories.iter().zip(users(self)) {
            if let (StepMemory::Planned { bytes, .. }, Some(first), Some(last)) =
                (memory, users.first(), users.last())
            {
                changes[*first] += size(*bytes) as isize;
                changes[last + 1] -= size(*bytes) as isize;
            }
        }
        let sum = |(now, most): (isize, isize), change| (now + change, most.max(now + change));
        changes.into_iter().fold((0, 0), sum).1 as usize
    }

    /// Works out which commands wait for which, and where memory lies. Where that is too much, memory decides about the order,
    /// too.
    pub(super) fn layout(&self, options: GraphOptions) -> Layout {
        let (needs, reach) = self.needs(options.order);
        let free = Arena::with_all(self, &needs, Some(&reach)).finish(needs);
        drop(reach);
        let Some(limit) = options.max_bytes.filter(|&limit| free.bytes > limit) else { return free };
        let mut arena = Arena::new(self);
        let (needs, _) = self.needs_with(options.order, |at, reach| arena.place(at, reach, limit));
        let tight = arena.finish(needs);
        if tight.bytes <= limit {
            return tight;
        }
        // As if the commands ran one after the other.
        let arena = Arena::with_all(self, &Needs::new(), None);
        let (needs, _) = self.needs_with(options.order, |at, reach| arena.former(at, reach));
        let least = arena.finish(needs);
        let smaller = |a: Layout, b: Layout| if b.bytes < a.bytes { b } else { a };
        smaller(smaller(free, tight), least)
    }
}

impl<'a> Arena<'a> {
    pub(super) fn new(plan: &'a Plan) -> Arena<'a> {
        let count = plan.memories.len();
        Arena {
            plan,
            offsets: vec![None; count],
            users: users(plan),
            ends: vec![End::default(); count],
            blocks: vec![Block::default()],
            places: 0,
            most: (LOOKS / count.max(1)).max(FEWEST),
            bytes: 0,
        }
    }

    /// Places for all memory where it is known already which command comes before which: the largest first, which fit worst.
    pub(super) fn with_all(plan: &'a Plan, needs: &Needs, earlier: Option<&Reach>) -> Arena<'a> {
        let mut arena = Arena::new(plan);
        let planned = |memory: &usize| matches!(plan.memories[*memory], StepMemory::Planned { .. });
        let mut all: Vec<usize> = (0..plan.memories.len()).filter(planned).collect();
        all.retain(|&memory| !arena.users[memory].is_empty());
        all.sort_by_key(|&memory| Reverse(plan.memories[memory].bytes()));
        for memory in all {
            let start = arena.gap(memory, needs, earlier);
            arena.put(memory, start);
        }
        arena
    }

    /// Who used the places before of what the command `at` is the first to use, beside what `reach` has before it.
    pub(super) fn former(&self, at: usize, reach: &Reach) -> SmallVec<[usize; 8]> {
        let own = self.plan.commands[at].uses.iter().map(|(memory, _)| *memory);
        let first = own.filter(|&memory| self.users[memory].first() == Some(&at));
        let places = first.filter_map(|memory| Some((self.offsets[memory]?, self.size(memory))));
        places.flat_map(|(start, bytes)| self.users_of(start, bytes, at, reach)).collect()
    }

    /// Places the memory that command `at` is the first to use. Returns the commands that it must then come after beside those
    /// in `reach`: earlier users of a place that is shared because the plan would otherwise exceed `limit` bytes.
    pub(super) fn place(&mut self, at: usize, reach: &Reach, limit: usize) -> SmallVec<[usize; 8]> {
        let mut more = SmallVec::new();
        let mut own: SmallVec<[usize; 8]> =
            self.plan.commands[at].uses.iter().map(|(memory, _)| *memory).collect();
        own.retain(|memory| {
            matches!(self.plan.memories[*memory], StepMemory::Planned { .. })
                && self.offsets[*memory].is_none()
        });
        // The largest first, which fit worst.
        own.sort_by_key(|&memory| Reverse(self.size(memory)));
        for memory in own {
            // Everything that uses it comes after `at`, so what is over by then is out of its way.
            let mut start = self.gap(memory, &Needs::new(), Some(reach));
            if start + self.size(memory) > limit {
                // What the program would have done with it by then.
                start = self.gap(memory, &Needs::new(), None);
                more.extend(self.users_of(start, self.size(memory), at, reach));
            }
            self.put(memory, start);
        }
        more
    }

    /// Bytes of a memory's place.
    fn size(&self, memory: usize) -> usize {
        size(self.plan.memories[memory].bytes())
    }

    fn put(&mut self, memory: usize, start: usize) {
        let (bytes, first) = (self.size(memory), self.users[memory][0]);
        self.offsets[memory] = Some(start);
        self.bytes = self.bytes.max(start + bytes);
        let key = (start, bytes);
        let is_before = |block: &Block| block.places.first().is_some_and(|place| place.key() <= key);
        let at = self.blocks.partition_point(is_before).saturating_sub(1);
        let block = &mut self.blocks[at];
        block.end = block.end.max(start + bytes);
        match block.places.binary_search_by_key(&key, Slot::key) {
            Ok(known) => {
                let users = &self.users;
                let memories = &mut block.places[known].memories;
                memories.insert(memories.partition_point(|&other| users[other][0] < first), memory);
            }
            Err(new) => {
                block.places.insert(new, Slot { start, bytes, memories: SmallVec::from_slice(&[memory]) });
                self.places += 1;
                if block.places.len() > BLOCK {
                    // What is placed behind all others leaves full blocks.
                    let half = if new == BLOCK { BLOCK } else { BLOCK / 2 };
                    let places = block.places.split_off(half);
                    block.end = end(&block.places);
                    let second = Block { end: end(&places), places };
                    self.blocks.insert(at + 1, second);
                }
            }
        }
    }

    /// The start of the smallest gap for a memory, between places that it cannot share; behind all of them if there is none.
    fn gap(&self, memory: usize, needs: &Needs, earlier: Option<&Reach>) -> usize {
        if self.places <= self.most {
            let (best, end) = self.gap_in(0..self.blocks.len(), memory, earlier);
            return best.map_or(end, |gap| gap.start);
        }
        let near = self.hints(memory, needs, earlier);
        let near = near.iter().filter_map(|&hint| {
            let key = (self.offsets[hint]?, self.size(hint));
            let at = self.blocks.partition_point(|block| block.places[0].key() <= key);
            let blocks = at.saturating_sub(1)..at.max(1);
            let is_last = blocks.end == self.blocks.len();
            let (best, end) = self.gap_in(blocks, memory, earlier);
            best.or(is_last.then_some(Gap { start: end, bytes: usize::MAX }))
        });
        near.min_by_key(|gap| (gap.bytes, gap.start)).map_or(self.bytes, |gap| gap.start)
    }

    /// The smallest gap for a memory within some blocks, and where the last place ends that it cannot share.
    fn gap_in(
        &self,
        blocks: std::ops::Range<usize>,
        memory: usize,
        earlier: Option<&Reach>,
    ) -> (Option<Gap>, usize) {
        let bytes = self.size(memory);
        let is_obstacle = |place: &&Slot| !self.may_share(place, memory, earlier);
        let mut end = 0;
        if blocks.start > 0 {
            // What begins before may end within.
            let start = self.blocks[blocks.start].places[0].start;
            let before = self.blocks[..blocks.start].iter().filter(|block| block.end > start);
            let before = before.flat_map(|block| &block.places).filter(|place| place.end() > start);
            end = before.filter(is_obstacle).map(Slot::end).max().unwrap_or(0).max(start);
        }
        let mut best: Option<Gap> = None;
        let mut find = |start: usize, end: usize| {
            if start >= end + bytes && best.is_none_or(|best| start - end < best.bytes) {
                best = Some(Gap { start: end, bytes: start - end });
            }
        };
        let next = self.blocks.get(blocks.end).map(|block| block.places[0].start);
        for place in self.blocks[blocks].iter().flat_map(|block| &block.places).filter(is_obstacle) {
            find(place.start, end);
            end = end.max(place.end());
        }
        // What begins behind counts as one that cannot be shared.
        if let Some(next) = next {
            find(next, end);
        }
        (best, end)
    }

    /// Whether a memory can have a place between the memories that have it.
    fn may_share(&self, place: &Slot, memory: usize, earlier: Option<&Reach>) -> bool {
        let first = self.users[memory][0];
        let at = place.memories.partition_point(|&other| self.users[other][0] < first);
        at.checked_sub(1).is_none_or(|at| self.is_over(place.memories[at], first, earlier))
            && place.memories.get(at).is_none_or(|&next| self.is_over(memory, self.users[next][0], earlier))
    }

    /// Whether all users of a memory come before a command: by `earlier`, or in the program.
    fn is_over(&self, memory: usize, by: usize, earlier: Option<&Reach>) -> bool {
        let (users, end) = (&self.users[memory], &self.ends[memory]);
        if users.last().is_some_and(|&last| last >= by) {
            return false;
        }
        let Some(reach) = earlier else { return true };
        if end.after.get().is_some_and(|after| after == by || reach.has(after, by)) {
            return true;
        }
        let is_late = |user: &usize| !reach.has(*user, by);
        if users.get(end.user.get()).is_some_and(is_late) {
            return false;
        }
        let late = users.iter().rposition(is_late);
        match late {
            Some(late) => end.user.set(late),
            None => end.after.set(Some(end.after.get().map_or(by, |after| after.min(by)))),
        }
        late.is_none()
    }

    /// Memories that are over when a memory is used first: of commands that come before that closely.
    fn hints(&self, memory: usize, needs: &Needs, earlier: Option<&Reach>) -> SmallVec<[usize; HINTS]> {
        let first = self.users[memory][0];
        let mut asked: SmallVec<[usize; ASKED]> = SmallVec::from_slice(&[first]);
        let mut at = 0;
        while let Some(&command) = asked.get(at).filter(|_| asked.len() < ASKED) {
            match needs.get(command) {
                Some(needs) => {
                    asked.extend(needs.iter().map(|&need| need as usize).take(ASKED - asked.len()))
                }
                None => asked.extend(command.checked_sub(1)),
            }
            at += 1;
        }
        let used = asked[1..].iter().flat_map(|&command| &self.plan.commands[command].uses);
        let mut hints: SmallVec<[usize; HINTS]> = SmallVec::new();
        for &(used, _) in used.take(4 * ASKED) {
            if self.offsets[used].is_some() && !hints.contains(&used) && self.is_over(used, first, earlier) {
                hints.push(used);
                if hints.len() == HINTS {
                    break;
                }
            }
        }
        hints
    }

    /// The users, before the command `at`, of memories that have a part of these bytes, beside what `reach` has before it. Of
    /// those that have one place the last: it comes after the others.
    fn users_of(&self, start: usize, bytes: usize, at: usize, reach: &Reach) -> Vec<usize> {
        let blocks = self.blocks.iter().filter(|block| block.end > start);
        let places = blocks.flat_map(|block| &block.places).take_while(|place| place.start < start + bytes);
        let last = places.filter(|place| place.end() > start).filter_map(|place| {
            let next = place.memories.partition_point(|&other| self.users[other][0] < at);
            next.checked_sub(1).map(|last| place.memories[last])
        });
        let users = last.flat_map(|memory| self.users[memory].iter().copied());
        users.filter(|&user| user < at && !reach.has(user, at)).collect()
    }

    pub(super) fn finish(self, needs: Needs) -> Layout {
        Layout { needs, offsets: self.offsets, bytes: self.bytes }
    }
}

impl Slot {
    fn key(&self) -> (usize, usize) {
        (self.start, self.bytes)
    }

    fn end(&self) -> usize {
        self.start + self.bytes
    }
}

/// Where the last of some places ends.
fn end(places: &[Slot]) -> usize {
    places.iter().map(Slot::end).max().unwrap_or(0)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
