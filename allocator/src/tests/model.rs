//! Streams without a device, a driver that can refuse, and an independent judge of what comes before what.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use device::{AddressSpace, Error, ErrorKind, HostMemory, MemoryDriver, Moment, Result, StreamId, Stuck};

use crate::allocator::CachingAllocator;
use crate::arena::Arena;
use crate::arena::Grant;
use crate::block::{NONE, State, UNIT};
use crate::classes::class_of;
use crate::order::Asker;

/// Host memory that counts, numbers its ranges, and refuses on demand.
#[derive(Default)]
pub(super) struct TestDriver {
    /// Whether there are addresses that get their memory later.
    in_place: bool,
    host: HostMemory,
    /// Every page that has memory.
    pages: Mutex<BTreeSet<usize>>,
    pub(super) calls: AtomicU64,
    /// Calls from this one on are refused, up to the other.
    pub(super) refuse_from: AtomicU64,
    pub(super) refuse_to: AtomicU64,
    /// Start, size and number of every range that is out.
    out: Mutex<BTreeMap<usize, (usize, u64)>>,
}

const ALIGN: usize = 64;

impl TestDriver {
    /// The number of the range that an address is in, and the offset there.
    pub(super) fn place(&self, address: usize) -> (u64, usize) {
        let out = self.out.lock().unwrap();
        let (start, (_, number)) = out.range(..=address).next_back().unwrap();
        (*number, address - start.next_multiple_of(UNIT))
    }

    pub(super) fn ranges(&self) -> usize {
        self.out.lock().unwrap().len()
    }

    /// Bytes of memory that are out.
    pub(super) fn bytes(&self) -> usize {
        let pages = self.pages.lock().unwrap().len() * PAGE;
        let out = self.out.lock().unwrap();
        let ranges = out.values().map(|range| range.0).filter(|&bytes| bytes < SPACE);
        pages + ranges.map(|bytes| bytes - (UNIT - ALIGN)).sum::<usize>()
    }

    fn call(&self) -> Result<u64> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if (self.refuse_from.load(Ordering::SeqCst)..self.refuse_to.load(Ordering::SeqCst)).contains(&call) {
            return Err(Error::new(ErrorKind::Driver {
                call: "test_memory",
                code: 2,
                name: "refused".into(),
            }));
        }
        Ok(call)
    }
}

pub(super) const PAGE: usize = 4096;
/// Ranges of at least this size are addresses.
const SPACE: usize = 1 << 30;

// SAFETY: the methods only count and pass on to `HostMemory`, which keeps the contract.
unsafe impl AddressSpace for TestDriver {
    fn page_bytes(&self) -> usize {
        PAGE
    }

    fn reserve(&self, bytes: usize) -> Result<NonNull<u8>> {
        let call = self.call()?;
        let ptr = self.host.address_space().unwrap().reserve(bytes)?;
        self.out.lock().unwrap().insert(ptr.as_ptr().addr(), (bytes, call));
        Ok(ptr)
    }

    unsafe fn commit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        self.call()?;
        let mut pages = self.pages.lock().unwrap();
        for page in (ptr.as_ptr().addr()..).step_by(PAGE).take(bytes / PAGE) {
            assert!(pages.insert(page), "a page gets memory once");
        }
        // SAFETY: the caller keeps the contract of `commit` for a range of this driver, which is one of `HostMemory`.
        unsafe { self.host.address_space().unwrap().commit(ptr, bytes) }
    }

    unsafe fn decommit(&self, ptr: NonNull<u8>, bytes: usize) -> Result<()> {
        self.call()?;
        let mut pages = self.pages.lock().unwrap();
        for page in (ptr.as_ptr().addr()..).step_by(PAGE).take(bytes / PAGE) {
            assert!(pages.remove(&page), "a page loses the memory that it has");
        }
        // SAFETY: the caller keeps the contract of `decommit` for a range of this driver, which is one of
        // `HostMemory`.
        unsafe { self.host.address_space().unwrap().decommit(ptr, bytes) }
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize) {
        let start = ptr.as_ptr().addr();
        self.pages.lock().unwrap().retain(|page| !(start..start + bytes).contains(page));
        let known = self.out.lock().unwrap().remove(&start);
        assert_eq!(known.map(|known| known.0), Some(bytes), "only what was given comes back, once");
        // SAFETY: the range was checked to be one of this driver, which is one of `HostMemory`; the caller promises
        // that nobody uses it.
        unsafe { self.host.address_space().unwrap().release(ptr, bytes) }
    }
}

// SAFETY: `alloc` returns `bytes` bytes aligned to `ALIGN` that overlap nothing else until `dealloc`.
unsafe impl MemoryDriver for TestDriver {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        let call = self.call()?;
        // SAFETY: the size is not 0.
        let ptr = NonNull::new(unsafe { alloc(Layout::from_size_align(bytes, ALIGN).unwrap()) }).unwrap();
        self.out.lock().unwrap().insert(ptr.as_ptr().addr(), (bytes, call));
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        let known = self.out.lock().unwrap().remove(&ptr.as_ptr().addr());
        assert_eq!(known.map(|known| known.0), Some(bytes), "only what was given comes back, once");
        // SAFETY: it came from `allocate` with the same layout.
        unsafe { dealloc(ptr.as_ptr(), Layout::from_size_align(bytes, ALIGN).unwrap()) }
    }

    fn alignment(&self) -> usize {
        ALIGN
    }

    fn address_space(&self) -> Option<&dyn AddressSpace> {
        self.in_place.then_some(self)
    }
}

type Ticks = Vec<u64>;

/// Modelled streams: ticks, the waits that were inserted, and how far each stream has run.
pub(super) struct World {
    /// What the stream's next command is known to come after, by inserted waits.
    clocks: RefCell<Vec<Ticks>>,
    ticks: RefCell<Ticks>,
    done: RefCell<Ticks>,
    /// For each command what truly comes before it: by waits, and because it had run when the command was
    /// enqueued.
    before: RefCell<HashMap<(usize, u64), Ticks>>,
    /// For each command what its stream's clock covered then: the part of `before` that no timing decides.
    known: RefCell<HashMap<(usize, u64), Ticks>>,
    pub(super) waits: RefCell<Vec<Vec<Moment>>>,
    pub(super) refuse_waits: Cell<bool>,
    /// Whether no stream goes on by itself.
    pub(super) held: Cell<bool>,
    /// What the host waited for.
    pub(super) host_waits: RefCell<Vec<Moment>>,
}

fn join(into: &mut Ticks, from: &Ticks) {
    into.iter_mut().zip(from).for_each(|(a, b)| *a = (*a).max(*b));
}

impl World {
    pub(super) fn new(streams: usize) -> Self {
        World {
            clocks: RefCell::new(vec![vec![0; streams]; streams]),
            ticks: RefCell::new(vec![0; streams]),
            done: RefCell::new(vec![0; streams]),
            before: RefCell::default(),
            known: RefCell::default(),
            waits: RefCell::default(),
            refuse_waits: Cell::new(false),
            held: Cell::new(false),
            host_waits: RefCell::default(),
        }
    }

    pub(super) fn stream(&self, index: usize) -> ModelStream<'_> {
        ModelStream { world: self, index }
    }

    pub(super) fn moment(index: usize, tick: u64) -> Moment {
        Moment { stream: StreamId::from_raw(index as u64 + 1), tick }
    }

    fn index(stream: StreamId) -> usize {
        stream.as_u64() as usize - 1
    }

    /// Enqueues a command.
    pub(super) fn tick(&self, index: usize) -> u64 {
        let mut ticks = self.ticks.borrow_mut();
        ticks[index] += 1;
        let tick = ticks[index];
        let mut before = self.clocks.borrow()[index].clone();
        self.known.borrow_mut().insert((index, tick), before.clone());
        join(&mut before, &self.done.borrow());
        before[index] = before[index].max(tick - 1);
        self.before.borrow_mut().insert((index, tick), before);
        tick
    }

    /// Whether `earlier` truly comes before the command at `(index, tick)`.
    pub(super) fn precedes(&self, earlier: Moment, index: usize, tick: u64) -> bool {
        self.before.borrow()[&(index, tick)][Self::index(earlier.stream)] >= earlier.tick
    }

    /// Runs up to `count` commands of a stream, as far as what they come after has run.
    pub(super) fn progress(&self, index: usize, count: u64) {
        for _ in 0..count {
            let next = self.done.borrow()[index] + 1;
            if next > self.ticks.borrow()[index] {
                return;
            }
            let ready = {
                let done = self.done.borrow();
                let before = &self.before.borrow()[&(index, next)];
                before.iter().zip(done.iter()).all(|(needed, done)| needed <= done)
            };
            if !ready {
                return;
            }
            self.done.borrow_mut()[index] = next;
        }
    }

    /// Runs everything.
    pub(super) fn finish(&self) {
        let streams = self.ticks.borrow().len();
        for _ in 0..streams * streams + 1 {
            (0..streams).for_each(|index| self.progress(index, u64::MAX));
        }
        while *self.done.borrow() != *self.ticks.borrow() {
            (0..streams).for_each(|index| self.progress(index, u64::MAX));
        }
    }

    /// Makes a stream come after a moment, as a launch does for its needs: no tick of its own.
    pub(super) fn learn(&self, index: usize, moment: Moment) {
        let other = Self::index(moment.stream);
        if moment.tick == 0 || other == index {
            return;
        }
        let known = self.known.borrow()[&(other, moment.tick)].clone();
        let clock = &mut self.clocks.borrow_mut()[index];
        join(clock, &known);
        clock[other] = clock[other].max(moment.tick);
    }
}

#[derive(Clone, Copy)]
pub(super) struct ModelStream<'a> {
    pub(super) world: &'a World,
    pub(super) index: usize,
}

impl Asker for ModelStream<'_> {
    fn id(&self) -> StreamId {
        World::moment(self.index, 0).stream
    }

    fn now(&self) -> Moment {
        World::moment(self.index, self.world.ticks.borrow()[self.index])
    }

    fn covers(&self, moment: Moment) -> bool {
        moment.stream == self.id()
            || self.world.clocks.borrow()[self.index][World::index(moment.stream)] >= moment.tick
    }

    fn reached(&self, moment: Moment) -> bool {
        self.world.done.borrow()[World::index(moment.stream)] >= moment.tick
    }

    fn wait_for(&self, moments: &[Moment]) -> Result<()> {
        if self.world.refuse_waits.get() {
            return Err(Error::new(ErrorKind::Driver { call: "test_wait", code: 1, name: "refused".into() }));
        }
        self.world.waits.borrow_mut().push(moments.to_vec());
        moments.iter().for_each(|&moment| self.world.learn(self.index, moment));
        self.world.tick(self.index);
        Ok(())
    }

    fn stuck(&self, moment: Moment) -> Option<Stuck> {
        self.world.held.get().then_some(Stuck::Held(moment.stream))
    }

    fn wait_for_memory(&self, moments: &[Moment]) -> Result<()> {
        assert!(!moments.iter().any(|&moment| self.reached(moment)), "nothing that has passed is waited for");
        for &moment in moments {
            self.world.host_waits.borrow_mut().push(moment);
            // What the moment comes after runs first.
            while !self.reached(moment) {
                let streams = self.world.ticks.borrow().len();
                (0..streams).for_each(|index| {
                    let own = World::moment(index, 0).stream == moment.stream;
                    let before =
                        self.world.before.borrow()[&(World::index(moment.stream), moment.tick)][index];
                    let upto = if own { moment.tick } else { before };
                    let done = self.world.done.borrow()[index];
                    self.world.progress(index, upto.saturating_sub(done));
                });
            }
        }
        Ok(())
    }

    fn device(&self) -> Option<device::Device> {
        None
    }
}

/// A modelled buffer: who must come before its next use.
#[derive(Clone, Debug)]
pub(super) struct ModelBuffer {
    pub(super) grant: Grant,
    pub(super) bytes: usize,
    pub(super) generation: u64,
    write: Moment,
    reads: Vec<Moment>,
}

/// An allocator over modelled streams, and the judge.
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) driver: Arc<TestDriver>,
    pub(super) allocator: CachingAllocator,
    pub(super) live: Vec<ModelBuffer>,
    /// For each unit of memory every use, and by which generation.
    history: HashMap<usize, Vec<(u64, Moment)>>,
    generations: u64,
}

impl Bench {
    /// With memory in segments.
    pub(super) fn new(streams: usize) -> Self {
        Bench::with(streams, false)
    }

    /// With arenas that grow in place, or with memory in segments.
    pub(super) fn with(streams: usize, in_place: bool) -> Self {
        let driver = Arc::new(TestDriver { in_place, ..TestDriver::default() });
        Bench {
            world: World::new(streams),
            allocator: CachingAllocator::new(driver.clone()),
            driver,
            live: Vec::new(),
            history: HashMap::new(),
            generations: 0,
        }
    }

    pub(super) fn allocate(&mut self, stream: usize, bytes: usize) -> Result<usize> {
        let asker = self.world.stream(stream);
        let grant = self.allocator.grant(&asker, bytes)?;
        let address = grant.ptr.as_ptr().addr();
        assert_eq!(address % UNIT, 0, "aligned");
        for other in self.live.iter().filter(|other| other.bytes > 0 && bytes > 0) {
            let start = other.grant.ptr.as_ptr().addr();
            assert!(address + bytes <= start || start + other.bytes <= address, "live ranges are disjoint");
        }
        self.generations += 1;
        let write = asker.now();
        self.live.push(ModelBuffer { grant, bytes, generation: self.generations, write, reads: Vec::new() });
        Ok(self.live.len() - 1)
    }

    /// Launches a command that uses a buffer, ordered as the device orders it, and judges it: every use of
    /// the same memory by a former owner comes before.
    pub(super) fn launch(&mut self, stream: usize, buffer: usize, write: bool) {
        let buffer = &mut self.live[buffer];
        let mut needs = vec![buffer.write];
        if write {
            needs.extend(&buffer.reads);
        }
        let asker = self.world.stream(stream);
        for need in needs {
            if !asker.covers(need) {
                self.world.learn(stream, need);
            }
        }
        let tick = self.world.tick(stream);
        let moment = World::moment(stream, tick);
        if write {
            buffer.write = moment;
            buffer.reads.clear();
        } else {
            buffer.reads.retain(|read| read.stream != moment.stream);
            buffer.reads.push(moment);
        }
        let start = buffer.grant.ptr.as_ptr().addr();
        for unit in (start..start + buffer.bytes).step_by(UNIT) {
            let uses = self.history.entry(unit).or_default();
            for &(generation, used) in uses.iter() {
                if generation != buffer.generation {
                    assert!(
                        self.world.precedes(used, stream, tick),
                        "{used:?} of a former owner may come after {moment:?}"
                    );
                }
            }
            uses.push((buffer.generation, moment));
        }
    }

    pub(super) fn free(&mut self, buffer: usize) {
        let buffer = self.live.swap_remove(buffer);
        let mut uses = buffer.reads;
        if buffer.write.tick > 0 && uses.iter().all(|read| read.stream != buffer.write.stream) {
            uses.push(buffer.write);
        }
        self.allocator.take_back(buffer.grant.block, &uses);
    }

    /// Uses of a buffer's memory by former owners that its stream is not known to come after.
    pub(super) fn uncovered(&self, stream: usize, buffer: usize) -> usize {
        let (buffer, asker) = (&self.live[buffer], self.world.stream(stream));
        let start = buffer.grant.ptr.as_ptr().addr();
        let units = (start..start + buffer.bytes).step_by(UNIT).filter_map(|unit| self.history.get(&unit));
        units.flatten().filter(|used| !asker.covers(used.1)).count()
    }

    /// Makes one stream come after everything on another.
    pub(super) fn wait_stream(&self, stream: usize, other: usize) {
        if stream != other {
            let tick = self.world.tick(other);
            self.world.learn(stream, World::moment(other, tick));
            self.world.tick(stream);
        }
    }

    /// Checks everything that holds at all times.
    pub(super) fn check(&self) {
        check(&self.allocator);
        let bytes: usize =
            self.live.iter().map(|buffer| crate::classes::units_for(buffer.bytes).unwrap() as usize).sum();
        let stats = self.allocator.stats();
        assert_eq!(stats.allocated_bytes, bytes * UNIT, "live bytes are those of the live buffers");
        assert_eq!(stats.reserved_bytes, self.driver.bytes(), "the driver has given what is held");
        if !self.driver.in_place {
            assert_eq!(stats.segments, self.driver.ranges(), "every range of the driver is a segment");
        }
    }
}

/// Blocks tile, links and lists agree, nothing that may merge is apart, and the counts are those of the
/// blocks.
pub(super) fn check(allocator: &CachingAllocator) {
    check_arenas(allocator);
    check_counters(allocator);
}

pub(super) fn check_arenas(allocator: &CachingAllocator) {
    let before = allocator.snapshot();
    for arena in allocator.arenas() {
        let mut arena = arena.lock();
        arena.tidy();
        check_arena(&arena);
    }
    assert_eq!(before, allocator.snapshot(), "a picture shows what is loose as merged");
}

/// The counters are those that can be counted.
pub(super) fn check_counters(allocator: &CachingAllocator) {
    let (stats, counted) = (allocator.stats(), allocator.snapshot().stats());
    assert_eq!(
        (stats.reserved_bytes, stats.allocated_bytes, stats.pending_bytes, stats.cached_bytes),
        (counted.reserved_bytes, counted.allocated_bytes, counted.pending_bytes, counted.cached_bytes)
    );
    assert_eq!(
        (stats.live_blocks, stats.free_blocks, stats.segments, stats.largest_free_bytes),
        (counted.live_blocks, counted.free_blocks, counted.segments, counted.largest_free_bytes)
    );
    assert_eq!(stats.reserved_bytes, stats.allocated_bytes + stats.pending_bytes + stats.cached_bytes);
    assert_eq!(stats.total_allocated_bytes - stats.total_freed_bytes, stats.allocated_bytes as u64);
    assert_eq!(stats.allocations - stats.frees, stats.live_blocks);
    assert_eq!(
        allocator.reserved.load(Ordering::Relaxed),
        stats.reserved_bytes,
        "the limit counts what is held"
    );
    assert!(stats.peak_reserved_bytes >= stats.reserved_bytes);
    assert!(stats.peak_allocated_bytes >= stats.allocated_bytes);
    assert!(stats.peak_live_blocks >= stats.live_blocks);
}

fn check_arena(arena: &Arena) {
    let mut seen = 0;
    let mut free = Vec::new();
    let mut holes = Vec::new();
    for segment in arena.segments.iter() {
        let (mut index, mut previous, mut address) = (segment.first, NONE, segment.base.0.as_ptr().addr());
        while index != NONE {
            let block = &arena.blocks[index];
            assert_eq!(block.address.0.as_ptr().addr(), address, "blocks tile their segment");
            assert_eq!(block.prev, previous, "neighbours agree");
            assert!(block.units > 0);
            assert!(!matches!(block.state, State::Moving | State::Loose | State::Vacant));
            assert_eq!(block.state == State::Ready, block.state.is_free() && block.tags.foreign.is_empty());
            if previous != NONE {
                assert!(!arena.may_merge(previous, index), "neighbours that may merge are merged");
            }
            if block.state == State::Hole {
                assert_eq!((address % PAGE, block.units as usize * UNIT % PAGE), (0, 0), "whole pages");
                holes.push(index);
            } else if block.state != State::Live {
                free.push((index, block.state));
            }
            address += block.units as usize * UNIT;
            (previous, index) = (index, block.next);
            seen += 1;
        }
        assert_eq!(address, segment.base.0.as_ptr().addr() + segment.units as usize * UNIT);
    }
    assert_eq!(seen, arena.blocks.iter().count(), "every record is in a segment");
    holes.sort_unstable();
    assert_eq!(holes, arena.hole_indices(), "every hole is known");
    for state in [State::Ready, State::Pending] {
        let mut listed: Vec<u32> = arena.listed(state).collect();
        for pair in listed.windows(2) {
            let class = |index: u32| class_of(arena.blocks[index].units);
            assert!(class(pair[0]) <= class(pair[1]), "lists are by class");
        }
        listed.sort_unstable();
        let mut expected: Vec<u32> =
            free.iter().filter(|block| block.1 == state).map(|block| block.0).collect();
        expected.sort_unstable();
        assert_eq!(listed, expected, "free blocks are in their lists, once");
    }
    for index in arena.listed(State::Pending) {
        for tag in &arena.blocks[index].tags.foreign {
            let waiting = arena.waiting();
            let noted = waiting.iter().any(|of| of.stream == tag.stream && of.tick <= tag.tick);
            assert!(noted, "whoever pending blocks wait for is noted");
        }
    }
}
