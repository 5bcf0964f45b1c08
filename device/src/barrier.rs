//! What keeps streams from going on by themselves.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A gate that keeps a stream from going on.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn pass(&self) {
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.open.lock()
    }

    pub(crate) fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }
}

/// What keeps a stream from going on by itself.
pub(crate) enum Barrier {
    Gate(Arc<Gate>),
    /// A command that [waits](crate::Work::waits), by its op.
    Ranks(&'static str),
    Lent,
}

/// The barriers of one stream by tick, oldest first. Those that are passed are dropped when the next one is added.
pub(crate) type Barriers = Mutex<VecDeque<(u64, Barrier)>>;
