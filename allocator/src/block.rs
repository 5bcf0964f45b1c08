//! Records of blocks, in a slab, and the tags that say who used them last.

use std::ops::{Index, IndexMut};
use std::ptr::NonNull;

use device::{Moment, StreamId};
use smallvec::SmallVec;

/// Sizes and offsets are counted in units of this many bytes, which is also the alignment of every block.
pub(crate) const UNIT: usize = 256;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// What a block is to its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The record is not in use.
    Vacant,
    /// A buffer owns it.
    Live,
    /// Free and ready, not merged with its neighbours yet.
    Loose,
    /// Free, and every use comes before the home stream's next command.
    Ready,
    /// Free, and the home stream is not known to come after every use.
    Pending,
    /// Free, in no list, and out of everybody's reach: the driver is at work on its memory.
    Moving,
    /// Addresses without memory.
    Hole,
}

impl State {
    /// Whether the block may be handed out to somebody.
    pub(crate) fn is_free(self) -> bool {
        matches!(self, State::Loose | State::Ready | State::Pending)
    }
}

/// The last uses of a block: the newest tick of each stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tags {
    /// The newest tick of the arena's home stream, 0 for none.
    pub(crate) home: u64,
    /// The newest tick of every other stream, ascending by stream.
    pub(crate) foreign: SmallVec<[Moment; 1]>,
}

impl Tags {
    /// Adds a use.
    pub(crate) fn add(&mut self, home: StreamId, moment: Moment) {
        if moment.stream == home {
            self.home = self.home.max(moment.tick);
        } else if moment.tick > 0 {
            match self.foreign.binary_search_by_key(&moment.stream, |tag| tag.stream) {
                Ok(at) => self.foreign[at].tick = self.foreign[at].tick.max(moment.tick),
                Err(at) => self.foreign.insert(at, moment),
            }
        }
    }

    /// Forgets what is there for `uses`.
    #[inline]
    pub(crate) fn replace(&mut self, home: StreamId, uses: &[Moment]) {
        if !self.foreign.is_empty() {
            self.foreign.clear();
        }
        self.home = 0;
        for &moment in uses {
            if moment.stream == home {
                self.home = self.home.max(moment.tick);
            } else {
                self.add(home, moment);
            }
        }
    }

    /// Unites two sets of uses of one arena.
    #[inline]
    pub(crate) fn unite(&mut self, home: StreamId, other: &Tags) {
        self.home = self.home.max(other.home);
        other.foreign.iter().for_each(|&moment| self.add(home, moment));
    }

    /// Whether both name the same foreign streams, so that uniting them makes neither wait for a stream more.
    pub(crate) fn same_streams(&self, other: &Tags) -> bool {
        let mut pairs = self.foreign.iter().zip(&other.foreign);
        self.foreign.len() == other.foreign.len() && pairs.all(|(a, b)| a.stream == b.stream)
    }

    /// Every use.
    pub(crate) fn moments(&self, home: StreamId) -> impl Iterator<Item = Moment> + '_ {
        let own = (self.home > 0).then_some(Moment { stream: home, tick: self.home });
        own.into_iter().chain(self.foreign.iter().copied())
    }

    /// Whether nobody is known to have used the block.
    pub(crate) fn is_empty(&self) -> bool {
        self.home == 0 && self.foreign.is_empty()
    }
}

/// The address of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) NonNull<u8>);

// SAFETY: the allocator only computes with the address and never dereferences it.
unsafe impl Send for Address {}

impl Address {
    /// The address `units` units on.
    ///
    /// # Safety
    /// The range that the address points into goes that far.
    #[inline]
    pub(crate) unsafe fn add(self, units: u32) -> Address {
        // SAFETY: the caller promises that the range reaches `units` units further, so the pointer stays in its
        // allocation.
        Address(unsafe { self.0.add(units as usize * UNIT) })
    }
}

/// One block: a range of a segment. Blocks of a segment tile it.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) tags: Tags,
    pub(crate) address: Address,
    /// Size in units.
    pub(crate) units: u32,
    /// The block that ends where this one starts.
    pub(crate) prev: u32,
    /// The block that starts where this one ends.
    pub(crate) next: u32,
    /// Neighbours in the list of free blocks of one class.
    pub(crate) before: u32,
    pub(crate) after: u32,
    pub(crate) state: State,
}

impl Block {
    /// A block that nobody used, without neighbours and in no list.
    pub(crate) fn new(address: Address, units: u32, state: State) -> Block {
        let tags = Tags::default();
        Block { tags, address, units, prev: NONE, next: NONE, before: NONE, after: NONE, state }
    }
}

/// All blocks of an arena. Indices stay valid until the block is vacated.
#[derive(Debug)]
pub(crate) struct Blocks {
    records: Vec<Block>,
    /// The first vacant record; they are chained through `after`.
    vacant: u32,
}

impl Default for Blocks {
    fn default() -> Self {
        Blocks { records: Vec::new(), vacant: NONE }
    }
}

impl Blocks {
    /// Puts a record into a vacant place.
    #[inline]
    pub(crate) fn add(&mut self, block: Block) -> u32 {
        let index = self.vacant;
        if let Some(place) = self.records.get_mut(index as usize) {
            self.vacant = place.after;
            *place = block;
            return index;
        }
        self.records.push(block);
        (self.records.len() - 1) as u32
    }

    /// Gives a record's place back.
    #[inline]
    pub(crate) fn vacate(&mut self, index: u32) {
        let after = self.vacant;
        let block = &mut self[index];
        block.state = State::Vacant;
        block.after = after;
        self.vacant = index;
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Block> {
        self.records.get(index as usize)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Block> {
        self.records.iter_mut().filter(|block| block.state != State::Vacant)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.records.iter().filter(|block| block.state != State::Vacant)
    }
}

impl Index<u32> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, index: u32) -> &Block {
        &self.records[index as usize]
    }
}

impl IndexMut<u32> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.records[index as usize]
    }
}
