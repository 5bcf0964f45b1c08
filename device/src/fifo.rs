//! The FIFO behind a stream: its queue, its worker, and its progress.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::audit::AuditLog;
use crate::barrier::{Barriers, Gate};
use crate::core::Core;
use crate::cuda::{DriverStream, in_host_function};
use crate::delay::{Before, Delay};
use crate::explorer::{Explored, Explorer};
use crate::progress::Progress;
use crate::threads::spawn;
use crate::time::Timeline;
use crate::within::{Holds, Within, may_launch, may_wait};
use crate::writes::Operand;
use crate::{Clock, Error, Moment, Panicked, Placement, Result, StreamId, SyncStats, failure, fork};

/// What a queued command does.
pub(crate) type Job = Box<dyn FnOnce(&Core) + Send>;

/// What waits in a queue.
pub(crate) enum Item {
    /// Runs nothing more before another stream has reached a tick.
    Wait { fifo: Arc<Fifo>, tick: u64 },
    /// Runs a command. It keeps the device, and with it all memory, alive until it has run.
    Run {
        tick: u64,
        op: &'static str,
        work: Job,
        /// `None` on an explored device, which runs everything before it goes.
        core: Option<Arc<Core>>,
        explored: Option<Explored>,
    },
    /// Runs nothing more before a gate is open.
    Gate { tick: u64, gate: Arc<Gate> },
}

/// What the launching side of a stream owns: the order of its commands.
pub(crate) struct Tail {
    /// The newest tick given out.
    pub(crate) tick: u64,
    /// What every later command comes after.
    pub(crate) clock: Clock,
    /// What the newest command waits for, until it is in the queue.
    pub(crate) waits: SmallVec<[(Arc<Fifo>, u64); 2]>,
    /// What the command describes that is being ordered, while writes are traced.
    pub(crate) operands: Vec<Operand>,
}

struct WorkQueue {
    items: VecDeque<Item>,
    parked: bool,
    closed: bool,
}

/// Who runs what is queued.
pub(crate) enum Runner {
    /// A thread of the stream's own, started when there is something; with pauses on a device that delays.
    Thread(Option<Delay>),
    /// The explorer, when the host waits.
    Explorer(Arc<Explorer>),
    /// The stream of a device's driver: nothing is queued here.
    Driver(DriverStream),
}

pub(crate) struct Fifo {
    pub(crate) id: StreamId,
    pub(crate) placement: Placement,
    /// Threads that one kernel may be split over.
    pub(crate) threads: usize,
    /// Held while a command is ordered and, where it runs inline, while it runs.
    pub(crate) tail: Mutex<Tail>,
    /// The newest tick given out, for readers without the tail.
    pub(crate) enqueued: AtomicU64,
    pub(crate) progress: Progress,
    /// The tail's clock over time. A leaf lock: nothing else is taken under it.
    pub(crate) timeline: Mutex<Timeline>,
    pub(crate) counters: Counters,
    queue: Mutex<WorkQueue>,
    /// Whether the queue has items, for a look without its lock.
    backlog: AtomicBool,
    pushed: Condvar,
    has_worker: AtomicBool,
    /// The ops and lines of the newest commands, by tick, while the user's own waits have to do.
    pub(crate) ops: Mutex<VecDeque<(u64, &'static str, &'static Location<'static>)>>,
    /// The device's.
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) runner: Runner,
    /// The newest tick of an explored stream that the host waited for.
    pub(crate) seen: AtomicU64,
    /// Whether the device has taken over the counts.
    pub(crate) retired: AtomicBool,
    /// The FIFOs of the stream's branches, for each number of them. They end with the stream.
    pub(crate) branches: Mutex<Vec<Vec<Arc<Fifo>>>>,
    /// What keeps commands from running by themselves. A leaf lock but for the gates in it.
    pub(crate) barriers: Barriers,
}

/// Counts of one stream; written under the tail only, read by anybody.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) launches: AtomicU64,
    pub(crate) events_recorded: AtomicU64,
    pub(crate) waits_inserted: AtomicU64,
    pub(crate) waits_elided: AtomicU64,
    /// The newest tick of this stream that another one waited for: a second waiter shares its event.
    pub(crate) marked: AtomicU64,
}

/// Adds without a read-modify-write: the tail's lock makes the caller the only writer.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> SyncStats {
        SyncStats {
            launches: self.launches.load(Ordering::Relaxed),
            events_recorded: self.events_recorded.load(Ordering::Relaxed),
            waits_inserted: self.waits_inserted.load(Ordering::Relaxed),
            waits_elided: self.waits_elided.load(Ordering::Relaxed),
            host_syncs: 0,
        }
    }
}

/// Every FIFO by its id, with the audit that is told that it goes. A stream that is not here has run everything it ever
/// held, and its audit knows that.
static REGISTRY: LazyLock<RwLock<FxHashMap<StreamId, Registered>>> = LazyLock::new(RwLock::default);

type Registered = (Weak<Fifo>, Arc<AuditLog>);

/// The FIFO of a stream that may still have work.
pub(crate) fn find(id: StreamId) -> Option<Arc<Fifo>> {
    let registry = REGISTRY.read();
    let (fifo, audit) = registry.get(&id)?;
    let fifo = fifo.upgrade();
    if fifo.is_none() {
        // That nobody has it tells that its commands have run; this makes their writes visible.
        fence(Ordering::Acquire);
        // Not every caller waits until the FIFO itself says so.
        audit.gone(id);
    }
    fifo
}

/// Whether the host can see that `moment` has passed.
pub(crate) fn reached(moment: Moment) -> bool {
    moment.tick == 0 || find(moment.stream).is_none_or(|fifo| fifo.has_reached(moment.tick))
}

impl Fifo {
    pub(crate) fn new(
        runner: Runner,
        placement: Placement,
        threads: usize,
        audit: &Arc<AuditLog>,
    ) -> Arc<Self> {
        let tail = Tail { tick: 0, clock: Clock::new(), waits: SmallVec::new(), operands: Vec::new() };
        let fifo = Arc::new(Fifo {
            id: StreamId::fresh(),
            placement,
            threads,
            tail: Mutex::new(tail),
            enqueued: AtomicU64::new(0),
            progress: Progress::new(),
            timeline: Mutex::new(Timeline::new()),
            counters: Counters::default(),
            queue: Mutex::new(WorkQueue { items: VecDeque::new(), parked: false, closed: false }),
            backlog: AtomicBool::new(false),
            pushed: Condvar::new(),
            has_worker: AtomicBool::new(matches!(runner, Runner::Explorer(_))),
            ops: Mutex::default(),
            audit: Arc::clone(audit),
            runner,
            seen: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            branches: Mutex::default(),
            barriers: Barriers::default(),
        });
        if let Some(explorer) = fifo.explorer() {
            explorer.adopt(&fifo);
        }
        // A forked process launches nothing.
        if !fork::is_child() {
            REGISTRY.write().insert(fifo.id, (Arc::downgrade(&fifo), Arc::clone(audit)));
        }
        fifo
    }

    /// The stream of the device's driver, if it has one.
    #[inline(always)]
    pub(crate) fn driver_stream(&self) -> Option<&DriverStream> {
        match &self.runner {
            Runner::Driver(driver) => Some(driver),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn explorer(&self) -> Option<&Arc<Explorer>> {
        match &self.runner {
            Runner::Explorer(explorer) => Some(explorer),
            _ => None,
        }
    }

    /// The newest moment given out, without the tail.
    #[inline(always)]
    pub(crate) fn now(&self) -> Moment {
        Moment { stream: self.id, tick: self.enqueued.load(Ordering::Acquire) }
    }

    #[inline]
    pub(crate) fn completed(&self) -> u64 {
        self.progress.completed()
    }

    /// Whether the host can see that `tick` has passed.
    pub(crate) fn has_reached(&self, tick: u64) -> bool {
        // Of an explored stream the host sees what it waited for, whatever the explorer has run.
        let reached =
            self.visible() >= tick || self.explorer().is_none() && self.query(tick).unwrap_or(false);
        if reached {
            self.audit.passed(Moment { stream: self.id, tick });
        }
        reached
    }

    /// Starts the worker if there is none yet, for `op`.
    ///
    /// # Errors
    /// `Io` if there is no thread for it; as for [`may_launch`] where the explorer takes the worker's place.
    pub(crate) fn ensure_worker(self: &Arc<Self>, op: &'static str) -> Result<()> {
        if self.explorer().is_some() {
            may_launch(op)?;
        }
        if self.has_worker.load(Ordering::Acquire) {
            return Ok(());
        }
        let _queue = self.queue.lock();
        if !self.has_worker.load(Ordering::Acquire) {
            let fifo = Arc::clone(self);
            spawn(format!("stream {}", self.id), move || fifo.work())?;
            self.has_worker.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The queue, and whether no more will come.
    pub(crate) fn with_queue<R>(&self, f: impl FnOnce(&mut VecDeque<Item>, bool) -> R) -> R {
        let mut queue = self.queue.lock();
        let closed = queue.closed;
        f(&mut queue.items, closed)
    }

    /// Appends items in order; the worker runs.
    pub(crate) fn push(&self, items: impl IntoIterator<Item = Item>) {
        let mut queue = self.queue.lock();
        queue.items.extend(items);
        self.backlog.store(true, Ordering::Release);
        if queue.parked {
            self.pushed.notify_one();
        }
    }

    /// This FIFO, those of its branches, and those of theirs.
    pub(crate) fn with_branches(self: &Arc<Self>) -> Vec<Arc<Fifo>> {
        let branches = self.branches.lock();
        let below = branches.iter().flatten().flat_map(Fifo::with_branches);
        std::iter::once(Arc::clone(self)).chain(below).collect()
    }

    /// No more items will come: the worker ends once the queue is empty.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        self.pushed.notify_one();
    }

    /// Runs commands in order until the FIFO is closed and empty.
    fn work(&self) {
        let mut items = VecDeque::new();
        let mut failed = Vec::new();
        while self.next(&mut items) {
            for item in items.drain(..) {
                match item {
                    Item::Wait { fifo, tick } => {
                        self.pause(Before::Wait, tick);
                        let mut first = None;
                        let met = |error| {
                            first.get_or_insert(error);
                        };
                        fifo.settle(tick, PATIENCE, met);
                        failed.extend(first.map(|error| FailedWait { fifo, tick, error }));
                    }
                    Item::Run { tick, op, work, core, .. } => {
                        self.pause(Before::Run, tick);
                        match core {
                            Some(core) if self.is_in_order(&mut failed, &core, op) => {
                                let recorded = core.observers.recorder.is_on();
                                self.run(&core, op, tick, Holds::Nothing, recorded, || work(&core));
                                // SAFETY: the command has run, and completes below.
                                unsafe { core.observers.ran(Moment { stream: self.id, tick }) };
                            }
                            // What it was to do is told already, and what it drops has nobody to tell.
                            _ => drop(Panicked::catch(|| drop(work))),
                        }
                        self.progress.complete(tick);
                    }
                    Item::Gate { tick, gate } => {
                        gate.pass();
                        self.progress.complete(tick);
                    }
                }
            }
        }
    }

    /// Tells the device of waits that failed, and whether `op` and what is behind it come after all that was waited for.
    fn is_in_order(&self, failed: &mut Vec<FailedWait>, core: &Core, op: &'static str) -> bool {
        failed.retain(|wait| {
            core.fail(wait.error.clone().met_by(op, self.id));
            !wait.fifo.settle(wait.tick, Duration::ZERO, drop)
        });
        failed.is_empty()
    }

    fn pause(&self, before: Before, tick: u64) {
        if let Runner::Thread(Some(delay)) = self.runner {
            delay.pause(before, tick);
        }
    }

    /// Takes everything that is queued, or waits for something; false if nothing will come any more.
    fn next(&self, items: &mut VecDeque<Item>) -> bool {
        // A hand-off to a parked worker costs tens of microseconds, so look around for a moment first.
        for _ in 0..SPINS {
            if self.backlog.load(Ordering::Acquire) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut queue = self.queue.lock();
        loop {
            if !queue.items.is_empty() {
                std::mem::swap(&mut queue.items, items);
                self.backlog.store(false, Ordering::Release);
                return true;
            }
            if queue.closed {
                return false;
            }
            queue.parked = true;
            self.pushed.wait(&mut queue);
            queue.parked = false;
        }
    }

    /// Runs one command on a thread that `holds` locks. A panic becomes the device's error and goes no further.
    #[inline]
    pub(crate) fn run(
        &self,
        core: &Core,
        op: &'static str,
        tick: u64,
        holds: Holds,
        recorded: bool,
        work: impl FnOnce(),
    ) {
        let within = Within::enter(self.id, holds);
        let start = recorded.then(Instant::now);
        // Runs where it lies: a closure of many words is not moved once more.
        let mut work = ManuallyDrop::new(work);
        // SAFETY: taken once, here.
        let work = || unsafe { ManuallyDrop::take(&mut work) }();
        let caught = Panicked::catch(work).err();
        if caught.is_some() || failure::is_reported() {
            self.fail(core, op, caught);
        }
        drop(within);
        if let Some(start) = start {
            core.observers.recorder.ran(op, Moment { stream: self.id, tick }, start);
        }
    }

    /// Keeps what the command that just ran has reported, or else its panic.
    #[cold]
    fn fail(&self, core: &Core, op: &'static str, caught: Option<Panicked>) {
        if let Some(reported) = failure::take() {
            core.fail(Error::of_command(op, self.id, reported));
        } else if let Some(panicked) = caught {
            core.fail(Error::of_command(op, self.id, panicked));
        }
    }

    /// Blocks until the stream has run `tick`, which was given out before the call.
    ///
    /// # Errors
    /// `Driver` if the stream's driver says that it will not.
    pub(crate) fn wait_until(&self, tick: u64) -> Result<()> {
        match self.driver_stream() {
            None => self.wait_for_worker(tick),
            Some(_) if self.completed() >= tick => {}
            Some(driver) => {
                let ran = driver.host_wait(tick)?;
                self.progress.raise(ran);
            }
        }
        self.audit.passed(Moment { stream: self.id, tick });
        Ok(())
    }

    /// As [`wait_until`](Self::wait_until), where a wait that fails must not count as one that ended: it is told to `met`
    /// and made again, and at last the driver is asked for `patience`. Whether the tick has surely passed.
    pub(crate) fn settle(&self, tick: u64, patience: Duration, mut met: impl FnMut(Error)) -> bool {
        for _ in 0..WAITS {
            match self.wait_until(tick) {
                Ok(()) => return true,
                Err(error) => met(error),
            }
        }
        let start = Instant::now();
        loop {
            if self.has_reached(tick) {
                return true;
            }
            if start.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether the stream has run `tick`, as far as can be seen without blocking. A driver that has failed never says so.
    ///
    /// # Errors
    /// `Driver` if the stream's driver says that it will not.
    pub(crate) fn query(&self, tick: u64) -> Result<bool> {
        if self.completed() >= tick {
            return Ok(true);
        }
        let Some(driver) = self.driver_stream() else { return Ok(false) };
        let ran = driver.poll(tick)?.unwrap_or(0);
        self.progress.raise(ran);
        Ok(ran >= tick)
    }

    /// Locks the tail for `op`.
    ///
    /// # Errors
    /// `Deadlock` if another launch has it, which may be the one whose command this thread runs; `Forked`.
    #[inline]
    pub(crate) fn lock_tail(&self, op: &'static str) -> Result<MutexGuard<'_, Tail>> {
        fork::check(op)?;
        match self.tail.try_lock() {
            Some(tail) => Ok(tail),
            None => self.wait_for_tail(op),
        }
    }

    #[cold]
    fn wait_for_tail(&self, op: &'static str) -> Result<MutexGuard<'_, Tail>> {
        may_launch(op)?;
        Ok(self.tail.lock())
    }

    /// That `op` may wait for `tick`, if there is anything to wait for.
    ///
    /// # Errors
    /// `Deadlock` within a command or a host read.
    pub(crate) fn may_wait(&self, op: &'static str, tick: u64) -> Result<()> {
        if self.completed() >= tick { Ok(()) } else { may_wait(op) }
    }

    fn wait_for_worker(&self, tick: u64) {
        for _ in 0..SPINS {
            if self.completed() >= tick {
                return;
            }
            std::hint::spin_loop();
        }
        // A command that runs inline does so under the tail and tells nobody: getting the tail means that it ended.
        // A later command may have the tail by then, so look up now and again.
        while self.tail.try_lock_for(LOOK_UP).is_none() {
            if self.completed() >= tick {
                return;
            }
        }
        self.progress.sleep_until(tick);
    }
}

/// Drops something of a driver's, on a thread of its own if this one may not call the driver.
pub(crate) fn drop_outside<T: Send + 'static>(value: T) {
    if !in_host_function() {
        return drop(value);
    }
    let value = ManuallyDrop::new(value);
    // Without a thread it is lost, which is better than calls that the driver refuses one by one.
    let _ = spawn("end of a device".to_owned(), move || drop(ManuallyDrop::into_inner(value)));
}

impl Drop for Fifo {
    /// A stream that goes has run everything. Who does not find it any more acts on that.
    fn drop(&mut self) {
        if fork::is_child() {
            // A driver's stream takes locks as it goes, and reports that are the parent's.
            return std::mem::forget(std::mem::replace(&mut self.runner, Runner::Thread(None)));
        }
        self.audit.gone(self.id);
        REGISTRY.write().remove(&self.id);
        drop_outside(std::mem::replace(&mut self.runner, Runner::Thread(None)));
    }
}

/// A wait of the worker for a driver's stream that met an error.
struct FailedWait {
    fifo: Arc<Fifo>,
    tick: u64,
    error: Error,
}

/// How often a wait that must not be lost is made before the driver is asked.
const WAITS: usize = 3;

/// How long a driver is asked that will not let anybody wait, and how often.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(2);

/// A few microseconds of looking around.
const SPINS: usize = 256;

/// How long to sleep for a tail before looking at the progress again.
const LOOK_UP: Duration = Duration::from_micros(100);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Device;

    /// What is seen of a stream that is about to go is in the audit before anybody acts on it.
    #[test]
    fn the_audit_is_told_of_a_stream_that_is_going() -> Result<()> {
        let dev = Device::cpu_with(crate::CpuConfig::default());
        dev.start_audit();
        let fifo = Fifo::new(Runner::Thread(None), Placement::Caller, 1, &dev.core().observers.audit);
        let moment = |fifo: &Fifo| Moment { stream: fifo.id, tick: 1 };
        let (write, read) = (moment(&fifo), Moment { stream: StreamId::fresh(), tick: 1 });
        let command = |moment, write| {
            let access = crate::Access { start: 0, end: 8, write };
            let accesses = [access].into_iter().collect();
            dev.core().observers.audit.command(moment, "op", std::panic::Location::caller(), accesses);
        };
        fifo.enqueued.store(1, Ordering::Release);
        fifo.progress.complete(1);
        command(write, true);
        let going = Arc::into_inner(fifo);
        assert!(going.is_some() && reached(write));
        command(read, false);
        assert_eq!(dev.stop_audit().hazards(), []);
        Ok(())
    }
}
