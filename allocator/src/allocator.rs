//! The allocator: its arenas, which stream has which, and what it holds.

use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use device::{BlockId, Device, Error, MemoryDriver, Moment, Pool, Result, SpinGuard, SpinLock, StreamId};
use parking_lot::{Mutex, RwLock};

use crate::arena::Arena;
use crate::block::NONE;
use crate::classes::{UNIT, units_for};
use crate::order::{Frontier, Order};
use crate::{AllocatorConfig, MemoryStats, Snapshot};

/// A caching allocator, one for each device.
///
/// [`allocate`](crate::allocate) and [`DeviceMemory`](crate::DeviceMemory) are how to use it.
pub struct CachingAllocator {
    pub(crate) driver: Arc<dyn MemoryDriver>,
    /// Filled from the front; an arena is never removed.
    arenas: Box<[OnceLock<Box<SpinLock<Arena>>>]>,
    /// The arenas of recent streams: a stream's number and its arena's, in the place that its number selects.
    recent: [AtomicU64; RECENT],
    streams: Mutex<HashMap<StreamId, u32>>,
    pub(crate) config: RwLock<AllocatorConfig>,
    /// The most that may be reserved, `usize::MAX` for no limit.
    pub(crate) limit: AtomicUsize,
    pub(crate) reserved: AtomicUsize,
    peak_reserved: AtomicUsize,
    pub(crate) counters: Counters,
}

/// Counts of what is slow and rare.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) driver_allocations: AtomicU64,
    pub(crate) driver_refusals: AtomicU64,
    pub(crate) driver_frees: AtomicU64,
    pub(crate) polls: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) borrowed: AtomicU64,
    pub(crate) out_of_memory: AtomicU64,
}

impl Counters {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) block: BlockId,
}

const RECENT: usize = 64;
const ARENA_BITS: u32 = 10;
/// Streams beyond this many that live at once share arenas, which is slower and as safe.
const ARENAS: usize = 1 << ARENA_BITS;

/// What a buffer without bytes has for a block.
const NO_BLOCK: BlockId = BlockId { arena: NONE, index: NONE };

impl CachingAllocator {
    pub(crate) fn new(driver: Arc<dyn MemoryDriver>) -> Self {
        CachingAllocator {
            driver,
            arenas: (0..ARENAS).map(|_| OnceLock::new()).collect(),
            recent: [const { AtomicU64::new(0) }; RECENT],
            streams: Mutex::default(),
            config: RwLock::default(),
            limit: AtomicUsize::new(usize::MAX),
            reserved: AtomicUsize::new(0),
            peak_reserved: AtomicUsize::new(0),
            counters: Counters::default(),
        }
    }

    /// The allocator of `device`, made at the first call. `None` if the device has a memory pool of another
    /// kind.
    #[inline]
    pub fn of(device: &Device) -> Option<&CachingAllocator> {
        let pool: &dyn Any = device.pool_or_init(|| {
            let driver = Arc::clone(device.memory_driver());
            Box::new(CachingAllocator::new(driver))
        });
        pool.downcast_ref()
    }

    /// Hands out `bytes` bytes to whoever comes after the newest command of `order`.
    #[inline]
    pub(crate) fn grant(&self, order: &impl Order, bytes: usize) -> Result<Grant> {
        let Some(units) = units_for(bytes) else {
            return Err(self.out_of_memory(order, bytes, "no block can be that large"));
        };
        if units == 0 {
            return Ok(Grant { ptr: NonNull::<Nothing>::dangling().cast(), block: NO_BLOCK });
        }
        let (arena, number) = self.arena_of(order);
        let taken = {
            let mut arena = arena.lock();
            let taken = arena.take_ready(order.id(), units);
            if taken.is_some() {
                keep_device(&mut arena, order);
            }
            taken
        };
        if let Some(taken) = taken {
            return Ok(Grant { ptr: taken.ptr, block: BlockId { arena: number, index: taken.index } });
        }
        let found = self.search(order, number, units, bytes)?;
        if let Some(arena) = self.arena(found.block.arena) {
            keep_device(&mut arena.lock(), order);
        }
        Ok(found)
    }

    /// Takes a block back whose last uses were `uses`, and with the last one what kept the device alive for them.
    #[inline]
    pub(crate) fn take_back(&self, block: BlockId, uses: &[Moment]) -> Option<Device> {
        self.arena(block.arena)?.lock().release(block.index, uses)
    }

    #[inline]
    pub(crate) fn arena(&self, number: u32) -> Option<&SpinLock<Arena>> {
        self.arenas.get(number as usize)?.get().map(|arena| &**arena)
    }

    /// All arenas with their numbers.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = (u32, &SpinLock<Arena>)> {
        let filled = self.arenas.iter().map_while(|arena| arena.get());
        filled.enumerate().map(|(number, arena)| (number as u32, &**arena))
    }

    #[inline]
    pub(crate) fn arena_of(&self, order: &impl Order) -> (&SpinLock<Arena>, u32) {
        let stream = order.id().as_u64();
        let recent = self.recent[stream as usize % RECENT].load(Ordering::Relaxed);
        if recent >> ARENA_BITS == stream
            && let number = recent as u32 % ARENAS as u32
            && let Some(arena) = self.arena(number)
        {
            return (arena, number);
        }
        self.find_arena(order)
    }

    /// The arena of a stream that is not among the recent ones; a new stream gets that of a stream that is
    /// gone, or a new one.
    #[cold]
    fn find_arena(&self, order: &impl Order) -> (&SpinLock<Arena>, u32) {
        let stream = order.id();
        let deterministic = self.config.read().deterministic;
        let mut streams = self.streams.lock();
        let known = streams.get(&stream).copied();
        let number = known.unwrap_or_else(|| {
            // A tick that never comes has passed only if the stream is gone. When that is seen depends on
            // timing.
            let gone = |home| order.reached(Moment { stream: home, tick: u64::MAX });
            let homes = || self.arenas().map(|(number, arena)| (number, arena.lock().home));
            let orphan = if deterministic { None } else { homes().find(|&(_, home)| gone(home)) };
            if let Some((number, home)) = orphan {
                streams.remove(&home);
                if let Some(arena) = self.arena(number) {
                    arena.lock().adopt(stream);
                }
                number
            } else {
                let free = self.arenas.iter().position(|arena| arena.get().is_none());
                // With all arenas taken, streams share.
                free.unwrap_or(stream.as_u64() as usize % ARENAS) as u32
            }
        });
        streams.insert(stream, number);
        let place = &self.recent[stream.as_u64() as usize % RECENT];
        place.store((stream.as_u64() << ARENA_BITS) | u64::from(number), Ordering::Relaxed);
        let arena = self.arenas[number as usize].get_or_init(|| Box::new(SpinLock::new(Arena::new(stream))));
        (arena, number)
    }

    pub(crate) fn set_limit(&self, bytes: Option<usize>) {
        self.limit.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Counts `bytes` as reserved, if the limit allows it.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let add = |reserved: usize| reserved.checked_add(bytes).filter(|&sum| sum <= limit);
        let before = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        before.is_ok_and(|before| {
            self.peak_reserved.fetch_max(before + bytes, Ordering::Relaxed);
            true
        })
    }

    pub(crate) fn unreserve(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Gives segments without live blocks back to the driver if the host can see that every use of them is
    /// over, until no more than `keep_bytes` bytes are free. The bytes given back.
    pub(crate) fn release_cached(&self, keep_bytes: usize, reached: impl Fn(Moment) -> bool) -> usize {
        let mut freed = 0;
        for (_, arena) in self.arenas() {
            if self.free_bytes() <= keep_bytes {
                break;
            }
            let moments = tidy(arena).moments_of_free_segments();
            let frontier = Frontier::find(moments, |moment| {
                Counters::count(&self.counters.polls);
                reached(moment)
            });
            while self.free_bytes() > keep_bytes {
                let removed = tidy(arena).remove_free_segment(&frontier);
                let Some(segment) = removed else { break };
                // SAFETY: the driver gave this range with this size; the arena has forgotten it, no buffer is
                // in it, and every command that used it has run.
                unsafe { self.driver.free(segment.raw.0, segment.raw_bytes) };
                let bytes = segment.units as usize * UNIT;
                self.unreserve(bytes);
                Counters::count(&self.counters.driver_frees);
                freed += bytes;
            }
        }
        freed
    }

    fn free_bytes(&self) -> usize {
        let free = |arena: &SpinLock<Arena>| {
            let counts = arena.lock().counts;
            (counts.reserved_units - counts.live_units) as usize * UNIT
        };
        self.arenas().map(|(_, arena)| free(arena)).sum()
    }

    /// The statistics of now.
    pub fn stats(&self) -> MemoryStats {
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let limit = self.limit.load(Ordering::Relaxed);
        let mut stats = MemoryStats {
            peak_reserved_bytes: self.peak_reserved.load(Ordering::Relaxed),
            limit_bytes: (limit != usize::MAX).then_some(limit),
            driver_allocations: counter(&self.counters.driver_allocations),
            driver_refusals: counter(&self.counters.driver_refusals),
            driver_frees: counter(&self.counters.driver_frees),
            polls: counter(&self.counters.polls),
            waits: counter(&self.counters.waits),
            borrowed: counter(&self.counters.borrowed),
            out_of_memory: counter(&self.counters.out_of_memory),
            ..MemoryStats::default()
        };
        self.arenas().for_each(|(_, arena)| stats.add(&arena.lock()));
        stats
    }

    /// Makes the peaks those of now.
    pub fn reset_peak_stats(&self) {
        for (_, arena) in self.arenas() {
            let mut arena = arena.lock();
            arena.counts.peak_live_units = arena.counts.live_units;
            arena.counts.peak_live_blocks = arena.counts.live_blocks;
        }
        self.peak_reserved.store(self.reserved.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A picture of all blocks.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.arenas().for_each(|(_, arena)| snapshot.add(&arena.lock()));
        snapshot
    }

    #[cold]
    pub(crate) fn out_of_memory(&self, order: &impl Order, bytes: usize, refusal: &str) -> Error {
        Counters::count(&self.counters.out_of_memory);
        let needed = units_for(bytes).map_or(bytes, |units| units as usize * UNIT);
        let report = crate::report::report(&self.stats(), &self.snapshot(), needed, refusal, |moment| {
            order.reached(moment)
        });
        Error::OutOfMemory { requested_bytes: bytes, report }
    }
}

/// Locks an arena and merges what was freed lately.
pub(crate) fn tidy(arena: &SpinLock<Arena>) -> SpinGuard<'_, Arena> {
    let mut arena = arena.lock();
    arena.tidy();
    arena
}

/// Keeps the device alive for the live blocks of an arena, of which the caller has one and a handle of the device.
#[inline]
fn keep_device(arena: &mut Arena, order: &impl Order) {
    if arena.device.is_none() {
        arena.device = order.device();
    }
}

/// Its dangling pointer has the alignment of every block.
#[repr(align(256))]
struct Nothing;

const _: () = assert!(align_of::<Nothing>() == UNIT);

impl Pool for CachingAllocator {
    #[inline]
    unsafe fn release(&self, block: BlockId, uses: &[Moment]) -> Option<Device> {
        self.take_back(block, uses)
    }
}

impl Drop for CachingAllocator {
    fn drop(&mut self) {
        // The device goes away: no buffer and no command is left.
        for arena in &mut self.arenas {
            let Some(arena) = arena.get_mut() else { continue };
            for segment in arena.get_mut().segments.drain(..).flatten() {
                // SAFETY: the driver gave this range with this size, and nobody is left to use it.
                unsafe { self.driver.free(segment.raw.0, segment.raw_bytes) };
            }
        }
    }
}

impl std::fmt::Debug for CachingAllocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachingAllocator").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
