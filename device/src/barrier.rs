//! What keeps streams from going on by themselves.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::pending::Stuck;

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

/// What keeps one stream from going on by itself, by tick, oldest first; a hold is over once its gate is open. Those that are
/// passed are dropped when the next one is added.
pub(crate) type Barriers = Mutex<VecDeque<(u64, Stuck, Option<Arc<Gate>>)>>;
