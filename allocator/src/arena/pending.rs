//! Pending blocks, and what is asked about them outside the lock.

use device::{Moment, StreamId};
use smallvec::SmallVec;

use super::{Arena, Grant};
use crate::block::State;
use crate::classes::class_of;
use crate::order::Frontier;

impl Arena {
    /// For each stream that pending blocks wait for, a moment not after the oldest one.
    pub(crate) fn waiting(&self) -> SmallVec<[Moment; 4]> {
        self.waiting.clone()
    }

    /// The tags of pending blocks, of `streams` only.
    pub(crate) fn pending_moments(&self, streams: &[Moment]) -> Vec<Moment> {
        let tags =
            self.pending.iter(&self.blocks, 0).flat_map(|index| self.blocks[index].tags.foreign.iter());
        tags.filter(|tag| streams.iter().any(|of| of.stream == tag.stream)).copied().collect()
    }

    /// Drops the foreign tags of pending blocks that `frontier` passes. If they passed because the home
    /// stream comes after them, `now` is a tick of it that does, and takes their place. Whether any was
    /// dropped.
    pub(crate) fn promote(&mut self, frontier: &Frontier, now: Option<u64>) -> bool {
        let mut changed = Vec::new();
        let indices: Vec<u32> = self.pending.iter(&self.blocks, 0).collect();
        self.waiting.clear();
        for index in indices {
            let tags = &mut self.blocks[index].tags;
            let before = tags.foreign.len();
            tags.foreign.retain(|tag| !frontier.passes(*tag));
            if tags.foreign.len() < before {
                tags.home = tags.home.max(now.unwrap_or(0));
                changed.push(index);
            }
            self.note_waiting(index);
        }
        self.resettle(&changed);
        !changed.is_empty()
    }

    /// Puts free blocks whose tags have changed where they belong now.
    fn resettle(&mut self, changed: &[u32]) {
        // All leave their lists first: a block that merged with one still to be settled would hide it from the
        // neighbour on its other side.
        for &index in changed {
            self.withdraw(index);
            self.blocks[index].state = State::Moving;
        }
        changed.iter().for_each(|&index| self.settle(index));
    }

    /// Makes the arena the home of a stream that need not come after the old home stream's commands, which may still be
    /// running: their uses are another stream's now.
    pub(crate) fn hand_over(&mut self, home: StreamId) {
        self.tidy();
        let old = std::mem::replace(&mut self.home, home);
        self.borrowed = 0;
        self.waiting.clear();
        for block in self.blocks.iter_mut() {
            let uses: SmallVec<[Moment; 4]> = block.tags.moments(old).collect();
            block.tags.replace(home, &uses);
        }
        let free: Vec<u32> =
            self.ready.iter(&self.blocks, 0).chain(self.pending.iter(&self.blocks, 0)).collect();
        self.resettle(&free);
    }

    /// The tags of all free blocks, merged or not.
    pub(crate) fn free_moments(&self) -> Vec<Moment> {
        let free = self.blocks.iter().filter(|block| block.state.is_free());
        free.flat_map(|block| block.tags.moments(self.home)).collect()
    }

    /// Free blocks that fit. Those that nobody used are left out unless `unused`.
    fn fitting(&self, units: u32, unused: bool) -> impl Iterator<Item = u32> + '_ {
        let class = class_of(units);
        let free = self.ready.iter(&self.blocks, class).chain(self.pending.iter(&self.blocks, class));
        free.filter(move |&index| unused || !self.blocks[index].tags.is_empty())
    }

    /// Takes the smallest fitting free block of which `frontier` passes every use.
    pub(crate) fn take_passed(&mut self, units: u32, unused: bool, frontier: &Frontier) -> Option<Grant> {
        let passed =
            |&index: &u32| self.blocks[index].tags.moments(self.home).all(|tag| frontier.passes(tag));
        let index =
            self.fitting(units, unused).filter(passed).min_by_key(|&index| self.blocks[index].units)?;
        Some(self.take(index, units))
    }

    /// Takes the best fitting pending block, the oldest of its class, and tells its uses.
    pub(crate) fn take_pending(&mut self, units: u32) -> Option<(Grant, Vec<Moment>)> {
        let class = self.pending.find(class_of(units))?;
        let index = self.pending.head(class);
        let moments = self.blocks[index].tags.moments(self.home).collect();
        Some((self.take(index, units), moments))
    }
}
