//! The one place where the order of commands is decided.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::buffer::Log;
use crate::fifo::{Fifo, Gate, Item, Tail, bump, find, reached};
use crate::{Clock, Error, Moment, Placement, Result, SpinGuard, Stream, Use};

type Moments = SmallVec<[Moment; 4]>;

/// Who runs a command that was ordered.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The calling thread, at once.
    Here,
    /// The worker, after the tail's waits.
    Worker,
}

impl Stream {
    /// Launches a command that reads and writes `uses`.
    ///
    /// The command comes after every earlier command that wrote what it uses or, where it writes, used it, on
    /// whatever stream. That is decided here, once, in one critical section of this stream: needs are read from the
    /// buffers' logs, those that the stream's clock covers are dropped, the rest are waited for with the fewest
    /// events, and the uses are logged. `work` runs once: before the call returns if the stream runs inline, later
    /// and on another thread if not. Memory that it reaches through `uses` stays valid until then. A panic in it is
    /// [`Error::Async`] at the next synchronising call; `work` must not call the device.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if a buffer is another device's, [`Error::Io`] if the stream needs a thread that the
    /// system does not give. Nothing is launched then.
    #[inline]
    pub fn launch<F>(&self, op: &'static str, uses: &[Use<'_>], work: F) -> Result<()>
    where
        F: FnOnce() + Send + 'static,
    {
        let fifo = self.fifo();
        let mut tail = fifo.tail.lock();
        match self.order(&mut tail, op, uses, true)? {
            Place::Here => self.run_inline(&tail, op, work),
            Place::Worker => self.enqueue(&mut tail, op, uses, Box::new(work)),
        }
        bump(&fifo.counters.launches, 1);
        Ok(())
    }

    /// Copies `bytes` into `buffer` from its byte `offset` on. If the stream cannot run the copy at once, the bytes
    /// are kept for it.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch); [`Error::InvalidArgument`] if the range is not inside the buffer.
    pub fn upload(
        &self,
        op: &'static str,
        buffer: &crate::Buffer,
        offset: usize,
        bytes: &[u8],
    ) -> Result<()> {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > buffer.len_bytes()) {
            return Err(Error::InvalidArgument {
                op,
                argument: "range",
                expected: "inside the buffer",
                value: format!("{offset}+{} of {}", bytes.len(), buffer.len_bytes()).into(),
            });
        }
        let to = Address(buffer.ptr().wrapping_add(offset));
        // SAFETY: the range is inside the buffer, the launch below orders the write, and the source is a slice, which
        // cannot overlap memory that only commands use.
        let copy = move |bytes: &[u8]| unsafe { to.copy_from(bytes) };
        let fifo = self.fifo();
        let mut tail = fifo.tail.lock();
        let uses = [Use::write(buffer)];
        match self.order(&mut tail, op, &uses, true)? {
            Place::Here => self.run_inline(&tail, op, || copy(bytes)),
            Place::Worker => {
                let kept: Box<[u8]> = bytes.into();
                self.enqueue(&mut tail, op, &uses, Box::new(move || copy(&kept)));
            }
        }
        bump(&fifo.counters.launches, 1);
        Ok(())
    }

    /// Makes later commands come after `moments`, with the fewest waits. Does not block the host.
    ///
    /// # Errors
    /// [`Error::Io`] if the stream needs a thread that the system does not give.
    pub fn wait_for(&self, moments: &[Moment]) -> Result<()> {
        let fifo = self.fifo();
        let mut tail = fifo.tail.lock();
        let mut needs: Moments = moments.iter().copied().filter(|need| need.stream != fifo.id).collect();
        fifo.drop_met(&mut tail, &mut needs);
        if needs.is_empty() {
            return Ok(());
        }
        fifo.ensure_worker()?;
        fifo.take(&mut tail);
        fifo.commit(&mut tail, needs);
        self.enqueue(&mut tail, "wait", &[], Box::new(|| ()));
        Ok(())
    }

    /// Takes a tick for a marker, which runs `work` when the stream passes it.
    pub(crate) fn mark(&self, work: impl FnOnce() + Send + 'static) -> Result<Moment> {
        let fifo = self.fifo();
        let mut tail = fifo.tail.lock();
        match self.order(&mut tail, "record", &[], true)? {
            Place::Here => self.run_inline(&tail, "record", work),
            Place::Worker => self.enqueue(&mut tail, "record", &[], Box::new(work)),
        }
        bump(&fifo.counters.events_recorded, 1);
        fifo.counters.marked.store(tail.tick, Ordering::Relaxed);
        Ok(Moment { stream: fifo.id, tick: tail.tick })
    }

    /// Puts a gate into the stream, which never runs on the calling thread.
    pub(crate) fn close(&self, gate: Arc<Gate>) -> Result<()> {
        let mut tail = self.fifo().tail.lock();
        self.order(&mut tail, "hold", &[], false)?;
        self.fifo().push([Item::Gate { tick: tail.tick, gate }]);
        Ok(())
    }

    /// Decides what a command must come after, gives it its tick, and logs its uses.
    fn order(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        may_run_here: bool,
    ) -> Result<Place> {
        let fifo = self.fifo();
        let core = self.core();
        if let Some(foreign) = uses.iter().find(|used| !Arc::ptr_eq(used.buffer.device().core(), core)) {
            return Err(foreign.foreign(op, self));
        }
        // A read of what is named once more adds nothing.
        let uses = match uses {
            [a, b, ..] if address(a) == address(b) && !a.write => &uses[1..],
            _ => uses,
        };
        // Most commands use few buffers, each once, and sort them in no time.
        if let [one] = uses {
            return fifo.order_locked(tail, &mut [lock(*one)], may_run_here);
        }
        if let [a, b] = *uses
            && let Some(sorted) = sorted([a, b])
        {
            return fifo.order_locked(tail, &mut sorted.map(lock), may_run_here);
        }
        if let [a, b, c] = *uses
            && let Some(sorted) = sorted([a, b, c])
        {
            return fifo.order_locked(tail, &mut sorted.map(lock), may_run_here);
        }
        fifo.order_locked(tail, &mut lock_all(uses), may_run_here)
    }

    /// Runs the newest command on the calling thread, which holds the tail.
    #[inline]
    fn run_inline(&self, tail: &Tail, op: &'static str, work: impl FnOnce()) {
        let fifo = self.fifo();
        fifo.run(self.core(), op, tail.tick, work);
        // Whoever waits for this tick takes the tail first, so nobody has to be woken.
        fifo.completed.store(tail.tick, Ordering::Release);
    }

    /// Hands the newest command to the worker, behind its waits.
    #[cold]
    fn enqueue(&self, tail: &mut Tail, op: &'static str, uses: &[Use<'_>], work: Box<dyn FnOnce() + Send>) {
        let core = self.core();
        if core.recorder.is_on() {
            let waiter = Moment { stream: self.id(), tick: tail.tick };
            for &(ref fifo, tick) in &tail.waits {
                core.recorder.waited(op, waiter, Moment { stream: fifo.id, tick });
            }
        }
        let explorer = self.fifo().explorer.as_ref();
        let kept = |_: &_| explorer.is_none_or(|explorer| explorer.keeps_wait());
        let waits = tail.waits.drain(..).filter(kept).map(|(fifo, tick)| Item::Wait { fifo, tick });
        let run = Item::Run {
            tick: tail.tick,
            op,
            work,
            core: explorer.is_none().then(|| Arc::clone(core)),
            explored: explorer.map(|explorer| explorer.launched(uses.iter().map(Use::access).collect())),
        };
        self.fifo().push(waits.chain([run]));
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

impl Fifo {
    /// Decides what a command must come after that uses buffers with these `logs`, gives it its tick, and logs its
    /// uses.
    #[inline(always)]
    fn order_locked(
        self: &Arc<Self>,
        tail: &mut Tail,
        logs: &mut [LockedLog<'_>],
        may_run_here: bool,
    ) -> Result<Place> {
        let fifo = self;
        let mut needs = Moments::new();
        for (log, write) in logs.iter() {
            log.needs(fifo.id, *write, |need| needs.push(need));
        }
        if !needs.is_empty() {
            fifo.drop_met(tail, &mut needs);
        }
        let here = may_run_here
            && fifo.placement == Placement::Caller
            && needs.is_empty()
            && fifo.completed() == tail.tick;
        if !here {
            fifo.ensure_worker()?;
        }
        fifo.take(tail);
        if !needs.is_empty() {
            fifo.commit(tail, needs);
        }
        for (log, write) in logs.iter_mut() {
            log.record(Moment { stream: fifo.id, tick: tail.tick }, *write);
        }
        Ok(if here { Place::Here } else { Place::Worker })
    }

    /// Gives out the next tick. It is seen before what the stream learns with it: who is told that the stream
    /// covers a moment and asks for its newest tick gets one that comes after that moment.
    fn take(&self, tail: &mut Tail) {
        tail.tick += 1;
        self.enqueued.store(tail.tick, Ordering::Release);
    }

    /// Drops the needs that the clock covers or that have passed, and learns what has passed.
    #[cold]
    fn drop_met(&self, tail: &mut Tail, needs: &mut Moments) {
        let mut met = 0;
        let mut learned = false;
        needs.retain(|need| {
            let pending = !tail.clock.covers(*need) && {
                let fifo = find(need.stream);
                let tick = fifo.map_or(need.tick, |fifo| fifo.visible());
                if tick > 0 {
                    tail.clock.advance(Moment { stream: need.stream, tick });
                    learned = true;
                }
                tick < need.tick
            };
            met += u64::from(!pending);
            pending
        });
        bump(&self.counters.waits_elided, met);
        if learned {
            self.learn(tail, tail.tick + 1);
        }
    }

    /// Chooses the waits for the `needs` of the newest command, all pending, and learns what they bring.
    #[cold]
    fn commit(&self, tail: &mut Tail, mut needs: Moments) {
        let total = needs.len();
        // The newest moment of each stream implies its older ones.
        needs.sort_unstable_by_key(|need| (need.stream, std::cmp::Reverse(need.tick)));
        needs.dedup_by_key(|need| need.stream);
        let producers: SmallVec<[Producer; 4]> = needs.into_iter().map(Producer::of).collect();
        let implied = |need| producers.iter().any(|other| other.clock.covers(need));
        for producer in &producers {
            // A stream that went away meanwhile has run everything.
            if let (false, Some(fifo)) = (implied(producer.need), &producer.fifo) {
                let tick = producer.need.tick;
                let shared = fifo.counters.marked.swap(tick, Ordering::Relaxed) == tick;
                bump(&self.counters.events_recorded, u64::from(!shared));
                tail.waits.push((Arc::clone(fifo), tick));
            }
        }
        for producer in &producers {
            tail.clock.join(&producer.clock);
            tail.clock.advance(producer.need);
        }
        bump(&self.counters.waits_inserted, tail.waits.len() as u64);
        bump(&self.counters.waits_elided, (total - tail.waits.len()) as u64);
        self.learn(tail, tail.tick);
    }

    fn learn(&self, tail: &mut Tail, tick: u64) {
        if tail.clock.len() > MANY_STREAMS {
            tail.clock.retain(|moment| !reached(moment));
        }
        self.timeline.lock().learn(tick, &tail.clock);
    }
}

/// A stream that another one has to wait for.
struct Producer {
    need: Moment,
    fifo: Option<Arc<Fifo>>,
    /// What the need comes after. Of its own stream these are older ticks, so no need implies itself.
    clock: Clock,
}

impl Producer {
    fn of(need: Moment) -> Self {
        let fifo = find(need.stream);
        let clock = fifo.as_ref().and_then(|fifo| fifo.timeline.lock().at(need.tick).cloned());
        Producer { need, fifo, clock: clock.unwrap_or_default() }
    }
}

/// A clock of more streams than this forgets those whose tick has passed.
const MANY_STREAMS: usize = 64;

/// A place in a buffer that a command will write.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: an address; who follows it answers for that.
unsafe impl Send for Address {}

impl Address {
    /// # Safety
    /// `bytes.len()` bytes from here on may be written, and `bytes` is not among them.
    unsafe fn copy_from(self, bytes: &[u8]) {
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) }
    }
}
