//! Processes that were forked from one with a device. They have its memory, but neither its threads nor its driver, and locks that
//! other threads held stay locked. So calls are refused where they would wait, and streams and buffers that are dropped take none.

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

#[cfg(all(test, unix, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use crate::{CpuConfig, Device, ErrorKind};

    /// Locks that another thread holds at the fork stay locked in the child.
    #[test]
    fn a_child_drops_what_another_thread_has_locked() -> Result<(), ErrorKind> {
        let device = Device::cpu_with(CpuConfig::default());
        let side = device.new_stream().map_err(|error| error.into_kind())?;
        let ((locked, is_locked), (unlock, end)) = (channel(), channel::<()>());
        let status = std::thread::scope(|scope| {
            let fifo = side.fifo();
            scope.spawn(move || {
                fifo.with_queue(|_, _| {
                    _ = locked.send(());
                    _ = end.recv();
                });
            });
            _ = is_locked.recv();
            // SAFETY: the child drops a stream, which takes no lock there, and ends without leaving this block.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: numbers. A child that waits is killed.
                unsafe { libc::alarm(20) };
                // SAFETY: the value is not used again, since the child ends.
                drop(unsafe { std::ptr::read(&raw const side) });
                // SAFETY: a number.
                unsafe { libc::_exit(0) }
            }
            let mut status = -1;
            // SAFETY: the child is this process's; the system writes its status.
            unsafe { libc::waitpid(child, &mut status, 0) };
            drop(unlock);
            status
        });
        assert_eq!(status, 0);
        Ok(())
    }
}
