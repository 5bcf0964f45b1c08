//! What a device has of others: memory that its copies use, and failures that may have led to what they read.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::Fault;
use crate::cuda::Context;
use crate::fifo::reached;
use crate::{Moment, Pool, Result};

/// Kept by the device that copies, so that the other one may go at any time.
#[derive(Default)]
pub(crate) struct Borrows(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    /// Copies that were not seen to have passed.
    pending: Vec<Borrow>,
    /// Failures behind copies that have passed, which nobody has reported yet.
    failed: Vec<Arc<Fault>>,
}

struct Borrow {
    until: Moment,
    memory: Option<Source>,
    fault: Arc<Fault>,
}

/// What a copy uses: the memory without its device, so that devices that copy from each other keep no circle alive.
pub(crate) struct Source {
    /// Before the context, which its memory is of.
    pub(crate) pool: Option<Arc<dyn Pool>>,
    pub(crate) context: Arc<Context>,
}

impl Source {
    fn key(&self) -> (*const Context, Option<*const ()>) {
        (Arc::as_ptr(&self.context), self.pool.as_ref().map(|pool| Arc::as_ptr(pool).cast()))
    }
}

impl Borrows {
    /// Keeps `memory` until the copy at `until` has passed, and `fault`, which may lead to what it copies, until that is
    /// known not to have happened or was reported.
    pub(crate) fn keep(&self, until: Moment, memory: Option<Source>, fault: &Arc<Fault>) {
        let mut lists = self.0.lock();
        let key = memory.as_ref().map(Source::key);
        let same = |kept: &&mut Borrow| {
            kept.until.stream == until.stream
                && Arc::ptr_eq(&kept.fault, fault)
                && kept.memory.as_ref().map(Source::key) == key
        };
        match lists.pending.iter_mut().find(same) {
            Some(kept) => kept.until.tick = kept.until.tick.max(until.tick),
            None => lists.pending.push(Borrow { until, memory, fault: Arc::clone(fault) }),
        }
        let many = lists.pending.len() > MANY_COPIES;
        drop(lists);
        if many {
            self.sweep();
        }
    }

    /// Whose failures may have led to what is on this device.
    pub(crate) fn faults(&self) -> Vec<Arc<Fault>> {
        let lists = self.0.lock();
        lists.pending.iter().map(|borrow| &borrow.fault).chain(&lists.failed).cloned().collect()
    }

    /// Whether one of them has failed.
    pub(crate) fn has_fault(&self) -> bool {
        self.faults().iter().any(|fault| fault.is_set())
    }

    /// Reports a failure that may have led to what was copied. That of a copy that is pending may not have happened yet.
    pub(crate) fn take_fault(&self) -> Result<()> {
        self.faults().iter().try_for_each(|fault| fault.take())
    }

    /// Lets go of what copies that have passed used.
    pub(crate) fn sweep(&self) {
        let mut lists = self.0.lock();
        let Lists { pending, failed } = &mut *lists;
        let passed: Vec<Borrow> = pending.extract_if(.., |borrow| reached(borrow.until)).collect();
        // What fails later did not lead to the copy.
        for Borrow { fault, .. } in &passed {
            if fault.is_set() && !failed.iter().any(|known| Arc::ptr_eq(known, fault)) {
                failed.push(Arc::clone(fault));
            }
        }
        failed.retain(|fault| fault.is_set());
        drop(lists);
        // The memory of a device that is gone goes here.
        drop(passed);
    }
}

/// With more copies than this, those that have passed are looked for.
const MANY_COPIES: usize = 16;
