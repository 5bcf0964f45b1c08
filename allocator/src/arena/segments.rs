//! Whole segments, and runs of free blocks in them.

use device::{Moment, StreamId};

use super::{Arena, Grant, Obtained, Segment};
use crate::block::{Block, NONE, State, Tags, UNIT};
use crate::classes::class_of;
use crate::history::Action;
use crate::order::Frontier;

impl Arena {
    /// Makes memory from the driver a free block that is ready, merged with its neighbours.
    pub(crate) fn keep_obtained(&mut self, obtained: Obtained<'_>) {
        let index = self.add_obtained(obtained);
        self.settle(index);
    }

    /// Takes a block of `units` units of memory from the driver, or what there is.
    pub(crate) fn take_obtained(&mut self, obtained: Obtained<'_>, units: u32) -> Grant {
        let is_segment = matches!(obtained, Obtained::Segment(_));
        let index = self.add_obtained(obtained);
        if !is_segment {
            return self.take_start(index, units);
        }
        self.settle(index);
        self.take(index, units)
    }

    /// The block of memory from the driver, in no list.
    fn add_obtained(&mut self, obtained: Obtained<'_>) -> u32 {
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
        index
    }

    /// Takes the first `units` units of a block that is in no list; the rest is free.
    fn take_start(&mut self, index: u32, units: u32) -> Grant {
        // Else the rest would merge with it again.
        self.blocks[index].state = State::Moving;
        if units < self.blocks[index].units {
            let rest = self.split(index, units);
            self.settle(rest);
        }
        self.hand_out(index)
    }

    /// Adds a range as one block that is in no list.
    pub(crate) fn add_block(&mut self, segment: Segment, state: State) -> u32 {
        let first = self.blocks.add(Block::new(segment.base, segment.units, state));
        self.segments.push(Segment { first, ..segment });
        first
    }

    /// The blocks of a segment from start to end.
    pub(crate) fn blocks_of<'a>(&'a self, segment: &Segment) -> impl Iterator<Item = &'a Block> + use<'a> {
        self.indices_of(segment).map(|index| &self.blocks[index])
    }

    /// The blocks of a segment from start to end, as they are once the loose ones are merged. Looking changes
    /// nothing.
    pub(crate) fn merged_blocks_of(&self, segment: &Segment) -> impl Iterator<Item = Block> {
        let mut blocks = self.blocks_of(segment).peekable();
        let ready = |block: &Block| matches!(block.state, State::Ready | State::Loose);
        std::iter::from_fn(move || {
            let first = blocks.next()?;
            let mut merged = first.clone();
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

    /// Takes out the first segment with memory and without a live block of which `frontier` passes every use. Tells
    /// the bytes of memory that it has.
    pub(crate) fn remove_free_segment(&mut self, frontier: &Frontier) -> Option<(Segment, usize)> {
        let is_unused = |block: &Block| {
            let is_free = block.state.is_free() || block.state == State::Hole;
            is_free && block.tags.moments(self.home).all(|tag| frontier.passes(tag))
        };
        let goes = |segment: &Segment| {
            let has_memory = self.blocks_of(segment).any(|block| block.state != State::Hole);
            has_memory && self.blocks_of(segment).all(is_unused)
        };
        let segment = self.segments.remove(self.segments.iter().position(goes)?);
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
        for segment in self.segments.iter() {
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
    pub(crate) fn take_run(&mut self, units: u32) -> Option<(Grant, Vec<Moment>)> {
        let (_, run) = self.smallest_run(units)?;
        let home = self.home;
        let first = *run.first()?;
        run.iter().for_each(|&index| self.withdraw(index));
        run.iter().skip(1).for_each(|_| self.absorb_next(home, first));
        let moments = self.blocks[first].tags.moments(home).collect();
        Some((self.take_start(first, units), moments))
    }

    /// Makes the arena another stream's home. The old one is gone: every command of it has run.
    pub(crate) fn adopt(&mut self, home: StreamId) {
        for block in self.blocks.iter_mut() {
            block.tags.home = 0;
        }
        self.home = home;
        self.borrowed = 0;
    }

    /// The blocks in the lists of ready, or of pending, ones.
    #[cfg(test)]
    pub(crate) fn listed(&self, state: State) -> impl Iterator<Item = u32> + '_ {
        let bins = if state == State::Ready { &self.ready } else { &self.pending };
        bins.iter(&self.blocks, 0)
    }
}
