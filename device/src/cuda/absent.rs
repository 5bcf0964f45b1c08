//! A build without CUDA: the types of the driver's side, none of which has a value. Every method is as good as absent.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Arg, ConvForm, Gemm, Grid, Program, Queue, Target, Workspace};
use crate::device::Core;
use crate::graph::Node;
use crate::ipc::DRIVER_HANDLE;
use crate::recorder::Kernels;
use crate::{Binder, Buffer, Cpu, Device, Work};
use crate::{
    DeviceFacts, Error, ErrorKind, HeldOutside, KernelRecord, MemoryDriver, Moment, Priority, Result,
    StreamId,
};

#[derive(Debug)]
pub(crate) enum Context {}
#[derive(Debug)]
pub(crate) enum DriverStream {}
pub(crate) enum TimedEvent {}
pub(crate) enum GateWord {}
pub(crate) enum Staged {}
pub(crate) enum FaultWord {}
pub(crate) enum Launcher {}
pub(crate) enum DriverGraph {}
pub(crate) enum Captured {}
pub(crate) struct SharedEvent(std::convert::Infallible);
pub(crate) struct IpcMemory(std::convert::Infallible);
pub(crate) struct IpcWait(pub(crate) Arc<SharedEvent>);
pub(crate) struct IpcCopy(std::convert::Infallible);
/// How a convolution is made by cuDNN.
#[derive(Clone, Debug)]
pub enum ConvAlgorithm {}
pub(crate) struct Updated<'a>(std::convert::Infallible, std::marker::PhantomData<&'a ()>);

impl Updated<'_> {
    pub(super) fn tf32(&self) -> bool {
        match self.0 {}
    }
}

pub(crate) fn in_host_function() -> bool {
    false
}

impl Context {
    pub(crate) fn open(_: usize) -> Result<Arc<Context>> {
        let reason = "this build has no CUDA: it was made without the feature `cuda`".into();
        Err(Error::new(ErrorKind::CudaUnavailable { reason }))
    }

    pub(crate) fn describe(&self) -> String {
        match *self {}
    }

    pub(crate) fn facts(&self, _: DeviceFacts) -> DeviceFacts {
        match *self {}
    }

    pub(crate) fn held(&self) -> HeldOutside {
        match *self {}
    }

    pub(crate) fn convolutions(&self) -> Result<String> {
        match *self {}
    }

    pub(crate) fn trim_pinned(&self) -> bool {
        match *self {}
    }

    pub(super) fn allocate_pinned(&self, _: usize) -> Result<NonNull<u8>> {
        match *self {}
    }

    pub(super) unsafe fn free_pinned(&self, _: NonNull<u8>) {
        match *self {}
    }
}

impl Launcher {
    pub(crate) fn new(context: &Arc<Context>, _: &Arc<FaultWord>, _: bool) -> Result<Arc<Launcher>> {
        match **context {}
    }
}

impl FaultWord {
    pub(crate) const BYTES: usize = 0;

    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<FaultWord>> {
        match **context {}
    }

    pub(crate) fn is_set(&self) -> bool {
        match *self {}
    }

    pub(crate) fn take(&self) -> Option<Error> {
        match *self {}
    }
}

// SAFETY: there is no such value.
unsafe impl MemoryDriver for Context {
    fn allocate(&self, _: usize) -> Result<NonNull<u8>> {
        match *self {}
    }

    unsafe fn free(&self, _: NonNull<u8>, _: usize) {
        match *self {}
    }
}

impl DriverStream {
    pub(crate) fn new(context: &Arc<Context>, _: &Arc<FaultWord>, _: Priority) -> Result<DriverStream> {
        match **context {}
    }

    pub(crate) fn launch_by(&mut self, _: Option<Arc<Launcher>>) {
        match *self {}
    }

    pub(crate) fn launch_here(&self, _: bool) {
        match *self {}
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        match *self {}
    }

    pub(super) fn shared_bytes(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn has_tensor_cores(&self) -> bool {
        match *self {}
    }

    pub(super) fn has_warp_groups(&self) -> bool {
        match *self {}
    }

    pub(crate) fn bind(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn set_launched(&self, _: u64) {
        match *self {}
    }

    pub(crate) fn wait_for(&self, _: &DriverStream, _: u64) -> Result<(u64, bool)> {
        match *self {}
    }

    pub(crate) fn wait_event(&self, _: &TimedEvent) -> Result<()> {
        match *self {}
    }

    pub(crate) fn host_wait(&self, _: u64) -> Result<u64> {
        match *self {}
    }

    pub(crate) fn poll(&self, _: u64) -> Result<Option<u64>> {
        match *self {}
    }

    pub(crate) fn record_timed(&self) -> Result<TimedEvent> {
        match *self {}
    }

    pub(crate) fn host_call(&self, _: Box<dyn FnOnce() + Send>) -> Result<()> {
        match *self {}
    }

    pub(crate) unsafe fn upload(&self, _: *mut u8, _: &[u8], _: Moment) -> Result<()> {
        match *self {}
    }

    pub(crate) unsafe fn download(&self, _: *const u8, _: usize, _: Moment) -> Result<Staged> {
        match *self {}
    }

    pub(crate) fn gate(&self, _: Moment, _: bool) -> Result<GateWord> {
        match *self {}
    }

    pub(super) fn preload(&self, _: &[&'static Program], _: bool) -> Result<()> {
        match *self {}
    }

    pub(super) unsafe fn kernel(
        &self,
        _: (&'static str, StreamId),
        _: &'static Program,
        _: &str,
        _: Grid,
        _: &[Arg<'_>],
        _: Target<'_>,
    ) -> Result<()> {
        match *self {}
    }

    pub(super) fn describe(&self, _: &'static Program, _: &str, _: Grid) -> Result<KernelRecord> {
        match *self {}
    }

    pub(super) unsafe fn upload_constant(&self, _: *mut u8, _: &[u8], _: Moment, _: &Captured) -> Result<()> {
        match *self {}
    }

    pub(super) unsafe fn gemm(
        &self,
        _: (&'static str, StreamId),
        _: &Gemm,
        _: Workspace,
        _: Target<'_>,
        _: Option<&RefCell<Kernels>>,
    ) -> Result<bool> {
        match *self {}
    }

    pub(super) fn convolution(&self, _: &ConvForm, _: bool) -> Result<Option<ConvAlgorithm>> {
        match *self {}
    }

    pub(super) unsafe fn enqueue_convolution(
        &self,
        _: (&'static str, StreamId),
        _: &ConvAlgorithm,
        _: ([*mut u8; 3], Option<*mut u8>),
        _: *mut u8,
        _: Option<&RefCell<Kernels>>,
    ) -> Result<()> {
        match *self {}
    }

    pub(super) unsafe fn copy(
        &self,
        _: (&'static str, StreamId),
        _: *mut u8,
        _: *const u8,
        _: usize,
    ) -> Result<()> {
        match *self {}
    }

    pub(crate) unsafe fn copy_across(&self, _: *mut u8, _: &Context, _: *const u8, _: usize) -> Result<()> {
        match *self {}
    }

    pub(crate) unsafe fn copy_from_pinned(&self, _: *mut u8, _: *const u8, _: usize) -> Result<()> {
        match *self {}
    }

    pub(crate) unsafe fn copy_to_pinned(&self, _: *mut u8, _: *const u8, _: usize) -> Result<()> {
        match *self {}
    }

    pub(super) unsafe fn fill_bytes(
        &self,
        _: (&'static str, StreamId),
        _: *mut u8,
        _: u8,
        _: usize,
    ) -> Result<()> {
        match *self {}
    }

    pub(super) fn raw(&self) -> *mut std::ffi::c_void {
        match *self {}
    }
}

impl ConvAlgorithm {
    /// Bytes of memory that it works in.
    pub fn workspace(&self) -> usize {
        match *self {}
    }

    /// Whether it may be made at an address.
    pub fn fits(_: *const u8) -> bool {
        false
    }
}

impl Captured {
    pub(super) fn library(
        &self,
        _: &DriverStream,
        _: impl FnOnce(*mut std::ffi::c_void) -> Result<()>,
    ) -> Result<()> {
        match *self {}
    }

    pub(super) fn beside(
        &self,
        _: &DriverStream,
        _: impl FnOnce() -> Result<()>,
        _: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match *self {}
    }
}

impl DriverGraph {
    pub(crate) fn new(core: &Arc<Core>, _: &[Node]) -> Result<DriverGraph> {
        match core.cuda.as_ref().map(|cuda| &*cuda.context) {
            Some(context) => match *context {},
            None => Err(Error::new(ErrorKind::CudaUnavailable { reason: "this build has no CUDA".into() })),
        }
    }

    pub(crate) fn update(&self, _: usize, _: &Node) -> Result<()> {
        match *self {}
    }

    pub(crate) fn launch(&mut self, _: &Queue<'_>) -> Result<()> {
        match *self {}
    }
}

impl Context {
    pub(crate) fn uuid(&self) -> Result<[u8; 16]> {
        match *self {}
    }
}

impl SharedEvent {
    pub(crate) fn open(context: &Arc<Context>, _: [u8; DRIVER_HANDLE]) -> Result<SharedEvent> {
        match **context {}
    }

    pub(crate) fn handle(&self) -> Result<[u8; DRIVER_HANDLE]> {
        match self.0 {}
    }

    pub(crate) fn gpu(&self) -> Result<[u8; 16]> {
        match self.0 {}
    }

    pub(crate) fn check_device(&self, _: &'static str, _: &Device) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn is_complete(&self) -> Result<bool> {
        match self.0 {}
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }
}

impl IpcMemory {
    pub(crate) fn allocate(context: &Arc<Context>, _: usize) -> Result<IpcMemory> {
        match **context {}
    }

    pub(crate) fn open(context: &Arc<Context>, _: [u8; DRIVER_HANDLE], _: usize) -> Result<IpcMemory> {
        match **context {}
    }

    pub(crate) fn used(&self) -> &Arc<SharedEvent> {
        match self.0 {}
    }

    pub(crate) fn handle(&self) -> Result<[u8; DRIVER_HANDLE]> {
        match self.0 {}
    }

    pub(crate) fn len(&self) -> usize {
        match self.0 {}
    }
}

impl IpcCopy {
    pub(crate) fn out_of(_: &Buffer, _: Range<usize>, memory: &IpcMemory) -> IpcCopy {
        match memory.0 {}
    }

    pub(crate) fn into(_: &Buffer, memory: &IpcMemory, _: Arc<SharedEvent>) -> IpcCopy {
        match memory.0 {}
    }
}

impl Work for IpcCopy {
    fn run(&self, _: &Cpu<'_>) {}

    fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
        match self.0 {}
    }

    fn bind(&mut self, _: &mut dyn Binder) {}
}

impl Work for IpcWait {
    fn run(&self, _: &Cpu<'_>) {}

    fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
        match self.0.0 {}
    }

    fn bind(&mut self, _: &mut dyn Binder) {}
}

impl TimedEvent {
    pub(crate) fn shared(&self) -> Result<SharedEvent> {
        match *self {}
    }

    pub(crate) fn is_complete(&self) -> Result<bool> {
        match *self {}
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn elapsed_ms(&self, _: &TimedEvent) -> Result<f64> {
        match *self {}
    }
}

impl Staged {
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        match *self {}
    }
}
