//! Whether ops are recorded, and the order in which they are.

use std::cell::Cell;

struct Mode {
    recording: Cell<bool>,
    sequence: Cell<u64>,
}

thread_local! {
    static MODE: Mode = const { Mode { recording: Cell::new(true), sequence: Cell::new(0) } };
}

/// Whether ops of this thread are recorded on the tape.
#[inline]
pub fn is_recording() -> bool {
    MODE.with(|mode| mode.recording.get())
}

/// Runs `f` without recording; the former state is restored on return and on panic.
///
/// ```
/// use autograd::{is_recording, no_grad};
/// assert!(!no_grad(is_recording));
/// assert!(is_recording());
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    with_recording(false, f)
}

/// Runs `f` with recording on or off; the former state is restored on return and on panic.
pub(crate) fn with_recording<R>(on: bool, f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            MODE.with(|mode| mode.recording.set(self.0));
        }
    }
    let _restore = Restore(MODE.with(|mode| mode.recording.replace(on)));
    f()
}

/// The next place in the order of recorded ops: after everything this thread recorded and after `inputs`, the
/// newest of what the op reads. A thread's own order does not depend on other threads.
#[inline]
pub(crate) fn next_sequence(inputs: u64) -> u64 {
    MODE.with(|mode| {
        let next = mode.sequence.get().max(inputs) + 1;
        mode.sequence.set(next);
        next
    })
}
