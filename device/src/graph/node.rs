//! Commands of a plan, as they are run.

use std::sync::atomic::AtomicU32;

use smallvec::SmallVec;

use super::commands::{TracedOutput, bind};
use crate::{Binder, Work};

/// A command, and what comes after it.
pub(crate) struct Node {
    pub(crate) op: &'static str,
    pub(crate) work: Box<dyn Work>,
    /// What it waits for.
    pub(crate) needs: SmallVec<[u32; 4]>,
    /// What waits for it.
    pub(crate) next: SmallVec<[u32; 4]>,
    /// How many of its needs have not run in this replay.
    pub(crate) left: AtomicU32,
    /// What the costliest way from here to the end costs.
    pub(crate) urgency: u64,
    /// What a trace of writes follows of it.
    pub(crate) traced: Vec<TracedOutput>,
}

impl Node {
    pub(super) fn bind(&mut self, binder: &mut dyn Binder) {
        bind(&mut *self.work, &mut self.traced, binder);
    }
}

/// What a command costs, about: starting it is not for nothing.
pub(super) fn cost(work: &dyn Work) -> usize {
    work.cost().saturating_add(1000)
}
