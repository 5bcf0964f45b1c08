//! Panics of what a user gave.

use std::panic::{AssertUnwindSafe, catch_unwind};

use device::Panicked;

/// Calls `f`; a panic in it goes no further. Dropping what it panicked with may panic again: what comes of that is leaked.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let panicked = Panicked::new(&*payload);
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        panicked
    })
}
