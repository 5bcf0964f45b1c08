//! Devices and what their streams share.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::audit::AuditLog;
use crate::borrow::{Borrows, Source};
use crate::cuda::{Context, DriverStream, FaultWord, Launcher, PinnedMemory, in_host_function};
use crate::delay::Delays;
use crate::environment::Launches;
use crate::explorer::{Choice, Explorer};
use crate::fifo::{Fault, Fifo, PATIENCE, Runner, drop_outside, reached};
use crate::hidden::HiddenSyncs;
use crate::host::Host;
use crate::recorder::{Recorder, Syncing};
use crate::stream::{Handle, Side, Stream};
use crate::within::may_launch;
use crate::{
    CpuConfig, CudaConfig, Error, HeldOutside, HostMemory, MemoryDriver, Moment, Peaks, Placement, Pool,
    Priority, Result, Schedule, StreamId, StreamOptions, SyncMode, SyncStats, Team, environment, fork,
};

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// The CUDA device with this ordinal.
    Cuda(usize),
}

/// A device that runs streams of commands. A cheap handle: clones are the same device.
///
/// A device lives until its last handle, buffer and stream is gone. A CUDA device then waits for the work that was given
/// to it, since its memory goes with it, and so for what that work waits for: while a stream of device A is held
/// ([`Stream::hold`]) and device B copies what that stream writes, dropping B's last handle blocks until the guard drops.
/// Drop the guard first, or on another thread. A queued host function keeps its device: dropping the last handle
/// elsewhere does not wait then, and the device ends once the function has run.
///
/// ```
/// use device::Device;
/// let dev = Device::cpu();
/// let stream = dev.new_stream()?;
/// stream.synchronize()?;
/// # Ok::<(), device::Error>(())
/// ```
// Holds the default stream, always the `Handle::Default` variant; `Stream::device` relies on both.
#[derive(Clone)]
#[repr(transparent)]
pub struct Device(pub(crate) Stream);

/// The driver's side of a device.
pub(crate) struct Cuda {
    /// Who makes the calls of launches, if it is not whoever launches. It ends before what it works with.
    launcher: Option<Arc<Launcher>>,
    pub(crate) fault: Arc<FaultWord>,
    pub(crate) context: Arc<Context>,
}

impl Cuda {
    fn stream(&self, priority: Priority) -> Result<DriverStream> {
        DriverStream::new(&self.context, &self.fault, priority, self.launcher.clone())
    }
}

/// What a device's streams and buffers share. It ends where the driver may be called.
pub(crate) struct Core(ManuallyDrop<Parts>);

/// What a device is made of.
pub(crate) struct Parts {
    kind: DeviceKind,
    schedule: Schedule,
    pub(crate) threads: usize,
    pub(crate) default: Arc<Fifo>,
    /// Where the host's reads are ordered among the device's writes.
    pub(crate) host: Host,
    memory: Arc<dyn MemoryDriver>,
    /// Dropped when no stream, buffer or queued command is left, with the core or with another device's last copy.
    pool: OnceLock<Arc<dyn Pool>>,
    /// What it does at best, once that is measured.
    pub(crate) peaks: Mutex<Option<Peaks>>,
    /// The threads that kernels split over, or why there are none.
    workers: OnceLock<Result<Arc<Team>>>,
    streams: Mutex<Vec<Weak<Fifo>>>,
    /// Counts of streams that are gone.
    retired: Mutex<SyncStats>,
    host_syncs: AtomicU64,
    pub(crate) fault: Arc<Fault>,
    pub(crate) cuda: Option<Cuda>,
    /// Of a CPU device whose memory is pinned: where that is known.
    pub(crate) pinned: Option<Arc<Context>>,
    /// The device of pinned memory that belongs to this CUDA device.
    host_side: OnceLock<Device>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) hidden: HiddenSyncs,
    /// Whether the user's own waits have to do.
    pub(crate) manual: AtomicBool,
    /// Whether the launch has to look at either of the two above.
    pub(crate) watched: AtomicBool,
    /// How many captures of steps are under way.
    pub(crate) captures: AtomicUsize,
    /// Whether products of F32 may round what they multiply.
    tf32: AtomicBool,
    /// Waits for each command of a driver's stream.
    pub(crate) blocking: bool,
    /// Which launches its launcher is given, if that was said.
    launcher: Option<bool>,
    /// Whether convolutions may be cuDNN's.
    pub(crate) cudnn: bool,
    /// The stream on which the host reads what is not pending.
    reads: OnceLock<Arc<Fifo>>,
    /// Streams whose last handle is gone while the driver still runs their work.
    orphans: Mutex<Vec<Arc<Fifo>>>,
    /// What copies from other devices read.
    pub(crate) borrows: Borrows,
    pub(crate) recorder: Recorder,
    pub(crate) explorer: Option<Arc<Explorer>>,
    delays: Option<Delays>,
}

impl Device {
    /// The host's processor, one device for the whole process.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::cpu_with(CpuConfig::default())).clone()
    }

    /// A CPU device of its own, with its own streams, memory and threads. If `STREAMGRAD_THREADS` is needed and makes no sense,
    /// [`Error::InvalidArgument`] is the error of its first synchronising call.
    pub fn cpu_with(config: CpuConfig) -> Device {
        let threads = or_variable(config.threads, environment::threads);
        let (threads, refused) = threads.map_or_else(|error| (None, Some(error)), |threads| (threads, None));
        let threads = threads.unwrap_or_else(cores).clamp(1, Team::MAX_HELPERS + 1);
        let placement = match config.schedule {
            Schedule::Inline => Placement::Caller,
            Schedule::Threads | Schedule::Delay { .. } | Schedule::Explore(_) => Placement::Worker,
        };
        let explorer = match config.schedule {
            Schedule::Explore(policy) => {
                Some(Arc::new(Explorer::new(policy, config.choices, config.drop_wait)))
            }
            Schedule::Inline | Schedule::Threads | Schedule::Delay { .. } => None,
        };
        let delays = match config.schedule {
            Schedule::Delay { seed } => Some(Delays::new(seed)),
            Schedule::Inline | Schedule::Threads | Schedule::Explore(_) => None,
        };
        let audit = Arc::default();
        let default = Fifo::new(runner(explorer.as_ref(), delays.as_ref()), placement, threads, &audit);
        let memory = config.memory.unwrap_or_else(|| Arc::new(HostMemory));
        let mut core = Core::new(DeviceKind::Cpu, default, memory, audit);
        core.schedule = config.schedule;
        core.threads = threads;
        core.explorer = explorer;
        core.delays = delays;
        let device = Device::of(core);
        device.fail_with(refused);
        device
    }

    fn of(core: Core) -> Device {
        let core = Arc::new(core);
        if let Some(explorer) = &core.explorer {
            // Nobody else sets it.
            let _ = explorer.core.set(Arc::downgrade(&core));
        }
        Device(Stream(Handle::Default(core)))
    }

    /// The CUDA device with this ordinal, one device for the whole process.
    ///
    /// # Errors
    /// [`Error::CudaUnavailable`] with the reason: no driver or one that is too old, no such device, no libnvrtc or libcublasLt,
    /// or a build without CUDA; [`Error::InvalidArgument`] for a [variable](environment) that makes no sense; [`Error::OutOfMemory`] if the driver has no memory left, [`Error::Driver`] if it refuses,
    /// [`Error::Io`] if all launches are to be a [launcher](CudaConfig::launcher)'s and there is no thread for it.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock();
        let known = devices.iter().find(|device| device.kind() == DeviceKind::Cuda(ordinal));
        if let Some(device) = known {
            return Ok(device.clone());
        }
        let device = Device::cuda_with(ordinal, CudaConfig::default())?;
        devices.push(device.clone());
        Ok(device)
    }

    /// The CUDA device with this ordinal, with streams and memory of its own.
    ///
    /// # Errors
    /// As for [`cuda`](Self::cuda).
    pub fn cuda_with(ordinal: usize, config: CudaConfig) -> Result<Device> {
        let context = Context::open(ordinal)?;
        let audit = Arc::default();
        let blocking = or_variable(config.blocking, environment::blocking)?.unwrap_or(false);
        let fault = FaultWord::new(&context)?;
        let launcher = match launches(config.launcher)? {
            _ if blocking => None,
            Some(true) => Some(Launcher::new(&context, &fault, true)?),
            // Without a thread whoever launches makes the calls.
            Some(false) => Launcher::new(&context, &fault, false).ok(),
            None => None,
        };
        let cuda = Cuda { fault, context: Arc::clone(&context), launcher };
        let default = Fifo::new(Runner::Driver(cuda.stream(Priority::Normal)?), Placement::Caller, 1, &audit);
        let memory = config.memory.unwrap_or_else(|| Arc::clone(&context) as Arc<dyn MemoryDriver>);
        let mut core = Core::new(DeviceKind::Cuda(ordinal), default, memory, audit);
        core.fault = Arc::new(Fault::of_driver(&cuda.fault));
        core.cuda = Some(cuda);
        core.launcher = config.launcher;
        core.blocking = blocking;
        core.cudnn = or_variable(config.cudnn, environment::cudnn)?.unwrap_or(true);
        Ok(Device::of(core))
    }

    /// A device of the same make, with streams, memory and [started](Self::start_threads) threads of its own.
    ///
    /// # Errors
    /// Those of making the device and of starting its threads.
    pub fn sibling(&self, threads: usize) -> Result<Device> {
        let memory = Some(Arc::clone(self.memory_driver()));
        match self.kind() {
            DeviceKind::Cuda(ordinal) => {
                let core = self.core();
                let config = CudaConfig {
                    memory,
                    blocking: Some(core.blocking),
                    launcher: core.launcher,
                    cudnn: Some(core.cudnn),
                };
                let device = Device::cuda_with(ordinal, config)?;
                device.set_tf32(self.tf32());
                Ok(device)
            }
            DeviceKind::Cpu => {
                let (threads, schedule) = (Some(threads), self.schedule());
                let device =
                    Device::cpu_with(CpuConfig { threads, schedule, memory, ..CpuConfig::default() });
                device.start_threads()?;
                Ok(device)
            }
        }
    }

    /// The first CUDA device if there is one, else the CPU. A [variable](environment) that makes no sense is the error of the next
    /// synchronising call.
    pub fn best() -> Device {
        Device::cuda(0).unwrap_or_else(|error| {
            let cpu = Device::cpu();
            cpu.fail_with(Some(error).filter(|error| matches!(error, Error::InvalidArgument { .. })));
            cpu
        })
    }

    /// Has the next synchronising call return an error.
    fn fail_with(&self, error: Option<Error>) {
        error.into_iter().for_each(|error| self.core().fail(error));
    }

    /// What the device is made of.
    pub fn kind(&self) -> DeviceKind {
        self.core().kind
    }

    /// Whether the host's own threads run the commands: the device shares the processor with whoever launches them.
    pub fn runs_on_host(&self) -> bool {
        self.core().cuda.is_none()
    }

    /// The host as this device sees it: a CPU device whose memory is pinned, so that copies between the two run beside the
    /// host's work; the device itself if it runs on the host.
    ///
    /// ```
    /// use device::Device;
    /// assert_eq!(Device::cpu().host(), Device::cpu());
    /// ```
    pub fn host(&self) -> Device {
        let Some(cuda) = &self.core().cuda else { return self.clone() };
        let pinned = || {
            let memory: Arc<dyn MemoryDriver> = Arc::new(PinnedMemory::of(&cuda.context));
            let audit = Arc::default();
            let default = Fifo::new(Runner::Thread(None), Placement::Caller, 1, &audit);
            let mut core = Core::new(DeviceKind::Cpu, default, memory, audit);
            core.pinned = Some(Arc::clone(&cuda.context));
            Device::of(core)
        };
        self.core().host_side.get_or_init(pinned).clone()
    }

    /// Whether what is in `other`'s memory can be copied to this device's by a command, as [`Stream::copy_across`] does:
    /// between CUDA devices, and between these and pinned memory. If not, copies go by way of the host.
    pub fn copies_from(&self, other: &Device) -> bool {
        let (ours, theirs) = (self.core(), other.core());
        match (&ours.cuda, &theirs.cuda) {
            (Some(_), _) => theirs.cuda.is_some() || theirs.pinned.is_some(),
            (None, Some(_)) => ours.pinned.is_some(),
            (None, None) => false,
        }
    }

    /// A short name, as in `cpu`.
    pub fn name(&self) -> String {
        match self.kind() {
            DeviceKind::Cpu if self.core().pinned.is_some() => "cpu (pinned)".to_owned(),
            DeviceKind::Cpu => "cpu".to_owned(),
            DeviceKind::Cuda(ordinal) => format!("cuda:{ordinal}"),
        }
    }

    /// What the device says of itself, as in `NVIDIA H200, sm_90, 132 multiprocessors`.
    pub fn description(&self) -> String {
        match &self.core().cuda {
            Some(cuda) => cuda.context.describe(),
            None => format!("{} threads", self.threads()),
        }
    }

    /// How the device runs its commands.
    pub fn schedule(&self) -> Schedule {
        self.core().schedule
    }

    /// The stream that ops run on unless a scope names another.
    pub fn default_stream(&self) -> Stream {
        self.0.clone()
    }

    /// A stream that runs beside the others.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread for it.
    pub fn new_stream(&self) -> Result<Stream> {
        self.new_stream_with(StreamOptions::default())
    }

    /// A stream with a priority.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread for it.
    pub fn new_stream_with_priority(&self, priority: Priority) -> Result<Stream> {
        self.new_stream_with(StreamOptions { priority, ..StreamOptions::default() })
    }

    /// A stream with every option named.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread for it, [`Error::Deadlock`] within a command of an explored device.
    pub fn new_stream_with(&self, options: StreamOptions) -> Result<Stream> {
        let (fifo, priority) = (self.new_fifo(options)?, options.priority);
        Ok(Stream(Handle::Side(Arc::new(Side { device: self.clone(), fifo, priority, branch_of: None }))))
    }

    /// What a new stream is made of.
    pub(crate) fn new_fifo(&self, options: StreamOptions) -> Result<Arc<Fifo>> {
        let core = self.core();
        if core.explorer.is_some() {
            // The explorer is locked while it runs a command.
            may_launch("new_stream")?;
        }
        core.sweep();
        if let Some(cuda) = &core.cuda {
            let stream = core.with_room(|| cuda.stream(options.priority))?;
            let fifo = Fifo::new(Runner::Driver(stream), Placement::Caller, 1, &core.audit);
            return Ok(self.add(fifo));
        }
        let threads = options.threads.unwrap_or(core.threads).clamp(1, core.threads);
        let placement = match core.schedule {
            Schedule::Inline => options.placement,
            Schedule::Threads | Schedule::Delay { .. } | Schedule::Explore(_) => Placement::Worker,
        };
        let runner = runner(core.explorer.as_ref(), core.delays.as_ref());
        let fifo = Fifo::new(runner, placement, threads, &core.audit);
        if placement == Placement::Worker {
            fifo.ensure_worker("new_stream")?;
        }
        Ok(self.add(fifo))
    }

    /// Has the device know of a stream.
    fn add(&self, fifo: Arc<Fifo>) -> Arc<Fifo> {
        let mut streams = self.core().streams.lock();
        streams.retain(|weak| weak.strong_count() > 0);
        streams.push(Arc::downgrade(&fifo));
        fifo
    }

    /// Blocks until every command launched so far has run.
    ///
    /// # Errors
    /// [`Error::Async`] with the first command that failed since the last synchronising call; [`Error::Deadlock`] if it
    /// would wait within a command or a host read.
    pub fn synchronize(&self) -> Result<()> {
        self.0.not_captured("synchronize", "nothing has run that the host could wait for")?;
        let core = self.core();
        let streams = core.live_streams();
        let newest = |fifo: &Arc<Fifo>| fifo.enqueued.load(Ordering::Acquire);
        let awaited = streams.iter().map(|fifo| Moment { stream: fifo.id, tick: newest(fifo) });
        let _syncing = core.host_sync("synchronize", awaited);
        for fifo in streams {
            fifo.host_wait("synchronize", core, newest(&fifo))?;
        }
        core.sweep();
        core.take_fault()
    }

    /// Blocks until every command launched so far has run, where the thread may wait. Errors are left to those who
    /// synchronise.
    pub(crate) fn await_streams(&self) {
        let core = self.core();
        for fifo in core.live_streams() {
            let _refused = fifo.host_wait("synchronize", core, fifo.enqueued.load(Ordering::Acquire));
        }
    }

    /// Who keeps commands of different streams in order, from the next launch on.
    ///
    /// ```
    /// use device::{Device, SyncMode};
    /// let dev = Device::cpu_with(device::CpuConfig::default());
    /// dev.set_sync_mode(SyncMode::Manual);
    /// assert_eq!(dev.sync_mode(), SyncMode::Manual);
    /// ```
    pub fn set_sync_mode(&self, mode: SyncMode) {
        let core = self.core();
        core.manual.store(mode == SyncMode::Manual, Ordering::Release);
        core.watch();
    }

    /// Who keeps commands of different streams in order.
    pub fn sync_mode(&self) -> SyncMode {
        if self.core().manual.load(Ordering::Acquire) { SyncMode::Manual } else { SyncMode::Auto }
    }

    /// Whether products of F32 on a CUDA device may use TF32, from the next launch on: matrix products, linear maps,
    /// convolutions and attention. What they multiply is then rounded to 10 bits of mantissa, a relative error of up to
    /// 2^-11 for each factor, and they are several times as fast; sums stay F32, and elements of other types are left
    /// alone. Off at first.
    ///
    /// A CPU has no TF32: there this does nothing, and [`tf32`](Self::tf32) stays `false`.
    ///
    /// ```
    /// let dev = device::Device::cpu_with(device::CpuConfig::default());
    /// dev.set_tf32(true);
    /// assert!(!dev.tf32());
    /// ```
    pub fn set_tf32(&self, allowed: bool) {
        let core = self.core();
        core.tf32.store(allowed && core.cuda.is_some(), Ordering::Relaxed);
    }

    /// Whether products of F32 may round what they multiply.
    pub fn tf32(&self) -> bool {
        self.core().tf32()
    }

    /// Counts of launches, events, waits and host synchronisations since the device was made.
    pub fn sync_stats(&self) -> SyncStats {
        let core = self.core();
        let retired = core.retired.lock();
        let mut total = *retired;
        for fifo in core.streams.lock().iter().filter_map(Weak::upgrade) {
            if !fifo.is_retired() {
                total.add(fifo.counters.read());
            }
        }
        total.host_syncs += core.host_syncs.load(Ordering::Relaxed);
        total
    }

    /// The decisions of an explored schedule so far; none on other schedules.
    pub fn choices(&self) -> Vec<Choice> {
        self.core().explorer.as_ref().map(|explorer| explorer.choices()).unwrap_or_default()
    }

    /// Threads that one kernel may be split over.
    pub fn threads(&self) -> usize {
        self.core().threads
    }

    /// Starts the threads that kernels are split over. Else the first large kernel does, and no kernel is split if the system
    /// gives fewer.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives fewer.
    pub fn start_threads(&self) -> Result<()> {
        self.core().start_workers().map_or(Ok(()), |workers| workers.as_ref().map(drop).map_err(Error::clone))
    }

    /// Where the device's memory comes from.
    pub fn memory_driver(&self) -> &Arc<dyn MemoryDriver> {
        &self.core().memory
    }

    /// What the device holds outside its memory pool; nothing on a CPU.
    pub fn held_outside(&self) -> HeldOutside {
        let Some(cuda) = &self.core().cuda else { return HeldOutside::default() };
        let held = cuda.context.held();
        HeldOutside { pinned_bytes: held.pinned_bytes + FaultWord::BYTES, ..held }
    }

    /// The device's memory pool; the first caller decides which.
    pub fn pool_or_init(&self, init: impl FnOnce() -> Box<dyn Pool>) -> &dyn Pool {
        &**self.core().pool.get_or_init(|| Arc::from(init()))
    }

    /// Gives the driver back the pinned host memory that is kept for copies and that no command uses any more: nothing on a
    /// CPU, and nothing while a stream of the device is held, which the driver might wait for.
    pub fn trim_pinned(&self) {
        if let Some(cuda) = &self.core().cuda {
            cuda.context.trim_pinned();
        }
    }

    /// Whether the host can see that `moment` has passed.
    pub fn reached(&self, moment: Moment) -> bool {
        reached(moment)
    }

    /// A command of `stream` has failed, as a library that the device works with found out later: `error` is the source of the
    /// [`Error::Async`] of the next synchronising call, unless another command failed before.
    pub fn fail(&self, op: &'static str, stream: StreamId, error: Error) {
        self.core().fail(Error::Async { op, stream, source: Arc::new(error) });
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        match &self.0.0 {
            Handle::Default(core) => core,
            // SAFETY: a device wraps its default stream and nothing else.
            Handle::Side(_) => unsafe { std::hint::unreachable_unchecked() },
        }
    }
}

impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

impl Core {
    /// A device that runs inline on one thread.
    fn new(
        kind: DeviceKind,
        default: Arc<Fifo>,
        memory: Arc<dyn MemoryDriver>,
        audit: Arc<AuditLog>,
    ) -> Core {
        fork::watch();
        Core(ManuallyDrop::new(Parts {
            kind,
            schedule: Schedule::Inline,
            threads: 1,
            streams: Mutex::new(vec![Arc::downgrade(&default)]),
            default,
            host: Host::new(&audit),
            memory,
            pool: OnceLock::new(),
            peaks: Mutex::default(),
            workers: OnceLock::new(),
            retired: Mutex::default(),
            host_syncs: AtomicU64::new(0),
            fault: Arc::default(),
            cuda: None,
            pinned: None,
            host_side: OnceLock::new(),
            audit,
            hidden: HiddenSyncs::default(),
            manual: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            captures: AtomicUsize::new(0),
            tf32: AtomicBool::new(false),
            launcher: None,
            blocking: false,
            cudnn: false,
            reads: OnceLock::new(),
            orphans: Mutex::default(),
            borrows: Borrows::default(),
            recorder: Recorder::default(),
            explorer: None,
            delays: None,
        }))
    }

    /// The stream of a CUDA device on which the host reads what is not pending.
    pub(crate) fn reads(&self) -> Result<&Arc<Fifo>> {
        if let (None, Some(cuda)) = (self.reads.get(), &self.cuda) {
            let stream = DriverStream::new(&cuda.context, &cuda.fault, Priority::High, None)?;
            let made = Fifo::new(Runner::Driver(stream), Placement::Caller, 1, &self.audit);
            // Who comes second drops a stream that did nothing.
            let _ = self.reads.set(made);
        }
        Ok(self.reads.get().unwrap_or(&self.default))
    }

    /// Has the launch look at what may have been asked for.
    pub(crate) fn watch(&self) {
        let watched = self.manual.load(Ordering::Acquire) || self.audit.is_on();
        self.watched.store(watched, Ordering::Release);
    }

    /// Keeps the driver's stream of a handle that is gone until it has run dry.
    pub(crate) fn adopt(&self, fifo: &Arc<Fifo>) {
        if fifo.driver_stream().is_some() {
            self.orphans.lock().push(Arc::clone(fifo));
            self.sweep();
        }
    }

    /// The memory of `other`, with its context, stays until the copy at `moment` that uses it has passed.
    pub(crate) fn borrow_until(&self, moment: Moment, other: &Core, context: &Arc<Context>) {
        let memory = Source { pool: other.pool.get().cloned(), context: Arc::clone(context) };
        self.borrows.keep(moment, Some(memory), &self.fault);
    }

    /// Failures of `source` are reported here, too, since the copy at `moment` may bring what they led to.
    pub(crate) fn inherit_faults(&self, moment: Moment, source: &Core) {
        self.borrows.keep(moment, None, &source.fault);
        for fault in source.borrows.faults() {
            self.borrows.keep(moment, None, &fault);
        }
    }

    /// Lets go of streams without handles that have run dry, and of what other devices' memory was kept for.
    fn sweep(&self) {
        // A host function may drop a stream, but not ask the driver about it.
        if (self.cuda.is_some() || self.pinned.is_some()) && !in_host_function() {
            self.orphans.lock().retain(|fifo| !fifo.has_run(fifo.enqueued.load(Ordering::Acquire)));
            self.borrows.sweep();
        }
    }

    /// Whether some thread captures a step.
    #[inline(always)]
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn tf32(&self) -> bool {
        self.tf32.load(Ordering::Relaxed)
    }

    pub(crate) fn fail(&self, error: Error) {
        self.fault.keep_first(error);
    }

    pub(crate) fn has_fault(&self) -> bool {
        self.fault.is_set() || self.pinned.is_some() && self.borrows.has_fault()
    }

    pub(crate) fn take_fault(&self) -> Result<()> {
        self.fault.take()?;
        if self.cuda.is_some() || self.pinned.is_some() {
            self.borrows.take_fault()?;
            self.borrows.sweep();
        }
        Ok(())
    }

    /// The host waits from now on for `awaited`, until the value drops.
    pub(crate) fn host_sync(
        &self,
        op: &'static str,
        awaited: impl IntoIterator<Item = Moment>,
    ) -> Option<Syncing<'_>> {
        self.host_syncs.fetch_add(1, Ordering::Relaxed);
        self.recorder.syncing(op, awaited)
    }

    fn live_streams(&self) -> Vec<Arc<Fifo>> {
        self.streams.lock().iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn pool(&self) -> Option<&dyn Pool> {
        self.pool.get().map(|pool| &**pool)
    }

    /// Makes something that takes the driver's memory; if there is none left, once more without what the pool keeps.
    pub(crate) fn with_room<R>(&self, make: impl Fn() -> Result<R>) -> Result<R> {
        let made = make();
        match (&made, self.pool()) {
            (Err(Error::OutOfMemory { .. }), Some(pool)) => {
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
    fn start_workers(&self) -> Option<&Result<Arc<Team>>> {
        let start = || Team::new("kernel", self.threads - 1).map(Arc::new);
        (self.threads > 1).then(|| self.workers.get_or_init(start))
    }

    /// Keeps the counts of a stream whose last handle is gone.
    pub(crate) fn retire(&self, fifo: &Fifo) {
        let mut retired = self.retired.lock();
        retired.add(fifo.counters.read());
        fifo.set_retired();
    }
}

impl Deref for Core {
    type Target = Parts;

    #[inline(always)]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Core {
    fn deref_mut(&mut self) -> &mut Parts {
        &mut self.0
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A forked process has none of the threads and no driver that the parts would wait for.
        if fork::is_child() {
            return;
        }
        if let Some(explorer) = self.explorer.clone() {
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
        let mut fifos = std::mem::take(self.orphans.get_mut());
        fifos.extend(self.reads.get().cloned());
        let own = self.default.with_branches();
        fifos.extend(own.iter().cloned());
        fifos.retain(|fifo| fifo.driver_stream().is_some());
        // Memory goes with the device, so its work has to be done; a failure has nobody left to tell.
        let mut done = true;
        for fifo in &fifos {
            let patience = if done { PATIENCE } else { Duration::ZERO };
            done &= fifo.settle(fifo.enqueued.load(Ordering::Acquire), patience, drop);
        }
        if !done {
            // The driver may still run work that uses all of this, and nobody is left who could find out when it ends.
            // Memory that is lost harms less than memory that is freed in use.
            let context = self.cuda.as_ref().map(|cuda| Arc::clone(&cuda.context));
            let memory = (self.pool.take(), Arc::clone(&self.memory), std::mem::take(&mut self.borrows));
            std::mem::forget((fifos, memory, context));
        }
        own.iter().for_each(|fifo| fifo.close());
    }
}

/// What runs the next stream of a CPU device.
fn runner(explorer: Option<&Arc<Explorer>>, delays: Option<&Delays>) -> Runner {
    match explorer {
        Some(explorer) => Runner::Explorer(Arc::clone(explorer)),
        None => Runner::Thread(delays.map(Delays::of_next_stream)),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Whether a launcher is given all launches or those of long runs; `None` for none.
fn launches(wanted: Option<bool>) -> Result<Option<bool>> {
    // With fewer, the program's own threads may want them all.
    const CORES: usize = 4;
    let has_room = || std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= CORES);
    if let Some(all) = wanted {
        return Ok(all.then_some(true));
    }
    Ok(match environment::launches()? {
        Some(Launches::None) => None,
        Some(Launches::LongRuns) => Some(false),
        Some(Launches::All) => Some(true),
        // A tool finds a kernel's range by the thread that launches it.
        None => (has_room() && !crate::nvtx::is_followed()).then_some(false),
    })
}

/// What was asked for, or else what a variable says.
fn or_variable<T>(wanted: Option<T>, variable: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    if wanted.is_some() { Ok(wanted) } else { variable() }
}
