//! The one place where the order of commands is decided.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::cuda::DriverEvent;
use crate::fifo::{Tail, find};
use crate::log::Log;
use crate::needs::Moments;
use crate::{AtCaller, Error, ErrorKind, Moment, Placement, Result, SpinGuard, Stream, Use};

/// Where an ordered command runs.
#[derive(Clone, Copy, PartialEq)]
#[repr(usize)]
pub(crate) enum RunsOn {
    /// The calling thread, at once.
    Here,
    /// The worker, after the tail's waits.
    Worker,
    /// The device's driver, which was told the waits.
    Driver,
}

impl Stream {
    /// That all buffers are this device's.
    #[inline]
    pub(crate) fn owns(&self, op: &'static str, uses: &[Use<'_>]) -> Result<()> {
        let core = self.core();
        match uses.iter().find(|used| !Arc::ptr_eq(used.buffer.device().core(), core)) {
            Some(foreign) => {
                Err(Error::device_mismatch(op, "buffer", self.device(), foreign.buffer.device()))
            }
            None => Ok(()),
        }
    }

    /// Decides what a command must come after, gives it its tick, and logs its uses, whichever devices' the buffers are.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn order(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        may_run_here: bool,
    ) -> Result<RunsOn> {
        // A read of what is named once more adds nothing.
        let uses = match uses {
            [.., a, b] if address(a) == address(b) && !b.write => &uses[..uses.len() - 1],
            _ => uses,
        };
        // Most commands use few buffers, each once, and sort them in no time.
        if let [one] = uses {
            return self.order_locked(tail, op, uses, [lock(*one)], may_run_here);
        }
        if let [a, b] = *uses
            && let Some([a, b]) = sorted([a, b])
        {
            return self.order_locked(tail, op, uses, [lock(a), lock(b)], may_run_here);
        }
        if let [a, b, c] = *uses
            && let Some([a, b, c]) = sorted([a, b, c])
        {
            return self.order_locked(tail, op, uses, [lock(a), lock(b), lock(c)], may_run_here);
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
    ) -> Result<RunsOn> {
        let (fifo, core) = (self.fifo(), self.core());
        let mut needs = Moments::new();
        for (log, write) in logs.as_mut().iter() {
            log.needs(fifo.id, *write, |need| needs.push(need));
        }
        if !needs.is_empty() {
            if needs.iter().any(|need| need.stream.is_capture()) {
                return Err(Error::of_another_step(op));
            }
            fifo.drop_met(tail, &mut needs);
        }
        if core.observers.watched.load(Ordering::Relaxed)
            && core.observers.manual.load(Ordering::Relaxed)
            && let Some(&need) = needs.first()
        {
            drop(logs);
            return Err(self.race(op, uses, need));
        }
        let place = self.take_turn(tail, op, uses, needs, None, may_run_here)?;
        for (log, write) in logs.as_mut() {
            log.record(Moment { stream: fifo.id, tick: tail.tick }, *write);
        }
        Ok(place)
    }

    /// Gives a command its tick, after `needs`, which are pending; if the driver has an `event` at the only one, it is the one to
    /// wait for.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn take_turn(
        &self,
        tail: &mut Tail,
        op: &'static str,
        uses: &[Use<'_>],
        needs: Moments,
        event: Option<&DriverEvent>,
        may_run_here: bool,
    ) -> Result<RunsOn> {
        let (fifo, core) = (self.fifo(), self.core());
        let place = if fifo.driver_stream().is_some() {
            RunsOn::Driver
        } else if may_run_here
            && fifo.placement == Placement::Caller
            && needs.is_empty()
            && fifo.completed() == tail.tick
        {
            RunsOn::Here
        } else {
            fifo.ensure_worker(op)?;
            RunsOn::Worker
        };
        fifo.take(tail);
        if !needs.is_empty() {
            // Before the uses are logged: where a driver refuses a wait, the logs go on naming whom to wait for.
            self.commit(tail, needs, event)?;
        }
        if core.observers.watched.load(Ordering::Relaxed) {
            self.watch(tail, op, uses, AtCaller::location());
        }
        Ok(place)
    }

    /// Reports the newest command to the audit and to manual mode, once it is certain to run: a refused wait leaves no entry.
    #[cold]
    fn watch(&self, tail: &mut Tail, op: &'static str, uses: &[Use<'_>], place: &'static Location<'static>) {
        let (fifo, core) = (self.fifo(), self.core());
        if core.observers.audit.is_on() {
            fifo.audit_command(tail, op, uses, place);
        }
        let moment = Moment { stream: fifo.id, tick: tail.tick };
        core.observers.writes.command(moment, op, place, uses, std::mem::take(&mut tail.operands));
        if core.observers.manual.load(Ordering::Relaxed) {
            fifo.note_op(tail, op, place);
        }
    }

    /// The error for a command that comes after `need` by nobody's wait.
    #[cold]
    #[track_caller]
    fn race(&self, op: &'static str, uses: &[Use<'_>], need: Moment) -> Error {
        let (earlier, earlier_place) = find(need.stream)
            .and_then(|fifo| fifo.op_at(need.tick))
            .map_or(("an earlier command", None), |(op, place)| (op, Some(place)));
        let shared = uses.iter().find(|used| {
            let mut found = false;
            used.buffer.log.lock().needs(self.id(), used.write, |moment| found |= moment == need);
            found
        });
        Error::new(ErrorKind::Race {
            op,
            stream: self.id(),
            place: AtCaller::location(),
            earlier,
            earlier_place,
            earlier_stream: need.stream,
            earlier_tick: need.tick,
            address: shared.map_or(0, |used| used.buffer.ptr() as usize),
            bytes: shared.map_or(0, |used| used.buffer.len_bytes()),
        })
    }

    /// Waits for the needs of the newest command. A driver that refuses leaves the command behind, launched without
    /// work.
    #[cold]
    fn commit(&self, tail: &mut Tail, needs: Moments, event: Option<&DriverEvent>) -> Result<()> {
        let fifo = self.fifo();
        let Some(driver) = fifo.driver_stream() else { return fifo.commit(tail, needs, event) };
        driver.bind().and_then(|()| fifo.commit(tail, needs, event)).map_err(|error| {
            driver.set_launched(tail.tick);
            tail.waits.clear();
            error.met_by("wait", fifo.id)
        })
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
