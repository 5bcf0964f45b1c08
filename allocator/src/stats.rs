//! What the allocator counts.

use device::HeldOutside;
use serde::Serialize;

use crate::Snapshot;
use crate::arena::Arena;
use crate::block::UNIT;

/// The state of a device's memory.
///
/// `reserved_bytes = allocated_bytes + pending_bytes + cached_bytes`. Sizes are those of blocks: a request is
/// rounded up to 256 bytes and by less than one part in 32. While other threads allocate, the parts of one
/// reading may be of slightly different times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of live buffers.
    pub allocated_bytes: usize,
    /// The sum over arenas of the most that was live in each: exact if one stream allocates, an upper bound
    /// that does not depend on timing if several do. Never above the most that was reserved, unless the peaks
    /// were reset.
    pub peak_allocated_bytes: usize,
    /// Bytes obtained from the driver.
    pub reserved_bytes: usize,
    /// The most that was ever reserved.
    pub peak_reserved_bytes: usize,
    /// Free bytes whose last uses on other streams their home stream is not known to come after.
    pub pending_bytes: usize,
    /// Free bytes that their home stream can have at once.
    pub cached_bytes: usize,
    /// The most that may be reserved, if there is a limit.
    pub limit_bytes: Option<usize>,
    /// Live buffers that hold memory.
    pub live_blocks: u64,
    /// The sum over arenas of the most buffers that were live in each.
    pub peak_live_blocks: u64,
    /// Buffers ever allocated.
    pub allocations: u64,
    /// Buffers ever freed.
    pub frees: u64,
    /// Bytes ever allocated.
    pub total_allocated_bytes: u64,
    /// Bytes ever freed.
    pub total_freed_bytes: u64,
    /// Segments held: ranges of memory without a gap.
    pub segments: usize,
    /// Free blocks held.
    pub free_blocks: usize,
    /// Size of the largest free block.
    pub largest_free_bytes: usize,
    /// How often the driver gave memory.
    pub driver_allocations: u64,
    /// How often the driver refused memory.
    pub driver_refusals: u64,
    /// How often memory went back to the driver.
    pub driver_frees: u64,
    /// Questions to the device about how far a stream got.
    pub polls: u64,
    /// Requests that made their stream wait for a block's last uses.
    pub waits: u64,
    /// Waits of the host for commands that still used freed memory, where a request would have failed otherwise.
    pub host_waits: u64,
    /// Requests served from another stream's arena.
    pub borrowed: u64,
    /// Requests that failed.
    pub out_of_memory: u64,
    /// What the device holds outside the allocator: none of it is in the numbers above, nor does the limit count it.
    #[serde(flatten)]
    pub outside: HeldOutside,
}

impl MemoryStats {
    /// How scattered the free memory is: `1 - largest free block / all free bytes`, 0 if nothing is free.
    pub fn fragmentation(&self) -> f64 {
        let free = self.pending_bytes + self.cached_bytes;
        if free == 0 { 0.0 } else { 1.0 - self.largest_free_bytes as f64 / free as f64 }
    }

    pub(crate) fn add(&mut self, arena: &Arena) {
        let counts = arena.counts;
        let bytes = |units: u64| units as usize * UNIT;
        self.allocated_bytes += bytes(counts.live_units);
        self.peak_allocated_bytes += bytes(counts.peak_live_units);
        self.reserved_bytes += bytes(counts.reserved_units);
        self.pending_bytes += bytes(counts.pending_units);
        self.cached_bytes += bytes(counts.reserved_units - counts.live_units - counts.pending_units);
        self.live_blocks += counts.live_blocks;
        self.peak_live_blocks += counts.peak_live_blocks;
        self.allocations += counts.allocations;
        self.frees += counts.allocations - counts.live_blocks;
        self.total_allocated_bytes += bytes(counts.allocated_units) as u64;
        self.total_freed_bytes += bytes(counts.allocated_units - counts.live_units) as u64;
        let mut picture = Snapshot::default();
        picture.add(arena);
        let seen = picture.stats();
        self.segments += seen.segments;
        self.free_blocks += seen.free_blocks;
        self.largest_free_bytes = self.largest_free_bytes.max(seen.largest_free_bytes);
    }
}
