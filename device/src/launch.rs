//! Launches: a command is recorded, ordered, given to the thread or driver that runs it, and counted.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::barrier::Gate;
use crate::core::Core;
use crate::cuda::{DriverEvent, DriverStream, GateWord, Queue, Target};
use crate::explorer::Ready;
use crate::fifo::{Fifo, Item, Job, Tail, bump, find};
use crate::graph::capture::Capture;
use crate::needs::Moments;
use crate::order::RunsOn;
use crate::recorder::{CommandKind, Label, Launching};
use crate::within::{Holds, Within};
use crate::writes::{Asked, Operand};
use crate::{Cpu, Error, Moment, OnDrop, Panicked, Result, Shared, Stream, Stuck, Use, Work, fork};

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
        self.launch_described(op, uses, &|_| Vec::new(), work)
    }

    /// As [`launch`](Self::launch); recordings and traces of writes ask `operands` what the command is launched on.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    #[inline]
    #[track_caller]
    pub fn launch_described<W: Work>(
        &self,
        op: &'static str,
        uses: &[Use<'_>],
        operands: &dyn Fn(Asked) -> Vec<Operand>,
        work: W,
    ) -> Result<()> {
        self.owns(op, uses)?;
        if let Some(capture) = Capture::of(self.core()) {
            return capture.record(self, op, uses, operands, work);
        }
        let (fifo, waits) = (self.fifo(), work.waits());
        if waits && fifo.driver_stream().is_none() {
            fork::check(op)?;
            fifo.ensure_worker(op)?;
        }
        let mut command = self.ordered(op, uses, Some(&Label { kind: work.kind(), operands }), true)?;
        if command.place != RunsOn::Here || waits {
            return command.hand_over(work, waits);
        }
        command.run(|| work.run(&Cpu::new(self.core(), fifo.threads)));
        command.launched();
        Ok(())
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
        self.owns(op, uses)?;
        let mut command = self.ordered(op, uses, Some(&Label::of(CommandKind::Host)), true)?;
        command.dispatch(work, |work, driver, Moment { stream, .. }| {
            // It keeps the device, as a worker's queue does.
            let core = Arc::clone(self.core());
            driver.host_call(Box::new(move || {
                let _within = Within::enter(stream, Holds::Nothing);
                if let Err(panicked) = Panicked::catch(work) {
                    core.fail(Error::of_command(op, stream, panicked));
                }
            }))
        })?;
        command.launched();
        Ok(())
    }

    /// Launches a command of a CUDA stream that calls the driver and is never kept; one that `waits` for other processes is a
    /// barrier, see [`Work::waits`].
    pub(crate) fn launch_driver(
        &self,
        op: &'static str,
        uses: &[Use<'_>],
        waits: bool,
        work: impl FnOnce(&DriverStream) -> Result<()>,
    ) -> Result<()> {
        self.owns(op, uses)?;
        let mut command = self.ordered(op, uses, Some(&Label::of(CommandKind::Compute)), false)?;
        if waits {
            command.waits_for_ranks();
        }
        command.drive(|driver, _| work(driver))?;
        command.launched();
        Ok(())
    }

    /// That this thread's commands run, where one of them cannot be kept.
    pub(crate) fn not_captured(&self, op: &'static str, reason: &str) -> Result<()> {
        if Capture::of(self.core()).is_some() { Err(Error::captured(op, reason)) } else { Ok(()) }
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
        self.fifo().driver_stream().is_some_and(|stream| stream.properties().has_tensor_cores)
    }

    /// Makes later commands come after `moments`, with the fewest waits. Does not block the host.
    ///
    /// # Errors
    /// `Io` if the stream needs a thread that the system does not give, `InvalidArgument` for a moment that its
    /// stream has not come to: the clock would count it as passed.
    #[derive::located]
    pub fn wait_for(&self, moments: &[Moment]) -> Result<()> {
        self.wait_exactly(moments, None)
    }

    /// As [`wait_for`](Self::wait_for); if the driver has an event at the only moment, it is the one to wait for.
    pub(crate) fn wait_exactly(&self, moments: &[Moment], event: Option<&DriverEvent>) -> Result<()> {
        const OP: &str = "wait";
        // A plan has its own edges.
        if Capture::of(self.core()).is_some() {
            return Ok(());
        }
        let launched = |stream| find(stream).map_or(u64::MAX, |fifo| fifo.now().tick);
        if let Some(to_come) = moments.iter().find(|moment| moment.tick > launched(moment.stream)) {
            let value = format_args!("{to_come:?} of a stream at {}", launched(to_come.stream));
            return Err(Error::invalid(OP, "moments", "launched already", value));
        }
        let (fifo, core) = (self.fifo(), self.core());
        let noted = core.observers.recorder.launching(OP, &[], &Label::of(CommandKind::Wait));
        let mut tail = fifo.lock_tail(OP)?;
        let mut needs: Moments = moments.iter().copied().filter(|need| need.stream != fifo.id).collect();
        fifo.drop_met(&mut tail, &mut needs);
        if needs.is_empty() {
            return Ok(());
        }
        let place = self.take_turn(&mut tail, OP, &[], needs, event, false)?;
        let mut command = Ordered { core, fifo, op: OP, uses: &[], tail, place, noted };
        command.dispatch(|| (), |_, _, _| Ok(()))?;
        command.noted();
        Ok(())
    }

    /// Puts a gate into the stream, which never runs on the calling thread. That of a driver's stream is its own.
    pub(crate) fn close(&self, gate: Arc<Gate>) -> Result<Option<GateWord>> {
        let fifo = self.fifo();
        let mut command = self.ordered("hold", &[], None, false)?;
        let tick = command.tail.tick;
        fifo.add_barrier(tick, Stuck::Held(fifo.id), Some(Arc::clone(&gate)));
        if command.place == RunsOn::Driver {
            return command.drive(|driver, moment| driver.gate(moment, true)).map(Some);
        }
        fifo.push([Item::Gate { tick, gate }]);
        Ok(None)
    }

    /// Records, unless there is no `label`, and orders a command.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn ordered<'a>(
        &'a self,
        op: &'static str,
        uses: &'a [Use<'a>],
        label: Option<&Label<'_>>,
        may_run_here: bool,
    ) -> Result<Ordered<'a>> {
        let (core, fifo) = (self.core(), self.fifo());
        let noted = label.and_then(|label| core.observers.recorder.launching(op, uses, label));
        let mut tail = fifo.lock_tail(op)?;
        if core.observers.watched.load(Ordering::Relaxed) && core.observers.writes.is_on() {
            tail.operands = match label {
                Some(Label { kind: CommandKind::Compute | CommandKind::Collective { .. }, operands }) => {
                    operands(Asked::Written)
                }
                _ => Operand::whole(uses),
            };
        }
        let place = self.order(&mut tail, op, uses, may_run_here).inspect_err(|_| tail.operands.clear())?;
        Ok(Ordered { core, fifo, op, uses, tail, place, noted })
    }
}

/// A command that was ordered, the newest of its stream, whose tail is locked until it is launched.
pub(crate) struct Ordered<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) fifo: &'a Fifo,
    pub(crate) op: &'static str,
    pub(crate) uses: &'a [Use<'a>],
    pub(crate) tail: MutexGuard<'a, Tail>,
    pub(crate) place: RunsOn,
    /// Its entry in a recording.
    pub(crate) noted: Option<Box<Launching>>,
}

impl Ordered<'_> {
    pub(crate) fn moment(&self) -> Moment {
        Moment { stream: self.fifo.id, tick: self.tail.tick }
    }

    /// Counts it, and tells a recording.
    #[inline(always)]
    pub(crate) fn launched(&mut self) {
        bump(&self.fifo.counters.launches, 1);
        self.noted();
    }

    /// Tells a recording.
    #[inline(always)]
    pub(crate) fn noted(&mut self) {
        let moment = self.moment();
        if let Some(noted) = self.noted.take() {
            self.core.observers.recorder.launched(noted, moment);
        }
        if self.place == RunsOn::Worker
            && let Some(explorer) = self.fifo.explorer()
        {
            explorer.make_room(self.core);
        }
    }

    /// Notes that the command waits for other ranks or processes.
    fn waits_for_ranks(&self) {
        let stuck = Stuck::Ranks { op: self.op, stream: self.fifo.id };
        self.fifo.add_barrier(self.tail.tick, stuck, None);
    }

    /// Launches work that may wait, or that another thread or the driver does.
    #[inline(never)]
    fn hand_over<W: Work>(mut self, work: W, waits: bool) -> Result<()> {
        let (fifo, threads) = (self.fifo, self.fifo.threads);
        if waits {
            self.waits_for_ranks();
        }
        match self.place {
            RunsOn::Driver => self.enqueue(&work)?,
            RunsOn::Here if self.tried(&work) => fifo.progress.complete_unawaited(self.tail.tick),
            RunsOn::Here | RunsOn::Worker if waits => {
                let work = Arc::new(work);
                let looked = Arc::clone(&work);
                let job = Box::new(move |core: &_| work.run(&Cpu::new(core, threads)));
                self.queue(job, Some(Arc::new(move || looked.is_ready())));
            }
            RunsOn::Here | RunsOn::Worker => {
                self.queue(Box::new(move |core: &_| work.run(&Cpu::new(core, threads))), None);
            }
        }
        self.launched();
        Ok(())
    }

    /// Has `work` run where the command's place is, or `drive` give it to the driver.
    pub(crate) fn dispatch<F, R>(
        &mut self,
        work: F,
        drive: impl FnOnce(F, &DriverStream, Moment) -> Result<R>,
    ) -> Result<Option<R>>
    where
        F: FnOnce() + Send + 'static,
    {
        match self.place {
            RunsOn::Here => self.run(work),
            RunsOn::Worker => self.queue(Box::new(|_| work()), None),
            RunsOn::Driver => return self.drive(|driver, moment| drive(work, driver, moment)).map(Some),
        }
        Ok(None)
    }

    /// Runs it on the calling thread.
    #[inline(always)]
    pub(crate) fn run(&mut self, work: impl FnOnce()) {
        let (fifo, tick) = (self.fifo, self.tail.tick);
        fifo.run(self.core, self.op, tick, Holds::Launches, self.noted.is_some(), work);
        // SAFETY: the command has run, and completes below.
        unsafe { self.core.observers.ran(self.moment()) };
        // Whoever waits for this tick takes the tail first, so nobody has to be woken.
        fifo.progress.complete_unawaited(tick);
    }

    /// Whether work that may wait could be done at once, on the calling thread.
    #[cold]
    fn tried(&self, work: &impl Work) -> bool {
        let start = self.core.observers.recorder.is_on().then(Instant::now);
        let mut done = true;
        self.fifo.run(self.core, self.op, self.tail.tick, Holds::Launches, false, || {
            done = work.try_run(&Cpu::new(self.core, self.fifo.threads));
        });
        if done {
            // SAFETY: the command has run, and its caller completes it.
            unsafe { self.core.observers.ran(self.moment()) };
        }
        if let Some(start) = start.filter(|_| done) {
            self.core.observers.recorder.ran(self.op, self.moment(), start);
        }
        done
    }

    /// Hands it to the worker, behind its waits; an explorer asks it whether it is `ready`.
    #[cold]
    pub(crate) fn queue(&mut self, work: Job, ready: Option<Ready>) {
        self.note_waits();
        let explorer = self.fifo.explorer();
        let kept = |_: &_| explorer.is_none_or(|explorer| explorer.keeps_wait());
        let waits = self.tail.waits.drain(..).filter(kept).map(|(fifo, tick)| Item::Wait { fifo, tick });
        let waits: SmallVec<[Item; 2]> = waits.collect();
        let run = Item::Run {
            tick: self.tail.tick,
            op: self.op,
            work,
            core: explorer.is_none().then(|| Arc::clone(self.core)),
            // Before the queue is locked: the explorer locks queues under its own lock.
            explored: explorer
                .map(|explorer| explorer.launched(self.uses.iter().map(Use::access).collect(), ready)),
        };
        // The worker may begin before the call is over.
        if let Some(noted) = &mut self.noted {
            noted.given = Some(Instant::now());
        }
        self.fifo.push(waits.into_iter().chain([run]));
    }

    /// Has its work enqueued for the driver.
    fn enqueue(&mut self, work: &impl Work) -> Result<()> {
        let (core, op) = (self.core, self.op);
        let kernels = self.noted.is_some().then(RefCell::default);
        self.drive(|driver, moment| {
            work.enqueue(&Queue::new(core, driver, op, moment, Target::Stream).noting(kernels.as_ref()))
        })?;
        if let (Some(noted), Some(kernels)) = (&mut self.noted, kernels) {
            noted.set_kernels(kernels.into_inner());
        }
        Ok(())
    }

    /// Has the driver do its work: recorded where commands are, waited for where that is asked.
    pub(crate) fn drive<R>(&mut self, work: impl FnOnce(&DriverStream, Moment) -> Result<R>) -> Result<R> {
        let (core, moment, driver) = (self.core, self.moment(), self.fifo.driver()?);
        // Also on failure and panic, so that waiters never hang.
        let launched = OnDrop(|| driver.set_launched(moment.tick));
        // Behind a hold the wait would not end: the guard may be this thread's.
        let blocking = core.cuda().is_some_and(|cuda| cuda.config.blocking == Some(true))
            && !self.fifo.is_held(moment.tick);
        self.note_waits();
        self.tail.waits.clear();
        let drive = || -> Result<R> {
            driver.bind()?;
            // A recording tells what the driver takes.
            driver.launch_here(self.noted.is_some());
            let start = self.noted.as_ref().map(|_| driver.record_timed()).transpose()?;
            let done = work(driver, moment)?;
            if let (Some(start), Some(noted)) = (start, &mut self.noted) {
                noted.given = Some(Instant::now());
                core.observers.recorder.timed(moment, start, driver.record_timed()?);
            }
            // SAFETY: the stream's tail is locked, and what the command uses lives until it has run.
            unsafe { core.observers.launched(driver, moment) };
            drop(launched);
            if blocking {
                self.fifo.wait_until(moment.tick)?;
            }
            Ok(done)
        };
        let done = drive().map_err(|error| error.met_by(self.op, moment.stream))?;
        if blocking {
            core.take_fault()?;
        }
        Ok(done)
    }

    /// Tells a recording what it waits for.
    fn note_waits(&self) {
        if self.noted.is_some() {
            for &(ref fifo, tick) in &self.tail.waits {
                self.core.observers.recorder.waited(self.op, self.moment(), Moment { stream: fifo.id, tick });
            }
        }
    }
}
