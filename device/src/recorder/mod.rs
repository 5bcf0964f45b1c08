//! The recorder that profiles read: what was launched, from where, when it ran, and what waited for what.

mod records;
mod stack;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::ThreadId;
use std::time::Instant;

use parking_lot::Mutex;
pub use records::{
    CommandKind, CommandRecord, DeviceFacts, DriverCallRecord, HandOffRecord, KernelRecord, LaunchRecord,
    OperandRecord, Place, RangeRecord, Recording, RecordingOptions, ReplayedRecord, SyncRecord, WaitRecord,
};

use crate::core::Core;
use crate::cuda::{DriverEvent, DriverStream};
use crate::writes::{Asked, Operand};
use crate::{Device, Moment, OnDrop, Result, Stream, Use, nvtx};
use stack::Stacks;

/// Off, it costs one load a command.
#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    /// Whether somebody has it for themselves.
    claimed: AtomicBool,
    log: Mutex<Option<RecordingLog>>,
}

/// A recording that is under way.
struct RecordingLog {
    origin: Instant,
    recording: Recording,
    /// Commands as they were launched, not yet with the times at which they ran.
    launched: Vec<CommandRecord>,
    /// When commands ran on threads of the host.
    ran: Vec<Ran>,
    /// The commands of driver's streams between two events, and the event at which the recording began.
    timed: Vec<(Moment, DriverEvent, DriverEvent)>,
    began: Option<DriverEvent>,
    /// For commands that enqueued several things, where each but the first began.
    parts: HashMap<Moment, Vec<KernelMark>>,
    /// None where nobody wants to know the lines of the program.
    stacks: Option<Stacks>,
    /// The numbers of threads in this recording.
    threads: HashMap<ThreadId, u32>,
    /// The numbers of ranges in this recording, by those in the process.
    ranges: HashMap<u32, u32>,
}

/// Something that a command enqueued: its first kernel among those of the command, and when it began.
type KernelMark = (usize, DriverEvent);

/// When a command ran on a thread of the host.
struct Ran {
    op: &'static str,
    moment: Moment,
    start: Instant,
    end: Instant,
    replayed: Vec<Replayed>,
}

/// When a replay ran a command of its step.
pub(crate) struct Replayed {
    pub(crate) op: &'static str,
    pub(crate) command: u32,
    pub(crate) thread: u32,
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// A launch that is under way.
pub(crate) struct Launching {
    record: CommandRecord,
    start: Instant,
    /// From when on the command could start, if that was before the launch ended.
    pub(crate) given: Option<Instant>,
    parts: Vec<KernelMark>,
}

/// What a command enqueues, where it is recorded, in order.
#[derive(Default)]
pub(crate) struct NotedKernels {
    /// A kernel of this library, or those of a call of another one, none if they are not known.
    noted: Vec<Vec<KernelRecord>>,
    /// Where each but the first began.
    marks: Vec<DriverEvent>,
}

impl NotedKernels {
    /// Marks where what comes next begins on the stream, if it is not the first.
    pub(crate) fn mark(&mut self, stream: &DriverStream) -> Result<()> {
        // Nothing may have come after the newest mark.
        self.marks.truncate(self.noted.len().saturating_sub(1));
        if !self.noted.is_empty() {
            self.marks.push(stream.record_timed()?);
        }
        Ok(())
    }

    /// A kernel was enqueued, or a library was called and enqueued these; none if they are not known.
    pub(crate) fn add(&mut self, kernels: impl Into<Vec<KernelRecord>>) {
        self.noted.push(kernels.into());
    }
}

impl Launching {
    /// What the command enqueued on its stream.
    pub(crate) fn set_kernels(&mut self, kernels: NotedKernels) {
        let record = &mut self.record;
        let mut marks = std::iter::once(None).chain(kernels.marks.into_iter().map(Some));
        for kernels in kernels.noted {
            self.parts.extend(marks.next().flatten().map(|mark| (record.kernels.len(), mark)));
            record.library_calls += u32::from(kernels.is_empty());
            record.kernels.extend(kernels);
        }
    }
}

/// What a launch tells of itself if it is recorded.
pub(crate) struct Label<'a> {
    pub(crate) kind: CommandKind,
    pub(crate) operands: &'a dyn Fn(Asked) -> Vec<Operand>,
}

impl Label<'_> {
    pub(crate) const fn of(kind: CommandKind) -> Label<'static> {
        Label { kind, operands: &|_| Vec::new() }
    }
}

/// A wait of the host that is under way. It is recorded when it drops.
pub(crate) struct Syncing<'a> {
    recorder: &'a Recorder,
    op: &'static str,
    pub(crate) awaited: Vec<Moment>,
    start: Instant,
}

/// A moment at which a thread handed something over to another one.
#[derive(Clone, Copy, Debug)]
pub struct HandOff {
    /// The thread's number in the recording.
    thread: u32,
    at: Instant,
}

thread_local! {
    /// What the thread's command replayed, until it ends.
    static REPLAYED: RefCell<Vec<Replayed>> = const { RefCell::new(Vec::new()) };
    /// The innermost range that the thread is in, by its number in the process.
    static RANGE: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The range that the calling thread is in.
#[derive(Clone, Copy)]
pub(crate) struct CurrentRange(Option<u32>);

impl CurrentRange {
    #[inline]
    pub(crate) fn get() -> CurrentRange {
        CurrentRange(RANGE.get())
    }

    /// Calls `f` in this range, on whichever thread.
    #[inline]
    pub(crate) fn within<R>(self, f: impl FnOnce() -> R) -> R {
        let outer = RANGE.replace(self.0);
        let _restore = OnDrop(|| RANGE.set(outer));
        f()
    }
}

impl RecordingLog {
    fn new(began: Option<DriverEvent>, places: bool) -> RecordingLog {
        RecordingLog {
            origin: Instant::now(),
            recording: Recording::default(),
            launched: Vec::new(),
            ran: Vec::new(),
            timed: Vec::new(),
            began,
            parts: HashMap::new(),
            stacks: places.then(Stacks::default),
            threads: HashMap::new(),
            ranges: HashMap::new(),
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.origin).as_nanos() as u64
    }

    /// The calling thread's number in the recording.
    fn thread(&mut self) -> u32 {
        let (RecordingLog { threads, recording, .. }, thread) = (self, std::thread::current());
        *threads.entry(thread.id()).or_insert_with(|| {
            recording.threads.push(thread.name().unwrap_or("a thread").into());
            recording.threads.len() as u32 - 1
        })
    }

    /// The number of the calling thread's stack, which becomes that of a place when the recording ends.
    fn place(&mut self) -> Option<u32> {
        self.stacks.as_mut().map(Stacks::number)
    }

    /// The number in the recording of the range that the calling thread is in.
    fn range(&self) -> Option<u32> {
        self.ranges.get(&RANGE.get()?).copied()
    }

    fn finish(mut self, facts: DeviceFacts) -> Recording {
        let wall_ns = self.ns(Instant::now());
        let (of_stacks, in_backward) = self.stacks.as_ref().map(Stacks::places).unwrap_or_default();
        let (places, numbers) = distinct(of_stacks);
        let place = |stack: &mut Option<u32>| *stack = stack.and_then(|stack| numbers[stack as usize]);
        let mut times: HashMap<Moment, (&'static str, u64, u64, Vec<Replayed>)> = HashMap::new();
        for ran in std::mem::take(&mut self.ran) {
            times.insert(ran.moment, (ran.op, self.ns(ran.start), self.ns(ran.end), ran.replayed));
        }
        times.extend(self.timed.iter().filter_map(|(moment, start, end)| {
            Some((*moment, ("", self.event_ns(start)?, self.event_ns(end)?, Vec::new())))
        }));
        let mut recording = std::mem::take(&mut self.recording);
        for mut command in std::mem::take(&mut self.launched) {
            // What has not run is not in the recording.
            let Some((_, start_ns, end_ns, replayed)) = times.remove(&command.moment) else { continue };
            (command.start_ns, command.end_ns) = (start_ns, end_ns);
            self.time_kernels(&mut command);
            command.replayed = replayed.iter().map(|part| self.replayed(part)).collect();
            recording.commands.push(command);
        }
        // What was launched before the recording began.
        recording.commands.extend(
            times.into_iter().map(|(moment, (op, start, end, _))| CommandRecord::new(op, moment, start, end)),
        );
        recording
            .commands
            .sort_by_key(|command| (command.end_ns, command.moment.stream, command.moment.tick));
        for launch in recording.commands.iter_mut().map(|command| &mut command.launch) {
            launch.in_backward = launch.place.is_some_and(|stack| in_backward[stack as usize]);
            place(&mut launch.place);
        }
        recording.syncs.iter_mut().for_each(|sync| place(&mut sync.place));
        recording.ranges.iter_mut().for_each(|range| place(&mut range.place));
        recording.driver_calls.iter_mut().for_each(|call| place(&mut call.place));
        for range in recording.ranges.iter_mut().filter(|range| range.end_ns == OPEN) {
            range.end_ns = wall_ns;
        }
        Recording { places, device: facts, wall_ns, ..recording }
    }

    fn replayed(&self, part: &Replayed) -> ReplayedRecord {
        let Replayed { op, command, thread, start, end } = *part;
        ReplayedRecord { op, command, thread, start_ns: self.ns(start), end_ns: self.ns(end) }
    }

    /// Tells each kernel that a mark lies before and behind how long it ran.
    fn time_kernels(&self, command: &mut CommandRecord) {
        let (mut first, mut began) = (0, command.start_ns);
        let parts = self.parts.get(&command.moment).into_iter().flatten();
        let last = (command.kernels.len(), Some(command.end_ns));
        for (next, ends) in parts.map(|(next, mark)| (*next, self.event_ns(mark))).chain([last]) {
            // What cannot be told is not told of its neighbours.
            let Some(end) = ends else { return };
            if let [kernel] = &mut command.kernels[first..next] {
                kernel.duration_ns = Some(end.saturating_sub(began));
            }
            (first, began) = (next, end);
        }
    }

    /// When an event of a driver's stream came, which it has.
    fn event_ns(&self, event: &DriverEvent) -> Option<u64> {
        let ms = self.began.as_ref()?.elapsed_ms(event).ok()?;
        Some((ms * 1e6).max(0.0) as u64)
    }
}

/// A range that has not ended.
const OPEN: u64 = u64::MAX;

/// Each place once, and for each stack the number of its place.
fn distinct(of_stacks: Vec<Option<Place>>) -> (Vec<Place>, Vec<Option<u32>>) {
    let (mut places, mut known) = (Vec::new(), HashMap::new());
    let numbers = of_stacks
        .into_iter()
        .map(|place| {
            let place = place?;
            Some(*known.entry(place.clone()).or_insert_with(|| {
                places.push(place);
                places.len() as u32 - 1
            }))
        })
        .collect();
    (places, numbers)
}

impl Recorder {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn with<R>(&self, f: impl FnOnce(&mut RecordingLog) -> R) -> Option<R> {
        self.log.lock().as_mut().map(f)
    }

    /// A command is about to be launched.
    #[inline]
    pub(crate) fn launching(
        &self,
        op: &'static str,
        uses: &[Use<'_>],
        label: &Label<'_>,
    ) -> Option<Box<Launching>> {
        if self.is_on() { self.begin(op, uses, label) } else { None }
    }

    #[cold]
    fn begin(&self, op: &'static str, uses: &[Use<'_>], label: &Label<'_>) -> Option<Box<Launching>> {
        let (kind, operands) =
            (label.kind, (label.operands)(Asked::All).into_iter().map(|operand| operand.record).collect());
        let accesses = uses.iter().map(Use::access).collect();
        let mut record = CommandRecord { op, kind, operands, accesses, ..CommandRecord::default() };
        let start = Instant::now();
        self.with(|log| {
            let place = log.place();
            let (start_ns, thread, range) = (log.ns(start), log.thread(), log.range());
            record.launch = LaunchRecord { start_ns, thread, range, place, ..LaunchRecord::default() };
        })?;
        record.launch.recorder_ns = start.elapsed().as_nanos() as u64;
        Some(Box::new(Launching { record, start, given: None, parts: Vec::new() }))
    }

    /// A command was launched.
    #[cold]
    pub(crate) fn launched(&self, launching: Box<Launching>, moment: Moment) {
        let end = Instant::now();
        self.with(|log| {
            let Launching { mut record, start, given, parts } = *launching;
            // A recording may have begun anew meanwhile.
            if start >= log.origin {
                record.moment = moment;
                if !parts.is_empty() {
                    log.parts.insert(moment, parts);
                }
                (record.launch.given_ns, record.launch.end_ns) = (log.ns(given.unwrap_or(end)), log.ns(end));
                log.launched.push(record);
            }
        });
    }

    /// A command ran on a thread of the host.
    #[cold]
    pub(crate) fn ran(&self, op: &'static str, moment: Moment, start: Instant) {
        let end = Instant::now();
        let mut replayed = REPLAYED.try_with(RefCell::take).unwrap_or_default();
        // A replay that began when nothing was recorded has not told the end of its own.
        replayed.retain(|command| command.start >= start);
        self.with(|log| log.ran.push(Ran { op, moment, start, end, replayed }));
    }

    /// The command that runs on this thread replayed these, and will have [`ran`](Self::ran).
    #[cold]
    pub(crate) fn replayed(&self, commands: Vec<Replayed>) {
        // A thread that is ending tells of no replayed commands.
        let _ = REPLAYED.try_with(|replayed| replayed.replace(commands));
    }

    /// A command of a driver's stream runs between two events.
    #[cold]
    pub(crate) fn timed(&self, moment: Moment, start: DriverEvent, end: DriverEvent) {
        self.with(|log| log.timed.push((moment, start, end)));
    }

    #[cold]
    pub(crate) fn waited(&self, op: &'static str, waiter: Moment, awaited: Moment) {
        self.with(|log| log.recording.waits.push(WaitRecord { op, waiter, awaited }));
    }

    /// The host waits from now on until the value drops.
    pub(crate) fn syncing(
        &self,
        op: &'static str,
        awaited: impl IntoIterator<Item = Moment>,
    ) -> Option<Syncing<'_>> {
        self.is_on().then(|| Syncing {
            recorder: self,
            op,
            awaited: awaited.into_iter().collect(),
            start: Instant::now(),
        })
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        let end = Instant::now();
        self.recorder.with(|log| {
            let (start_ns, end_ns) = (log.ns(self.start), log.ns(end));
            let (thread, range, place) = (log.thread(), log.range(), log.place());
            let awaited = std::mem::take(&mut self.awaited);
            let sync = SyncRecord { op: self.op, awaited, start_ns, end_ns, thread, range, place };
            log.recording.syncs.push(sync);
        });
    }
}

impl Core {
    fn facts(&self, name: String) -> DeviceFacts {
        let found = self.default.driver_stream().map(|driver| *driver.properties()).unwrap_or_default();
        DeviceFacts {
            name: name.into(),
            default_stream: Some(self.default.id),
            host_threads: self.cuda().is_none().then_some(self.threads),
            multiprocessors: found.multiprocessors,
            multiprocessor_threads: found.multiprocessor_threads,
            copy_engines: found.copy_engines,
        }
    }
}

impl Device {
    /// Records every command that runs from now on, without the lines of the program. A recording that is under way starts anew.
    /// Waits for what was launched before, so that it is not in the recording.
    pub fn start_recording(&self) {
        self.start_recording_with(RecordingOptions::default());
    }

    /// [`start_recording`](Self::start_recording) with options.
    pub fn start_recording_with(&self, options: RecordingOptions) {
        let recorder = &self.core().observers.recorder;
        recorder.on.store(false, Ordering::Release);
        // Errors are for those who synchronise.
        self.await_streams();
        let origin = self.core().default.driver_stream().and_then(|driver| {
            // Without an origin the recording has no commands.
            driver.bind().and_then(|()| driver.record_timed()).ok()
        });
        if let Some(origin) = &origin {
            // The host's clock starts when the device's does.
            let _ = origin.synchronize();
        }
        *recorder.log.lock() = Some(RecordingLog::new(origin, options.places));
        recorder.on.store(true, Ordering::Release);
    }

    /// Waits for what was launched, ends the recording and returns it; empty if none was under way. Errors of commands are left
    /// to those who synchronise.
    pub fn stop_recording(&self) -> Recording {
        let recorder = &self.core().observers.recorder;
        self.await_streams();
        recorder.on.store(false, Ordering::Release);
        let log = recorder.log.lock().take();
        log.map_or_else(Recording::default, |log| log.finish(self.core().facts(self.name())))
    }

    /// Takes recordings of this device for oneself, until [`give_recordings_back`](Self::give_recordings_back): for profilers, of
    /// which a second one would end what the first one records. `false` if somebody else has them.
    pub fn claim_recordings(&self) -> bool {
        !self.core().observers.recorder.claimed.swap(true, Ordering::AcqRel)
    }

    /// Lets others have recordings of this device.
    pub fn give_recordings_back(&self) {
        self.core().observers.recorder.claimed.store(false, Ordering::Release);
    }

    /// Whether a recording is under way.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.core().observers.recorder.is_on()
    }

    /// Calls `f`, and gives what it does a name in the recording that is under way, if there is one. Ranges nest; what `f`
    /// has a [`Team`](crate::Team) do is in the range, too.
    ///
    /// A tool that listens to NVTX, such as Nsight Systems, is told of it on the calling thread, recorded or not.
    ///
    /// ```
    /// let dev = device::Device::cpu_with(device::CpuConfig::default());
    /// dev.start_recording();
    /// dev.range("outer", || dev.range("inner", || ()));
    /// let recording = dev.stop_recording();
    /// assert_eq!((&*recording.ranges[1].name, recording.ranges[1].parent), ("inner", Some(0)));
    /// ```
    pub fn range<R>(&self, name: &str, f: impl FnOnce() -> R) -> R {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let _told = nvtx::Range::begin(name);
        if !self.is_recording() {
            return f();
        }
        let (recorder, number) = (&self.core().observers.recorder, NEXT.fetch_add(1, Ordering::Relaxed));
        let _ended = OnDrop(|| {
            recorder.with(|log| {
                let now = log.ns(Instant::now());
                if let Some(&at) = log.ranges.get(&number) {
                    log.recording.ranges[at as usize].end_ns = now;
                }
            });
        });
        recorder.with(|log| {
            let (thread, parent, start_ns) = (log.thread(), log.range(), log.ns(Instant::now()));
            log.ranges.insert(number, log.recording.ranges.len() as u32);
            let place = log.place();
            let range = RangeRecord { name: name.into(), thread, parent, start_ns, end_ns: OPEN, place };
            log.recording.ranges.push(range);
        });
        CurrentRange(Some(number)).within(f)
    }

    /// That the calling thread hands something over to another one, for its [`take_over`](Self::take_over). `None` where nothing
    /// is recorded.
    #[inline]
    pub fn hand_off(&self) -> Option<HandOff> {
        let hand_off = |log: &mut RecordingLog| HandOff { thread: log.thread(), at: Instant::now() };
        if self.is_recording() { self.core().observers.recorder.with(hand_off) } else { None }
    }

    /// Notes in the recording that is under way that the calling thread goes on from there: profiles show what a thread waited for,
    /// rather than that it waited.
    #[inline]
    pub fn take_over(&self, from: Option<HandOff>) {
        let Some(HandOff { thread: from, at }) = from else { return };
        self.core().observers.recorder.with(|log| {
            let thread = log.thread();
            // A recording may have begun anew meanwhile.
            if at >= log.origin && from != thread {
                let (since_ns, at_ns) = (log.ns(at), log.ns(Instant::now()));
                log.recording.handoffs.push(HandOffRecord { from, since_ns, thread, at_ns });
            }
        });
    }

    /// Notes in the recording that is under way, if there is one, that a step of the program ends here, and tells it
    /// to a tool that listens to NVTX.
    pub fn mark_step(&self) {
        nvtx::mark("step");
        self.core().observers.recorder.with(|log| {
            let now = log.ns(Instant::now());
            log.recording.steps.push(now);
        });
    }
}

impl Stream {
    /// Makes a call that gets `bytes` of the driver for commands of this stream, or gives some back if they are 0, and notes it in the recording that is under
    /// way, if there is one. For allocators.
    pub fn record_driver_call<R>(&self, bytes: usize, call: impl FnOnce() -> R) -> R {
        let recorder = &self.core().observers.recorder;
        let start = recorder.is_on().then(Instant::now);
        let result = call();
        if let Some(start) = start {
            recorder.with(|log| {
                let (start_ns, end_ns) = (log.ns(start), log.ns(Instant::now()));
                let (stream, thread, place) = (self.id(), log.thread(), log.place());
                let call = DriverCallRecord { bytes, stream, start_ns, end_ns, thread, place };
                log.recording.driver_calls.push(call);
            });
        }
        result
    }
}
