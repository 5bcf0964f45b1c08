//! A trace of what each command of a device wrote, as hashes, to find where two runs of a program part.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::cuda::{DriverStream, Staged};
use crate::explorer::POISON;
use crate::fifo::reached;
use crate::recorder::OperandRecord;
use crate::{DType, Device, Moment, OnDrop, Result, Use};

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
    /// Its stream and tick.
    pub moment: Moment,
    /// What it wrote, in the order of its operands; empty if it has not run, or could not be copied from a CUDA device.
    pub writes: Vec<Written>,
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
    keep_values: bool,
    commands: Vec<TracedCommand>,
    /// Commands that have not run yet: their indices, and what they write.
    pending: HashMap<Moment, (usize, Vec<Operand>)>,
    lanes: HashMap<Lane, usize>,
    /// What a driver's commands write; hashed in this order.
    copied: VecDeque<Copied>,
}

/// Copies of what a command of a driver writes. Operands begin in them at `start`.
struct Copied {
    index: usize,
    moment: Moment,
    operands: Vec<(Operand, Staged)>,
}

impl WriteLog {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Adds a command that is ordered, before any that comes after it, and before it runs. It writes the operands that it describes;
    /// those that lie elsewhere are left out, since they would be read. A command that describes none is left out: not all of what
    /// a replay or a collective may write has values.
    #[cold]
    pub(crate) fn command(
        &self,
        moment: Moment,
        op: &'static str,
        place: &'static Location<'static>,
        uses: &[Use<'_>],
        mut operands: Vec<Operand>,
    ) {
        operands.retain(|operand| operand.record.write && operand.is_in(uses));
        // What an explored device fills fresh memory with is no command of the program.
        if operands.is_empty() || op == POISON {
            return;
        }
        let (mut traced, lane) = (self.traced.lock(), Lane::current());
        let number = *traced.lanes.entry(lane).and_modify(|number| *number += 1).or_default();
        let index = traced.commands.len();
        traced.commands.push(TracedCommand { op, place, lane, number, moment, writes: Vec::new() });
        traced.pending.insert(moment, (index, operands));
    }

    /// Hashes what the command at `moment` wrote.
    ///
    /// # Safety
    /// It has run, and is not seen as passed before the call returns: its buffers live, and nobody writes what it wrote.
    #[cold]
    pub(crate) unsafe fn ran(&self, moment: Moment) {
        let (pending, keep_values) = {
            let mut traced = self.traced.lock();
            (traced.pending.remove(&moment), traced.keep_values)
        };
        let Some((index, writes)) = pending else { return };
        // SAFETY: the caller promises it of the command's buffers, in which the operands lie.
        let written = writes.iter().map(|operand| unsafe { operand.written(keep_values) }).collect();
        self.traced.lock().wrote(index, moment, written);
    }

    /// Has the driver copy what the command at `moment` writes to the host, behind it. A command whose writes it cannot copy has none
    /// in the trace.
    ///
    /// # Safety
    /// The command is the newest of the stream, and its buffers live until it has run.
    #[cold]
    pub(crate) unsafe fn stage(&self, driver: &DriverStream, moment: Moment) {
        let pending = self.traced.lock().pending.remove(&moment);
        let Some((index, writes)) = pending else { return };
        let copy = |mut operand: Operand| {
            let span = operand.span();
            let from = std::ptr::with_exposed_provenance(span.start);
            // SAFETY: the operand lies in a buffer that the command uses.
            let staged = unsafe { driver.download(from, span.len(), moment) }?;
            operand.start -= span.start;
            Ok((operand, staged))
        };
        if let Ok(operands) = writes.into_iter().map(copy).collect::<Result<_>>() {
            self.traced.lock().copied.push_back(Copied { index, moment, operands });
        }
        self.hash_copied();
    }

    /// Hashes what has been copied.
    fn hash_copied(&self) {
        let next = || {
            let mut traced = self.traced.lock();
            let is_there = traced.copied.front().is_some_and(|copied| reached(copied.moment));
            let copied = if is_there { traced.copied.pop_front() } else { None };
            copied.map(|copied| (copied, traced.keep_values))
        };
        while let Some((Copied { index, moment, operands }, keep_values)) = next() {
            let written = operands.into_iter().map(|(mut operand, staged)| {
                // SAFETY: the copy has run, and is of the operand's span.
                unsafe {
                    operand.start += staged.bytes().as_ptr().expose_provenance();
                    operand.written(keep_values)
                }
            });
            let written = written.collect();
            self.traced.lock().wrote(index, moment, written);
        }
    }
}

impl Traced {
    /// Notes what a command wrote; a trace may have begun anew meanwhile.
    fn wrote(&mut self, index: usize, moment: Moment, written: Vec<Written>) {
        if let Some(command) = self.commands.get_mut(index).filter(|found| found.moment == moment) {
            command.writes = written;
        }
    }
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

    /// Whether all elements lie in a buffer that is written.
    fn is_in(&self, uses: &[Use<'_>]) -> bool {
        let span = self.span();
        uses.iter().filter(|used| used.write).any(|used| {
            let start = used.buffer.ptr().addr();
            start <= span.start && span.end <= start + used.buffer.len_bytes()
        })
    }

    /// # Safety
    /// The elements may be read.
    unsafe fn written(&self, keep_values: bool) -> Written {
        // SAFETY: the caller promises that the elements may be read; these are some that lie next to each other.
        let run = |start, bytes| unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), bytes)
        };
        let (mut axes, mut bytes) = (self.axes().collect::<Vec<_>>(), self.record.dtype.size_bytes());
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
    pub fn start_write_trace(&self, keep_values: bool) {
        let log = &self.core().observers.writes;
        self.await_streams();
        *log.traced.lock() = Traced { keep_values, ..Traced::default() };
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
        std::mem::take(&mut *log.traced.lock()).commands
    }
}
