//! Capture: a program's commands, written down instead of run.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::commands::{ALIGNMENT, StepCommand, StepMemory, TracedOutput};
use super::plan::{Plan, reserve, room};
use crate::core::Core;
use crate::writes::{Asked, CapturedCommand, Lane, Operand, Output};
use crate::{AtCaller, Buffer, Device, Error, OnDrop, Result, Shared, Stream, StreamId, Use, Work};

/// A step that is being captured, for which `tensor` has `Graph`: commands that are launched in its [`scope`](Capture::scope), on whatever streams of the
/// device and by whatever threads of a [`Team`](crate::Team), are written down instead of run, and memory that is allocated
/// there is planned instead of taken.
pub struct Capture {
    device: Device,
    /// What the log of its memory names, so that nobody else uses it.
    id: StreamId,
    recording: Mutex<CaptureLog>,
    scratch: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    /// Where the capture began; lanes of captured commands are within it.
    lane: Lane,
}

/// What was written down so far.
#[derive(Default)]
struct CaptureLog {
    commands: Vec<StepCommand>,
    memories: Vec<StepMemory>,
    /// Where in `memories` the buffers are that the step found, by their address.
    found: HashMap<usize, usize>,
    /// The memories of commands that find some operands where they found them first.
    staying: FxHashSet<usize>,
    /// The next address of planned memory.
    next: usize,
    attached: Vec<Attached>,
    /// The commands of which a trace of writes follows something.
    captured: Vec<CapturedCommand>,
    /// Whether the capture has ended. Its memories are the plan's then, and a number of one means nothing here.
    ended: bool,
}

/// What a layer above device keeps with a captured step for its replays.
pub type Attached = Box<dyn Any + Send>;

/// Host memory that a command takes while it is written down, about, and for how many at a time it is asked for.
const RECORDED: usize = 1 << 10;
const ROOM: usize = 1 << 12;
/// Memories that may be new between two commands without a reservation of their own.
const FRESH: usize = 64;

/// Planned memory stands at addresses that no device hands out.
pub(super) const FIRST: usize = 1 << 60;

thread_local! {
    /// It has no destructor, since ops also run while a thread or the process ends.
    static CURRENT: RefCell<ManuallyDrop<Option<Arc<Capture>>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// The captures that are not dropped, so that their buffers find them.
static CAPTURES: LazyLock<Mutex<HashMap<StreamId, Weak<Capture>>>> = LazyLock::new(Mutex::default);

/// The capture that this thread is in.
pub(crate) fn current() -> Option<Arc<Capture>> {
    CURRENT.with_borrow(|current| (**current).clone())
}

/// Calls `f` within `capture`, or outside of any. The former one is back afterwards, also after a panic.
pub(crate) fn within<R>(capture: Option<Arc<Capture>>, f: impl FnOnce() -> R) -> R {
    let swap = |new| ManuallyDrop::into_inner(CURRENT.replace(ManuallyDrop::new(new)));
    let mut outer = swap(capture);
    let _restore = OnDrop(|| drop(swap(outer.take())));
    f()
}

#[derive::located]
impl Capture {
    /// A capture on `device`, in which nothing happened yet.
    ///
    /// # Errors
    /// `Captured` within another one.
    pub fn new(device: &Device) -> Result<Arc<Capture>> {
        Capture::none("capture")?;
        let id = StreamId::of_capture();
        let recording = Mutex::new(CaptureLog { next: FIRST, ..CaptureLog::default() });
        let capture = Arc::new(Capture {
            device: device.clone(),
            id,
            recording,
            scratch: Mutex::default(),
            lane: Lane::current(),
        });
        CAPTURES.lock().insert(id, Arc::downgrade(&capture));
        device.core().health.captures.fetch_add(1, Ordering::AcqRel);
        Ok(capture)
    }

    /// Calls `f` with its commands written down. Other threads' commands run as ever, but for those of a
    /// [`Team`](crate::Team)'s run within `f`.
    pub fn scope<R>(self: &Arc<Self>, f: impl FnOnce() -> R) -> R {
        within(Some(Arc::clone(self)), f)
    }

    /// Calls `f` as if nothing was captured: for state that outlasts the step, such as an optimizer's.
    pub fn suspended<R>(f: impl FnOnce() -> R) -> R {
        within(None, f)
    }

    /// That this thread captures nothing, where `op` is no part of a step.
    ///
    /// # Errors
    /// `Captured` if it does.
    pub fn none(op: &'static str) -> Result<()> {
        if Capture::is_current() { Err(Error::captured(op, "captures do not nest")) } else { Ok(()) }
    }

    /// Whether this thread's commands are written down.
    pub fn is_current() -> bool {
        CURRENT.with_borrow(|current| current.is_some())
    }

    /// Keeps `value` for whoever ends the capture that this thread is in; dropped if there is none.
    pub fn attach(value: impl Any + Send) {
        if let Some(capture) = current() {
            capture.recording.lock().attached.push(Box::new(value));
        }
    }

    /// What layers above device keep in a `T` until the capture that this thread is in ends; `None` if there is none.
    pub fn scratch<T: Any + Send + Sync + Default>() -> Option<Arc<T>> {
        let capture = current()?;
        let mut scratch = capture.scratch.lock();
        let known = scratch.iter().find_map(|known| Arc::clone(known).downcast().ok());
        Some(known.unwrap_or_else(|| {
            let fresh = Arc::<T>::default();
            scratch.push(fresh.clone());
            fresh
        }))
    }

    /// The number of the memory of this capture that a buffer stands for, if it may be [kept](Plan::keep): each replay can make it
    /// somewhere else.
    pub fn may_keep(&self, buffer: &Buffer) -> Option<usize> {
        let (_, memory) = buffer.plan().filter(|(capture, _)| *capture == self.id)?;
        (!self.recording.lock().staying.contains(&memory)).then_some(memory)
    }

    /// Ends the capture: the plan of what was written down, and what was [attached](Capture::attach).
    ///
    /// # Errors
    /// `Captured` if memory of the step is still held, naming the command that wrote it first. In any case the capture has
    /// ended: what is launched in its scope from now on is refused.
    pub fn finish(self: Arc<Self>) -> Result<(Plan, Vec<Attached>)> {
        let scratch = std::mem::take(&mut *self.scratch.lock());
        drop(scratch);
        let ended = CaptureLog { ended: true, ..CaptureLog::default() };
        let CaptureLog { commands, memories, attached, staying, captured, .. } =
            std::mem::replace(&mut *self.recording.lock(), ended);
        let kept =
            memories.iter().position(|memory| matches!(memory, StepMemory::Planned { alive: true, .. }));
        if let Some(kept) = kept {
            let uses = |command: &&StepCommand| command.uses.iter().any(|(memory, _)| *memory == kept);
            let op = commands.iter().find(uses).map_or("empty", |command| command.op);
            let reason = "its result is kept beyond the step and is not part of what the step returns; make state before the \
                          step";
            return Err(Error::captured(op, reason));
        }
        Ok((Plan::new(self.device.clone(), commands, memories, staying, captured), attached))
    }

    /// The capture that a command of this thread on `core` belongs to.
    #[inline]
    pub(crate) fn of(core: &Arc<Core>) -> Option<Arc<Capture>> {
        if core.is_capturing() { Capture::of_this_thread(core) } else { None }
    }

    #[cold]
    fn of_this_thread(core: &Arc<Core>) -> Option<Arc<Capture>> {
        current().filter(|capture| Arc::ptr_eq(capture.device.core(), core))
    }

    /// Whether this thread's commands on `device` are written down.
    pub fn is_of(device: &Device) -> bool {
        Capture::of(device.core()).is_some()
    }

    /// Writes a command down.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub(crate) fn record(
        &self,
        stream: &Stream,
        op: &'static str,
        uses: &[Use<'_>],
        operands: &dyn Fn(Asked) -> Vec<Operand>,
        work: impl Work,
    ) -> Result<()> {
        let measured = stream.dry_run(op, |queue| work.enqueue(queue))?;
        let mut recording = self.recording.lock();
        if recording.ended {
            return Err(Error::captured(op, "the capture has ended"));
        }
        recording.has_room()?;
        let memory = |used: &Use<'_>| Ok((recording.memory(self.id, op, used.buffer)?, used.write));
        let all = uses.iter().map(memory).collect::<Result<SmallVec<[(usize, bool); 4]>>>()?;
        let is_traced = stream.core().observers.writes.is_on();
        let operands =
            if is_traced { Operand::traced(op, uses, operands(Asked::Written)) } else { Vec::new() };
        let traced = recording.traced(op, Lane::current().within(self.lane), uses, &all, operands);
        let named = each_once(all);
        if measured.is_some_and(|(_, measured)| measured.stays) {
            recording.staying.extend(named.iter().map(|(memory, _)| *memory));
        }
        let (stream, work) = (stream.id(), Box::new(work));
        recording.commands.push(StepCommand { op, stream, uses: named, work, traced });
        Ok(())
    }

    /// A buffer of planned memory, whose place the plan decides.
    #[cold]
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Shared<Buffer>> {
        let mut recording = self.recording.lock();
        let index = recording.plan(bytes)?;
        let at = recording.memories[index].at();
        Ok(Buffer::new_shared(|| Buffer::planned(&self.device, self.id, at, bytes, index)))
    }
}

/// The memories that a command uses, each once, and whether it writes them.
pub(super) fn each_once(uses: impl IntoIterator<Item = (usize, bool)>) -> SmallVec<[(usize, bool); 4]> {
    /// From so many on they are found by hashing.
    const MANY: usize = 16;
    let mut once: SmallVec<[(usize, bool); 4]> = SmallVec::new();
    let mut places: FxHashMap<usize, usize> = FxHashMap::default();
    for (memory, write) in uses {
        let known = match once.len() {
            0..MANY => once.iter().position(|(known, _)| *known == memory),
            _ => {
                let first = places.len();
                places.extend(once.iter().enumerate().skip(first).map(|(at, (memory, _))| (*memory, at)));
                places.get(&memory).copied()
            }
        };
        match known {
            Some(at) => once[at].1 |= write,
            None => once.push((memory, write)),
        }
    }
    once
}

impl CaptureLog {
    /// What a trace of writes follows of a command that writes `operands`, in the memories of its uses.
    #[track_caller]
    fn traced(
        &mut self,
        op: &'static str,
        lane: Lane,
        uses: &[Use<'_>],
        memories: &[(usize, bool)],
        operands: Vec<Operand>,
    ) -> Vec<TracedOutput> {
        if operands.is_empty() {
            return Vec::new();
        }
        let command = self.captured.len();
        let (place, outputs) = (AtCaller::location(), operands.len());
        self.captured.push(CapturedCommand { op, place, lane, outputs });
        let traced = |output: Output| {
            let (memory, _) = memories[output.operand.used(uses)?];
            Some(TracedOutput { memory, output })
        };
        Output::all(command, operands).filter_map(traced).collect()
    }

    /// That the host has memory for more commands.
    fn has_room(&mut self) -> Result<()> {
        reserve(&mut self.commands, 1)?;
        reserve(&mut self.memories, FRESH)?;
        if self.commands.len().is_multiple_of(ROOM) { room(ROOM, RECORDED) } else { Ok(()) }
    }

    fn plan(&mut self, bytes: usize) -> Result<usize> {
        let at = self.next;
        // Apart from each other, also where there is nothing. All sizes together can be counted.
        let end =
            bytes.checked_add(1).and_then(|bytes| at.checked_add(bytes.checked_next_multiple_of(ALIGNMENT)?));
        self.next = end.filter(|&end| end <= isize::MAX.unsigned_abs()).ok_or_else(|| {
            let known = at.saturating_sub(FIRST);
            Error::out_of_memory(bytes, format!("the captured step has {known} bytes already"))
        })?;
        self.memories.push(StepMemory::Planned { at, bytes, alive: true });
        Ok(self.memories.len() - 1)
    }

    fn memory(&mut self, id: StreamId, op: &'static str, buffer: &Buffer) -> Result<usize> {
        match buffer.plan() {
            Some((capture, index)) if capture == id => Ok(index),
            Some(_) => Err(Error::of_another_step(op)),
            None => {
                let at = std::ptr::from_ref(buffer).addr();
                if let Some(&known) = self.found.get(&at) {
                    return Ok(known);
                }
                let owner = buffer.owner().ok_or_else(|| {
                    Error::captured(
                        op,
                        "a buffer that it uses has one owner only, so the step cannot keep it",
                    )
                })?;
                self.memories.push(StepMemory::Found(owner));
                self.found.insert(at, self.memories.len() - 1);
                Ok(self.memories.len() - 1)
            }
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        CAPTURES.lock().remove(&self.id);
        self.device.core().health.captures.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The buffer of planned memory is gone.
#[cold]
pub(crate) fn forget(capture: StreamId, index: usize) {
    let found = CAPTURES.lock().get(&capture).and_then(Weak::upgrade);
    if let Some(capture) = found
        && let Some(StepMemory::Planned { alive, .. }) = capture.recording.lock().memories.get_mut(index)
    {
        *alive = false;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
