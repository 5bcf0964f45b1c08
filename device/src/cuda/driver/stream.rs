//! A driver's stream: what launching, waiting and marking mean to it.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::ffi::sys;
use parking_lot::Mutex;

use super::call::{address, call, check};
use super::context::Context;
use super::enqueue::{Call, Kernel};
use super::event::{IN_HOST_FUNCTION, RawEvent};
use super::fault::FaultWord;
use super::launcher::{CommandId, Launcher};
use super::timed::{DriverEvent, GateWord};
use super::{Arg, Grid, Program, Properties, Source, Staged, Target};
use crate::spin::spin_until;
use crate::{KernelRecord, Moment, Panicked, Priority, Result, StreamId, foreign};

/// A stream of the driver. Its calls are made, or given to the launcher, under the tail of the stream that owns it, but for those
/// that wait for it or look at it, which any thread makes.
pub(crate) struct DriverStream {
    raw: sys::CUstream,
    /// Who makes the calls of launches, if it is not whoever launches, and how many it was given when it got the newest one of
    /// this stream's.
    launcher: Option<Arc<Launcher>>,
    given: AtomicU64,
    /// Whether the newest command's calls are made by whoever launches nevertheless.
    here: AtomicBool,
    /// The newest tick whose work the driver, or the launcher, was given.
    launched: AtomicU64,
    /// The one event that other streams and the host wait for: it marks the stream's end as of some tick.
    marker: Mutex<EndMarker>,
    /// Where its kernels report what they meet.
    fault: Arc<FaultWord>,
    /// As whom, once they may.
    reporter: OnceLock<StreamId>,
    pub(crate) context: Arc<Context>,
}

struct EndMarker {
    event: Option<RawEvent>,
    /// The event comes after the command at this tick, and before later ones.
    tick: u64,
}

// SAFETY: the driver's handles belong to no thread; all else is `Send` by itself.
unsafe impl Send for DriverStream {}
// SAFETY: the driver takes calls with one handle from several threads at once; all else is `Sync` by itself.
unsafe impl Sync for DriverStream {}

impl Context {
    /// A stream that no other one, the driver's default stream included, waits for by itself.
    pub(crate) fn stream(
        self: &Arc<Self>,
        fault: &Arc<FaultWord>,
        priority: Priority,
        launcher: Option<Arc<Launcher>>,
    ) -> Result<DriverStream> {
        self.bind()?;
        let (least, greatest) = self.priorities;
        let priority = match priority {
            Priority::Low => least,
            Priority::Normal => (least + greatest) / 2,
            Priority::High => greatest,
        };
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the driver writes a handle.
        unsafe { call!(cuStreamCreateWithPriority(&mut raw, flags, priority)) }?;
        Ok(DriverStream {
            raw,
            launcher,
            given: AtomicU64::new(0),
            here: AtomicBool::new(false),
            launched: AtomicU64::new(0),
            marker: Mutex::new(EndMarker { event: None, tick: 0 }),
            fault: Arc::clone(fault),
            reporter: OnceLock::new(),
            context: Arc::clone(self),
        })
    }
}

impl DriverStream {
    /// Has whoever launches make the calls of the next command, or not.
    pub(crate) fn launch_here(&self, here: bool) {
        self.here.store(here, Ordering::Relaxed);
    }

    /// The driver's handle, once the driver has all that the stream was given so far: to be asked for anew behind what is
    /// [enqueued](Self::enqueue).
    pub(crate) fn raw(&self) -> sys::CUstream {
        if let Some(launcher) = &self.launcher {
            launcher.wait_for(self.given.load(Ordering::Relaxed));
        }
        self.raw
    }

    /// Makes a call of the stream's newest command, with these arguments, or has it made.
    ///
    /// # Safety
    /// The context is current, the words are the call's, and whoever made it answers for it.
    #[inline]
    pub(super) unsafe fn enqueue(&self, mut call: Call, words: &mut [u64], command: CommandId) -> Result<()> {
        let Some(launcher) = &self.launcher else {
            // SAFETY: the caller's promise.
            return unsafe { call.make(words, self.raw) };
        };
        // A call on a stream that is held may wait for its gate: in the launcher, all streams would.
        if self.here.load(Ordering::Relaxed) || self.context.gates.load(Ordering::Relaxed) > 0 {
            // SAFETY: the caller's promise.
            return unsafe { call.make(words, self.raw()) };
        }
        match launcher.awake() {
            Some(awake) => {
                // SAFETY: the caller's promise, and the stream waits for the call before it is destroyed.
                let given = unsafe { awake.give(call, words, self.raw, command) };
                // Before anybody is told that the command is launched.
                self.given.store(given, Ordering::Relaxed);
                Ok(())
            }
            // SAFETY: the caller's promise. A launcher that sleeps has made all calls.
            None => unsafe { call.make(words, self.raw) },
        }
    }

    /// A new one of the same device, which is current then.
    pub(crate) fn sibling(&self) -> Result<DriverStream> {
        self.context.stream(&self.fault, Priority::Normal, None)
    }

    pub(crate) fn properties(&self) -> &Properties {
        &self.context.properties
    }

    /// Makes the device current on this thread; before any other call.
    pub(crate) fn bind(&self) -> Result<()> {
        self.context.bind()
    }

    /// The driver, or the launcher, was given the command at `tick`, or never will be.
    pub(crate) fn set_launched(&self, tick: u64) {
        self.launched.store(tick, Ordering::Release);
    }

    /// Waits until the driver, or the launcher, has the command at `tick`, which another thread is just launching.
    fn await_launch(&self, tick: u64) {
        spin_until(|| self.launched.load(Ordering::Acquire) >= tick);
    }

    /// Has the marker cover `tick`, and hands it out with the tick that it covers; says whether it was recorded anew.
    fn with_marker<R>(&self, tick: u64, f: impl FnOnce(sys::CUevent, u64, bool) -> Result<R>) -> Result<R> {
        // Not under the lock: who launches the command may wait for an older tick of this very stream.
        self.await_launch(tick);
        self.bind()?;
        let mut marker = self.marker.lock();
        let event = match &marker.event {
            Some(event) => event.0,
            None => {
                let event = RawEvent::new(sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32)?;
                marker.event.insert(event).0
            }
        };
        let stale = marker.tick < tick;
        if stale {
            let newest = self.launched.load(Ordering::Acquire);
            // SAFETY: the context is current, and both handles are live.
            unsafe { call!(cuEventRecord(event, self.raw()))? };
            marker.tick = newest;
        }
        f(event, marker.tick, stale)
    }

    /// Makes later work of this stream come after the command of `producer` at `tick`. Gives the tick that is covered,
    /// `tick` or a later one, and whether an event was recorded for it.
    pub(crate) fn wait_for(&self, producer: &DriverStream, tick: u64) -> Result<(u64, bool)> {
        // The event may not be recorded again before the wait was enqueued, which takes its newest record.
        producer.with_marker(tick, |event, covered, recorded| {
            // The producer may be another device's.
            self.bind()?;
            // SAFETY: the context is current, and both handles are live.
            unsafe { call!(cuStreamWaitEvent(self.raw(), event, 0))? };
            Ok((covered, recorded))
        })
    }

    /// Makes later work of this stream come after a user's event.
    pub(crate) fn wait_event(&self, event: &DriverEvent) -> Result<()> {
        // SAFETY: the context is current, and both handles are live.
        unsafe { call!(cuStreamWaitEvent(self.raw(), event.event.0, 0)) }
    }

    /// Blocks until the command at `tick` has run, and gives the newest tick known to have.
    pub(crate) fn host_wait(&self, tick: u64) -> Result<u64> {
        self.bind()?;
        self.await_launch(tick);
        let launched = self.launched.load(Ordering::Acquire);
        if launched == tick {
            // SAFETY: the context is current, and the stream is live.
            unsafe { call!(cuStreamSynchronize(self.raw()))? };
            return Ok(launched);
        }
        let (event, covered) = self.with_marker(tick, |event, covered, _| Ok((event, covered)))?;
        // Somebody may record the event again meanwhile: then this waits for longer, which is no harm.
        // SAFETY: the context is current, and the event lives as long as the stream.
        unsafe { call!(cuEventSynchronize(event))? };
        Ok(covered)
    }

    /// The newest tick that can be seen to have run, without blocking; `None` if there is none. `wanted` is what the caller
    /// hopes for.
    pub(crate) fn poll(&self, wanted: u64) -> Result<Option<u64>> {
        self.bind()?;
        if let Some(marker) = self.marker.try_lock()
            && let Some(event) = &marker.event
            && marker.tick >= wanted
        {
            return Ok(event.is_complete()?.then_some(marker.tick));
        }
        let launched = self.launched.load(Ordering::Acquire);
        let given = self.given.load(Ordering::Relaxed);
        if self.launcher.as_ref().is_some_and(|launcher| !launcher.has_made(given)) {
            return Ok(None);
        }
        // SAFETY: the context is current, and the stream is live.
        match unsafe { foreign!(sys::cuStreamQuery(self.raw)) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(None),
            code => check("cuStreamQuery", code).map(|()| Some(launched)),
        }
    }

    /// Records an event that can be timed.
    pub(crate) fn record_timed(&self) -> Result<DriverEvent> {
        let pooled = self.context.events.lock().pop();
        let event = match pooled {
            Some(event) => event,
            None => RawEvent::new(sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32)?,
        };
        // SAFETY: the context is current, and both handles are live.
        unsafe { call!(cuEventRecord(event.0, self.raw()))? };
        Ok(DriverEvent {
            event: ManuallyDrop::new(event),
            context: Arc::clone(&self.context),
            is_timed: true,
        })
    }

    /// Enqueues a function of the host, which must not call the driver.
    pub(crate) fn host_call(&self, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        unsafe extern "C" fn run(data: *mut c_void) {
            // SAFETY: `data` is the box below, and the driver calls this once.
            let work = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
            IN_HOST_FUNCTION.set(true);
            // Whoever enqueues work catches its panics to report them; none may reach the driver.
            let _ = Panicked::catch(work);
            IN_HOST_FUNCTION.set(false);
        }
        let data = Box::into_raw(Box::new(work)).cast::<c_void>();
        // SAFETY: the context is current, and the stream is live.
        unsafe { call!(cuLaunchHostFunc(self.raw(), Some(run), data)) }.inspect_err(|_| {
            // SAFETY: the driver refused, so nobody else has the box.
            drop(unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) });
        })
    }

    /// Enqueues a copy of `bytes` to the device; they are read before the call returns. A graph keeps the result, from which it
    /// copies at each launch.
    ///
    /// # Safety
    /// `to` is in bounds, and the command at `moment` writes it.
    pub(crate) unsafe fn upload(&self, to: *mut u8, bytes: &[u8], moment: Moment) -> Result<Staged> {
        let staged = Staged::of(&self.context, bytes, moment)?;
        // SAFETY: the context is current; the block is not used again before the command at `moment` has run.
        unsafe { self.copy_from_pinned(to, staged.as_ptr(), bytes.len())? };
        Ok(staged)
    }

    /// Enqueues a copy to the host, to be read once the command at `moment` has run.
    ///
    /// # Safety
    /// `from` is in bounds, and the command at `moment` reads it.
    pub(crate) unsafe fn download(&self, from: *const u8, len: usize, moment: Moment) -> Result<Staged> {
        let staged = Staged::new(&self.context, len, moment)?;
        // SAFETY: the context is current; the block is not used again before the command at `moment` has run.
        unsafe { self.copy_to_pinned(staged.as_ptr(), from, len)? };
        Ok(staged)
    }

    /// Closes a gate: later work starts once the word drops. `holds`: for a [`Hold`](crate::Hold), which this thread may be
    /// the one to drop.
    pub(crate) fn gate(&self, moment: Moment, holds: bool) -> Result<GateWord> {
        let staged = Staged::of(&self.context, &0u32.to_ne_bytes(), moment)?;
        let word = address(staged.as_ptr());
        let flags = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // Nothing is loaded before the hold is counted.
        let _quiet = holds.then(|| self.context.loads.lock());
        // SAFETY: the context is current; the word is the device's to read until the command at `moment` has run.
        unsafe { call!(cuStreamWaitValue32_v2(self.raw(), word, 1, flags)) }?;
        self.context.gates.fetch_add(1, Ordering::AcqRel);
        self.context.holds.fetch_add(usize::from(holds), Ordering::AcqRel);
        Ok(GateWord { word: staged, holds })
    }

    /// # Safety
    /// As for [`Queue::kernel`](super::Queue::kernel).
    pub(crate) unsafe fn kernel(
        &self,
        command: CommandId,
        program: &'static Program,
        name: &str,
        grid: Grid,
        args: &[Arg<'_>],
        target: Target<'_>,
    ) -> Result<()> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let function = self.context.function(program, name)?;
        let (op, id) = command;
        let reports = args.iter().any(|arg| matches!(arg, Arg::Fault));
        let fault = reports.then(|| self.fault.argument(op, *self.reporter.get_or_init(|| id)));
        let (mut kernel, mut words) = Kernel::new(function, grid, args, fault);
        if let Target::Update(updated) = target {
            // SAFETY: the caller answers for the arguments.
            return unsafe { updated.set_kernel(function.0, grid, kernel.list(&mut words).as_mut_ptr()) };
        }
        // SAFETY: the context is current, and the caller answers for the arguments' number, types and meaning.
        unsafe { self.enqueue(Call::Kernel(kernel), &mut words, command)? };
        match target {
            Target::Graph(captured) => captured.add_kernel(self),
            Target::Stream | Target::Update(_) | Target::Measure(_) => Ok(()),
        }
    }

    /// A kernel of such a grid, and what the driver says of it; the context is current.
    pub(crate) fn describe_kernel(
        &self,
        program: &'static Program,
        name: &str,
        grid: Grid,
    ) -> Result<KernelRecord> {
        let function = self.context.function(program, name)?;
        function.describe(name, grid)
    }

    /// Begins to add what is enqueued to `graph`, after the nodes `after`.
    pub(crate) fn begin_capture(&self, graph: sys::CUgraph, after: &[sys::CUgraphNode]) -> Result<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the handles are live, and the driver copies the list.
        unsafe {
            call!(cuStreamBeginCaptureToGraph(
                self.raw(),
                graph,
                after.as_ptr(),
                std::ptr::null(),
                after.len(),
                mode
            ))
        }
    }

    /// Gives the graph that was captured into: the caller's, if it was given one.
    pub(crate) fn end_capture(&self) -> Result<sys::CUgraph> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is live; the driver writes the handle of a graph.
        unsafe { call!(cuStreamEndCapture(self.raw(), &mut graph))? };
        Ok(graph)
    }

    /// A new graph of what `enqueue` enqueues, which is the caller's.
    pub(crate) fn capture(&self, enqueue: impl FnOnce(sys::CUstream) -> Result<()>) -> Result<sys::CUgraph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live.
        unsafe { call!(cuStreamBeginCapture_v2(self.raw(), mode))? };
        let enqueued = enqueue(self.raw());
        let ended = self.end_capture();
        match enqueued {
            Ok(()) => ended,
            Err(error) => {
                if let Ok(graph) = ended {
                    // SAFETY: it was made by this capture, and nobody else has it.
                    unsafe { foreign!(sys::cuGraphDestroy(graph)) };
                }
                Err(error)
            }
        }
    }

    /// The nodes that come last in what was captured so far.
    pub(crate) fn captured_nodes(&self) -> Result<smallvec::SmallVec<[sys::CUgraphNode; 2]>> {
        let (mut status, mut id, mut graph, mut count) = (0u32, 0, std::ptr::null_mut(), 0);
        let (mut nodes, mut edges) = (std::ptr::null(), std::ptr::null());
        // SAFETY: the stream is live; the driver writes to each address.
        unsafe {
            call!(cuStreamGetCaptureInfo_v3(
                self.raw(),
                (&raw mut status).cast(),
                &mut id,
                &mut graph,
                &mut nodes,
                &mut edges,
                &mut count
            ))
        }?;
        if count == 0 || nodes.is_null() {
            return Ok(smallvec::SmallVec::new());
        }
        // SAFETY: the driver's list has as many nodes, and is valid until the stream's next call.
        Ok(unsafe { std::slice::from_raw_parts(nodes, count) }.into())
    }

    /// As whom its kernels report.
    pub(crate) fn reporter(&self) -> StreamId {
        *self.reporter.get_or_init(StreamId::fresh)
    }

    /// # Safety
    /// As for [`Queue::copy`](super::Queue::copy).
    pub(crate) unsafe fn write(
        &self,
        command: CommandId,
        to: *mut u8,
        from: Source,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the context is current; the caller answers for the ranges.
        unsafe { self.enqueue(Call::Write { to, from, bytes }, &mut [], command) }
    }

    /// Enqueues a copy from memory of another device, with the context `theirs`.
    ///
    /// # Safety
    /// Both ranges are in bounds and apart, and the newest command uses them.
    pub(crate) unsafe fn copy_across(
        &self,
        to: *mut u8,
        theirs: &Context,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (ours, theirs) = (self.context.raw, theirs.raw);
        // SAFETY: the context is current, and both are retained; the caller answers for the ranges.
        let code = unsafe {
            foreign!(sys::cuMemcpyPeerAsync(address(to), ours, address(from), theirs, bytes, self.raw()))
        };
        check("cuMemcpyPeerAsync", code)
    }

    /// Enqueues a copy from pinned host memory, which is read when it runs.
    ///
    /// # Safety
    /// As for [`Queue::copy`](super::Queue::copy); `from` is pinned memory.
    pub(crate) unsafe fn copy_from_pinned(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the context is current; the caller answers for the ranges.
        unsafe { call!(cuMemcpyHtoDAsync_v2(address(to), from.cast(), bytes, self.raw())) }
    }

    /// Enqueues a copy to pinned host memory.
    ///
    /// # Safety
    /// As for [`Queue::copy`](super::Queue::copy); `to` is pinned memory.
    pub(crate) unsafe fn copy_to_pinned(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the context is current; the caller answers for the ranges.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.cast(), address(from), bytes, self.raw())) }
    }
}

impl Drop for DriverStream {
    fn drop(&mut self) {
        if let Some(&reporter) = self.reporter.get() {
            self.fault.forget(reporter);
        }
        if self.bind().is_ok() {
            // SAFETY: created once, destroyed once; the driver lets it run dry.
            unsafe { foreign!(sys::cuStreamDestroy_v2(self.raw())) };
        }
    }
}

debug_fields!(DriverStream {});
