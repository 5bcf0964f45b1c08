//! Pages: how an arena's ranges of addresses get and lose their memory. The driver's calls are made by others, between
//! a `begin` and its `finish` or `abort`, without the lock.

use device::StreamId;

use super::{Arena, SMALLEST_ARENA, Segment};
use crate::block::{Address, Block, NONE, State, Tags, UNIT};
use crate::history::Action;
use crate::order::Frontier;

/// Pages that are about to get memory, or to lose it.
#[derive(Debug)]
pub(crate) struct Pages {
    /// The block that they are the end of, or all of if they lose their memory.
    pub(super) index: u32,
    pub(crate) address: Address,
    pub(crate) units: u32,
}

/// How much memory an arena may have: a little more than was ever live in it. Where it has more because its free blocks
/// do not fit, memory of free pages moves to where it is needed. Every move raises the budget, so that a loop comes to
/// rest whatever its sizes are.
#[derive(Debug, Default)]
pub(super) struct Budget {
    most_live: u64,
    moved: u64,
}

impl Budget {
    /// The part that an arena may have above what was live.
    const SLACK: u64 = 32;
    /// The part of what has moved that is added.
    const PRICE: u64 = 16;
    /// A move counts as this part of what was live, besides what it moves.
    const FEE: u64 = 8;

    /// In whole pages: an arena needs its last one, however little of it is used.
    fn units(&self, page: u32) -> u64 {
        let live = self.most_live + self.most_live / Self::SLACK + self.moved / Self::PRICE;
        live.max((SMALLEST_ARENA / UNIT) as u64).next_multiple_of(u64::from(page.max(1)))
    }
}

impl Arena {
    /// Adds a range of addresses.
    pub(crate) fn add_space(&mut self, segment: Segment) {
        let first = self.add_block(segment, State::Hole);
        self.holes.push(first);
    }

    /// Chooses pages that make a free block of `units` units for `stream`, fewest first: those behind a block that is
    /// ready for it add to that one. The last page reaches to a multiple of `step` bytes from the range's start if there is
    /// room in the range and the budget. `None` if no range has them.
    pub(crate) fn begin_growth(
        &mut self,
        stream: StreamId,
        units: u32,
        page: u32,
        step: usize,
    ) -> Option<Pages> {
        self.tidy();
        let home = self.home;
        // A stream that shares the arena does not come after the uses of what is ready for the home stream.
        let is_ready = |before: &&Block| stream == home && before.state == State::Ready;
        let lack = |hole: &Block| {
            let have = self.blocks.get(hole.prev).filter(is_ready).map_or(0, |before| before.units);
            units.saturating_sub(have).max(1).next_multiple_of(page)
        };
        let candidates =
            self.holes.iter().map(|&index| (lack(&self.blocks[index]), self.blocks[index].units, index));
        let (lack, _, hole) = candidates.filter(|&(lack, size, _)| lack <= size).min()?;
        let block = &self.blocks[hole];
        let start = self.offset(block.address);
        let end = (start + lack as usize * UNIT).next_multiple_of(step);
        let usual = (((end - start) / UNIT) as u32).min(block.units);
        let live = self.counts.live_units + u64::from(units);
        self.budget.most_live = self.budget.most_live.max(self.counts.peak_live_units).max(live);
        let fits = self.counts.reserved_units + u64::from(usual) <= self.budget.units(page);
        let units = if fits { usual } else { lack };
        let address = block.address;
        self.counts.reserved_units += u64::from(units);
        // The pages become a block, which the one before absorbs.
        if units < block.units {
            let rest = self.split(hole, units);
            self.holes.push(rest);
        }
        self.holes.retain(|&other| other != hole);
        self.blocks[hole].state = State::Moving;
        let before = self.blocks[hole].prev;
        let index = if self.blocks.get(before).filter(is_ready).is_some() {
            self.withdraw(before);
            self.absorb_next(home, before);
            self.blocks[before].state = State::Moving;
            before
        } else {
            hole
        };
        Some(Pages { index, address, units })
    }

    /// How far from the start of its range an address lies, in bytes: where ranges are differs from run to run.
    fn offset(&self, address: Address) -> usize {
        let at = address.0.as_ptr().addr();
        let from_start = |segment: &Segment| at.checked_sub(segment.base.0.as_ptr().addr());
        self.segments.iter().filter_map(from_start).min().unwrap_or(at)
    }

    /// The pages got no memory.
    pub(crate) fn abort_growth(&mut self, growth: &Pages) {
        self.counts.reserved_units -= u64::from(growth.units);
        let whole = self.blocks[growth.index].units;
        if growth.units == whole {
            return self.make_hole(growth.index);
        }
        let pages = self.split(growth.index, whole - growth.units);
        self.make_hole(pages);
        self.settle(growth.index);
    }

    /// Units of memory above the budget.
    pub(crate) fn excess(&self, page: u32) -> u64 {
        self.counts.reserved_units.saturating_sub(self.budget.units(page))
    }

    /// Counts a move of so many units.
    pub(crate) fn note_moved(&mut self, units: u32) {
        self.budget.moved += u64::from(units) + self.budget.most_live / Budget::FEE;
    }

    /// Takes all whole pages out of free blocks of which `frontier` passes every use, until they are `bytes` bytes: the
    /// smallest blocks first, which fit the fewest requests.
    pub(crate) fn begin_shrink(&mut self, frontier: &Frontier, bytes: usize) -> Vec<Pages> {
        // Afterwards blocks that have passed are ready and merged, and stay apart when one is cut.
        self.promote(frontier, None);
        let passed = |block: &Block| {
            block.state == State::Ready && block.tags.moments(self.home).all(|tag| frontier.passes(tag))
        };
        let mut candidates = Vec::new();
        for segment in self.segments.iter() {
            let Some(page) = segment.page else { continue };
            let page = page.get() as usize * UNIT;
            for index in self.indices_of(segment).filter(|&index| passed(&self.blocks[index])) {
                let block = &self.blocks[index];
                let start = block.address.0.as_ptr().addr();
                let from = start.next_multiple_of(page);
                let pages = (start + block.units as usize * UNIT).saturating_sub(from) / page * page;
                if pages > 0 {
                    candidates.push(((pages / UNIT) as u32, index, ((from - start) / UNIT) as u32));
                }
            }
        }
        candidates.sort_by_key(|&(pages, ..)| pages);
        let mut left = bytes;
        candidates.retain(|&(pages, ..)| {
            let is_chosen = left > 0;
            left = left.saturating_sub(pages as usize * UNIT);
            is_chosen
        });
        candidates.into_iter().map(|(units, index, skip)| self.carve(index, skip, units)).collect()
    }

    /// Cuts `units` units from `skip` on out of a free block, whose uses have passed.
    fn carve(&mut self, index: u32, skip: u32, units: u32) -> Pages {
        self.withdraw(index);
        self.blocks[index].state = State::Moving;
        let pages = if skip > 0 { self.split(index, skip) } else { index };
        if units < self.blocks[pages].units {
            let rest = self.split(pages, units);
            self.settle(rest);
        }
        if skip > 0 {
            self.settle(index);
        }
        Pages { index: pages, address: self.blocks[pages].address, units }
    }

    /// The pages have lost their memory.
    pub(crate) fn finish_shrink(&mut self, pages: &Pages) {
        self.counts.reserved_units -= u64::from(pages.units);
        self.note(Action::Release, pages.address, pages.units);
        self.make_hole(pages.index);
    }

    /// The pages have kept their memory.
    pub(crate) fn abort_shrink(&mut self, pages: &Pages) {
        self.settle(pages.index);
    }

    #[cfg(test)]
    pub(crate) fn hole_indices(&self) -> Vec<u32> {
        let mut holes = self.holes.clone();
        holes.sort_unstable();
        holes
    }

    /// Makes a block that is in no list one without memory, merged with such neighbours.
    fn make_hole(&mut self, index: u32) {
        self.blocks[index].state = State::Hole;
        self.blocks[index].tags = Tags::default();
        let mut index = index;
        let prev = self.blocks[index].prev;
        if prev != NONE && self.blocks[prev].state == State::Hole {
            self.absorb_next(self.home, prev);
            index = prev;
        } else {
            self.holes.push(index);
        }
        let next = self.blocks[index].next;
        if next != NONE && self.blocks[next].state == State::Hole {
            self.holes.retain(|&hole| hole != next);
            self.absorb_next(self.home, index);
        }
    }
}
