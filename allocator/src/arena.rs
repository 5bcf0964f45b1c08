//! An arena: the segments of one home stream, cut into blocks.

mod growth;
mod pending;
mod segments;

use std::num::NonZero;
use std::ptr::NonNull;

use device::{BlockId, Device, MemoryDriver, Moment, SpinLock, StreamId};
use smallvec::SmallVec;

use crate::block::{Address, Block, Blocks, NONE, State, UNIT};
use crate::classes::{Bins, Stacks, class_of};
use crate::history::{Action, History};
use crate::redzones;

use growth::Budget;
pub(crate) use growth::Pages;

/// What an arena that grows in place starts with: all that a small program needs.
pub(crate) const SMALLEST_ARENA: usize = 64 << 10;

/// One range from the driver.
#[derive(Debug)]
pub(crate) struct Segment {
    /// What the driver gave, and its size.
    pub(crate) raw: Address,
    pub(crate) raw_bytes: usize,
    /// Where its first block starts.
    pub(crate) base: Address,
    pub(crate) units: u32,
    /// If the range is one of addresses, which get and lose their memory by pages: the units of a page.
    pub(crate) page: Option<NonZero<u32>>,
    /// The block at offset 0.
    pub(crate) first: u32,
}

impl Segment {
    /// Returns it to the driver.
    ///
    /// # Safety
    /// No arena knows the segment any more, and nobody uses its memory.
    pub(crate) unsafe fn give_back(&self, driver: &dyn MemoryDriver) {
        let (raw, bytes) = (self.raw.0, self.raw_bytes);
        match driver.address_space() {
            // SAFETY: a segment with pages came from `reserve` with this size. The caller promises that no arena
            // knows it and nobody uses its memory.
            Some(space) if self.page.is_some() => unsafe { space.release(raw, bytes) },
            // SAFETY: a segment without pages came from `allocate` with this size. The caller promises that no arena
            // knows it and nobody uses its memory.
            _ => unsafe { driver.free(raw, bytes) },
        }
    }
}

/// What an arena counts, in units of [`UNIT`] bytes where it says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) reserved_units: u64,
    pub(crate) live_units: u64,
    pub(crate) pending_units: u64,
    pub(crate) live_blocks: u64,
    pub(crate) peak_live_units: u64,
    pub(crate) peak_live_blocks: u64,
    pub(crate) allocations: u64,
    pub(crate) allocated_units: u64,
}

/// The segments of one home stream, cut into blocks.
#[derive(Default)]
pub(crate) struct Arena {
    /// Its number in the allocator.
    pub(crate) number: u32,
    /// Blocks that only this stream used last are ready for it at once.
    pub(crate) home: StreamId,
    /// The private pool that the arena is of. Its memory serves nobody else, and stays.
    pub(crate) pool: Option<u64>,
    pub(crate) blocks: Blocks,
    pub(crate) segments: Vec<Segment>,
    /// Blocks that were freed lately, ready and not merged yet.
    loose: Stacks,
    ready: Bins,
    pending: Bins,
    /// The blocks without memory.
    holes: Vec<u32>,
    /// For each foreign stream in the tags of pending blocks, a tick not above its oldest one.
    waiting: SmallVec<[Moment; 4]>,
    pub(crate) counts: Counts,
    /// What bounds the memory of an arena that grows in place.
    budget: Budget,
    /// What happened lately, if somebody wants to know.
    pub(crate) history: Option<Box<History>>,
    /// Keeps the device alive while there are live blocks.
    pub(crate) device: Option<Device>,
    /// Blocks of other arenas that the home stream took since this one grew last.
    pub(crate) borrowed: u32,
}

/// An arena that several streams' threads look at.
pub(crate) type SharedArena = SpinLock<Arena>;

/// Memory that the driver just gave to an arena.
pub(crate) enum Obtained<'a> {
    /// A range.
    Segment(Segment),
    /// Pages of its addresses.
    Pages(&'a Pages),
}

/// A block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) block: BlockId,
}

impl Arena {
    pub(crate) fn new(number: u32, home: StreamId) -> Self {
        Arena { number, home, ..Arena::default() }
    }

    /// Takes the best fitting block that is ready for `stream`, if that is the home stream.
    #[inline]
    pub(crate) fn take_ready(&mut self, stream: StreamId, units: u32) -> Option<Grant> {
        if stream != self.home {
            return None;
        }
        let class = class_of(units);
        if let Some(index) = self.loose.pop(&self.blocks, class) {
            return Some(self.hand_out(index));
        }
        self.tidy();
        let class = self.ready.find(class)?;
        Some(self.take(self.ready.head(class), units))
    }

    /// Whether the home stream has a block of `units` units that is ready.
    pub(crate) fn has_ready(&mut self, units: u32) -> bool {
        self.tidy();
        self.ready.find(class_of(units)).is_some()
    }

    /// Makes a block that is in no list a buffer's.
    #[inline]
    fn hand_out(&mut self, index: u32) -> Grant {
        let block = &mut self.blocks[index];
        block.state = State::Live;
        let (address, units) = (block.address, block.units);
        let counts = &mut self.counts;
        counts.live_units += u64::from(units);
        counts.live_blocks += 1;
        counts.allocations += 1;
        counts.allocated_units += u64::from(units);
        counts.peak_live_units = counts.peak_live_units.max(counts.live_units);
        counts.peak_live_blocks = counts.peak_live_blocks.max(counts.live_blocks);
        if self.history.is_some() {
            self.note(Action::Allocate, address, units);
        }
        Grant { ptr: address.0, block: BlockId { arena: self.number, index } }
    }

    /// Adds to the history, if there is one.
    #[cold]
    pub(crate) fn note(&mut self, action: Action, address: Address, units: u32) {
        let home = self.home;
        if let Some(history) = &mut self.history {
            history.note(action, address.0.as_ptr().addr(), units as usize * UNIT, home);
        }
    }

    /// Makes a buffer's block of `units` units of a free block. What is left keeps the tags. It is the start, which
    /// mostly keeps its place in its list; but the end if memory can be added there.
    #[inline]
    pub(crate) fn take(&mut self, index: u32, units: u32) -> Grant {
        let block = &mut self.blocks[index];
        let (whole, state) = (block.units, block.state);
        let taken = if whole == units {
            self.unlist(index, state, class_of(whole));
            index
        } else if self.grows_at_end(index) {
            self.unlist(index, state, class_of(whole));
            let rest = self.split(index, units);
            self.list(rest, state);
            index
        } else {
            let taken = self.split(index, whole - units);
            self.rebin(index, state, whole);
            taken
        };
        if state == State::Pending {
            self.counts.pending_units -= u64::from(units);
        }
        self.hand_out(taken)
    }

    /// Takes a block back whose last uses were `uses`. Anything but a live block is left as it is. With the last live
    /// block goes what kept the device alive for them.
    #[inline]
    pub(crate) fn release(&mut self, index: u32, uses: &[Moment]) -> Option<Device> {
        let home = self.home;
        if self.blocks.get(index).is_none_or(|block| block.state != State::Live) {
            return None;
        }
        let block = &mut self.blocks[index];
        // The uses come after the old tags, because the block was handed out to who comes after them. Without
        // a use the old tags stay.
        if !uses.is_empty() {
            block.tags.replace(home, uses);
        }
        let (address, units) = (block.address, block.units);
        self.counts.live_units -= u64::from(units);
        self.counts.live_blocks -= 1;
        if self.history.is_some() {
            self.note(Action::Free, address, units);
        }
        if cfg!(streamgrad_redzones) {
            self.close_free(index);
        }
        let block = &mut self.blocks[index];
        if block.tags.foreign.is_empty() {
            block.state = State::Loose;
            self.loose.push(&mut self.blocks, index);
        } else {
            self.settle(index);
        }
        if self.counts.live_blocks == 0 { self.device.take() } else { None }
    }

    /// Closes a free block to everybody if all commands that use it have run.
    fn close_free(&self, index: u32) {
        let block = &self.blocks[index];
        if self
            .device
            .as_ref()
            .is_some_and(|device| block.tags.moments(self.home).all(|used| device.reached(used)))
        {
            redzones::close_free(block);
        }
    }

    /// Merges what was freed lately. Nobody sees blocks that have not been: a request that finds none of
    /// exactly its class does this first, and so does whoever looks at the arena.
    pub(crate) fn tidy(&mut self) {
        while let Some(index) = self.loose.pop_any(&self.blocks) {
            self.settle(index);
        }
    }

    /// Takes a block back that was never handed out.
    pub(crate) fn put_back(&mut self, index: u32) -> Option<Device> {
        self.counts.allocations -= 1;
        self.counts.allocated_units -= u64::from(self.blocks[index].units);
        self.release(index, &[])
    }

    /// Puts a block that is in no list among the free ones, merged with its neighbours.
    ///
    /// Ready blocks merge, and so do pending ones of the same streams. Others stay apart, since a merged
    /// block is free only when both parts are.
    #[inline]
    fn settle(&mut self, index: u32) {
        let home = self.home;
        let state = if self.blocks[index].tags.foreign.is_empty() { State::Ready } else { State::Pending };
        self.blocks[index].state = state;
        if state == State::Pending {
            self.counts.pending_units += u64::from(self.blocks[index].units);
            self.note_waiting(index);
        }
        let mut index = index;
        // The size by which the block is in a list, 0 if it is in none.
        let mut listed = 0;
        let prev = self.blocks[index].prev;
        if prev != NONE && self.may_merge(prev, index) {
            listed = self.blocks[prev].units;
            self.absorb_next(home, prev);
            index = prev;
        }
        let next = self.blocks[index].next;
        if next != NONE && self.may_merge(index, next) {
            let class = class_of(self.blocks[next].units);
            self.unlist(next, state, class);
            self.absorb_next(home, index);
        }
        if listed == 0 {
            self.list(index, state);
        } else {
            self.rebin(index, state, listed);
        }
    }

    /// Whether two neighbours are free and want to be one block.
    pub(crate) fn may_merge(&self, left: u32, right: u32) -> bool {
        let (left, right) = (&self.blocks[left], &self.blocks[right]);
        left.state == right.state
            && match left.state {
                State::Ready => true,
                State::Pending => left.tags.same_streams(&right.tags),
                State::Hole => true,
                State::Live | State::Loose | State::Moving | State::Vacant => false,
            }
    }

    /// Whether memory can be added right after a block.
    #[inline]
    fn grows_at_end(&self, index: u32) -> bool {
        let next = self.blocks[index].next;
        next != NONE && self.blocks[next].state == State::Hole
    }

    /// Cuts a block that is in no list after `units` units; the rest, in no list either, is the one returned.
    fn split(&mut self, index: u32, units: u32) -> u32 {
        let block = &mut self.blocks[index];
        // SAFETY: callers split a block only at fewer units than it has, so the address stays within its segment.
        let address = unsafe { block.address.add(units) };
        let (tags, next) = (block.tags.clone(), block.next);
        let rest = Block { tags, prev: index, next, ..Block::new(address, block.units - units, block.state) };
        block.units = units;
        let next = rest.next;
        let rest = self.blocks.add(rest);
        self.blocks[index].next = rest;
        if next != NONE {
            self.blocks[next].prev = rest;
        }
        rest
    }

    /// Makes a block and the one after it, which is in no list, one.
    #[inline]
    fn absorb_next(&mut self, home: StreamId, index: u32) {
        let absorbed = self.blocks[index].next;
        let block = &mut self.blocks[absorbed];
        let (units, next, tags) = (block.units, block.next, std::mem::take(&mut block.tags));
        self.blocks.vacate(absorbed);
        let block = &mut self.blocks[index];
        block.units += units;
        block.next = next;
        block.tags.unite(home, &tags);
        if next != NONE {
            self.blocks[next].prev = index;
        }
    }

    #[inline]
    fn list(&mut self, index: u32, state: State) {
        match state {
            // The newest first: its memory is warm.
            State::Ready => self.ready.insert(&mut self.blocks, index, false),
            // The oldest first: its uses are over first.
            _ => self.pending.insert(&mut self.blocks, index, true),
        }
    }

    #[inline]
    fn unlist(&mut self, index: u32, state: State, class: usize) {
        match state {
            State::Ready => self.ready.remove(&mut self.blocks, index, class),
            _ => self.pending.remove(&mut self.blocks, index, class),
        }
    }

    /// Moves a block to the list of its size if that differs from the one for `listed` units.
    #[inline]
    fn rebin(&mut self, index: u32, state: State, listed: u32) {
        let class = class_of(listed);
        if class != class_of(self.blocks[index].units) {
            self.unlist(index, state, class);
            self.list(index, state);
        }
    }

    fn note_waiting(&mut self, index: u32) {
        for tag in &self.blocks[index].tags.foreign {
            match self.waiting.iter_mut().find(|oldest| oldest.stream == tag.stream) {
                Some(oldest) => oldest.tick = oldest.tick.min(tag.tick),
                None => self.waiting.push(*tag),
            }
        }
    }
}
