//! The one place where the order of commands is decided.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;

use crate::buffer::Log;
use crate::cuda::{DriverStream, GateWord, Queue, Target, TimedEvent};
use crate::explorer::Ready;
use crate::fifo::{Gate, Item, Job, Tail, bump, find};
use crate::graph::capture::{Capture, of_another_step, refused};
use crate::needs::Moments;
use crate::pending::Barrier;
use crate::recorder::{CommandKind, Kernels, Label, Launching, OperandRecord};
use crate::within::{Holds, Within};
use crate::{
    AtCaller, Binder, Cpu, Error, ErrorKind, Moment, Panicked, Placement, Result, Shared, SpinGuard, Stream,
    Use, Work,
};

/// Who runs a command that was ordered.
#[derive(Clone, Copy, PartialEq)]
#[repr(usize)]
enum Place {
    /// The calling thread, at once.
    Here,
    /// The worker, after the tail's waits.
    Worker,
    /// The device's driver, which was told the waits.
    Driver,
}

impl Stream {
    /// Launches a command that reads and writes `uses`, and does `work` on this stream's device.
    ///
    /// The command comes after every earlier command that wrote what it uses or, where it writes, used it, on
    /// whatever stream. That is decided here, once, in one critical section of this stream: needs are read from the
    /// buffers' logs, those that the stream's clock covers are dropped, the rest are waited for with the fewest
    /// events, and the uses are logged. A CPU device runs the work before the call returns if the stream runs inline, later
    /// and on another thread if not; a CUDA device enqueues it. Memory that it reaches through `uses` stays valid until it
    /// has run. A call that would wait in it is `Deadlock`.
    ///
    /// # Errors
    /// `DeviceMismatch` if a buffer is another device's, `Io` if the stream needs a thread that the
    /// system does not give, `Deadlock` within a command of a stream that runs inline. Nothing is launched then.
    /// What a CUDA device's queue returns.
    #[inline]
    #[track_caller]
    pub fn launch<W: Work>(&self, op: &'static str, uses: &[Use<'_>], work: W) -> Result<()> {
        self.launch_described(op, uses, &Vec::new, work)
    }

    /// As [`launch`](Self::launch); a recording asks `operands` what the command is launched on.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    #[inline]
    #[track_caller]
    pub fn launch_described<W: Work>(
        &self,
        op: &'static str,
        uses: &[Use<'_>],
        operands: &dyn Fn() -> Vec<OperandRecord>,
        work: W,
    ) -> Result<()> {
        if self.core().is_capturing() {
            return self.launch_or_record(op, uses, operands, work);
        }
        self.launch_now(op, uses, operands, work)
    }

    /// Some thread captures a step, perhaps this one.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn launch_or_record<W: Work>(
        &self,
        op: &'static str,
        uses: &[Use<'_>],
        operands: &dyn Fn() -> Vec<OperandRecord>,
        work: W,
    ) -> Result<()> {
        match Capture::of(self.core()) {
            Some(capture) => {
                self.owns(op, uses)?;
                capture.record(self, op, uses, work)
            }
            None => self.launch_now(op, uses, operands, work),
        }
    }

    #[inline(always)]
    #[track_caller]
    fn launch_now<W: Work>(
        &self,
        op: &'static str,
        uses: &[Use<'_>],
        operands: &dyn Fn() -> Vec<OperandRecord>,
        work: W,
    ) -> Result<()> {
        let fifo = self.fifo();
        let label = Label { kind: work.kind(), operands };
        let mut noted = self.core().recorder.launching(op, uses, &label);
        let mut tail = fifo.lock_tail(op)?;
        let threads = fifo.threads;
        let waits = work.waits();
        if waits && fifo.driver_stream().is_none() {
            fifo.ensure_worker(op)?;
        }
        let place = self.order(&mut tail, op, uses, true)?;
        if waits {
            fifo.add_barrier(tail.tick, Barrier::Ranks(op));
        }
        match place {
            Place::Here if waits && !self.tried(&tail, op, &work) => {
                let job = Box::new(move |core: &_| work.run(&Cpu::new(core, threads)));
                self.enqueue(&mut tail, op, uses, noted, job);
            }
            Place::Here if waits => {
                fifo.progress.complete_unawaited(tail.tick);
                self.note_launched(noted, &tail, None);
            }
            Place::Here => self.run_inline(&tail, op, noted, || work.run(&Cpu::new(self.core(), threads))),
            Place::Worker if waits && fifo.explorer().is_some() => {
                let work = Arc::new(work);
                let looked = Arc::clone(&work);
                let job = Box::new(move |core: &_| work.run(&Cpu::new(core, threads)));
                let ready: Ready = Arc::new(move || looked.is_ready());
                self.enqueue_when(&mut tail, op, uses, noted, job, Some(ready));
            }
            Place::Worker => {
                let job = Box::new(move |core: &_| work.run(&Cpu::new(core, threads)));
                self.enqueue(&mut tail, op, uses, noted, job);
            }
            Place::Driver => {
                let driver = fifo.driver()?;
                let moment = Moment { stream: fifo.id, tick: tail.tick };
                let kernels = noted.is_some().then(RefCell::default);
                let queue =
                    Queue::new(self.core(), driver, op, moment, Target::Stream).noting(kernels.as_ref());
                self.drive(driver, &mut tail, op, &mut noted, |_| work.enqueue(&queue))?;
                self.note_launched(noted, &tail, kernels);
            }
        }
        bump(&fifo.counters.launches, 1);
        Ok(())
    }

    /// Whether the newest command, which may wait, could be done at once.
    #[cold]
    fn tried(&self, tail: &Tail, op: &'static str, work: &impl Work) -> bool {
        let (fifo, core) = (self.fifo(), self.core());
        let start = core.recorder.is_on().then(Instant::now);
        let mut done = true;
        fifo.run(core, op, tail.tick, Holds::Launches, false, || {
            done = work.try_run(&Cpu::new(core, fifo.threads));
        });
        if let Some(start) = start.filter(|_| done) {
            core.recorder.ran(op, Moment { stream: fifo.id, tick: tail.tick }, start);
        }
        done
    }

    /// Tells a recording of the newest command.
    #[inline]
    fn note_launched(&self, noted: Option<Box<Launching>>, tail: &Tail, kernels: Option<RefCell<Kernels>>) {
        if let Some(mut noted) = noted {
            if let Some(kernels) = kernels {
                noted.set_kernels(kernels.into_inner());
            }
            self.core().recorder.launched(noted, Moment { stream: self.id(), tick: tail.tick });
        }
    }

    /// As [`launch`](Self::launch), for a function of the host, which a CUDA device's driver calls when its turn has come, on
    /// a thread of its own (`cuLaunchHostFunc`). It must not call the device, and cannot reach a CUDA device's memory.
    ///
    /// The engine takes it to end by itself: an allocation that needs memory which it uses, or a kernel's first use on its CUDA
    /// device, waits for it, and does so without end if the function waits for the thread that asks.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    #[track_caller]
    pub fn launch_host<F>(&self, op: &'static str, uses: &[Use<'_>], work: F) -> Result<()>
    where
        F: FnOnce() + Send + 'static,
    {
        self.not_captured(op, "a function of the host runs once")?;
        let fifo = self.fifo();
        let mut noted = self.core().recorder.launching(op, uses, &Label::of(CommandKind::Host));
        let mut tail = fifo.lock_tail(op)?;
        match self.order(&mut tail, op, uses, true)? {
            Place::Here => self.run_inline(&tail, op, noted, work),
            Place::Worker => self.enqueue(&mut tail, op, uses, noted, Box::new(|_| work())),
            Place::Driver => {
                self.host_command(&mut tail, op, &mut noted, Box::new(work))?;
                self.note_launched(noted, &tail, None);
            }
        }
        bump(&fifo.counters.launches, 1);
        Ok(())
    }

    /// That this thread's commands run, where one of them cannot be kept.
    pub(crate) fn not_captured(&self, op: &'static str, reason: &str) -> Result<()> {
        if Capture::of(self.core()).is_some() { Err(refused(op, reason)) } else { Ok(()) }
    }

    /// Whether an op that is several kernels is better several commands: in a step that this thread captures for a CUDA device,
    /// where one that needs less than the others can run before them.
    #[inline]
    pub fn prefers_parts(&self) -> bool {
        self.is_cuda() && Capture::of(self.core()).is_some()
    }

    /// Memory of `bytes` bytes for commands that this thread writes down, if it captures a step of the stream's device; else
    /// memory is allocated.
    ///
    /// # Errors
    /// `OutOfMemory` for a step of more bytes than can be counted.
    #[inline(always)]
    pub fn plan_buffer(&self, bytes: usize) -> Result<Option<Shared<crate::Buffer>>> {
        Capture::of(self.core()).map(|capture| capture.buffer(bytes)).transpose()
    }

    /// Whether the stream is a CUDA device's.
    #[inline]
    pub fn is_cuda(&self) -> bool {
        self.fifo().driver_stream().is_some()
    }

    /// Whether the device has units for products of matrices of BF16, F16 and TF32 (compute capability 8.0).
    pub fn has_tensor_cores(&self) -> bool {
        self.fifo().driver_stream().is_some_and(|stream| stream.has_tensor_cores())
    }

    /// Copies `bytes` into `buffer` from its byte `offset` on. If the stream cannot run the copy at once, the bytes
    /// are kept for it.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch); `InvalidArgument` if the range is not inside the buffer.
    #[track_caller]
    pub fn upload(
        &self,
        op: &'static str,
        buffer: &crate::Buffer,
        offset: usize,
        bytes: &[u8],
    ) -> Result<()> {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > buffer.len_bytes()) {
            return Err(Error::new(ErrorKind::InvalidArgument {
                op,
                argument: "range",
                expected: "inside the buffer",
                value: format!("{offset}+{} of {}", bytes.len(), buffer.len_bytes()).into(),
            }));
        }
        let to = Address(buffer.ptr().wrapping_add(offset));
        if Capture::of(self.core()).is_some() {
            return self.launch(op, &[Use::write(buffer)], Constant::new(to.0, bytes));
        }
        // SAFETY: the range is inside the buffer, the launch below orders the write, and the source is a slice, which
        // cannot overlap memory that only commands use.
        let copy = move |bytes: &[u8]| unsafe { to.copy_from(bytes) };
        let fifo = self.fifo();
        let uses = [Use::write(buffer)];
        let label = Label::of(CommandKind::Upload { bytes: bytes.len(), pinned: false });
        let mut noted = self.core().recorder.launching(op, &uses, &label);
        let mut tail = fifo.lock_tail(op)?;
        match self.order(&mut tail, op, &uses, true)? {
            Place::Here => self.run_inline(&tail, op, noted, || copy(bytes)),
            Place::Worker => {
                let kept: Box<[u8]> = bytes.into();
                self.enqueue(&mut tail, op, &uses, noted, Box::new(move |_| copy(&kept)));
            }
            Place::Driver => {
                let driver = fifo.driver()?;
                self.drive(driver, &mut tail, op, &mut noted, |moment| {
                    // SAFETY: the range is inside the buffer, and the command writes it.
                    unsafe { driver.upload(to.0, bytes, moment) }
                })?;
                self.note_launched(noted, &tail, None);
            }
        }
        bump(&fifo.counters.launches, 1);
        Ok(())
    }

    /// Copies the bytes `range` of `from` into `to` from byte `at` on, between this stream's CUDA device and another one or
    /// pinned host memory: `to` is this device's, or pinned. A command of this stream like any other: it comes after what
    /// wrote `from`, wherever that runs, and neither buffer is written or given to anybody else before it has run. The host
    /// waits for nothing; where devices cannot reach each other's memory, the driver takes the way through the host's.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch); `CudaUnavailable` if the other buffer is neither, `DeviceMismatch` if
    /// `to` is another CUDA device's, `InvalidArgument` for a range that is not inside its buffer or if `from` is
    /// `to`.
    #[track_caller]
    pub fn copy_across(
        &self,
        op: &'static str,
        to: &crate::Buffer,
        at: usize,
        from: &crate::Buffer,
        range: Range<usize>,
    ) -> Result<()> {
        self.not_captured(op, "a copy between devices is not part of one device's step")?;
        let (fifo, ours) = (self.fifo(), self.core());
        let driver = fifo.driver()?;
        let is_ours = |buffer: &crate::Buffer| Arc::ptr_eq(buffer.device().core(), ours);
        let other = if is_ours(to) { from } else { to };
        let theirs = other.device().core();
        let context = match (&theirs.cuda, &theirs.pinned) {
            (Some(_), _) if !is_ours(to) => return self.owns(op, &[Use::write(to)]),
            (Some(cuda), _) => &cuda.context,
            (None, Some(context)) => context,
            (None, None) => {
                let reason = format!("{op} copies between {} and {}", self.device(), other.device()).into();
                return Err(Error::new(ErrorKind::CudaUnavailable { reason }));
            }
        };
        if !is_ours(to) {
            self.owns(op, &[Use::read(from)])?;
        }
        let bytes = range.len();
        let fits = |start: usize, buffer: &crate::Buffer| {
            start.checked_add(bytes).is_some_and(|end| end <= buffer.len_bytes())
        };
        if !fits(at, to) || !fits(range.start, from) {
            return Err(Error::new(ErrorKind::InvalidArgument {
                op,
                argument: "range",
                expected: "inside the buffers",
                value: format!("{range:?} of {} to {at} of {}", from.len_bytes(), to.len_bytes()).into(),
            }));
        }
        if std::ptr::eq(to, from) {
            return Err(Error::new(ErrorKind::InvalidArgument {
                op,
                argument: "from",
                expected: "another buffer than the target",
                value: format!("{:p} twice", to.ptr()).into(),
            }));
        }
        let uses = [Use::write(to), Use::read(from)];
        let kind = match &theirs.cuda {
            Some(_) => CommandKind::Across { bytes },
            None if is_ours(to) => CommandKind::Upload { bytes, pinned: true },
            None => CommandKind::Download { bytes },
        };
        let mut noted = ours.recorder.launching(op, &uses, &Label::of(kind));
        let mut tail = fifo.lock_tail(op)?;
        self.order_uses(&mut tail, op, &uses, false)?;
        let moment = Moment { stream: fifo.id, tick: tail.tick };
        // Before it is given to the driver: the other device's memory outlives the copy.
        ours.borrow_until(moment, theirs, context);
        to.device().core().inherit_faults(moment, from.device().core());
        let (to_ptr, from_ptr) = (to.ptr().wrapping_add(at), from.ptr().wrapping_add(range.start));
        self.drive(driver, &mut tail, op, &mut noted, |_| {
            // SAFETY: both ranges are inside their buffers, which the command uses, and which are where `theirs` says.
            unsafe {
                match &theirs.cuda {
                    Some(_) => driver.copy_across(to_ptr, context, from_ptr, bytes),
                    None if is_ours(to) => driver.copy_from_pinned(to_ptr, from_ptr, bytes),
                    None => driver.copy_to_pinned(to_ptr, from_ptr, bytes),
                }
            }
        })?;
        self.note_launched(noted, &tail, None);
        bump(&fifo.counters.launches, 1);
        Ok(())
    }

    /// Makes later commands come after `moments`, with the fewest waits. Does not block the host.
    ///
    /// # Errors
    /// `Io` if the stream needs a thread that the system does not give, `InvalidArgument` for a moment that its
    /// stream has not come to: the clock would count it as passed.
    pub fn wait_for(&self, moments: &[Moment]) -> Result<()> {
        self.wait_exactly(moments, None)
    }

    /// As [`wait_for`](Self::wait_for); if the driver has an event at the only moment, it is the one to wait for.
    pub(crate) fn wait_exactly(&self, moments: &[Moment], event: Option<&TimedEvent>) -> Result<()> {
        // A plan has its own edges.
        if Capture::of(self.core()).is_some() {
            return Ok(());
        }
        let launched = |stream| find(stream).map_or(u64::MAX, |fifo| fifo.enqueued.load(Ordering::Acquire));
        if let Some(to_come) = moments.iter().find(|moment| moment.tick > launched(moment.stream)) {
            let value = format_args!("{to_come:?} of a stream at {}", launched(to_come.stream));
            return Err(Error::invalid("wait", "moments", "launched already", value));
        }
        let fifo = self.fifo();
        let mut noted = self.core().recorder.launching("wait", &[], &Label::of(CommandKind::Wait));
        let mut tail = fifo.lock_tail("wait")?;
        let mut needs: Moments = moments.iter().copied().filter(|need| need.stream != fifo.id).collect();
        fifo.drop_met(&mut tail, &mut needs);
        if needs.is_empty() {
            return Ok(());
        }
        if fifo.driver_stream().is_none() {
            fifo.ensure_worker("wait")?;
        }
        let place = AtCaller::location();
        let audit = |tail: &Tail| {
            if fifo.audit.is_on() {
                fifo.audit_command(tail, "wait", &[], place);
            }
        };
        fifo.take(&mut tail);
        match fifo.driver_stream() {
            None => {
                fifo.commit(&mut tail, needs, None)?;
                audit(&tail);
                self.enqueue(&mut tail, "wait", &[], noted, Box::new(|_| ()));
                Ok(())
            }
            Some(driver) => {
                let committed = driver.bind().and_then(|()| fifo.commit(&mut tail, needs, event));
                if committed.is_ok() {
                    audit(&tail);
                }
                self.drive(driver, &mut tail, "wait", &mut noted, |_| committed)?;
                self.note_launched(noted, &tail, None);
                Ok(())
            }
        }
    }

    /// Takes a tick for a marker, which runs `work` when the stream passes it. A driver's stream has an event instead.
    pub(crate) fn mark(&self, work: impl FnOnce() + Send + 'static) -> Result<(Moment, Option<TimedEvent>)> {
        let fifo = self.fifo();
        let mut noted = self.core().recorder.launching("record", &[], &Label::of(CommandKind::Marker));
        let mut tail = fifo.lock_tail("record")?;
        let mut event = None;
        match self.order(&mut tail, "record", &[], true)? {
            Place::Here => self.run_inline(&tail, "record", noted, work),
            Place::Worker => self.enqueue(&mut tail, "record", &[], noted, Box::new(|_| work())),
            Place::Driver => {
                let driver = fifo.driver()?;
                event = Some(self.drive(driver, &mut tail, "record", &mut noted, |_| driver.record_timed())?);
                self.note_launched(noted, &tail, None);
            }
        }
        bump(&fifo.counters.events_recorded, 1);
        fifo.counters.marked.store(tail.tick, Ordering::Relaxed);
        Ok((Moment { stream: fifo.id, tick: tail.tick }, event))
    }

    /// Puts a gate into the stream, which never runs on the calling thread. That of a driver's stream is its own.
    pub(crate) fn close(&self, gate: Arc<Gate>) -> Result<Option<GateWord>> {
        let fifo = self.fifo();
        let mut tail = fifo.lock_tail("hold")?;
        let place = self.order(&mut tail, "hold", &[], false)?;
        fifo.add_barrier(tail.tick, Barrier::Gate(Arc::clone(&gate)));
        match place {
            Place::Driver => {
                let driver = fifo.driver()?;
                self.drive(driver, &mut tail, "hold", &mut None, |moment| driver.gate(moment, true)).map(Some)
            }
            Place::Here | Place::Worker => {
                fifo.push([Item::Gate { tick: tail.tick, gate }]);
                Ok(None)
            }
        }
    }

    /// Hands a closure to the driver, which runs it on a thread of its own. It keeps the device, as a worker's queue does.
    #[cold]
    fn host_command(
        &self,
        tail: &mut Tail,
        op: &'static str,
        noted: &mut Option<Box<Launching>>,
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        let (fifo, driver) = (self.fifo(), self.fifo().driver()?);
        let (stream, core) = (fifo.id, Arc::clone(self.core()));
        let guarded = Box::new(move || {
            let _within = Within::enter(stream, Holds::Nothing);
            if let Err(panicked) = Panicked::catch(work) {
                core.fail(Error::new(ErrorKind::Async { op, stream, source: Arc::new(panicked) }));
            }
        });
        self.drive(driver, tail, op, noted, |_| driver.host_call(guarded))
    }

    /// Has the driver do the newest command's work: recorded where commands are, waited for where that is asked.
    fn drive<R>(
        &self,
        driver: &DriverStream,
        tail: &mut Tail,
        op: &'static str,
        noted: &mut Option<Box<Launching>>,
        work: impl FnOnce(Moment) -> Result<R>,
    ) -> Result<R> {
        /// Who waits for the command shall not wait for ever, whatever becomes of it.
        struct Launched<'a>(&'a DriverStream, u64);
        impl Drop for Launched<'_> {
            fn drop(&mut self) {
                self.0.set_launched(self.1);
            }
        }
        let core = self.core();
        let moment = Moment { stream: self.id(), tick: tail.tick };
        let launched = Launched(driver, tail.tick);
        if noted.is_some() {
            self.note_waits(tail, op);
        }
        tail.waits.clear();
        driver.bind()?;
        // A recording tells what the driver takes.
        driver.launch_here(noted.is_some());
        let start = noted.as_ref().map(|_| driver.record_timed()).transpose()?;
        let done = work(moment).map_err(|error| error.met_by(op, moment.stream))?;
        if let (Some(start), Some(noted)) = (start, noted) {
            noted.given = Some(Instant::now());
            core.recorder.timed(moment, start, driver.record_timed()?);
        }
        drop(launched);
        if core.blocking {
            let waited = self.fifo().wait_until(moment.tick);
            waited.map_err(|error| error.met_by(op, moment.stream))?;
            core.take_fault()?;
        }
        Ok(done)
    }

    /// Tells a recording what the newest command waits for.
    #[cold]
    fn note_waits(&self, tail: &Tail, op: &'static str) {
        let waiter = Moment { stream: self.id(), tick: tail.tick };
        for &(ref fifo, tick) in &tail.waits {
            self.core().recorder.waited(op, waiter, Moment { stream: fifo.id, tick });
        }
    }

    /// Decides what a command must come after, gives it its tick, and logs its uses.
    #[track_caller]
    fn order(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        may_run_here: bool,
    ) -> Result<Place> {
        self.owns(op, uses)?;
        self.order_uses(tail, op, uses, may_run_here)
    }

    /// That all buffers are this device's.
    #[inline]
    fn owns(&self, op: &'static str, uses: &[Use<'_>]) -> Result<()> {
        let core = self.core();
        match uses.iter().find(|used| !Arc::ptr_eq(used.buffer.device().core(), core)) {
            Some(foreign) => Err(Error::device_mismatch(op, self.device(), foreign.buffer.device())),
            None => Ok(()),
        }
    }

    /// As [`order`](Self::order), whichever devices' the buffers are.
    #[inline(always)]
    #[track_caller]
    fn order_uses(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        may_run_here: bool,
    ) -> Result<Place> {
        // A read of what is named once more adds nothing.
        let uses = match uses {
            [a, b, ..] if address(a) == address(b) && !a.write => &uses[1..],
            _ => uses,
        };
        // Most commands use few buffers, each once, and sort them in no time.
        if let [one] = uses {
            return self.order_locked(tail, op, uses, [lock(*one)], may_run_here);
        }
        if let [a, b] = *uses
            && let Some(sorted) = sorted([a, b])
        {
            return self.order_locked(tail, op, uses, sorted.map(lock), may_run_here);
        }
        if let [a, b, c] = *uses
            && let Some(sorted) = sorted([a, b, c])
        {
            return self.order_locked(tail, op, uses, sorted.map(lock), may_run_here);
        }
        self.order_locked(tail, op, uses, lock_all(uses), may_run_here)
    }

    /// Decides for a command that uses buffers with these `logs`.
    #[inline(always)]
    #[track_caller]
    fn order_locked<'a>(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        mut logs: impl AsMut<[LockedLog<'a>]>,
        may_run_here: bool,
    ) -> Result<Place> {
        let (fifo, core) = (self.fifo(), self.core());
        let mut needs = Moments::new();
        for (log, write) in logs.as_mut().iter() {
            log.needs(fifo.id, *write, |need| needs.push(need));
        }
        if !needs.is_empty() {
            if needs.iter().any(|need| need.stream.is_capture()) {
                return Err(of_another_step(op));
            }
            fifo.drop_met(tail, &mut needs);
        }
        if core.watched.load(Ordering::Relaxed)
            && core.manual.load(Ordering::Relaxed)
            && let Some(&need) = needs.first()
        {
            drop(logs);
            return Err(self.race(op, uses, need));
        }
        let place = if fifo.driver_stream().is_some() {
            Place::Driver
        } else if may_run_here
            && fifo.placement == Placement::Caller
            && needs.is_empty()
            && fifo.completed() == tail.tick
        {
            Place::Here
        } else {
            fifo.ensure_worker(op)?;
            Place::Worker
        };
        fifo.take(tail);
        if !needs.is_empty() {
            // Before the uses are logged: where a driver refuses a wait, the logs go on naming whom to wait for.
            self.commit(tail, needs)?;
        }
        if core.watched.load(Ordering::Relaxed) {
            self.watch(tail, op, uses, AtCaller::location());
        }
        for (log, write) in logs.as_mut() {
            log.record(Moment { stream: fifo.id, tick: tail.tick }, *write);
        }
        Ok(place)
    }

    /// Tells who wants to know of the newest command, which will run: a wait that a driver refuses leaves none.
    #[cold]
    fn watch(&self, tail: &Tail, op: &'static str, uses: &[Use<'_>], place: &'static Location<'static>) {
        let (fifo, core) = (self.fifo(), self.core());
        if core.audit.is_on() {
            fifo.audit_command(tail, op, uses, place);
        }
        if core.manual.load(Ordering::Relaxed) {
            fifo.note_op(tail, op);
        }
    }

    /// The error for a command that comes after `need` by nobody's wait.
    #[cold]
    fn race(&self, op: &'static str, uses: &[Use<'_>], need: Moment) -> Error {
        let earlier =
            find(need.stream).and_then(|fifo| fifo.op_at(need.tick)).unwrap_or("an earlier command");
        let shared = uses.iter().find(|used| {
            let mut found = false;
            used.buffer.log.lock().needs(self.id(), used.write, |moment| found |= moment == need);
            found
        });
        Error::new(ErrorKind::Race {
            op,
            stream: self.id(),
            earlier,
            earlier_stream: need.stream,
            earlier_tick: need.tick,
            address: shared.map_or(0, |used| used.buffer.ptr() as usize),
            bytes: shared.map_or(0, |used| used.buffer.len_bytes()),
        })
    }

    /// Waits for the needs of the newest command. A driver that refuses leaves the command behind, launched without
    /// work.
    #[cold]
    fn commit(&self, tail: &mut Tail, needs: Moments) -> Result<()> {
        let fifo = self.fifo();
        let Some(driver) = fifo.driver_stream() else { return fifo.commit(tail, needs, None) };
        driver.bind().and_then(|()| fifo.commit(tail, needs, None)).map_err(|error| {
            driver.set_launched(tail.tick);
            tail.waits.clear();
            error.met_by("wait", fifo.id)
        })
    }

    /// Runs the newest command on the calling thread, which holds the tail.
    #[inline]
    fn run_inline(&self, tail: &Tail, op: &'static str, noted: Option<Box<Launching>>, work: impl FnOnce()) {
        let fifo = self.fifo();
        fifo.run(self.core(), op, tail.tick, Holds::Launches, noted.is_some(), work);
        // Whoever waits for this tick takes the tail first, so nobody has to be woken.
        fifo.progress.complete_unawaited(tail.tick);
        self.note_launched(noted, tail, None);
    }

    /// Hands the newest command to the worker, behind its waits.
    #[cold]
    fn enqueue(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        noted: Option<Box<Launching>>,
        work: Job,
    ) {
        self.enqueue_when(tail, op, uses, noted, work, None);
    }

    /// As [`enqueue`](Self::enqueue), of a command that an explorer asks whether it is `ready`.
    #[cold]
    fn enqueue_when(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        mut noted: Option<Box<Launching>>,
        work: Job,
        ready: Option<Ready>,
    ) {
        let core = self.core();
        if noted.is_some() {
            self.note_waits(tail, op);
        }
        let explorer = self.fifo().explorer();
        let kept = |_: &_| explorer.is_none_or(|explorer| explorer.keeps_wait());
        let waits = tail.waits.drain(..).filter(kept).map(|(fifo, tick)| Item::Wait { fifo, tick });
        let run = Item::Run {
            tick: tail.tick,
            op,
            work,
            core: explorer.is_none().then(|| Arc::clone(core)),
            explored: explorer
                .map(|explorer| explorer.launched(uses.iter().map(Use::access).collect(), ready)),
        };
        // Before the queue is locked: the explorer locks queues under its own lock.
        let items: SmallVec<[Item; 2]> = waits.chain([run]).collect();
        // The worker may begin before the call is over.
        if let Some(noted) = &mut noted {
            noted.given = Some(Instant::now());
        }
        self.fifo().push(items);
        self.note_launched(noted, tail, None);
        if let Some(explorer) = explorer {
            explorer.make_room(core);
        }
    }
}

/// The log of a buffer that a command uses, and whether the command writes the buffer.
type LockedLog<'a> = (SpinGuard<'a, Log>, bool);

#[inline(always)]
fn lock<'a>(used: Use<'a>) -> LockedLog<'a> {
    (used.buffer.log.lock(), used.write)
}

#[inline(always)]
fn address(used: &Use<'_>) -> usize {
    std::ptr::from_ref(used.buffer).addr()
}

/// The uses in the order in which everybody locks; `None` if a buffer is used twice.
#[inline(always)]
fn sorted<const N: usize>(mut uses: [Use<'_>; N]) -> Option<[Use<'_>; N]> {
    for end in (1..N).rev() {
        for at in 0..end {
            if address(&uses[at]) > address(&uses[at + 1]) {
                uses.swap(at, at + 1);
            }
        }
    }
    let twice = (1..N).any(|at| address(&uses[at - 1]) == address(&uses[at]));
    (!twice).then_some(uses)
}

/// Locks the logs of all buffers that a command uses, each once, in one order for everybody: two commands that
/// share buffers are ordered alike in every log, so streams cannot wait in a circle.
#[inline(never)]
fn lock_all<'a>(uses: &[Use<'a>]) -> SmallVec<[LockedLog<'a>; 4]> {
    let mut sorted: SmallVec<[Use<'a>; 8]> = SmallVec::from_slice(uses);
    sorted.sort_unstable_by_key(address);
    sorted.dedup_by(|used, kept| {
        let same = address(used) == address(kept);
        kept.write |= same && used.write;
        same
    });
    sorted.into_iter().map(lock).collect()
}

/// A place in a buffer that a command will write.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: an address; who follows it answers for that.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// An upload in a captured step: the bytes stay what they were.
struct Constant {
    to: Address,
    bytes: Box<[u8]>,
}

impl Constant {
    fn new(to: *mut u8, bytes: &[u8]) -> Constant {
        Constant { to: Address(to), bytes: bytes.into() }
    }
}

impl Work for Constant {
    fn run(&self, _: &Cpu<'_>) {
        // SAFETY: `upload` checked the range, which the command writes.
        unsafe { self.to.copy_from(&self.bytes) }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        // SAFETY: as above.
        unsafe { queue.constant(self.to.0, &self.bytes) }
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.to = Address(binder.address(self.to.0));
    }
}

impl Address {
    /// # Safety
    /// `bytes.len()` bytes from here on may be written, and `bytes` is not among them.
    unsafe fn copy_from(self, bytes: &[u8]) {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) }
    }
}
