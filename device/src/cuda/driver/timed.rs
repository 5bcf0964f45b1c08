//! Events that users and profiles hold, and the gates of held streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Staged;
use super::call::check;
use super::context::Context;
use super::event::RawEvent;
use super::ffi::sys;
use crate::Result;

/// A user's event, or one of a profile. Goes back to its device's pool when dropped.
pub(crate) struct TimedEvent {
    pub(super) event: Option<RawEvent>,
    pub(super) context: Arc<Context>,
}

impl TimedEvent {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> Option<sys::CUevent> {
        self.event.as_ref().map(|event| event.0)
    }

    /// Whether the stream has passed it.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        let Some(event) = self.raw() else { return Ok(true) };
        self.context.bind()?;
        // SAFETY: the context is current, and the event is live.
        match unsafe { sys::cuEventQuery(event) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Blocks until the stream has passed it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let Some(event) = self.raw() else { return Ok(()) };
        self.context.bind()?;
        // SAFETY: the context is current, and the event is live.
        unsafe { check("cuEventSynchronize", sys::cuEventSynchronize(event)) }
    }

    /// Milliseconds from this event to `end`; both have passed.
    pub(crate) fn elapsed_ms(&self, end: &TimedEvent) -> Result<f64> {
        let (Some(start), Some(end)) = (self.raw(), end.raw()) else { return Ok(0.0) };
        self.context.bind()?;
        let mut ms = 0.0;
        // SAFETY: the context is current, both events are live, and the driver writes a number.
        unsafe { check("cuEventElapsedTime", sys::cuEventElapsedTime_v2(&mut ms, start, end))? };
        Ok(f64::from(ms))
    }
}

impl Drop for TimedEvent {
    fn drop(&mut self) {
        // A wait that was enqueued keeps the record that it was enqueued for.
        if let Some(event) = self.event.take() {
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
