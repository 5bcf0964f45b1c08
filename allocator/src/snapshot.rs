//! A picture of all blocks.

use device::{Moment, StreamId};
use serde::Serialize;

use crate::MemoryStats;
use crate::arena::Arena;
use crate::block::{Block, State, UNIT};

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// A buffer owns it.
    Live,
    /// Free; its home stream is not known to come after its last uses.
    Pending,
    /// Free, and its home stream can have it at once.
    Cached,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlockSnapshot {
    /// Address of its first byte.
    pub address: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// What it is.
    pub state: BlockState,
    /// Its last uses: the newest of each stream; for a live block, those before it was handed out.
    pub uses: Vec<Moment>,
}

/// One range of memory from the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SegmentSnapshot {
    /// Address of its first byte.
    pub address: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// The stream whose requests it serves first.
    pub home: StreamId,
    /// The [`PrivatePool`](crate::PrivatePool) that it is of.
    pub pool: Option<u64>,
    /// Its blocks, in the order of their addresses.
    pub blocks: Vec<BlockSnapshot>,
}

/// All segments and blocks of a device's allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The segments, arena by arena.
    pub segments: Vec<SegmentSnapshot>,
}

impl Snapshot {
    /// The part of the statistics that can be counted from a picture: bytes, blocks and segments of now.
    pub fn stats(&self) -> MemoryStats {
        let mut stats = MemoryStats::default();
        for segment in &self.segments {
            stats.segments += 1;
            stats.reserved_bytes += segment.bytes;
            for block in &segment.blocks {
                match block.state {
                    BlockState::Live => {
                        stats.allocated_bytes += block.bytes;
                        stats.live_blocks += 1;
                        continue;
                    }
                    BlockState::Pending => stats.pending_bytes += block.bytes,
                    BlockState::Cached => stats.cached_bytes += block.bytes,
                }
                stats.free_blocks += 1;
                stats.largest_free_bytes = stats.largest_free_bytes.max(block.bytes);
            }
        }
        stats
    }

    /// Adds an arena.
    pub(crate) fn add(&mut self, arena: &Arena) {
        for segment in arena.segments.iter() {
            let blocks: Vec<_> = arena.merged_blocks_of(segment).collect();
            for run in blocks.chunk_by(|a, b| (a.state == State::Hole) == (b.state == State::Hole)) {
                let Some(first) = run.first().filter(|first| first.state != State::Hole) else { continue };
                self.segments.push(SegmentSnapshot {
                    address: first.address.0.as_ptr().addr(),
                    bytes: run.iter().map(|block| block.units as usize * UNIT).sum(),
                    home: arena.home,
                    pool: arena.pool,
                    blocks: run.iter().map(|block| picture(arena, block)).collect(),
                });
            }
        }
    }
}

fn picture(arena: &Arena, block: &Block) -> BlockSnapshot {
    BlockSnapshot {
        address: block.address.0.as_ptr().addr(),
        bytes: block.units as usize * UNIT,
        state: match block.state {
            State::Live | State::Vacant => BlockState::Live,
            State::Pending => BlockState::Pending,
            State::Ready | State::Loose | State::Moving | State::Hole => BlockState::Cached,
        },
        uses: block.tags.moments(arena.home).collect(),
    }
}
