//! Events of the driver, and functions of the host that it calls.

use std::cell::Cell;

use super::call::check;
use super::ffi::sys;
use crate::Result;

/// An event of the driver, destroyed when dropped.
pub(crate) struct RawEvent(pub(super) sys::CUevent);

// SAFETY: the driver's handles belong to no thread.
unsafe impl Send for RawEvent {}
// SAFETY: the driver takes calls with one handle from several threads at once.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// The context is current.
    pub(super) fn new(flags: sys::CUevent_flags_enum) -> Result<RawEvent> {
        RawEvent::with_flags(flags as u32)
    }

    /// The context is current.
    pub(crate) fn with_flags(flags: u32) -> Result<RawEvent> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes a handle.
        unsafe { check("cuEventCreate", sys::cuEventCreate(&mut raw, flags))? };
        Ok(RawEvent(raw))
    }

    /// The event that the driver just opened.
    pub(crate) fn owning(raw: sys::CUevent) -> RawEvent {
        RawEvent(raw)
    }

    pub(crate) fn raw(&self) -> sys::CUevent {
        self.0
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; the driver keeps what still waits for it.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

thread_local! {
    pub(super) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a function that a stream called, in which the driver refuses every call.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}
