//! The needs of a command: which of them take a wait, and what the waits bring.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::cuda::{DriverEvent, DriverStream};
use crate::fifo::{Fifo, Tail, bump, find, reached};
use crate::threads::spawn;
use crate::{Clock, Error, Moment, Result, Use};

pub(crate) type Moments = SmallVec<[Moment; 4]>;

impl Fifo {
    /// Gives out the next tick. It is seen before what the stream learns with it: who is told that the stream
    /// covers a moment and asks for its newest tick gets one that comes after that moment.
    #[inline]
    pub(crate) fn take(&self, tail: &mut Tail) {
        tail.tick += 1;
        self.enqueued.store(tail.tick, Ordering::Release);
    }

    /// Keeps the op and the line of the newest command.
    #[cold]
    pub(crate) fn note_op(&self, tail: &Tail, op: &'static str, place: &'static Location<'static>) {
        let mut ops = self.ops.lock();
        if ops.len() == KEPT_OPS {
            ops.pop_front();
        }
        ops.push_back((tail.tick, op, place));
    }

    /// The op and the line of the command at `tick`, or of the one before it that was kept.
    pub(crate) fn op_at(&self, tick: u64) -> Option<(&'static str, &'static Location<'static>)> {
        self.ops.lock().iter().rev().find(|(at, ..)| *at <= tick).map(|&(_, op, place)| (op, place))
    }

    /// Tells the audit of the newest command.
    #[cold]
    pub(crate) fn audit_command(
        &self,
        tail: &Tail,
        op: &'static str,
        uses: &[Use<'_>],
        place: &'static Location<'static>,
    ) {
        let moment = Moment { stream: self.id, tick: tail.tick };
        self.audit.command(moment, op, place, uses.iter().map(Use::access).collect());
    }

    /// Drops the needs that the clock covers or that have passed, and learns what has passed.
    #[cold]
    pub(crate) fn drop_met(&self, tail: &mut Tail, needs: &mut Moments) {
        let mut met = 0;
        let mut learned = false;
        needs.retain(|need| {
            let pending = !tail.clock.covers(*need) && {
                let fifo = find(need.stream);
                let tick = fifo.map_or(need.tick, |fifo| fifo.visible());
                if tick > 0 {
                    self.audit.passed(Moment { stream: need.stream, tick });
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
    pub(crate) fn commit(
        &self,
        tail: &mut Tail,
        mut needs: Moments,
        event: Option<&DriverEvent>,
    ) -> Result<()> {
        let total = needs.len();
        // The newest moment of each stream implies its older ones.
        needs.sort_unstable_by_key(|need| (need.stream, std::cmp::Reverse(need.tick)));
        needs.dedup_by_key(|need| need.stream);
        let mut producers: SmallVec<[Producer; 4]> = needs.into_iter().map(Producer::of).collect();
        let implied = |need| producers.iter().any(|other| other.clock.covers(need));
        let chosen: SmallVec<[bool; 4]> = producers.iter().map(|producer| !implied(producer.need)).collect();
        for (producer, _) in producers.iter_mut().zip(chosen).filter(|(_, chosen)| *chosen) {
            // A stream that went away meanwhile has run everything.
            let Some(fifo) = &producer.fifo else { continue };
            let tick = producer.need.tick;
            let recorded = match (self.driver_stream(), fifo.driver_stream()) {
                (Some(own), Some(other)) => match event {
                    Some(event) => own.wait_event(event).map(|()| false)?,
                    None => {
                        let (covered, recorded) = own.wait_for(other, tick)?;
                        if covered > tick {
                            producer.need.tick = covered;
                            producer.clock = Producer::clock_of(fifo, covered);
                        }
                        recorded
                    }
                },
                // Two drivers that know nothing of each other meet on the host, where a thread opens a gate.
                (Some(own), None) => {
                    let word = own.gate(Moment { stream: self.id, tick: tail.tick }, false)?;
                    let awaited = Arc::clone(fifo);
                    spawn("gate".to_owned(), move || {
                        // It opens when the thread ends.
                        let _word = word;
                        // A stream of the host cannot fail.
                        let _ = awaited.wait_until(tick);
                    })?;
                    false
                }
                (None, _) => fifo.counters.marked.swap(tick, Ordering::Relaxed) != tick,
            };
            bump(&self.counters.events_recorded, u64::from(recorded));
            self.audit.wait(Moment { stream: self.id, tick: tail.tick }, producer.need);
            tail.waits.push((Arc::clone(fifo), tick));
        }
        for producer in &producers {
            tail.clock.join(&producer.clock);
            tail.clock.advance(producer.need);
        }
        bump(&self.counters.waits_inserted, tail.waits.len() as u64);
        bump(&self.counters.waits_elided, (total - tail.waits.len()) as u64);
        self.learn(tail, tail.tick);
        Ok(())
    }

    /// The driver's stream behind this one.
    pub(crate) fn driver(&self) -> Result<&DriverStream> {
        self.driver_stream().ok_or_else(|| Error::no_cuda("the stream is not a CUDA device's"))
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
        let clock = fifo.as_ref().map(|fifo| Producer::clock_of(fifo, need.tick)).unwrap_or_default();
        Producer { need, fifo, clock }
    }

    fn clock_of(fifo: &Fifo, tick: u64) -> Clock {
        fifo.timeline.lock().at(tick).cloned().unwrap_or_default()
    }
}

/// How many ops a stream keeps to name them in an error.
const KEPT_OPS: usize = 1024;

/// A clock of more streams than this forgets those whose tick has passed.
const MANY_STREAMS: usize = 64;
