//! A trace of what each command of a device wrote, as hashes, to find where two runs of a program part.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cuda::{DriverStream, Staged};
use crate::explorer::POISON;
use crate::fifo::reached;
use crate::recorder::OperandRecord;
use crate::{DType, Device, Moment, OnDrop, Use};

/// The part of a program that launches a command, such as `batch 3`, and those around it. A lane launches its commands in one order,
/// whatever threads and streams it runs on. Parts that are more than four deep share the lane of the fourth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane([Option<(&'static str, usize)>; 4]);

thread_local! {
    static LANE: Cell<Lane> = const { Cell::new(Lane([None; 4])) };
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.iter().flatten();
        let Some((name, number)) = parts.next() else { return f.write_str("main") };
        write!(f, "{name} {number}")?;
        parts.try_for_each(|(name, number)| write!(f, ", {name} {number}"))
    }
}

impl Lane {
    /// That of the calling thread.
    #[inline]
    pub fn current() -> Lane {
        LANE.get()
    }

    /// Calls `f`, whose commands are those of the part `name number` of this lane in a trace of writes.
    #[inline]
    pub fn scope<R>(mut self, name: &'static str, number: usize, f: impl FnOnce() -> R) -> R {
        if let Some(part) = self.0.iter_mut().find(|part| part.is_none()) {
            *part = Some((name, number));
        }
        let outer = LANE.replace(self);
        let _restore = OnDrop(|| LANE.set(outer));
        f()
    }

    /// The parts of this lane that lie within `outer`.
    pub(crate) fn within(self, outer: Lane) -> Lane {
        let depth = outer.0.iter().flatten().count();
        if self.0[..depth] != outer.0[..depth] {
            return self;
        }
        Lane(std::array::from_fn(|at| self.0.get(depth + at).copied().flatten()))
    }

    /// The lane `inner` within this one.
    fn join(self, inner: Lane) -> Lane {
        let mut parts = self.0.into_iter().chain(inner.0).flatten();
        Lane(std::array::from_fn(|_| parts.next()))
    }
}

/// A command that wrote something while writes were traced.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedCommand {
    /// The op that launched it.
    pub op: &'static str,
    /// The line of the program that launched it.
    pub place: &'static Location<'static>,
    /// The part of the program that launched it.
    pub lane: Lane,
    /// Its number in the lane.
    pub number: usize,
    /// Whether it is a part of a captured step.
    pub replayed: bool,
    /// What it wrote, in the order of its operands; `None` where that is not known: it has not run, could not be copied from a CUDA
    /// device, or is a part of a captured step that the step does not write to memory.
    pub writes: Vec<Option<Written>>,
}

/// A command of a captured step, as a trace that was on at the capture knows it.
#[derive(Clone, Debug)]
pub(crate) struct CapturedCommand {
    pub(crate) op: &'static str,
    pub(crate) place: &'static Location<'static>,
    /// Within the lane of the capture.
    pub(crate) lane: Lane,
    /// How many operands it writes.
    pub(crate) outputs: usize,
}

/// An operand that a command writes.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    /// The number of the command in the trace, or in the captured step.
    pub(crate) command: usize,
    /// Which of the operands that the command writes.
    pub(crate) number: usize,
    pub(crate) operand: Operand,
}

impl Output {
    /// The operands that the command with this number in a trace writes.
    pub(crate) fn all(command: usize, operands: Vec<Operand>) -> impl Iterator<Item = Output> {
        operands.into_iter().enumerate().map(move |(number, operand)| Output { command, number, operand })
    }
}

/// A place in a trace: the commands from one on, such as those of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracePlace {
    /// Which trace.
    trace: u64,
    keep_values: bool,
    /// The number of the first command.
    first: usize,
}

/// What a command wrote to one operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The type of the elements; `None` for bytes of a buffer whose elements the command does not describe.
    pub dtype: Option<DType>,
    /// Of the elements, in the order of the memory.
    pub hash: u64,
    /// Their bytes in row-major order, if values are kept.
    pub values: Option<Box<[u8]>>,
}

/// What the device writes down.
#[derive(Default)]
pub(crate) struct WriteLog {
    on: AtomicBool,
    traced: Mutex<Traced>,
}

#[derive(Default)]
struct Traced {
    /// Changes when a trace begins.
    trace: u64,
    keep_values: bool,
    commands: Vec<TracedCommand>,
    /// What commands write that have not run yet.
    pending: FxHashMap<Moment, SmallVec<[Output; 1]>>,
    lanes: FxHashMap<Lane, usize>,
    /// What a driver's commands write; hashed in this order.
    copied: VecDeque<Copied>,
}

/// Copies of what a command of a driver writes. Operands begin in them at `start`.
struct Copied {
    moment: Moment,
    outputs: Vec<(Output, Staged)>,
    from: TracePlace,
}

impl WriteLog {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Adds a command that is ordered, before any that comes after it, and before it runs.
    #[cold]
    pub(crate) fn command(
        &self,
        moment: Moment,
        op: &'static str,
        place: &'static Location<'static>,
        uses: &[Use<'_>],
        operands: Vec<Operand>,
    ) {
        let operands = Operand::traced(op, uses, operands);
        if operands.is_empty() {
            return;
        }
        let mut traced = self.traced.lock();
        let command = traced.add(op, place, Lane::current(), false, operands.len());
        traced.pending.insert(moment, Output::all(command, operands).collect());
    }

    /// Adds the commands of a captured step, before it is replayed.
    #[cold]
    pub(crate) fn replay(&self, commands: &[CapturedCommand]) -> TracePlace {
        let (mut traced, outer) = (self.traced.lock(), Lane::current());
        let replay = TracePlace { first: traced.commands.len(), ..traced.start() };
        for command in commands {
            traced.add(command.op, command.place, outer.join(command.lane), true, command.outputs);
        }
        replay
    }

    /// Hashes what the command at `moment` wrote.
    ///
    /// # Safety
    /// It has run, and is not seen as passed before the call returns: its buffers live, and nobody writes what it wrote.
    #[cold]
    pub(crate) unsafe fn ran(&self, moment: Moment) {
        let (outputs, start) = self.traced.lock().take(moment);
        // SAFETY: the caller's promise.
        unsafe { self.hash(start, &outputs) }
    }

    /// Hashes `outputs`, which commands of a replay wrote.
    ///
    /// # Safety
    /// They may be read, and nobody writes them.
    #[cold]
    pub(crate) unsafe fn hash<'a>(&self, replay: TracePlace, outputs: impl IntoIterator<Item = &'a Output>) {
        let mut outputs = outputs.into_iter().peekable();
        if outputs.peek().is_none() {
            return;
        }
        let hashed = |output: &Output| {
            // SAFETY: the caller promises it of the outputs' elements.
            let written = unsafe { output.operand.written(replay.keep_values) };
            (output.command, output.number, written)
        };
        let written = outputs.map(hashed).collect();
        self.traced.lock().wrote(replay, written);
    }

    /// Has the driver copy what the command at `moment` writes to the host, behind it.
    ///
    /// # Safety
    /// The command is the newest of the stream, and its buffers live until it has run.
    #[cold]
    pub(crate) unsafe fn stage(&self, driver: &DriverStream, moment: Moment) {
        let (outputs, start) = self.traced.lock().take(moment);
        // SAFETY: the caller's promise.
        unsafe { self.copy(driver, moment, start, outputs) }
    }

    /// Has the driver copy `outputs` to the host, behind what was enqueued. What it cannot copy is not known to the trace.
    ///
    /// # Safety
    /// They lie in buffers that live until `moment` has passed.
    #[cold]
    pub(crate) unsafe fn copy(
        &self,
        driver: &DriverStream,
        moment: Moment,
        replay: TracePlace,
        outputs: impl IntoIterator<Item = Output>,
    ) {
        let copy = |mut output: Output| {
            let span = output.operand.span();
            let from = std::ptr::with_exposed_provenance(span.start);
            // SAFETY: the operand lies in a buffer that the caller vouches for.
            let staged = unsafe { driver.download(from, span.len(), moment) }.ok()?;
            output.operand.start -= span.start;
            output.command += replay.first;
            Some((output, staged))
        };
        let outputs: Vec<_> = outputs.into_iter().filter_map(copy).collect();
        if !outputs.is_empty() {
            self.traced.lock().copied.push_back(Copied {
                moment,
                outputs,
                from: TracePlace { first: 0, ..replay },
            });
        }
        self.hash_copied();
    }

    /// Hashes what has been copied.
    fn hash_copied(&self) {
        let next = || {
            let mut traced = self.traced.lock();
            let is_there = traced.copied.front().is_some_and(|copied| reached(copied.moment));
            if is_there { traced.copied.pop_front() } else { None }
        };
        while let Some(Copied { mut outputs, from, .. }) = next() {
            let at = |(output, staged): &mut (Output, Staged)| {
                // SAFETY: the copy has run.
                output.operand.start += unsafe { staged.bytes() }.as_ptr().expose_provenance();
            };
            outputs.iter_mut().for_each(at);
            // SAFETY: the copies have run, and are of the operands' spans.
            unsafe { self.hash(from, outputs.iter().map(|(output, _)| output)) }
        }
    }
}

impl Traced {
    /// The trace from its first command on.
    fn start(&self) -> TracePlace {
        TracePlace { trace: self.trace, keep_values: self.keep_values, first: 0 }
    }

    /// What the command at `moment` writes.
    fn take(&mut self, moment: Moment) -> (SmallVec<[Output; 1]>, TracePlace) {
        (self.pending.remove(&moment).unwrap_or_default(), self.start())
    }

    /// Adds a command, and gives its number.
    fn add(
        &mut self,
        op: &'static str,
        place: &'static Location<'static>,
        lane: Lane,
        replayed: bool,
        outputs: usize,
    ) -> usize {
        let number = *self.lanes.entry(lane).and_modify(|number| *number += 1).or_default();
        self.commands.push(TracedCommand { op, place, lane, number, replayed, writes: vec![None; outputs] });
        self.commands.len() - 1
    }

    /// Notes what commands wrote to outputs; a trace may have begun anew meanwhile.
    fn wrote(&mut self, replay: TracePlace, written: SmallVec<[(usize, usize, Written); 1]>) {
        if replay.trace != self.trace {
            return;
        }
        for (command, output, written) in written {
            let command = self.commands.get_mut(replay.first + command);
            if let Some(slot) = command.and_then(|command| command.writes.get_mut(output)) {
                *slot = Some(written);
            }
        }
    }
}

/// Which of its operands a command describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// All.
    All,
    /// Those that it writes.
    Written,
}

/// An operand as a command describes it.
#[derive(Clone, Debug)]
pub struct Operand {
    /// What recordings say of it.
    pub record: OperandRecord,
    /// The address of its first element.
    pub start: usize,
    /// The distances between neighbours along each axis, in elements; none where only bytes are known.
    pub strides: Box<[isize]>,
}

impl Operand {
    /// `elements` of one type that lie next to each other.
    pub fn dense(dtype: DType, elements: usize, start: *mut u8, write: bool) -> Operand {
        let record = OperandRecord { shape: [elements].into(), dtype, write };
        Operand { record, start: start.expose_provenance(), strides: [1].into() }
    }

    /// What a trace follows of the operands of a command: those that it writes, and that lie in buffers which it was launched to write;
    /// others would be read. What an explored device fills fresh memory with is no command of the program.
    pub(crate) fn traced(op: &'static str, uses: &[Use<'_>], mut operands: Vec<Operand>) -> Vec<Operand> {
        operands.retain(|operand| op != POISON && operand.record.write && operand.used(uses).is_some());
        operands
    }

    /// The buffers that a copy of whole buffers writes.
    pub(crate) fn whole(uses: &[Use<'_>]) -> Vec<Operand> {
        uses.iter().filter(|used| used.write && used.buffer.len_bytes() > 0).map(Operand::bytes).collect()
    }

    fn bytes(used: &Use<'_>) -> Operand {
        let shape = [used.buffer.len_bytes()].into();
        let record = OperandRecord { shape, dtype: DType::U8, write: used.write };
        Operand { record, start: used.buffer.ptr().expose_provenance(), strides: [].into() }
    }

    fn is_bytes(&self) -> bool {
        self.strides.len() < self.record.shape.len()
    }

    /// The axes of more than one element, and their strides in bytes.
    fn axes(&self) -> impl Iterator<Item = (usize, isize)> {
        let size = self.record.dtype.size_bytes() as isize;
        let strides = if self.is_bytes() { &[1] } else { &*self.strides };
        let axes = self.record.shape.iter().zip(strides).filter(|(n, _)| **n != 1);
        axes.map(move |(&n, &stride)| (n, stride.wrapping_mul(size)))
    }

    /// The addresses from the first byte to the last one.
    fn span(&self) -> Range<usize> {
        let reach = |(n, stride): (usize, isize)| (n.max(1) - 1).cast_signed().saturating_mul(stride);
        let (below, above) = self.axes().map(reach).fold((0_isize, 0_isize), |(below, above), by| {
            (below.saturating_add(by.min(0)), above.saturating_add(by.max(0)))
        });
        let end = self.start.saturating_add_signed(above).saturating_add(self.record.dtype.size_bytes());
        self.start.saturating_add_signed(below)..end
    }

    /// Which of the buffers that are written has all elements.
    pub(crate) fn used(&self, uses: &[Use<'_>]) -> Option<usize> {
        let span = self.span();
        uses.iter().position(|used| {
            let start = used.buffer.ptr().addr();
            used.write && start <= span.start && span.end <= start + used.buffer.len_bytes()
        })
    }

    /// # Safety
    /// The elements may be read.
    unsafe fn written(&self, keep_values: bool) -> Written {
        // SAFETY: the caller promises that the elements may be read; these are some that lie next to each other.
        let run = |start, bytes| unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), bytes)
        };
        let (mut axes, mut bytes) =
            (self.axes().collect::<SmallVec<[(usize, isize); 6]>>(), self.record.dtype.size_bytes());
        let mut values = Vec::new();
        if keep_values {
            each_run(self.start, &axes, &mut |start| values.extend_from_slice(run(start, bytes)));
        }
        // In the order of the memory, where runs are longest.
        axes.sort_by_key(|&(_, stride)| Reverse(stride));
        while let Some(&(n, stride)) = axes.last()
            && stride == bytes as isize
        {
            bytes *= n;
            axes.pop();
        }
        let mut hash = 0;
        each_run(self.start, &axes, &mut |start| hash = hashed(hash, run(start, bytes)));
        let dtype = (!self.is_bytes()).then_some(self.record.dtype);
        Written { dtype, hash, values: keep_values.then(|| values.into()) }
    }
}

/// Calls `f` with the address of each run of elements, in row-major order.
fn each_run(start: usize, axes: &[(usize, isize)], f: &mut impl FnMut(usize)) {
    match axes {
        [] => f(start),
        [(n, stride), rest @ ..] => {
            (0..*n as isize).for_each(|k| each_run(start.wrapping_add_signed(k * stride), rest, f));
        }
    }
}

/// A hash of `bytes` behind what has the hash `state`. Four words are mixed beside each other.
fn hashed(state: u64, bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let (mut sums, mut last) = ([state, 1, 2, 3], [0; 32]);
    last[..rest.len()].copy_from_slice(rest);
    blocks.iter().chain([&last]).for_each(|block| {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks().0) {
            *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    });
    sums.into_iter().fold(bytes.len() as u64, |hash, sum| crate::mix(hash ^ sum))
}

impl Device {
    /// Traces what every command writes from now on, with the values if `keep_values`, which takes as much memory as is written. A
    /// trace that is under way starts anew. On a CPU each command is hashed when it has run, by the thread that ran it. On a CUDA device
    /// what a command writes is copied to the host behind it, which takes memory until a later launch finds it copied.
    ///
    /// The commands of a step that is captured while this is on are traced in each replay, as far as their results are in memory; on
    /// a CUDA device such a replay launches them one by one. Steps that were captured before are left out.
    pub fn start_write_trace(&self, keep_values: bool) {
        let log = &self.core().observers.writes;
        self.await_streams();
        let mut traced = log.traced.lock();
        *traced = Traced { trace: traced.trace + 1, keep_values, ..Traced::default() };
        drop(traced);
        log.on.store(true, Ordering::Release);
        self.core().observers.watch();
    }

    /// Waits for what was launched, ends the trace and returns it, in an order in which each command comes after those whose results it
    /// uses; empty if none was under way.
    ///
    /// ```
    /// use device::Device;
    /// let dev = Device::cpu();
    /// dev.start_write_trace(false);
    /// dev.default_stream().launch_host("nothing written", &[], || ())?;
    /// assert!(dev.stop_write_trace().is_empty());
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn stop_write_trace(&self) -> Vec<TracedCommand> {
        let log = &self.core().observers.writes;
        self.await_streams();
        log.on.store(false, Ordering::Release);
        self.core().observers.watch();
        log.hash_copied();
        let mut traced = log.traced.lock();
        let trace = traced.trace;
        std::mem::replace(&mut *traced, Traced { trace, ..Traced::default() }).commands
    }
}
