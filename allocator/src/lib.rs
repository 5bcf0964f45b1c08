//! A stream-ordered caching allocator that defers frees across streams by itself.
//!
//! # The contract
//! [`allocate`] gives a buffer to a stream: a command launched on that stream from now on may use it, and so
//! may a command of any other stream, since every launch names its buffers and waits where it has to.
//! Dropping the buffer frees it *in stream order*: at once for the program, and for the device when every
//! command that was launched with the buffer has run. Nothing is recorded, polled or waited for at a free.
//! The block just keeps its last uses, as (stream, tick), for tags.
//!
//! A block is handed out again to stream `s` only if every command that `s` launches from then on comes after
//! all its tags. That is so if a tag is of `s` itself, if the clock of `s` covers it, if the host has seen it
//! pass, or else because `s` is made to wait for exactly that block's tags.
//!
//! # Where a block comes from
//! 1. The stream's own arena: the smallest size class with a block that is ready. This is the fast path.
//! 2. Blocks whose tags the stream's clock covers: of its own arena, then of other arenas.
//! 3. Blocks of its own arena whose tags the host sees passed, unless [`AllocatorConfig::deterministic`].
//! 4. A pending block that the stream waits for, if the [`ReusePolicy`] prefers that.
//! 5. New memory from the driver, within the limit.
//! 6. Any run of free blocks that is large enough, of any arena, that the stream waits for; then, with
//!    everything cached given back, new memory after all.
//! 7. The same once more after the host has waited for the oldest commands that still use enough freed memory, under every
//!    policy: whether a program fits does not depend on how far the host runs ahead. No lock is held meanwhile. The host does
//!    not wait for what need not end by itself ([`Stuck`](device::Stuck)).
//! 8. `OutOfMemory` with a report of where the memory is, and of what was not waited for.
//!
//! Each stream has an arena with a lock of its own, so streams driven by different threads do not meet. Memory
//! belongs to its arena until it is given back to the driver; blocks always return there. Blocks are multiples
//! of 256 bytes, cut from free blocks and merged again when freed, with their tags united.
//!
//! Where the driver has an [`AddressSpace`](device::AddressSpace), an arena reserves addresses and gives them
//! memory page by page, so that all its memory is one range that merges and grows in place. When it needs more
//! although it has enough in pieces that do not fit, memory of free pages moves to where it is needed: what is
//! reserved stays close to what was live. Other drivers are asked for segments.
//!
//! ```
//! use allocator::{DeviceMemory, allocate};
//! use device::{Device, Use};
//!
//! let dev = Device::cpu_with(Default::default());
//! let stream = dev.default_stream();
//! let first = allocate(&stream, 1000)?;
//! let address = first.ptr();
//! stream.launch_host("fill", &[Use::write(&first)], || ())?;
//! drop(first);
//! assert_eq!(allocate(&stream, 1000)?.ptr(), address);
//! assert_eq!(dev.memory_stats().driver_allocations, 1);
//! # Ok::<(), device::Error>(())
//! ```

mod allocator;
mod arena;
mod block;
mod classes;
mod config;
mod export;
mod growth;
mod history;
mod order;
mod pending;
mod pickle;
mod pool;
mod redzones;
mod report;
mod search;
mod snapshot;
mod stats;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use device::{Buffer, Device, Error, Result, Shared, Stream};

pub use allocator::CachingAllocator;
use arena::Grant;
pub use config::{AllocatorConfig, ReusePolicy};
pub use export::MemoryReport;
pub use history::{Action, HistoryEntry};
pub use pool::{PrivatePool, Serving};
pub use snapshot::{BlockSnapshot, BlockState, SegmentSnapshot, Snapshot};
pub use stats::MemoryStats;

/// Gives `bytes` bytes of the stream's device to `stream`. The content is whatever was there. No bytes take
/// no memory.
///
/// Blocks the host only where it would fail otherwise: until queued commands have finished with freed memory that makes room
/// for the request. On a hit it calls neither the driver nor the device.
///
/// # Errors
/// `OutOfMemory` with a report, when neither the cache nor the driver has a range of that size, or freed memory
/// would, and is used by commands that the host must not wait for; `HiddenSync` where hidden waits are refused;
/// `Io` if the stream must wait and the system gives no thread for that; `InvalidArgument`
/// if the device has a memory pool of another kind.
#[inline]
#[track_caller]
pub fn allocate(stream: &Stream, bytes: usize) -> Result<Buffer> {
    let buffer = fresh(stream, bytes)?();
    redzones::guard(stream, &buffer)?;
    stream.poison(&buffer)?;
    Ok(buffer)
}

/// [`allocate`] for several owners. Within a [`Capture`](device::Capture) the memory is planned instead.
///
/// # Errors
/// As for [`allocate`].
#[inline]
#[track_caller]
pub fn allocate_shared(stream: &Stream, bytes: usize) -> Result<Shared<Buffer>> {
    if let Some(planned) = stream.plan_buffer(bytes)? {
        return Ok(planned);
    }
    let buffer = Buffer::new_shared(fresh(stream, bytes)?);
    redzones::guard(stream, &buffer)?;
    stream.poison(&buffer)?;
    Ok(buffer)
}

/// Takes a block, of which the result makes a buffer, with whatever was there before.
#[inline(always)]
#[track_caller]
fn fresh(stream: &Stream, bytes: usize) -> Result<impl FnOnce() -> Buffer> {
    let allocator = CachingAllocator::of(stream.device()).ok_or_else(other_pool)?;
    let Grant { ptr, block } = allocator.grant(stream, redzones::padded(bytes))?;
    // SAFETY: the block is at least `bytes` long, belongs to nobody else until it comes back, and the
    // stream's later commands come after its earlier uses. A block of no bytes is never followed. Its arena
    // keeps the device alive until it comes back; without bytes there is no arena.
    Ok(move || unsafe {
        match bytes {
            0 => Buffer::from_block(stream, ptr, bytes, block),
            _ => Buffer::from_kept_block(stream, ptr, bytes, block),
        }
    })
}

#[cold]
fn other_pool() -> Error {
    let expected = "of a device with a caching allocator";
    Error::invalid("allocate", "stream", expected, "a device with another memory pool")
}

/// The memory of a device.
pub trait DeviceMemory {
    /// What is live, pending, cached and reserved, with peaks and counts, and what the device holds outside the allocator.
    fn memory_stats(&self) -> MemoryStats;

    /// Makes the peaks of [`memory_stats`](Self::memory_stats) those of now.
    fn reset_peak_memory_stats(&self);

    /// A picture of all blocks.
    fn memory_snapshot(&self) -> Snapshot;

    /// Keeps the newest `entries` things that happen to each stream's memory from now on, for
    /// [`memory_report`](Self::memory_report); 0 stops that and forgets them. A kept allocation or free costs some 50 ns
    /// more.
    fn record_memory_history(&self, entries: usize);

    /// Statistics, picture and history together, to be exported. `None` if the device has a memory pool of another kind.
    fn memory_report(&self) -> Option<MemoryReport>;

    /// Lets the allocator reserve at most `bytes` bytes; `None` for no limit. What is reserved already stays:
    /// call [`trim`](Self::trim) to give back what is cached.
    fn set_memory_limit(&self, bytes: Option<usize>);

    /// Has `bytes` bytes free in one piece for the current stream: what is allocated on it from now on needs no call of the
    /// driver as long as that much does. Asks the driver only for what is not free already. Each stream has memory of its
    /// own, so reserve within the [scope](Stream::scope) of the one that allocates. The memory stays with the stream until
    /// [`trim`](Self::trim), or until there is none left elsewhere; it counts as reserved, not as allocated.
    ///
    /// Waits for the device only where it would fail otherwise, as [`allocate`] does.
    ///
    /// ```
    /// use allocator::{DeviceMemory, allocate};
    /// use device::Device;
    ///
    /// let dev = Device::cpu_with(Default::default());
    /// dev.reserve(1 << 20)?;
    /// let calls = dev.memory_stats().driver_allocations;
    /// let buffers = [(); 4].map(|()| allocate(&dev.default_stream(), 1 << 18));
    /// assert!(buffers.iter().all(|buffer| buffer.is_ok()));
    /// assert_eq!(dev.memory_stats().driver_allocations, calls);
    /// # Ok::<(), device::Error>(())
    /// ```
    ///
    /// # Errors
    /// `OutOfMemory` with a report, when neither the cache nor the driver has a range of that size;
    /// `InvalidArgument` if the device has a memory pool of another kind.
    fn reserve(&self, bytes: usize) -> Result<()>;

    /// Gives memory without live blocks, every use of which is over, back to the driver: the bytes that were.
    /// That is whole segments, or the pages of addresses that were reserved. Does not wait for anything. What
    /// belongs to a [`PrivatePool`] stays.
    ///
    /// The pinned host memory of a CUDA device's copies, which is not counted, goes back as
    /// [`Device::trim_pinned`] says.
    fn trim(&self) -> usize;

    /// The settings.
    fn allocator_config(&self) -> AllocatorConfig;

    /// Changes the settings, from the next request on.
    fn set_allocator_config(&self, config: AllocatorConfig);
}

impl DeviceMemory for Device {
    fn memory_stats(&self) -> MemoryStats {
        let stats = CachingAllocator::of(self).map(CachingAllocator::stats).unwrap_or_default();
        MemoryStats { outside: self.held_outside(), ..stats }
    }

    fn reset_peak_memory_stats(&self) {
        CachingAllocator::of(self).into_iter().for_each(CachingAllocator::reset_peak_stats);
    }

    fn memory_snapshot(&self) -> Snapshot {
        CachingAllocator::of(self).map(CachingAllocator::snapshot).unwrap_or_default()
    }

    fn record_memory_history(&self, entries: usize) {
        CachingAllocator::of(self).into_iter().for_each(|allocator| allocator.record_history(entries));
    }

    fn memory_report(&self) -> Option<MemoryReport> {
        CachingAllocator::of(self).map(|allocator| MemoryReport {
            stats: self.memory_stats(),
            config: *allocator.config.read(),
            snapshot: allocator.snapshot(),
            history: allocator.history(),
        })
    }

    fn set_memory_limit(&self, bytes: Option<usize>) {
        CachingAllocator::of(self).into_iter().for_each(|allocator| allocator.set_limit(bytes));
    }

    fn reserve(&self, bytes: usize) -> Result<()> {
        let allocator = CachingAllocator::of(self).ok_or_else(other_pool)?;
        Stream::with_current(self, |stream| allocator.make_ready(stream, bytes))
    }

    fn trim(&self) -> usize {
        self.trim_pinned();
        let Some(allocator) = CachingAllocator::of(self) else { return 0 };
        let release = || allocator.release_cached(0, |moment| self.reached(moment));
        Stream::current(self).record_driver_call(0, release)
    }

    fn allocator_config(&self) -> AllocatorConfig {
        CachingAllocator::of(self).map(|allocator| *allocator.config.read()).unwrap_or_default()
    }

    fn set_allocator_config(&self, config: AllocatorConfig) {
        CachingAllocator::of(self).into_iter().for_each(|allocator| *allocator.config.write() = config);
    }
}
