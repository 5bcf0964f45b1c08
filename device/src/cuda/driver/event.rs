//! Events of the driver, and functions of the host that it calls.

use std::cell::Cell;

use super::call::{call, check};
use super::ffi::sys;
use crate::{Result, foreign};

/// An event of the driver, destroyed when dropped.
pub(crate) struct RawEvent(pub(super) sys::CUevent);

// SAFETY: the driver's handles belong to no thread.
unsafe impl Send for RawEvent {}
// SAFETY: the driver takes calls with one handle from several threads at once.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// The context is current.
    pub(super) fn new(flags: u32) -> Result<RawEvent> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes a handle.
        unsafe { call!(cuEventCreate(&mut raw, flags))? };
        Ok(RawEvent(raw))
    }

    /// Whether the stream has passed it; the context is current.
    pub(super) fn is_complete(&self) -> Result<bool> {
        // SAFETY: the event is live.
        match unsafe { foreign!(sys::cuEventQuery(self.0)) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Blocks until the stream has passed it; the context is current.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is live.
        unsafe { call!(cuEventSynchronize(self.0)) }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; the driver keeps what still waits for it.
        unsafe { foreign!(sys::cuEventDestroy_v2(self.0)) };
    }
}

thread_local! {
    pub(super) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a function that a stream called, in which the driver refuses every call.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}
