//! Processes that were forked from one with a device. They have its memory, but neither its threads nor its driver, and locks that
//! other threads held stay locked. So calls are refused where they would wait.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, ErrorKind, Result};

/// Whether this process was forked after its first device or thread was made.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Notices forks from now on.
pub(crate) fn watch() {
    #[cfg(unix)]
    {
        extern "C" fn forked() {
            IS_CHILD.store(true, Ordering::Relaxed);
        }
        static WATCHED: std::sync::Once = std::sync::Once::new();
        // SAFETY: the handler stores to an atomic, which a child may do. Without memory for it, forks are not noticed.
        WATCHED.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) });
    }
}

/// Whether this process was forked from one with a device.
#[inline(always)]
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// That the process may call devices, for `op`.
///
/// # Errors
/// `Forked` in one that was forked from one with a device.
#[inline(always)]
pub fn check(op: &'static str) -> Result<()> {
    if is_child() { Err(refused(op)) } else { Ok(()) }
}

#[cold]
fn refused(op: &'static str) -> Error {
    Error::new(ErrorKind::Forked { op })
}
