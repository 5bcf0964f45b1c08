//! The allocator: its arenas, which stream has which, and what it holds.

use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use device::{BlockId, Device, Error, MemoryDriver, Moment, Pool, Result, SpinLock, StreamId};
use parking_lot::{Mutex, RwLock};

use crate::arena::{Arena, Grant, SharedArena};
use crate::block::{NONE, UNIT};
use crate::classes::units_for;
use crate::history::{Action, History, HistoryEntry};
use crate::order::Asker;
use crate::{AllocatorConfig, MemoryStats, Snapshot};

/// A caching allocator, one for each device.
///
/// [`allocate`](crate::allocate) and [`DeviceMemory`](crate::DeviceMemory) are how to use it.
pub struct CachingAllocator {
    pub(crate) driver: Arc<dyn MemoryDriver>,
    /// Filled from the front; an arena is never removed.
    arenas: Box<[OnceLock<Box<SharedArena>>]>,
    /// The arenas of recent streams: a stream's number and its arena's, in the place that its number selects.
    recent: [AtomicU64; RECENT],
    streams: Mutex<HashMap<StreamId, u32>>,
    pub(crate) config: RwLock<AllocatorConfig>,
    /// Bytes held or asked for, which is what the limit is about.
    pub(crate) reserved: AtomicUsize,
    /// The limit, the bytes that are held and their peak, and counts of what is slow and rare.
    pub(crate) counted: SpinLock<MemoryStats>,
    history_capacity: AtomicUsize,
    history_clock: Arc<AtomicU64>,
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
            reserved: AtomicUsize::new(0),
            counted: SpinLock::new(MemoryStats::default()),
            history_capacity: AtomicUsize::new(0),
            history_clock: Arc::default(),
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

    /// Allocates `bytes` bytes for uses that come after the newest command of `asker`.
    #[inline]
    #[track_caller]
    pub(crate) fn grant(&self, asker: &impl Asker, bytes: usize) -> Result<Grant> {
        let Some(units) = units_for(bytes) else {
            return Err(self.out_of_memory(asker, bytes, "no block can be that large"));
        };
        if units == 0 {
            return Ok(Grant { ptr: NonNull::<Nothing>::dangling().cast(), block: NO_BLOCK });
        }
        let arena = self.arena_of(asker);
        let ready = {
            let mut arena = arena.lock();
            let ready = arena.take_ready(asker.id(), units);
            if ready.is_some() {
                keep_device(&mut arena, asker);
            }
            ready
        };
        if let Some(ready) = ready {
            return Ok(ready);
        }
        let found = self.search(asker, arena, units, bytes)?;
        if let Some(arena) = self.arena(found.block.arena) {
            keep_device(&mut arena.lock(), asker);
        }
        Ok(found)
    }

    /// Takes a block back whose last uses were `uses`, and with the last one what kept the device alive for them.
    #[inline]
    pub(crate) fn take_back(&self, block: BlockId, uses: &[Moment]) -> Option<Device> {
        self.arena(block.arena)?.lock().release(block.index, uses)
    }

    #[inline]
    pub(crate) fn arena(&self, number: u32) -> Option<&SharedArena> {
        self.arenas.get(number as usize)?.get().map(|arena| &**arena)
    }

    /// All arenas.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = &SharedArena> {
        self.arenas.iter().map_while(|arena| arena.get().map(|arena| &**arena))
    }

    /// The arenas that no private pool has.
    pub(crate) fn public_arenas(&self) -> impl Iterator<Item = &SharedArena> {
        self.arenas().filter(|arena| arena.lock().pool.is_none())
    }

    #[inline]
    pub(crate) fn arena_of(&self, asker: &impl Asker) -> &SharedArena {
        let stream = asker.id().as_u64();
        let recent = self.recent[stream as usize % RECENT].load(Ordering::Relaxed);
        if recent >> ARENA_BITS == stream
            && let number = recent as u32 % ARENAS as u32
            && let Some(arena) = self.arena(number)
        {
            return arena;
        }
        self.find_arena(asker)
    }

    /// The arena of a stream that is not among the recent ones; a new stream gets that of a stream that is
    /// gone, or a new one.
    #[cold]
    fn find_arena(&self, asker: &impl Asker) -> &SharedArena {
        let stream = asker.id();
        let deterministic = self.config.read().deterministic;
        let mut streams = self.streams.lock();
        let known = streams.get(&stream).copied();
        let number = known.unwrap_or_else(|| {
            // A tick that never comes has passed only if the stream is gone. When that is seen depends on
            // timing.
            let gone = |home| asker.reached(Moment { stream: home, tick: u64::MAX });
            let home = |arena: &SharedArena| arena.lock().home;
            let orphan = self.public_arenas().find(|arena| !deterministic && gone(home(arena)));
            if let Some(orphan) = orphan {
                let mut orphan = orphan.lock();
                streams.remove(&orphan.home);
                orphan.adopt(stream);
                return orphan.number;
            }
            let free = self.arenas.iter().position(|arena| arena.get().is_none());
            free.map_or_else(|| self.taken_arena(&mut streams, stream, deterministic), |free| free as u32)
        });
        self.route(&mut streams, stream, Some(number));
        self.arena_or_new(number, stream)
    }

    /// An arena for a new stream when all are taken: one that it shares, private pools' left out. Deterministic streams
    /// cannot ask whose home stream is gone and take one over that nothing is live in.
    fn taken_arena(
        &self,
        streams: &mut HashMap<StreamId, u32>,
        stream: StreamId,
        deterministic: bool,
    ) -> u32 {
        // From a place that the stream's number selects on: new streams go round.
        let first = stream.as_u64() as usize % ARENAS;
        let public = || {
            let arenas = (first..ARENAS).chain(0..first).filter_map(|number| self.arena(number as u32));
            arenas.filter(|arena| arena.lock().pool.is_none())
        };
        let idle = public().find(|arena| deterministic && arena.lock().counts.live_blocks == 0);
        if let Some(arena) = idle {
            let mut arena = arena.lock();
            // If the old home stream still lives, it looks for an arena again.
            if streams.get(&arena.home) == Some(&arena.number) {
                self.route(streams, arena.home, None);
            }
            arena.hand_over(stream);
            return arena.number;
        }
        // There is one, since `private_arena` leaves one.
        public().next().map_or(first as u32, |arena| arena.lock().number)
    }

    /// Makes an arena the one that a stream's requests go to first; without one the stream is as good as new. Tells which
    /// it was.
    fn route(
        &self,
        streams: &mut HashMap<StreamId, u32>,
        stream: StreamId,
        number: Option<u32>,
    ) -> Option<u32> {
        let recent = number.map_or(0, |number| (stream.as_u64() << ARENA_BITS) | u64::from(number));
        self.recent[stream.as_u64() as usize % RECENT].store(recent, Ordering::Relaxed);
        match number {
            Some(number) => streams.insert(stream, number),
            None => streams.remove(&stream),
        }
    }

    /// Sends a stream's requests to an arena; tells where they went before.
    pub(crate) fn redirect(&self, stream: StreamId, number: Option<u32>) -> Option<u32> {
        self.route(&mut self.streams.lock(), stream, number)
    }

    /// An arena for a stream in a private pool: an empty one that nobody has any more, else a new one. `None` if all
    /// are taken, or all but the one that is left for everybody else.
    pub(crate) fn private_arena(&self, stream: StreamId, pool: u64) -> Option<u32> {
        let streams = self.streams.lock();
        let private = self.arenas().filter(|arena| arena.lock().pool.is_some()).count();
        if private + 1 >= ARENAS {
            return None;
        }
        let spare = self.public_arenas().find(|arena| {
            let arena = arena.lock();
            let empty = arena.counts.live_blocks == 0 && arena.home == stream;
            empty && streams.values().all(|&taken| taken != arena.number)
        });
        let number = match spare {
            Some(arena) => arena.lock().number,
            None => self.arenas.iter().position(|arena| arena.get().is_none())? as u32,
        };
        self.arena_or_new(number, stream).lock().pool = Some(pool);
        Some(number)
    }

    fn arena_or_new(&self, number: u32, home: StreamId) -> &SharedArena {
        self.arenas[number as usize].get_or_init(|| {
            let mut arena = Arena::new(number, home);
            arena.history = self.new_history();
            Box::new(SpinLock::new(arena))
        })
    }

    fn new_history(&self) -> Option<Box<History>> {
        let capacity = self.history_capacity.load(Ordering::Relaxed);
        (capacity > 0).then(|| Box::new(History::new(capacity, Arc::clone(&self.history_clock))))
    }

    /// Starts keeping the newest `capacity` things that happen in each arena; 0 stops and forgets.
    pub(crate) fn record_history(&self, capacity: usize) {
        self.history_capacity.store(capacity, Ordering::Relaxed);
        self.arenas().for_each(|arena| arena.lock().history = self.new_history());
    }

    /// What happened, in order.
    pub(crate) fn history(&self) -> Vec<HistoryEntry> {
        let mut entries = Vec::new();
        for arena in self.arenas() {
            entries.extend(arena.lock().history.iter().flat_map(|history| history.entries()));
        }
        entries.sort_by_key(|entry| entry.sequence);
        entries
    }

    pub(crate) fn set_limit(&self, bytes: Option<usize>) {
        self.counted.lock().limit_bytes = bytes;
    }

    /// Counts `bytes` as reserved, or returns the limit that does not allow it.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), usize> {
        let limit = self.counted.lock().limit_bytes.unwrap_or(usize::MAX);
        let add = |reserved: usize| reserved.checked_add(bytes).filter(|&sum| sum <= limit);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map(drop).map_err(|_| limit)
    }

    /// What [`reserve`](Self::reserve) counted is not held any more.
    pub(crate) fn unreserve(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The statistics of now.
    pub fn stats(&self) -> MemoryStats {
        let mut stats = MemoryStats { reserved_bytes: 0, ..*self.counted.lock() };
        self.arenas().for_each(|arena| stats.add(&arena.lock()));
        stats
    }

    /// Makes the peaks those of now.
    pub fn reset_peak_stats(&self) {
        for arena in self.arenas() {
            let mut arena = arena.lock();
            arena.counts.peak_live_units = arena.counts.live_units;
            arena.counts.peak_live_blocks = arena.counts.live_blocks;
        }
        let counted = &mut *self.counted.lock();
        counted.peak_reserved_bytes = counted.reserved_bytes;
    }

    /// A picture of all blocks.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.arenas().for_each(|arena| snapshot.add(&arena.lock()));
        snapshot
    }

    #[cold]
    pub(crate) fn out_of_memory(&self, asker: &impl Asker, bytes: usize, refusal: &str) -> Error {
        self.counted.lock().out_of_memory += 1;
        if let Some(history) = &mut self.arena_of(asker).lock().history {
            history.note(Action::OutOfMemory, 0, bytes, asker.id());
        }
        let needed = units_for(bytes).map_or(bytes, |units| units as usize * UNIT);
        let (stats, snapshot) = (self.stats(), self.snapshot());
        let report = crate::report::report(&stats, &snapshot, needed, refusal, asker);
        Error::out_of_memory(bytes, report)
    }
}

/// Keeps the device alive for the live blocks of an arena, of which the caller has one and a handle of the device.
#[inline]
pub(crate) fn keep_device(arena: &mut Arena, asker: &impl Asker) {
    if arena.device.is_none() {
        arena.device = asker.device();
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

    fn make_room(&self, reached: &dyn Fn(Moment) -> bool) {
        self.release_cached(0, reached);
    }
}

impl Drop for CachingAllocator {
    fn drop(&mut self) {
        // The device goes away: no buffer and no command is left.
        for arena in &mut self.arenas {
            let Some(arena) = arena.get_mut() else { continue };
            for segment in arena.get_mut().segments.drain(..) {
                // SAFETY: the segment holds the range and size that the driver returned. The pool is dropped with its
                // device, after all buffers and commands, and `drain` makes this the only return.
                unsafe { segment.give_back(&*self.driver) };
            }
        }
    }
}

impl std::fmt::Debug for CachingAllocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachingAllocator").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
