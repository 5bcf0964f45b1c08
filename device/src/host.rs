//! The host as a reader: where its reads, and uses by code outside the engine, are ordered among a device's commands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::audit::AuditLog;
use crate::fifo::{Fifo, Runner};
use crate::pending::Barrier;
use crate::{Moment, Placement};

/// The host's reads as commands of a FIFO without a worker: each runs on the thread that asked, several at once.
pub(crate) struct Host {
    fifo: Arc<Fifo>,
    reads: Mutex<Reads>,
}

struct Reads {
    /// The newest tick given out.
    newest: u64,
    /// The ticks that are being read at, ascending.
    open: SmallVec<[u64; 4]>,
}

impl Host {
    pub(crate) fn new(audit: &Arc<AuditLog>) -> Self {
        Host {
            fifo: Fifo::new(Runner::Thread(None), Placement::Caller, 1, audit),
            reads: Mutex::new(Reads { newest: 0, open: SmallVec::new() }),
        }
    }

    /// Begins a read. Who waits for its moment waits for every read that is open by now. `tell` is told the moment, in the
    /// order of moments.
    pub(crate) fn begin(&self, tell: impl FnOnce(Moment)) -> Moment {
        let mut reads = self.reads.lock();
        reads.newest += 1;
        let moment = Moment { stream: self.fifo.id, tick: reads.newest };
        reads.open.push(moment.tick);
        self.fifo.add_barrier(moment.tick, Barrier::Lent);
        self.fifo.enqueued.store(moment.tick, Ordering::Release);
        tell(moment);
        moment
    }

    /// Ends a read.
    pub(crate) fn end(&self, read: Moment) {
        // Before anybody can take it for passed.
        self.fifo.audit.ended(read);
        let mut reads = self.reads.lock();
        reads.open.retain(|tick| *tick != read.tick);
        let passed = reads.open.first().map_or(reads.newest, |open| open - 1);
        self.fifo.progress.complete(passed);
    }
}
