//! Devices and what their streams share.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::core::{Backend, Core, Cuda};
use crate::cuda::{Context, FaultWord, PinnedMemory};
use crate::delay::Delays;
use crate::explorer::{Choice, Explorer};
use crate::fifo::{Fifo, Runner, reached};
use crate::stream::{Handle, Side, Stream};
use crate::within::may_launch;
use crate::{
    CpuConfig, CudaConfig, Error, ErrorKind, HeldOutside, HostMemory, MemoryDriver, Moment, Placement, Pool,
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

#[derive::located]
impl Device {
    /// The host's processor, one device for the whole process.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::cpu_with(CpuConfig::default())).clone()
    }

    /// A CPU device of its own, with its own streams, memory and threads. If `STREAMGRAD_THREADS` is needed and makes no sense,
    /// `InvalidArgument` is the error of its first synchronising call.
    pub fn cpu_with(config: CpuConfig) -> Device {
        let threads = or_variable(config.threads, environment::threads);
        let (threads, refused) = threads.map_or_else(|error| (None, Some(error)), |threads| (threads, None));
        let threads = threads.unwrap_or_else(cores).clamp(1, Team::MAX_HELPERS + 1);
        let backend = match config.schedule {
            Schedule::Explore(policy) => {
                Backend::Explored(Arc::new(Explorer::new(policy, config.choices, config.drop_wait)))
            }
            Schedule::Delay { seed } => Backend::Host(Some(Delays::new(seed))),
            Schedule::Inline | Schedule::Threads => Backend::Host(None),
        };
        let memory = config.memory.unwrap_or_else(|| Arc::new(HostMemory));
        let runner = backend.host_runner();
        let device = Device::of(Core::new(backend, config.schedule, threads, runner, memory));
        refused.into_iter().for_each(|error| device.core().fail(error));
        device
    }

    fn of(core: Core) -> Device {
        let core = Arc::new(core);
        if let Some(explorer) = core.explorer() {
            // Nobody else sets it.
            let _ = explorer.core.set(Arc::downgrade(&core));
        }
        Device(Stream(Handle::Default(core)))
    }

    /// The CUDA device with this ordinal, one device for the whole process.
    ///
    /// # Errors
    /// `CudaUnavailable` with the reason: no driver or one that is too old, no such device, no libnvrtc or libcublasLt,
    /// or a build without CUDA; `InvalidArgument` for a [variable](environment) that makes no sense; `OutOfMemory` if the driver has no memory left, `Driver` if it refuses,
    /// `Io` if all launches are to be a [launcher](CudaConfig::launcher)'s and there is no thread for it.
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
        let blocking = or_variable(config.blocking, environment::blocking)?.unwrap_or(false);
        let cudnn = or_variable(config.cudnn, environment::cudnn)?.unwrap_or(true);
        let fault = context.fault_word()?;
        let launcher = match launches(config.launcher)? {
            _ if blocking => None,
            Some(true) => Some(context.launcher(&fault, true)?),
            // Without a thread whoever launches makes the calls.
            Some(false) => context.launcher(&fault, false).ok(),
            None => None,
        };
        let memory = config.memory.unwrap_or_else(|| Arc::clone(&context) as Arc<dyn MemoryDriver>);
        let config = CudaConfig { memory: None, blocking: Some(blocking), cudnn: Some(cudnn), ..config };
        let (tf32, reads, host_side) = (AtomicBool::new(false), OnceLock::new(), OnceLock::new());
        let cuda = Cuda { launcher, fault, context, ordinal, config, tf32, reads, host_side };
        let runner = Runner::Driver(cuda.stream(Priority::Normal)?);
        Ok(Device::of(Core::new(Backend::Cuda(cuda), Schedule::Inline, 1, runner, memory)))
    }

    /// A device of the same make, with streams, memory and [started](Self::start_threads) threads of its own.
    ///
    /// # Errors
    /// Those of making the device and of starting its threads.
    pub fn sibling(&self, threads: usize) -> Result<Device> {
        let memory = Some(Arc::clone(self.memory_driver()));
        match self.core().cuda() {
            Some(cuda) => {
                let config = CudaConfig { memory, ..cuda.config.clone() };
                let device = Device::cuda_with(cuda.ordinal, config)?;
                device.set_tf32(self.tf32());
                Ok(device)
            }
            None => {
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
            if matches!(error.kind(), ErrorKind::InvalidArgument { .. }) {
                cpu.core().fail(error);
            }
            cpu
        })
    }

    /// What the device is made of.
    pub fn kind(&self) -> DeviceKind {
        self.core().cuda().map_or(DeviceKind::Cpu, |cuda| DeviceKind::Cuda(cuda.ordinal))
    }

    /// Whether the host's own threads run the commands: the device shares the processor with whoever launches them.
    pub fn runs_on_host(&self) -> bool {
        self.core().cuda().is_none()
    }

    /// The host as this device sees it: a CPU device whose memory is pinned, so that copies between the two run beside the
    /// host's work; the device itself if it runs on the host.
    ///
    /// ```
    /// use device::Device;
    /// assert_eq!(Device::cpu().host(), Device::cpu());
    /// ```
    pub fn host(&self) -> Device {
        let Some(cuda) = self.core().cuda() else { return self.clone() };
        let pinned = || {
            let memory = Arc::new(PinnedMemory::of(&cuda.context));
            let backend = Backend::Pinned(Arc::clone(&cuda.context));
            Device::of(Core::new(backend, Schedule::Inline, 1, Runner::Thread(None), memory))
        };
        cuda.host_side.get_or_init(pinned).clone()
    }

    /// Whether what is in `other`'s memory can be copied to this device's by a command, as [`Stream::copy_across`] does:
    /// between CUDA devices, and between these and pinned memory. If not, copies go by way of the host.
    pub fn copies_from(&self, other: &Device) -> bool {
        let (ours, theirs) = (self.core(), other.core());
        let either = ours.cuda().is_some() || theirs.cuda().is_some();
        either && ours.context().is_some() && theirs.context().is_some()
    }

    /// A short name, as in `cpu`.
    pub fn name(&self) -> String {
        match &self.core().backend {
            Backend::Cuda(cuda) => format!("cuda:{}", cuda.ordinal),
            Backend::Pinned(_) => "cpu (pinned)".to_owned(),
            Backend::Host(_) | Backend::Explored(_) => "cpu".to_owned(),
        }
    }

    /// What the device says of itself, as in `NVIDIA H200, sm_90, 132 multiprocessors`.
    pub fn description(&self) -> String {
        match self.core().cuda() {
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
    /// `Io` if the system gives no thread for it.
    pub fn new_stream(&self) -> Result<Stream> {
        self.new_stream_with(StreamOptions::default())
    }

    /// A stream with every option named.
    ///
    /// # Errors
    /// `Io` if the system gives no thread for it, `Deadlock` within a command of an explored device.
    pub fn new_stream_with(&self, options: StreamOptions) -> Result<Stream> {
        let (fifo, priority) = (self.new_fifo(options)?, options.priority);
        Ok(Stream(Handle::Side(Arc::new(Side { device: self.clone(), fifo, priority, branch_of: None }))))
    }

    /// What a new stream is made of.
    pub(crate) fn new_fifo(&self, options: StreamOptions) -> Result<Arc<Fifo>> {
        fork::check("new_stream")?;
        let core = self.core();
        if core.explorer().is_some() {
            // The explorer is locked while it runs a command.
            may_launch("new_stream")?;
        }
        core.sweep();
        let (runner, wanted) = match core.cuda() {
            Some(cuda) => {
                (Runner::Driver(core.with_room(|| cuda.stream(options.priority))?), Placement::Caller)
            }
            None => (core.backend.host_runner(), options.placement),
        };
        let threads = options.threads.unwrap_or(core.threads).clamp(1, core.threads);
        let placement = core.schedule.placement(wanted);
        let fifo = Fifo::new(runner, placement, threads, &core.observers.audit);
        if placement == Placement::Worker {
            fifo.ensure_worker("new_stream")?;
        }
        core.streams.add(&fifo);
        Ok(fifo)
    }

    /// Blocks until every command launched so far has run.
    ///
    /// # Errors
    /// `Async` with the first command that failed since the last synchronising call; `Deadlock` if it
    /// would wait within a command or a host read.
    pub fn synchronize(&self) -> Result<()> {
        self.0.not_captured("synchronize", "nothing has run that the host could wait for")?;
        fork::check("synchronize")?;
        let core = self.core();
        let streams = core.streams.live();
        let awaited = streams.iter().map(|fifo| fifo.now());
        let _syncing = core.host_sync("synchronize", awaited)?;
        for fifo in streams {
            fifo.host_wait("synchronize", core, fifo.now().tick)?;
        }
        core.sweep();
        core.take_fault()
    }

    /// Blocks until every command launched so far has run, where the thread may wait. Errors are left to those who
    /// synchronise.
    pub(crate) fn await_streams(&self) {
        let core = self.core();
        for fifo in core.streams.live() {
            let _refused = fifo.host_wait("synchronize", core, fifo.now().tick);
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
        let observers = &self.core().observers;
        observers.manual.store(mode == SyncMode::Manual, Ordering::Release);
        observers.watch();
    }

    /// Who keeps commands of different streams in order.
    pub fn sync_mode(&self) -> SyncMode {
        if self.core().observers.manual.load(Ordering::Acquire) { SyncMode::Manual } else { SyncMode::Auto }
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
        if let Some(cuda) = self.core().cuda() {
            cuda.tf32.store(allowed, Ordering::Relaxed);
        }
    }

    /// Whether products of F32 may round what they multiply.
    pub fn tf32(&self) -> bool {
        self.core().tf32()
    }

    /// Counts of launches, events, waits and host synchronisations since the device was made.
    pub fn sync_stats(&self) -> SyncStats {
        self.core().streams.stats()
    }

    /// The decisions of an explored schedule so far; none on other schedules.
    pub fn choices(&self) -> Vec<Choice> {
        self.core().explorer().map(|explorer| explorer.choices()).unwrap_or_default()
    }

    /// Threads that one kernel may be split over.
    pub fn threads(&self) -> usize {
        self.core().threads
    }

    /// Starts the threads that kernels are split over. Else the first large kernel does, and no kernel is split if the system
    /// gives fewer.
    ///
    /// # Errors
    /// `Io` if the system gives fewer.
    pub fn start_threads(&self) -> Result<()> {
        self.core().start_workers().map_or(Ok(()), |workers| workers.as_ref().map(drop).map_err(Error::clone))
    }

    /// Where the device's memory comes from.
    pub fn memory_driver(&self) -> &Arc<dyn MemoryDriver> {
        &self.core().memory
    }

    /// What the device holds outside its memory pool; nothing on a CPU.
    pub fn held_outside(&self) -> HeldOutside {
        let Some(cuda) = self.core().cuda() else { return HeldOutside::default() };
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
        if let Some(cuda) = self.core().cuda() {
            cuda.context.trim_pinned();
        }
    }

    /// Whether the host can see that `moment` has passed.
    pub fn reached(&self, moment: Moment) -> bool {
        reached(moment)
    }

    /// A command of `stream` has failed, as a library that the device works with found out later: `error` is the source of the
    /// `Async` of the next synchronising call, unless another command failed before.
    pub fn fail(&self, op: &'static str, stream: StreamId, error: Error) {
        self.core().fail(Error::of_command(op, stream, error));
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

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Whether a launcher is given all launches or those of long runs; `None` for none.
fn launches(wanted: Option<bool>) -> Result<Option<bool>> {
    // With fewer, the program's own threads may want them all.
    const CORES: usize = 4;
    if let Some(all) = wanted {
        return Ok(all.then_some(true));
    }
    // A tool finds a kernel's range by the thread that launches it.
    let usual = || (cores() >= CORES && !crate::nvtx::is_followed()).then_some(false);
    Ok(environment::launches()?.unwrap_or_else(usual))
}

/// What was asked for, or else what a variable says.
fn or_variable<T>(wanted: Option<T>, variable: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
    if wanted.is_some() { Ok(wanted) } else { variable() }
}
