//! CUDA devices: what a launcher says to one, and the driver behind it.
//!
//! A command's [`Work`](crate::Work) puts kernels, copies and calls of libraries on a [`Queue`]. Everything below is loaded at run time: without a driver, or in a build without the feature `cuda`, no
//! CUDA device can be made and the rest is never reached.

#[cfg_attr(not(feature = "cuda"), path = "absent.rs")]
mod driver;

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use driver::ffi;
#[cfg(feature = "cuda")]
pub use driver::{Addresses, Enqueued};
pub(crate) use driver::{
    Captured, Context, DriverEvent, DriverGraph, DriverStream, FaultWord, GateWord, IpcMemory, Launcher,
    Staged, Updated, in_host_function,
};

use crate::core::Core;
use crate::recorder::NotedKernels;
use crate::writes::{Output, TracePlace};
use crate::{Device, Error, MemoryDriver, Moment, Result, Stream, StreamId};

/// What a CUDA device is made of.
#[derive(Clone, Default)]
pub struct CudaConfig {
    /// Where memory comes from. By default the driver: pages of reserved addresses where the device has them, else plain
    /// allocations.
    pub memory: Option<Arc<dyn MemoryDriver>>,
    /// Waits for each command that is not behind a [hold](Stream::hold) or a [loan](crate::Buffer::lend), and names the one at fault. By default whether `STREAMGRAD_LAUNCH_BLOCKING` is `1`.
    pub blocking: Option<bool>,
    /// Whether a thread of the device's own makes the driver's calls of all launches, while the program goes on, or of none. By
    /// default of long runs of launches, where the host has four threads or more and no tool follows NVTX ranges;
    /// `STREAMGRAD_LAUNCHER` says otherwise: `0` for none, `1` for long runs, `all`. Never where each command is waited for, nor while
    /// commands are recorded or a stream is held. What the driver refuses is then the error of the next synchronising call, and
    /// names the op.
    pub launcher: Option<bool>,
    /// Whether convolutions are cuDNN's, where that is found. By default unless `STREAMGRAD_CUDNN` is `0`.
    pub cudnn: Option<bool>,
}

debug_fields!(CudaConfig { blocking, launcher, cudnn });

/// Host memory that a CUDA device reaches, too: pinned, and slow for its kernels. With it, a device's buffers can be read
/// and written by host functions.
#[derive(Debug)]
pub struct PinnedMemory(Arc<Context>);

impl PinnedMemory {
    /// Memory for the device with this ordinal.
    ///
    /// # Errors
    /// As for [`Device::cuda`](crate::Device::cuda).
    pub fn new(ordinal: usize) -> Result<PinnedMemory> {
        Context::open(ordinal).map(PinnedMemory)
    }

    pub(crate) fn of(context: &Arc<Context>) -> PinnedMemory {
        PinnedMemory(Arc::clone(context))
    }
}

// SAFETY: the driver returns pinned memory of that size, aligned to a page, which is nobody else's until it is freed.
unsafe impl MemoryDriver for PinnedMemory {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.0.allocate_pinned(bytes)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, _bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.0.free_pinned(ptr) }
    }

    fn alignment(&self) -> usize {
        256
    }
}

/// CUDA C whose kernels belong together. It is compiled once for an architecture and kept on disk; a device loads all
/// its kernels when the first of them is launched.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where there is a compiler"))]
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    source: &'static str,
    each_rounded: bool,
}

impl Program {
    /// A program with its source; `name` is for messages and for the file that keeps it.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Program { name, source, each_rounded: false }
    }

    /// The program with each product and each sum rounded by itself: they are not fused to multiply-adds, whatever stands next
    /// to each other.
    pub const fn each_rounded(self) -> Self {
        Program { each_rounded: true, ..self }
    }
}

/// What a device is made of, for kernels that choose by it and for recordings.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Properties {
    /// How many multiprocessors there are.
    pub multiprocessors: u32,
    /// Threads for which a multiprocessor has room.
    pub multiprocessor_threads: u32,
    /// How many units copy to and from the host.
    pub copy_engines: u32,
    /// The most shared memory that a block of threads may have, in bytes.
    pub shared_bytes: u32,
    /// See [`Stream::has_tensor_cores`](crate::Stream::has_tensor_cores).
    pub has_tensor_cores: bool,
    /// Whether groups of four warps multiply by reading shared memory at once (compute capability 9.0).
    pub has_warp_groups: bool,
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x, y and z. None along one of them: nothing is launched.
    pub blocks: [u32; 3],
    /// Threads of a block along x, y and z.
    pub threads: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Grid {
    /// `blocks` blocks of `threads` threads in a row.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// An address of device memory.
    Ptr(*const u8),
    /// `unsigned int`
    U32(u32),
    /// `int`
    I32(i32),
    /// `unsigned long long`
    U64(u64),
    /// `long long`
    I64(i64),
    /// `float`
    F32(f32),
    /// `double`
    F64(f64),
    /// A struct by value: its bytes, aligned to 8.
    Bytes(&'a [u8]),
    /// Where a kernel reports an index that is out of range: the struct `Fault` of the kernels' prelude. What it
    /// reports is the error of the next synchronising call, and names the op.
    Fault,
}

/// An address that may be missing is null.
impl<'a, T: Into<Arg<'a>>> From<Option<T>> for Arg<'a> {
    fn from(address: Option<T>) -> Self {
        address.map_or(Arg::Ptr(std::ptr::null()), T::into)
    }
}

/// Device memory that a command's library calls work in, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    /// Where it begins, a multiple of 256 bytes.
    pub at: *mut u8,
    /// Its size.
    pub bytes: usize,
}

impl Workspace {
    /// None, which most calls need.
    pub const NONE: Workspace = Workspace { at: std::ptr::null_mut(), bytes: 0 };
}

impl Device {
    /// Makes a CUDA device current on this thread, for libraries that ask the driver which one they work on.
    ///
    /// # Errors
    /// `CudaUnavailable` for a device that is none; `Driver`.
    pub fn make_current(&self) -> Result<()> {
        match self.default_stream().fifo().driver_stream() {
            Some(driver) => driver.bind(),
            None => Err(Error::no_cuda(format!("{self} is no CUDA device"))),
        }
    }
}

impl Stream {
    /// Compiles and loads programs: what the first launch of each would do, and the device might have to be idle for. Nothing on
    /// a stream of another device.
    ///
    /// # Errors
    /// As for [`Queue::kernel`].
    pub fn preload(&self, programs: &[&'static Program]) -> Result<()> {
        let fifo = self.fifo();
        let Some(cuda) = self.core().cuda() else { return Ok(()) };
        // As for a launch: one thread at a time.
        let _tail = fifo.lock_tail("preload")?;
        cuda.context.bind()?;
        self.core().with_room(|| cuda.context.load(programs))
    }

    /// Calls `enqueue` with a queue that enqueues nothing. Returns what `enqueue` returns, and what it would have enqueued.
    /// `None` on a CPU, where `enqueue` is not called.
    ///
    /// # Errors
    /// Those of `enqueue`, `Driver`.
    pub fn dry_run<R>(
        &self,
        op: &'static str,
        enqueue: impl FnOnce(&Queue<'_>) -> Result<R>,
    ) -> Result<Option<(R, Measured)>> {
        let Some(driver) = self.fifo().driver_stream() else { return Ok(None) };
        driver.bind()?;
        let (measured, never) = (Cell::<Measured>::default(), Moment { stream: self.id(), tick: 0 });
        let returned = enqueue(&Queue::new(self.core(), driver, op, never, Target::Measure(&measured)))?;
        Ok(Some((returned, measured.get())))
    }
}

/// Where [`Work::enqueue`](crate::Work::enqueue) puts device work, in order.
pub struct Queue<'a> {
    core: &'a Core,
    stream: &'a DriverStream,
    op: &'static str,
    /// The command.
    moment: Moment,
    target: Target<'a>,
    /// Where kernels are noted, if the command is recorded.
    noted: Option<&'a RefCell<NotedKernels>>,
}

/// What becomes of what is put on a queue.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "made where there is a driver"))]
pub(crate) enum Target<'a> {
    /// The stream runs it.
    Stream,
    /// The stream is captured: it becomes nodes of a graph.
    Graph(&'a Captured),
    /// The kernels are in a graph already, and get these arguments.
    Update(&'a Updated<'a>),
    /// Nothing: it is noted what it would be.
    Measure(&'a Cell<Measured>),
}

/// Where the bytes come from that a range of device memory gets.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where there is a driver"))]
pub(crate) enum Source {
    Memory(*const u8),
    Value(u8),
}

/// What is known of a command before it is enqueued.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Measured {
    /// The size of the [workspace](Workspace) that its library calls need, in bytes.
    pub workspace: usize,
    /// Whether some of it finds its operands where they are now for good: all but kernels.
    pub stays: bool,
}

debug_fields!(Queue<'_> { op, moment });

impl<'a> Queue<'a> {
    pub(crate) fn new(
        core: &'a Core,
        stream: &'a DriverStream,
        op: &'static str,
        moment: Moment,
        target: Target<'a>,
    ) -> Self {
        Queue { core, stream, op, moment, target, noted: None }
    }

    /// Notes the kernels, too.
    pub(crate) fn noting(self, noted: Option<&'a RefCell<NotedKernels>>) -> Self {
        Queue { noted, ..self }
    }

    /// The queue, for a part of the command that is of another op.
    pub(crate) fn of(&self, op: &'static str) -> Queue<'a> {
        Queue { op, ..*self }
    }

    /// Has the driver copy what was just written for a trace of writes.
    ///
    /// # Safety
    /// The outputs lie in buffers that the command uses.
    pub(crate) unsafe fn trace(&self, replay: TracePlace, outputs: impl IntoIterator<Item = Output>) {
        // SAFETY: what the command uses lives until it has run.
        unsafe { self.core.observers.writes.copy(self.stream, self.moment, replay, outputs) }
    }

    /// The op and the stream of the command.
    #[inline]
    fn command(&self) -> (&'static str, StreamId) {
        (self.op, self.moment.stream)
    }

    /// The op whose command it is.
    #[inline]
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// What the device is made of.
    pub fn properties(&self) -> &Properties {
        self.stream.properties()
    }

    /// Whether factors in F32 may be rounded to TF32, see [`Device::set_tf32`](crate::Device::set_tf32).
    pub fn tf32(&self) -> bool {
        match self.target {
            Target::Update(updated) => updated.tf32(),
            _ => self.core.tf32(),
        }
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// The kernel takes exactly these arguments, and touches only memory that the command's uses name, in bounds.
    ///
    /// # Errors
    /// `KernelCompile` if the program does not compile,
    /// `Driver` if the driver refuses.
    pub unsafe fn kernel(
        &self,
        program: &'static Program,
        name: &str,
        grid: Grid,
        args: &[Arg<'_>],
    ) -> Result<()> {
        if let Target::Measure(_) = self.target {
            return Ok(());
        }
        self.mark()?;
        // SAFETY: the caller's promise.
        unsafe { self.stream.kernel(self.command(), program, name, grid, args, self.target)? };
        if let Some(noted) = self.noted.filter(|_| !grid.blocks.contains(&0)) {
            noted.borrow_mut().add([self.stream.describe_kernel(program, name, grid)?]);
        }
        Ok(())
    }

    /// Whether convolutions may be cuDNN's, see [`CudaConfig::cudnn`].
    pub fn allows_cudnn(&self) -> bool {
        self.core.cuda().is_some_and(|cuda| cuda.config.cudnn == Some(true))
    }

    /// The device's handle of a library, of type `T`. `make` creates it at the first request, with the device current and no stream
    /// held; it must not request another one. Handles are dropped before the device's context.
    ///
    /// # Errors
    /// Those of `make`, `StreamHeld`.
    #[cfg(feature = "cuda")]
    pub fn handle<T: std::any::Any + Send + Sync>(
        &self,
        library: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<&'a T> {
        self.stream.context.handle(library, make)
    }

    /// Waits until no stream is held that work of this device comes after, and keeps streams from being held while the guard
    /// lives: loading `what` waits until the device is idle.
    ///
    /// # Errors
    /// `StreamHeld` after some seconds.
    #[cfg(feature = "cuda")]
    pub fn quiet(&self, what: &str) -> Result<parking_lot::MutexGuard<'a, ()>> {
        self.stream.context.quiet(what)
    }

    /// Calls `make`, which enqueues `what` with `recorded`; where the driver has no memory left, once more
    /// without what the pool keeps.
    ///
    /// # Errors
    /// Those of `make`; `Captured` where it is part of a graph and stays as it was.
    pub fn with_room<R>(&self, what: &str, make: impl Fn() -> Result<R>) -> Result<R> {
        self.adds(what)?;
        self.core.with_room(make)
    }

    /// Enqueues what `call` has a library enqueue for operands at these addresses, with a workspace of `needed` bytes. The first
    /// call of an [`Enqueued`] is captured, and later ones launch the captured kernels.
    ///
    /// # Safety
    /// All operands of one `Enqueued` have the same types, shapes and strides. `call` enqueues kernels for them, on the driver's
    /// stream that it gets, which reach other memory by their addresses only; these are in bounds, and the command's uses name
    /// them, the workspace as written.
    ///
    /// # Errors
    /// Those of `call`; `InvalidArgument` for a smaller workspace, `Driver`.
    #[cfg(feature = "cuda")]
    pub unsafe fn recorded(
        &self,
        enqueued: &Enqueued,
        operands: [*mut u8; 4],
        needed: usize,
        workspace: Workspace,
        call: impl Fn(&Addresses, *mut std::ffi::c_void) -> Result<()>,
    ) -> Result<()> {
        if let Target::Measure(measured) = self.target {
            measured.update(|known| Measured { workspace: known.workspace.max(needed), ..known });
            return Ok(());
        }
        let expected = "as large as the product's algorithm asks for";
        let value = format_args!("{} bytes for {needed}", workspace.bytes);
        Error::require(needed <= workspace.bytes, self.op, "workspace", expected, value)?;
        // One that is not used is the same for all calls of a form, too.
        let workspace = if needed == 0 { std::ptr::null_mut() } else { workspace.at };
        let ([a, b, c, bias], (stream, command)) = (operands, (self.stream, self.command()));
        let operands = [a, b, c, bias, workspace];
        // SAFETY: the context is current while a queue is used; the caller answers for the rest.
        unsafe { enqueued.enqueue(stream, command, &operands, |at, raw| call(at, raw.cast()))? };
        if let Some(noted) = self.noted {
            noted.borrow_mut().add(enqueued.kernels());
        }
        Ok(())
    }

    /// Has a library of another crate enqueue `what` on the driver's stream that it is given, a `CUstream`, whose device is
    /// current. `enqueue` is not called where nothing is to be enqueued.
    ///
    /// # Safety
    /// What is enqueued touches only memory that the command's uses name, in bounds, and has all its work in that stream's order.
    ///
    /// # Errors
    /// Those of `enqueue`; `Captured` where it is part of a graph and stays as it was.
    pub unsafe fn library(
        &self,
        what: &str,
        enqueue: impl FnOnce(*mut std::ffi::c_void) -> Result<()>,
    ) -> Result<()> {
        if !self.adds(what)? {
            return Ok(());
        }
        if let Some(noted) = self.noted {
            noted.borrow_mut().add([]);
        }
        match self.target {
            Target::Graph(captured) => captured.library(self.stream, |raw| enqueue(raw.cast())),
            _ => enqueue(self.stream.raw().cast()),
        }
    }

    /// Enqueues two parts of a command of which neither needs the other: in a graph they run at once, on a stream one after
    /// the other.
    ///
    /// # Errors
    /// Theirs, and `Driver`.
    pub fn beside(
        &self,
        first: impl FnOnce() -> Result<()>,
        second: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.target {
            Target::Graph(captured) => captured.beside(self.stream, first, second),
            Target::Stream | Target::Update(_) | Target::Measure(_) => first().and_then(|()| second()),
        }
    }

    /// Enqueues a copy within the device.
    ///
    /// # Safety
    /// Both ranges are in bounds and apart, and the command's uses name them.
    ///
    /// # Errors
    /// `Driver`.
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write("a copy", dst, Source::Memory(src), bytes) }
    }

    /// Enqueues an upload of bytes that stay what they are, as a node of a graph.
    ///
    /// # Safety
    /// The range is in bounds, and the command writes it.
    pub(crate) unsafe fn constant(&self, to: *mut u8, bytes: &[u8]) -> Result<()> {
        if self.adds("an upload")? {
            // SAFETY: the caller's promise.
            let staged = unsafe { self.stream.upload(to, bytes, self.moment)? };
            if let Target::Graph(captured) = self.target {
                captured.keep(staged);
            }
        }
        Ok(())
    }

    /// Whether `what` is enqueued. Not if it is part of a graph already, where it stays as it is: only kernels get other
    /// arguments.
    fn adds(&self, what: &str) -> Result<bool> {
        match self.target {
            Target::Stream | Target::Graph(_) => self.mark().map(|()| true),
            Target::Measure(measured) => {
                measured.update(|known| Measured { stays: true, ..known });
                Ok(false)
            }
            Target::Update(_) => {
                Err(Error::captured(self.op, &format!("{what} of a graph stays where it is")))
            }
        }
    }

    /// Lets a recording tell what is enqueued next from what was before.
    fn mark(&self) -> Result<()> {
        self.noted.map_or(Ok(()), |noted| noted.borrow_mut().mark(self.stream))
    }

    /// Enqueues a fill with one byte.
    ///
    /// # Safety
    /// The range is in bounds, and the command's uses name it.
    ///
    /// # Errors
    /// `Driver`.
    pub unsafe fn fill_bytes(&self, dst: *mut u8, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write("a fill", dst, Source::Value(value), bytes) }
    }

    /// # Safety
    /// The ranges are in bounds and apart, and the command's uses name them.
    unsafe fn write(&self, what: &str, to: *mut u8, from: Source, bytes: usize) -> Result<()> {
        if bytes == 0 || !self.adds(what)? {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.stream.write(self.command(), to, from, bytes) }
    }
}
