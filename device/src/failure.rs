//! The failure of the command that the calling thread runs, reported without a panic: a program may be built with
//! `panic = "abort"`.
//!
//! A kernel that meets an index out of range reports it and goes on without following the index. The thread that runs the
//! command takes the report afterwards. Helper threads that run parts of a command pass their reports to that thread.

use std::cell::{Cell, RefCell};

use crate::Error;

thread_local! {
    /// Whether there is a report, for a look that costs a load.
    static IS_REPORTED: Cell<bool> = const { Cell::new(false) };
    static REPORT: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The command that the calling thread runs has failed: `error` is the source of the `Async` of the next synchronising
/// call, unless another error was reported before. What the command writes is whatever is there.
#[cold]
pub fn report(error: Error) {
    // A thread that is ending runs no command.
    let kept = REPORT.try_with(|report| _ = report.borrow_mut().get_or_insert(error));
    IS_REPORTED.set(kept.is_ok());
}

/// Whether the command that the calling thread runs has failed.
#[inline]
pub fn is_reported() -> bool {
    IS_REPORTED.get()
}

/// What was reported on the calling thread, which then has no report.
#[inline]
pub fn take() -> Option<Error> {
    if is_reported() { take_reported() } else { None }
}

#[cold]
fn take_reported() -> Option<Error> {
    IS_REPORTED.set(false);
    REPORT.try_with(|report| report.borrow_mut().take()).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn the_first_report_of_a_thread_is_taken_once() {
        let of = |op| Error::new(ErrorKind::Deadlock { op, within: "a test".into() });
        assert!(!is_reported() && take().is_none());
        report(of("first"));
        report(of("second"));
        std::thread::scope(|scope| _ = scope.spawn(|| assert!(take().is_none())));
        assert!(is_reported());
        assert!(take().is_some_and(|error| matches!(error.kind(), ErrorKind::Deadlock { op: "first", .. })));
        assert!(!is_reported() && take().is_none());
    }
}
