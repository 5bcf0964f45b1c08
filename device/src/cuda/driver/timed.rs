//! Events that users and profiles hold, and the gates of held streams.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Staged;
use super::call::call;
use super::context::Context;
use super::event::RawEvent;
use super::ffi::sys;
use crate::Result;

/// An event of a user, of a profile, or of several processes.
pub(crate) struct DriverEvent {
    pub(super) event: ManuallyDrop<RawEvent>,
    pub(super) context: Arc<Context>,
    /// Whether it has a time, and goes back to its device's pool when dropped.
    pub(super) is_timed: bool,
}

impl DriverEvent {
    /// Whether the stream has passed it.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        self.context.bind()?;
        self.event.is_complete()
    }

    /// Blocks until the stream has passed it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        self.event.synchronize()
    }

    /// Milliseconds from this event to `end`; both have a time, and have passed.
    pub(crate) fn elapsed_ms(&self, end: &DriverEvent) -> Result<f64> {
        self.context.bind()?;
        let mut ms = 0.0;
        // SAFETY: the context is current, both events are live, and the driver writes a number.
        unsafe { call!(cuEventElapsedTime_v2(&mut ms, self.event.0, end.event.0))? };
        Ok(f64::from(ms))
    }
}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let event = unsafe { ManuallyDrop::take(&mut self.event) };
        if self.is_timed {
            // A wait that was enqueued keeps the record that it was enqueued for.
            self.context.events.lock().push(event);
        }
    }
}

/// A closed gate of a stream, which goes on when this drops.
pub(crate) struct GateWord {
    pub(super) word: Staged,
    pub(super) holds: bool,
}

impl Drop for GateWord {
    fn drop(&mut self) {
        let word = self.word.as_ptr().cast::<u32>();
        // SAFETY: the block holds an aligned word, which the device reads and nobody else writes.
        unsafe { AtomicU32::from_ptr(word) }.store(1, Ordering::Release);
        let context = self.word.context();
        context.holds.fetch_sub(usize::from(self.holds), Ordering::AcqRel);
        context.gates.fetch_sub(1, Ordering::AcqRel);
    }
}
