//! Whole segments, and runs of free blocks in them.

use device::{Moment, StreamId};

use super::{Arena, MergedBlock, Obtained, Segment, Taken};
use crate::block::{Block, NONE, State, Tags, UNIT};
use crate::classes::class_of;
use crate::history::Action;
use crate::order::Frontier;

impl Arena {
    /// Adds a range of memory from the driver as one free block and takes `units` units of it.
    fn add_segment(&mut self, segment: Segment, units: u32) -> Taken {
        self.counts.reserved_units += u64::from(segment.units);
        self.note(Action::Obtain, segment.base, segment.units);
        let first = self.add_block(segment, State::Ready);
        self.list(first, State::Ready);
        self.borrowed = 0;
        self.take(first, units)
    }

    /// Makes memory from the driver a free block that is ready, merged with its neighbours.
    pub(crate) fn keep_obtained(&mut self, obtained: Obtained<'_>) {
        self.borrowed = 0;
        let (index, address, units) = match obtained {
            Obtained::Segment(segment) => {
                let (base, units) = (segment.base, segment.units);
                self.counts.reserved_units += u64::from(units);
                (self.add_block(segment, State::Moving), base, units)
            }
            Obtained::Pages(growth) => (growth.index, growth.address, growth.units),
        };
        self.note(Action::Obtain, address, units);
        self.settle(index);
    }

    /// Takes a block of `units` units of memory from the driver.
    pub(crate) fn take_obtained(&mut self, obtained: Obtained<'_>, units: u32) -> Taken {
        match obtained {
            Obtained::Segment(segment) => self.add_segment(segment, units),
            Obtained::Pages(growth) => self.finish_growth(growth, units),
        }
    }

    /// Adds a range as one block that is in no list.
    pub(crate) fn add_block(&mut self, mut segment: Segment, state: State) -> u32 {
        let place = self.segments.iter().position(Option::is_none).unwrap_or(self.segments.len());
        let first = self.blocks.add(Block {
            tags: Tags::default(),
            address: segment.base,
            units: segment.units,
            prev: NONE,
            next: NONE,
            before: NONE,
            after: NONE,
            state,
        });
        segment.first = first;
        if place == self.segments.len() {
            self.segments.push(Some(segment));
        } else {
            self.segments[place] = Some(segment);
        }
        first
    }

    /// The blocks of a segment from start to end.
    pub(crate) fn blocks_of<'a>(&'a self, segment: &Segment) -> impl Iterator<Item = &'a Block> + use<'a> {
        self.indices_of(segment).map(|index| &self.blocks[index])
    }

    /// The blocks of a segment from start to end, as they are once the loose ones are merged. Looking changes
    /// nothing.
    pub(crate) fn merged_blocks_of(&self, segment: &Segment) -> impl Iterator<Item = MergedBlock> {
        let mut blocks = self.blocks_of(segment).peekable();
        let ready = |block: &Block| matches!(block.state, State::Ready | State::Loose);
        std::iter::from_fn(move || {
            let first = blocks.next()?;
            let mut merged = MergedBlock {
                address: first.address,
                units: first.units,
                state: first.state,
                tags: first.tags.clone(),
            };
            while ready(first)
                && let Some(next) = blocks.next_if(|next| ready(next))
            {
                merged.units += next.units;
                merged.state = State::Ready;
                merged.tags.unite(self.home, &next.tags);
            }
            Some(merged)
        })
    }

    pub(super) fn indices_of<'a>(&'a self, segment: &Segment) -> impl Iterator<Item = u32> + use<'a> {
        let following = |&index: &u32| Some(self.blocks[index].next).filter(|&next| next != NONE);
        std::iter::successors(Some(segment.first), following)
    }

    fn is_free(&self, segment: &Segment) -> bool {
        self.blocks_of(segment).all(|block| block.state.is_free() || block.state == State::Hole)
    }

    /// Takes out the first segment with memory and without a live block of which `frontier` passes every use. Tells
    /// the bytes of memory that it has.
    pub(crate) fn remove_free_segment(&mut self, frontier: &Frontier) -> Option<(Segment, usize)> {
        let passed = |segment: &Segment| {
            let mut moments = self.blocks_of(segment).flat_map(|block| block.tags.moments(self.home));
            moments.all(|tag| frontier.passes(tag))
        };
        let free = |segment: &Segment| {
            let memory = self.blocks_of(segment).any(|block| block.state != State::Hole);
            memory && self.is_free(segment) && passed(segment)
        };
        let place = self.segments.iter().position(|segment| segment.as_ref().is_some_and(free))?;
        let segment = self.segments[place].take()?;
        let indices: Vec<u32> = self.indices_of(&segment).collect();
        let mut with_memory = 0;
        for index in indices {
            if self.blocks[index].state == State::Hole {
                self.holes.retain(|&hole| hole != index);
            } else {
                let (address, units) = (self.blocks[index].address, self.blocks[index].units);
                with_memory += units;
                self.note(Action::Release, address, units);
                self.withdraw(index);
            }
            self.blocks[index].tags = Tags::default();
            self.blocks.vacate(index);
        }
        self.counts.reserved_units -= u64::from(with_memory);
        Some((segment, with_memory as usize * UNIT))
    }

    /// Takes a free block that is not loose out of its list.
    pub(super) fn withdraw(&mut self, index: u32) {
        let (state, units) = (self.blocks[index].state, self.blocks[index].units);
        self.unlist(index, state, class_of(units));
        if state == State::Pending {
            self.counts.pending_units -= u64::from(units);
        }
    }

    /// The smallest run of adjacent free blocks, ready or pending, of at least `units` units: its size and
    /// its blocks.
    pub(crate) fn smallest_run(&self, units: u32) -> Option<(u32, Vec<u32>)> {
        let mut best: Option<(u32, Vec<u32>)> = None;
        for segment in self.segments.iter().flatten() {
            let (mut run, mut size, mut start) = (Vec::new(), 0, 0);
            for index in self.indices_of(segment) {
                let block = &self.blocks[index];
                if !block.state.is_free() {
                    (size, start) = (0, 0);
                    run.clear();
                    continue;
                }
                run.push(index);
                size += block.units;
                while size - self.blocks[run[start]].units >= units {
                    size -= self.blocks[run[start]].units;
                    start += 1;
                }
                if size >= units && best.as_ref().is_none_or(|(smallest, _)| size < *smallest) {
                    best = Some((size, run[start..].to_vec()));
                }
            }
        }
        best
    }

    /// Takes `units` units of the smallest run that has them, and tells its uses.
    pub(crate) fn take_run(&mut self, units: u32) -> Option<(Taken, Vec<Moment>)> {
        let (_, run) = self.smallest_run(units)?;
        let home = self.home;
        let first = *run.first()?;
        run.iter().for_each(|&index| self.withdraw(index));
        run.iter().skip(1).for_each(|_| self.absorb_next(home, first));
        let block = &mut self.blocks[first];
        let moments = block.tags.moments(home).collect();
        let state = if block.tags.foreign.is_empty() { State::Ready } else { State::Pending };
        block.state = state;
        if state == State::Pending {
            self.counts.pending_units += u64::from(block.units);
            self.note_waiting(first);
        }
        self.list(first, state);
        let taken = self.take(first, units);
        self.merge_all();
        Some((taken, moments))
    }

    /// Makes the arena another stream's home. The old one is gone: every command of it has run.
    pub(crate) fn adopt(&mut self, home: StreamId) {
        for block in self.blocks.iter_mut() {
            block.tags.home = 0;
        }
        self.home = home;
        self.borrowed = 0;
    }

    /// Merges the neighbours that may merge, wherever they are.
    fn merge_all(&mut self) {
        for place in 0..self.segments.len() {
            let Some(mut index) = self.segments[place].as_ref().map(|segment| segment.first) else {
                continue;
            };
            loop {
                let next = self.blocks[index].next;
                if next == NONE {
                    break;
                }
                if self.blocks[index].state == State::Hole || !self.may_merge(index, next) {
                    index = next;
                    continue;
                }
                let state = self.blocks[index].state;
                let listed = self.blocks[index].units;
                let class = class_of(self.blocks[next].units);
                self.unlist(next, state, class);
                self.absorb_next(self.home, index);
                self.rebin(index, state, listed);
            }
        }
    }

    /// The blocks in the lists of ready, or of pending, ones.
    #[cfg(test)]
    pub(crate) fn listed(&self, state: State) -> impl Iterator<Item = u32> + '_ {
        let bins = if state == State::Ready { &self.ready } else { &self.pending };
        bins.iter(&self.blocks, 0)
    }
}
