//! Waits of the host for memory that queued commands still use, and what the host must not wait for.

use std::fmt;
use std::sync::Arc;

use crate::barrier::Gate;
use crate::fifo::{Fifo, find};
use crate::graph::capture::Capture;
use crate::within::may_wait;
use crate::{Moment, Result, Stream, StreamId};

/// The name of these waits in profiles, hidden synchronisations and errors.
const OP: &str = "wait_for_memory";

/// Why the host does not wait for a command. None of these ends because the host waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stuck {
    /// It comes after a [hold](Stream::hold) of this stream.
    Held(StreamId),
    /// It is, or comes after, a command that [waits](crate::Work::waits) for other ranks or processes.
    Ranks {
        /// The op that launched that command.
        op: &'static str,
        /// The command's stream.
        stream: StreamId,
    },
    /// The host reads the memory, or [lent](crate::Buffer::lend) it to code outside the engine.
    Lent,
    /// The calling thread runs a command or reads a buffer: the command may wait for that.
    Within,
    /// The calling thread captures a step.
    Capturing,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Held(stream) => write!(f, "stream {stream} is held"),
            Stuck::Ranks { op, stream } => {
                write!(f, "{op} on stream {stream} waits for other ranks or processes")
            }
            Stuck::Lent => f.write_str("the host or foreign code still uses the memory"),
            Stuck::Within => f.write_str("the request is made within a command or host read"),
            Stuck::Capturing => f.write_str("the thread captures a step"),
        }
    }
}

/// Above this many barriers a driver is asked which of them it has passed.
const MANY: usize = 64;

impl Fifo {
    /// The barriers that keep the command at `tick` from running: this stream's, then those of the streams that it is known
    /// to wait for, each oldest first.
    fn barriers_before(&self, tick: u64) -> Vec<Stuck> {
        // Not under the lock of the timeline, which is a leaf.
        let awaited = self.timeline.lock().at_or_oldest(tick).moments();
        let mut found = self.own_barriers(tick);
        for Moment { stream, tick } in awaited {
            found.extend(find(stream).iter().flat_map(|fifo| fifo.own_barriers(tick)));
        }
        found
    }

    /// The barriers of this stream at or before `tick` that it has not passed.
    fn own_barriers(&self, tick: u64) -> Vec<Stuck> {
        let barriers = self.barriers.lock();
        let before = barriers.iter().take_while(|&&(at, ..)| at <= tick);
        let closed = before.filter(|(at, _, gate)| {
            !self.has_reached(*at) && !gate.as_ref().is_some_and(|gate| gate.is_open())
        });
        closed.map(|(_, stuck, _)| stuck.clone()).collect()
    }

    /// Whether a [hold](Stream::hold) or a loan, of this stream or of one that it waits for, keeps the command at `tick` from
    /// running: the thread that launches may be the one that ends it.
    pub(crate) fn is_held(&self, tick: u64) -> bool {
        self.barriers_before(tick).iter().any(|stuck| matches!(stuck, Stuck::Held(_) | Stuck::Lent))
    }

    /// Notes that commands from `tick` on run only after something that no stream does, or that `gate` is open.
    pub(crate) fn add_barrier(&self, tick: u64, stuck: Stuck, gate: Option<Arc<Gate>>) {
        let mut barriers = self.barriers.lock();
        let many = barriers.len() >= MANY;
        while let Some(&(oldest, ..)) = barriers.front()
            && (self.visible() >= oldest || many && self.has_reached(oldest))
        {
            barriers.pop_front();
        }
        barriers.push_back((tick, stuck, gate));
    }
}

impl Stream {
    /// Why a wait of the calling thread for `moment` need not end; `None` if it ends by itself, or has passed. The commands
    /// that the stream of `moment` is known to wait for count as well.
    pub fn stuck(&self, moment: Moment) -> Option<Stuck> {
        if may_wait(OP).is_err() {
            return Some(Stuck::Within);
        }
        if Capture::of(self.core()).is_some() {
            return Some(Stuck::Capturing);
        }
        find(moment.stream)?.barriers_before(moment.tick).into_iter().next()
    }

    /// Blocks until `moments`, none of which is [stuck](Self::stuck), have passed: memory that their commands use is needed.
    /// Counted and recorded as a synchronisation of the host named `wait_for_memory`. The caller holds no lock.
    ///
    /// # Errors
    /// `HiddenSync` if hidden synchronisations are refused;
    /// `Deadlock` within a command or a host read; `Driver`.
    #[track_caller]
    pub fn wait_for_memory(&self, moments: &[Moment]) -> Result<()> {
        let core = self.core();
        core.observers.hidden.meet(OP)?;
        let _syncing = core.host_sync(OP, moments.iter().copied())?;
        moments.iter().try_for_each(|moment| match find(moment.stream) {
            Some(fifo) => fifo.wait_or_fail(OP, core, moment.tick),
            None => Ok(()),
        })
    }
}
