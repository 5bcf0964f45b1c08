//! CUDA devices: what a launcher says to one, and the driver behind it.
//!
//! A command's [`Work`] puts kernels, products and copies on a [`Queue`]. Everything below is loaded at run time: without a driver, or in a build without the feature `cuda`, no
//! CUDA device can be made and the rest is never reached.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod blas;
#[cfg(feature = "cuda")]
mod cache;
#[cfg(feature = "cuda")]
mod call;
#[cfg(feature = "cuda")]
mod choice;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod dnn;
#[cfg(feature = "cuda")]
mod enqueue;
#[cfg(feature = "cuda")]
mod enqueued;
#[cfg(feature = "cuda")]
mod fault;
#[cfg(feature = "cuda")]
mod ffi;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod ipc;
#[cfg(feature = "cuda")]
mod launcher;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(feature = "cuda")]
mod probe;
#[cfg(feature = "cuda")]
mod stream;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(not(feature = "cuda"))]
pub use absent::ConvAlgorithm;
#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{
    Captured, Context, DriverGraph, DriverStream, FaultWord, GateWord, IpcCopy, IpcMemory, IpcWait, Launcher,
    SharedEvent, Staged, TimedEvent, Updated, in_host_function,
};
#[cfg(feature = "cuda")]
pub(crate) use context::Context;
#[cfg(feature = "cuda")]
pub use dnn::ConvAlgorithm;
#[cfg(feature = "cuda")]
pub(crate) use fault::FaultWord;
#[cfg(feature = "cuda")]
pub(crate) use graph::{Captured, DriverGraph, Updated};
#[cfg(feature = "cuda")]
pub(crate) use ipc::{IpcCopy, IpcMemory, IpcWait, SharedEvent};
#[cfg(feature = "cuda")]
pub(crate) use launcher::Launcher;
#[cfg(feature = "cuda")]
pub(crate) use pinned::Staged;
#[cfg(feature = "cuda")]
pub(crate) use stream::{DriverStream, GateWord, TimedEvent, in_host_function};

use crate::device::Core;
use crate::graph::capture::refused;
use crate::recorder::Kernels;
use crate::{DType, Device, Error, ErrorKind, MemoryDriver, Moment, Result, Stream, StreamId, Work};

/// What a CUDA device is made of.
#[derive(Clone, Default)]
pub struct CudaConfig {
    /// Where memory comes from. By default the driver: pages of reserved addresses where the device has them, else plain
    /// allocations.
    pub memory: Option<Arc<dyn MemoryDriver>>,
    /// Waits for each command and names the one at fault. By default whether `STREAMGRAD_LAUNCH_BLOCKING` is `1`.
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

impl fmt::Debug for CudaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaConfig")
            .field("blocking", &self.blocking)
            .field("launcher", &self.launcher)
            .field("cudnn", &self.cudnn)
            .finish_non_exhaustive()
    }
}

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
#[derive(Debug)]
pub struct Program {
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where there is a compiler"))]
    name: &'static str,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where there is a compiler"))]
    source: &'static str,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where there is a compiler"))]
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

/// What becomes of a product before it is rounded and stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue {
    /// A vector of `m` elements of `c`'s type that is added to each column.
    pub bias: Option<*const u8>,
    /// Whether the positive part is taken then: `max(x, 0)`, which keeps NaN.
    pub relu: bool,
}

/// A matrix product as BLAS has it, column-major: `c = op(a) op(b)`, or `c + op(a) op(b)`, and the epilogue.
///
/// `op(a)` is `m x k`, `op(b)` is `k x n`, `c` is `m x n`; the leading dimensions and the steps from one product of the
/// batch to the next count elements.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names are BLAS's")]
pub struct Gemm {
    /// Of `a` and `b`: F32, F64, BF16 or F16. Products are made, and sums taken, in its
    /// [`compute_dtype`](DType::compute_dtype).
    pub dtype: DType,
    /// Whether factors in F32 are rounded to TF32.
    pub tf32: bool,
    /// Of `c`: `dtype`, or its [`compute_dtype`](DType::compute_dtype).
    pub c_dtype: DType,
    pub transa: bool,
    pub transb: bool,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: *const u8,
    pub lda: usize,
    pub stride_a: i64,
    pub b: *const u8,
    pub ldb: usize,
    pub stride_b: i64,
    /// Adds to `c` instead of replacing it.
    pub accumulate: bool,
    pub c: *mut u8,
    pub ldc: usize,
    pub stride_c: i64,
    /// How many products.
    pub batch: usize,
    pub epilogue: Epilogue,
}

/// Device memory that a command's products work in, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    /// Where it begins, a multiple of 256 bytes.
    pub at: *mut u8,
    /// Its size.
    pub bytes: usize,
}

impl Workspace {
    /// None, which most products need.
    pub const NONE: Workspace = Workspace { at: std::ptr::null_mut(), bytes: 0 };
}

/// Which operand of a convolution is made of the two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvPass {
    /// The results, of images and filters.
    Forward,
    /// The images' gradient, of filters and the results' gradient.
    InputGrad,
    /// The filters' gradient, of images and the results' gradient.
    WeightGrad,
}

impl ConvPass {
    /// The number of what is made, among images, filters and results.
    pub fn made(self) -> usize {
        match self {
            ConvPass::InputGrad => 0,
            ConvPass::WeightGrad => 1,
            ConvPass::Forward => 2,
        }
    }
}

/// A convolution without addresses: images `[n, c, h, w]`, filters `[f, c / groups, kh, kw]` and results `[n, f, oh, ow]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvForm {
    /// What is made.
    pub pass: ConvPass,
    /// Whether a bias for each channel is added to what is made, before that is rounded; not to filters.
    pub bias: bool,
    /// Of all operands: F32, BF16 or F16. Sums are taken in F32.
    pub dtype: DType,
    /// Of images, filters and results. No size is 0, and the results have all places of the filters.
    pub shapes: [[usize; 4]; 3],
    /// Theirs, in elements.
    pub strides: [[usize; 4]; 3],
    /// On both sides of the images' last two axes.
    pub padding: [usize; 2],
    /// Steps from one place of a filter to the next.
    pub stride: [usize; 2],
    /// Steps between the elements that a filter sees.
    pub dilation: [usize; 2],
}

impl Device {
    /// Makes a CUDA device current on this thread, for libraries that ask the driver which one they work on.
    ///
    /// # Errors
    /// `CudaUnavailable` for a device that is none; `Driver`.
    pub fn make_current(&self) -> Result<()> {
        match self.default_stream().fifo().driver_stream() {
            Some(driver) => driver.bind(),
            None => Err(Error::new(ErrorKind::CudaUnavailable {
                reason: format!("{self} is no CUDA device").into(),
            })),
        }
    }
}

impl Stream {
    /// How cuDNN makes convolutions of this form, with TF32 if the [device](crate::Device::set_tf32) allows that; `None` on
    /// a CPU, where cuDNN was not found or is not [wanted](CudaConfig::cudnn), and for forms of which it has no algorithm that always gives the same bits. The
    /// algorithm follows from the form alone.
    ///
    /// # Errors
    /// `OutOfMemory`, `Driver`.
    pub fn convolution(&self, form: &ConvForm) -> Result<Option<ConvAlgorithm>> {
        let (core, fifo) = (self.core(), self.fifo());
        let Some(driver) = fifo.driver_stream().filter(|_| core.cudnn) else { return Ok(None) };
        driver.bind()?;
        core.with_room(|| driver.convolution(form, core.tf32()))
    }

    /// Compiles and loads programs, and starts cuBLASLt, and cuDNN where that is [wanted](CudaConfig::cudnn) and found: what the first launch of each would do, and the device might have to be idle for. Nothing on a stream of another device.
    ///
    /// # Errors
    /// As for [`Queue::kernel`] and [`Queue::gemm`].
    pub fn preload(&self, programs: &[&'static Program]) -> Result<()> {
        let fifo = self.fifo();
        let Some(driver) = fifo.driver_stream() else { return Ok(()) };
        // As for a launch: one thread at a time.
        let _tail = fifo.lock_tail("preload")?;
        driver.bind()?;
        let core = self.core();
        core.with_room(|| driver.preload(programs, core.cudnn))
    }

    /// Bytes of the [workspace](Workspace) for the products that `enqueue` puts on a queue, which runs nothing: the most that
    /// the algorithm of one of them asks for. 0 on a CPU.
    ///
    /// # Errors
    /// Those of `enqueue`, and as for [`Queue::gemm`].
    pub fn workspace_bytes(
        &self,
        op: &'static str,
        enqueue: impl FnOnce(&Queue<'_>) -> Result<()>,
    ) -> Result<usize> {
        Ok(self.measured(op, enqueue)?.workspace.get())
    }

    /// Whether a captured command [stays](Measured::stays) where it is.
    pub(crate) fn stays(&self, op: &'static str, work: &impl Work) -> Result<bool> {
        Ok(self.measured(op, |queue| work.enqueue(queue))?.stays.get())
    }

    fn measured(&self, op: &'static str, enqueue: impl FnOnce(&Queue<'_>) -> Result<()>) -> Result<Measured> {
        let measured = Measured::default();
        if let Some(driver) = self.fifo().driver_stream() {
            driver.bind()?;
            let never = Moment { stream: self.id(), tick: 0 };
            enqueue(&Queue::new(self.core(), driver, op, never, Target::Measure(&measured)))?;
        }
        Ok(measured)
    }
}

/// Where [`Work::enqueue`] puts device work, in order.
pub struct Queue<'a> {
    core: &'a Core,
    stream: &'a DriverStream,
    op: &'static str,
    /// The command.
    moment: Moment,
    target: Target<'a>,
    /// Where kernels are noted, if the command is recorded.
    noted: Option<&'a RefCell<Kernels>>,
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
    Measure(&'a Measured),
}

/// What is known of a command before it is enqueued.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// The most bytes that one of its products works in.
    pub(crate) workspace: Cell<usize>,
    /// Whether some of it finds its operands where they are now for good: all but kernels.
    pub(crate) stays: Cell<bool>,
}

impl fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("op", &self.op)
            .field("stream", &self.moment.stream)
            .finish_non_exhaustive()
    }
}

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
    pub(crate) fn noting(self, noted: Option<&'a RefCell<Kernels>>) -> Self {
        Queue { noted, ..self }
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

    /// How many multiprocessors the device has.
    pub fn multiprocessors(&self) -> u32 {
        self.stream.multiprocessors()
    }

    /// The most shared memory that a block of threads may have, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.stream.shared_bytes()
    }

    /// See [`Stream::has_tensor_cores`](crate::Stream::has_tensor_cores).
    pub fn has_tensor_cores(&self) -> bool {
        self.stream.has_tensor_cores()
    }

    /// Whether groups of four warps multiply by reading shared memory at once (compute capability 9.0).
    pub fn has_warp_groups(&self) -> bool {
        self.stream.has_warp_groups()
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
            noted.borrow_mut().add(self.stream.describe(program, name, grid)?);
        }
        Ok(())
    }

    /// Enqueues a product by cuBLASLt. Its algorithm follows from types, sizes, steps and the addresses' alignment alone, so
    /// its result depends on nothing that runs beside it. `false` if the library has no such product: then nothing was
    /// enqueued.
    ///
    /// # Safety
    /// The operands and the workspace are in bounds, and the command's uses name them, the workspace as written.
    ///
    /// # Errors
    /// `DTypeUnsupported`,
    /// `InvalidArgument` for a workspace that is smaller than
    /// [`Stream::workspace_bytes`](crate::Stream::workspace_bytes) says,
    /// `OutOfMemory`, `Driver`.
    pub unsafe fn gemm(&self, gemm: &Gemm, workspace: Workspace) -> Result<bool> {
        self.adds("a product")?;
        // SAFETY: the caller's promise.
        self.core.with_room(|| unsafe {
            self.stream.gemm(self.command(), gemm, workspace, self.target, self.noted)
        })
    }

    /// Enqueues a convolution of images, filters and results, and a bias if its form has one. They lie where it
    /// [fits](ConvAlgorithm::fits), and it works in as many bytes as it says.
    ///
    /// # Safety
    /// The operands are of the convolution's form, they and the workspace are in bounds, and the command's uses name them.
    ///
    /// # Errors
    /// `OutOfMemory`, `Driver`.
    pub unsafe fn convolution(
        &self,
        algorithm: &ConvAlgorithm,
        operands: [*mut u8; 3],
        bias: Option<*mut u8>,
        workspace: *mut u8,
    ) -> Result<()> {
        if !self.adds("a convolution")? {
            return Ok(());
        }
        let stream = self.stream;
        // SAFETY: the caller's promise.
        self.core.with_room(|| unsafe {
            stream.enqueue_convolution(self.command(), algorithm, (operands, bias), workspace, self.noted)
        })
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
            noted.borrow_mut().add_library(&[]);
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
        if !self.adds("a copy")? {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.stream.copy(self.command(), dst, src, bytes) }
    }

    /// Enqueues an upload of bytes that stay what they are, as a node of a graph.
    ///
    /// # Safety
    /// The range is in bounds, and the command writes it.
    pub(crate) unsafe fn constant(&self, to: *mut u8, bytes: &[u8]) -> Result<()> {
        match self.target {
            // SAFETY: the caller's promise.
            Target::Graph(captured) => unsafe {
                self.stream.upload_constant(to, bytes, self.moment, captured)
            },
            // SAFETY: the caller's promise.
            Target::Stream => unsafe { self.stream.upload(to, bytes, self.moment) },
            Target::Update(_) | Target::Measure(_) => self.adds("an upload").map(drop),
        }
    }

    /// Whether `what` is enqueued. Not if it is part of a graph already, where it stays as it is: only kernels get other
    /// arguments.
    fn adds(&self, what: &str) -> Result<bool> {
        match self.target {
            Target::Stream | Target::Graph(_) => self.mark().map(|()| true),
            Target::Measure(measured) => {
                measured.stays.set(true);
                Ok(false)
            }
            Target::Update(_) => Err(refused(self.op, &format!("{what} of a graph stays where it is"))),
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
        if !self.adds("a fill")? {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.stream.fill_bytes(self.command(), dst, value, bytes) }
    }
}
