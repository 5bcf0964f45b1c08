//! What a device's streams and buffers share.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::audit::AuditLog;
use crate::borrow::{Borrows, Source};
use crate::cuda::{Context, DriverStream, FaultWord, Launcher, in_host_function};
use crate::delay::Delays;
use crate::explorer::Explorer;
use crate::fifo::{Fifo, PATIENCE, Runner, drop_outside, reached};
use crate::hidden::HiddenSyncs;
use crate::recorder::{Recorder, Syncing};
use crate::writes::WriteLog;
use crate::{
    CudaConfig, Device, Error, ErrorKind, MemoryDriver, Moment, Peaks, Placement, Pool, Priority, Result,
    Schedule, Stuck, SyncStats, Team, fork,
};

/// What runs a device's commands.
pub(crate) enum Backend {
    /// Threads of the host, with pauses on a device that delays.
    Host(Option<Delays>),
    /// Threads of the host, with pinned memory, which this context's device reaches.
    Pinned(Arc<Context>),
    /// The thread that synchronises, one command at a time.
    Explored(Arc<Explorer>),
    /// The driver.
    Cuda(Cuda),
}

impl Backend {
    /// What runs the next stream of a device of the host.
    pub(crate) fn host_runner(&self) -> Runner {
        match self {
            Backend::Host(delays) => Runner::Thread(delays.as_ref().map(Delays::of_next_stream)),
            Backend::Explored(explorer) => Runner::Explorer(Arc::clone(explorer)),
            Backend::Pinned(_) | Backend::Cuda(_) => Runner::Thread(None),
        }
    }
}

/// The driver's side of a device.
pub(crate) struct Cuda {
    /// Optional thread that issues driver launches. Declared first so that it is dropped before the context.
    pub(crate) launcher: Option<Arc<Launcher>>,
    pub(crate) fault: Arc<FaultWord>,
    pub(crate) context: Arc<Context>,
    pub(crate) ordinal: usize,
    /// As the device was configured; `memory` is the core's.
    pub(crate) config: CudaConfig,
    /// Whether F32 matmuls may use TF32.
    pub(crate) tf32: AtomicBool,
    /// The stream on which the host reads what is not pending.
    pub(crate) reads: OnceLock<Arc<Fifo>>,
    /// The CPU device whose memory is pinned.
    pub(crate) host_side: OnceLock<Device>,
}

impl Cuda {
    /// A new stream.
    pub(crate) fn stream(&self, priority: Priority) -> Result<DriverStream> {
        self.context.stream(&self.fault, priority, self.launcher.clone())
    }
}

/// What a device's streams and buffers share. It ends where the driver may be called.
pub(crate) struct Core(ManuallyDrop<Parts>);

/// What a device is made of.
pub(crate) struct Parts {
    pub(crate) schedule: Schedule,
    pub(crate) threads: usize,
    pub(crate) default: Arc<Fifo>,
    /// Where the host's reads are ordered among the device's writes.
    pub(crate) host: Host,
    pub(crate) memory: Arc<dyn MemoryDriver>,
    /// Dropped when no stream, buffer or queued command is left, with the core or with another device's last copy.
    pub(crate) pool: OnceLock<Arc<dyn Pool>>,
    /// What it does at best, once that is measured.
    pub(crate) peaks: Mutex<Option<Peaks>>,
    /// The threads that kernels split over, or why there are none.
    workers: OnceLock<Result<Arc<Team>>>,
    pub(crate) backend: Backend,
    pub(crate) streams: Streams,
    pub(crate) health: Health,
    pub(crate) observers: Observers,
}

/// The streams of a device, and counts.
pub(crate) struct Streams {
    live: Mutex<Vec<Weak<Fifo>>>,
    /// Counts of streams that are gone.
    retired: Mutex<SyncStats>,
    host_syncs: AtomicU64,
}

/// What has failed, and what is not over yet.
#[derive(Default)]
pub(crate) struct Health {
    pub(crate) fault: Arc<Fault>,
    /// How many captures of steps are under way.
    pub(crate) captures: AtomicUsize,
    /// Streams whose last handle is gone while the driver still runs their work.
    orphans: Mutex<Vec<Arc<Fifo>>>,
    /// What copies from other devices read.
    borrows: Borrows,
}

/// What watches commands.
#[derive(Default)]
pub(crate) struct Observers {
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) writes: WriteLog,
    pub(crate) recorder: Recorder,
    pub(crate) hidden: HiddenSyncs,
    /// Whether the user's own waits have to do.
    pub(crate) manual: AtomicBool,
    /// Whether a launch has to look at the audit, the trace of writes or manual mode.
    pub(crate) watched: AtomicBool,
}

impl Observers {
    /// Has launches look at what may have been asked for.
    pub(crate) fn watch(&self) {
        let watched = self.manual.load(Ordering::Acquire) || self.audit.is_on() || self.writes.is_on();
        self.watched.store(watched, Ordering::Release);
    }

    /// Tells the trace of writes that a driver was given the command at `moment`.
    ///
    /// # Safety
    /// As for [`WriteLog::stage`].
    #[inline(always)]
    pub(crate) unsafe fn launched(&self, driver: &DriverStream, moment: Moment) {
        if self.watched.load(Ordering::Relaxed) && self.writes.is_on() {
            // SAFETY: the caller's promise.
            unsafe { self.writes.stage(driver, moment) }
        }
    }

    /// Tells the trace of writes that the command at `moment` has run.
    ///
    /// # Safety
    /// As for [`WriteLog::ran`].
    #[inline(always)]
    pub(crate) unsafe fn ran(&self, moment: Moment) {
        if self.watched.load(Ordering::Relaxed) && self.writes.is_on() {
            // SAFETY: the caller's promise.
            unsafe { self.writes.ran(moment) }
        }
    }
}

impl Streams {
    /// Adds a stream.
    pub(crate) fn add(&self, fifo: &Arc<Fifo>) {
        let mut live = self.live.lock();
        live.retain(|weak| weak.strong_count() > 0);
        live.push(Arc::downgrade(fifo));
    }

    pub(crate) fn live(&self) -> Vec<Arc<Fifo>> {
        self.live.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Keeps the counts of a stream whose last handle is gone.
    pub(crate) fn retire(&self, fifo: &Fifo) {
        let mut retired = self.retired.lock();
        retired.add(fifo.counters.read());
        fifo.retired.store(true, Ordering::Release);
    }

    /// Counts since the device was made.
    pub(crate) fn stats(&self) -> SyncStats {
        let retired = self.retired.lock();
        let mut total = *retired;
        for fifo in self.live.lock().iter().filter_map(Weak::upgrade) {
            if !fifo.retired.load(Ordering::Acquire) {
                total.add(fifo.counters.read());
            }
        }
        total.host_syncs += self.host_syncs.load(Ordering::Relaxed);
        total
    }
}

impl Core {
    pub(crate) fn new(
        backend: Backend,
        schedule: Schedule,
        threads: usize,
        runner: Runner,
        memory: Arc<dyn MemoryDriver>,
    ) -> Core {
        fork::watch();
        let observers = Observers::default();
        let default = Fifo::new(runner, schedule.placement(Placement::Caller), threads, &observers.audit);
        let live = Mutex::new(vec![Arc::downgrade(&default)]);
        let fault = match &backend {
            Backend::Cuda(cuda) => Arc::new(Fault::of_driver(&cuda.fault)),
            _ => Arc::default(),
        };
        Core(ManuallyDrop::new(Parts {
            schedule,
            threads,
            default,
            host: Host::new(&observers.audit),
            memory,
            pool: OnceLock::new(),
            peaks: Mutex::default(),
            workers: OnceLock::new(),
            backend,
            streams: Streams { live, retired: Mutex::default(), host_syncs: AtomicU64::new(0) },
            health: Health { fault, ..Health::default() },
            observers,
        }))
    }

    /// The driver's side, of a CUDA device.
    #[inline]
    pub(crate) fn cuda(&self) -> Option<&Cuda> {
        match &self.backend {
            Backend::Cuda(cuda) => Some(cuda),
            _ => None,
        }
    }

    pub(crate) fn explorer(&self) -> Option<&Arc<Explorer>> {
        match &self.backend {
            Backend::Explored(explorer) => Some(explorer),
            _ => None,
        }
    }

    /// The context in which the device's memory is: a CUDA device's, or that of which it is pinned memory.
    pub(crate) fn context(&self) -> Option<&Arc<Context>> {
        match &self.backend {
            Backend::Cuda(cuda) => Some(&cuda.context),
            Backend::Pinned(context) => Some(context),
            Backend::Host(_) | Backend::Explored(_) => None,
        }
    }

    /// The stream of a CUDA device on which the host reads what is not pending.
    pub(crate) fn reads(&self) -> Result<&Arc<Fifo>> {
        let Some(cuda) = self.cuda() else { return Ok(&self.default) };
        if let Some(made) = cuda.reads.get() {
            return Ok(made);
        }
        let stream = cuda.context.stream(&cuda.fault, Priority::High, None)?;
        let made = Fifo::new(Runner::Driver(stream), Placement::Caller, 1, &self.observers.audit);
        // If two threads make one at once, the second drops its own, which did nothing.
        Ok(cuda.reads.get_or_init(|| made))
    }

    /// Keeps the driver's stream of a handle that is gone until it has run dry.
    pub(crate) fn adopt(&self, fifo: &Arc<Fifo>) {
        if fifo.driver_stream().is_some() {
            self.health.orphans.lock().push(Arc::clone(fifo));
            self.sweep();
        }
    }

    /// The memory of `other`, with its context, stays until the copy at `moment` that uses it has passed.
    pub(crate) fn borrow_until(&self, moment: Moment, other: &Core, context: &Arc<Context>) {
        let memory = Source { pool: other.pool.get().cloned(), context: Arc::clone(context) };
        self.health.borrows.keep(moment, Some(memory), &self.health.fault);
    }

    /// Failures of `source` are reported here, too, since the copy at `moment` may bring what they led to.
    pub(crate) fn inherit_faults(&self, moment: Moment, source: &Core) {
        self.health.borrows.keep(moment, None, &source.health.fault);
        for fault in source.health.borrows.faults() {
            self.health.borrows.keep(moment, None, &fault);
        }
    }

    /// Lets go of streams without handles that have run dry, and of what other devices' memory was kept for.
    pub(crate) fn sweep(&self) {
        // A host function may drop a stream, but not ask the driver about it.
        if self.context().is_some() && !in_host_function() {
            let is_busy = |fifo: &mut Arc<Fifo>| !matches!(fifo.query(fifo.now().tick), Ok(true));
            self.health.orphans.lock().retain_mut(is_busy);
            self.health.borrows.sweep();
        }
    }

    /// Whether some thread captures a step.
    #[inline(always)]
    pub(crate) fn is_capturing(&self) -> bool {
        self.health.captures.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn tf32(&self) -> bool {
        self.cuda().is_some_and(|cuda| cuda.tf32.load(Ordering::Relaxed))
    }

    pub(crate) fn fail(&self, error: Error) {
        self.health.fault.keep_first(error);
    }

    pub(crate) fn has_fault(&self) -> bool {
        self.health.fault.is_set()
            || matches!(self.backend, Backend::Pinned(_)) && self.health.borrows.has_fault()
    }

    #[track_caller]
    pub(crate) fn take_fault(&self) -> Result<()> {
        self.health.fault.take()?;
        if self.context().is_some() {
            self.health.borrows.take_fault()?;
            self.health.borrows.sweep();
        }
        Ok(())
    }

    /// The host waits from now on for `awaited`, until the value drops.
    ///
    /// # Errors
    /// `Forked`.
    pub(crate) fn host_sync(
        &self,
        op: &'static str,
        awaited: impl IntoIterator<Item = Moment>,
    ) -> Result<Option<Syncing<'_>>> {
        fork::check(op)?;
        self.streams.host_syncs.fetch_add(1, Ordering::Relaxed);
        Ok(self.observers.recorder.syncing(op, awaited))
    }

    pub(crate) fn pool(&self) -> Option<&dyn Pool> {
        self.pool.get().map(|pool| &**pool)
    }

    /// Makes something that takes the driver's memory; if there is none left, once more without what the pool keeps.
    pub(crate) fn with_room<R>(&self, make: impl Fn() -> Result<R>) -> Result<R> {
        let made = make();
        match (made.as_ref().map_err(Error::kind), self.pool()) {
            (Err(ErrorKind::OutOfMemory { .. }), Some(pool)) => {
                pool.make_room(&reached);
                make()
            }
            _ => made,
        }
    }

    /// The threads that kernels split over; `None` if there is one only, or the system gives no more.
    pub(crate) fn workers(&self) -> Option<&Arc<Team>> {
        self.start_workers()?.as_ref().ok()
    }

    /// As [`workers`](Self::workers), with the error.
    pub(crate) fn start_workers(&self) -> Option<&Result<Arc<Team>>> {
        let start = || Team::new("kernel", self.threads - 1).map(Arc::new);
        (self.threads > 1).then(|| self.workers.get_or_init(start))
    }
}

impl Deref for Core {
    type Target = Parts;

    #[inline(always)]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A forked process has none of the threads and no driver that the parts would wait for.
        if fork::is_child() {
            return;
        }
        if let Some(explorer) = self.explorer().cloned() {
            explorer.finish(self);
        }
        // SAFETY: taken once, here, where nobody has the core any more.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        // A host function may have had the last handle; its own stream ends after it.
        drop_outside(parts);
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let mut fifos = std::mem::take(self.health.orphans.get_mut());
        let own = self.default.with_branches();
        fifos.extend(own.iter().cloned());
        let mut context = None;
        if let Backend::Cuda(cuda) = &self.backend {
            fifos.extend(cuda.reads.get().cloned());
            context = Some(Arc::clone(&cuda.context));
        }
        fifos.retain(|fifo| fifo.driver_stream().is_some());
        // Memory goes with the device, so its work has to be done; a failure has nobody left to tell.
        let mut done = true;
        for fifo in &fifos {
            let patience = if done { PATIENCE } else { Duration::ZERO };
            done &= fifo.settle(fifo.now().tick, patience, drop);
        }
        if !done {
            // The driver may still run work that uses all of this, and no later call can find out when it ends.
            // Memory that is lost harms less than memory that is freed in use.
            let borrows = std::mem::take(&mut self.health.borrows);
            std::mem::forget((fifos, self.pool.take(), Arc::clone(&self.memory), borrows, context));
        }
        own.iter().for_each(|fifo| fifo.close());
    }
}

/// The host's reads as commands of a FIFO without a worker: each runs on the thread that asked, several at once.
pub(crate) struct Host {
    fifo: Arc<Fifo>,
    reads: Mutex<Reads>,
}

struct Reads {
    /// The newest tick given out.
    newest: u64,
    /// The ticks that are being read at, ascending.
    open: SmallVec<[u64; 4]>,
}

impl Host {
    pub(crate) fn new(audit: &Arc<AuditLog>) -> Self {
        Host {
            fifo: Fifo::new(Runner::Thread(None), Placement::Caller, 1, audit),
            reads: Mutex::new(Reads { newest: 0, open: SmallVec::new() }),
        }
    }

    /// Begins a read. A wait for its moment is a wait for every read that is open now. Calls `tell` with the moment, in the
    /// order of moments.
    pub(crate) fn begin(&self, tell: impl FnOnce(Moment)) -> Moment {
        let mut reads = self.reads.lock();
        reads.newest += 1;
        let moment = Moment { stream: self.fifo.id, tick: reads.newest };
        reads.open.push(moment.tick);
        self.fifo.add_barrier(moment.tick, Stuck::Lent, None);
        self.fifo.enqueued.store(moment.tick, Ordering::Release);
        tell(moment);
        moment
    }

    /// Ends a read.
    pub(crate) fn end(&self, read: Moment) {
        // Before anybody can take it for passed.
        self.fifo.audit.ended(read);
        let mut reads = self.reads.lock();
        reads.open.retain(|tick| *tick != read.tick);
        let passed = reads.open.first().map_or(reads.newest, |open| open - 1);
        self.fifo.progress.complete(passed);
    }
}

/// The first error of a device that has not been reported yet.
#[derive(Default)]
pub(crate) struct Fault {
    set: AtomicBool,
    error: Mutex<Option<Error>>,
    /// Where kernels report.
    word: Option<Arc<FaultWord>>,
}

impl Fault {
    /// Of a device whose kernels report in `word`.
    pub(crate) fn of_driver(word: &Arc<FaultWord>) -> Fault {
        Fault { word: Some(Arc::clone(word)), ..Fault::default() }
    }

    pub(crate) fn keep_first(&self, error: Error) {
        self.error.lock().get_or_insert(error);
        self.set.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire) || self.word.as_ref().is_some_and(|word| word.is_set())
    }

    /// Reports the error once, at the call that takes it; the device goes on afterwards.
    #[track_caller]
    pub(crate) fn take(&self) -> Result<()> {
        if !self.is_set() {
            return Ok(());
        }
        if let Some(error) = self.word.as_ref().and_then(|word| word.take()) {
            self.keep_first(error);
        }
        let mut error = self.error.lock();
        self.set.store(false, Ordering::Release);
        error.take().map_or(Ok(()), |error| Err(error.here()))
    }
}
