//! The line of the program that called the library, for errors and audits.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

thread_local! {
    static CALLER: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Guard of the calling thread: while it lives, errors and audits name the call that the outermost guard entered from.
///
/// ```
/// use device::{AtCaller, Error, ErrorKind};
/// #[track_caller]
/// fn outer() -> Error {
///     let _at = AtCaller::enter();
///     inner()
/// }
/// fn inner() -> Error {
///     Error::new(ErrorKind::NoGradient { op: "test" })
/// }
/// let (line, error) = (line!(), outer());
/// assert_eq!(error.location().line(), line);
/// ```
#[must_use]
pub struct AtCaller {
    /// The caller to restore on drop.
    before: Option<&'static Location<'static>>,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl AtCaller {
    /// Enters a function, which must be `#[track_caller]`.
    #[inline]
    #[track_caller]
    pub fn enter() -> AtCaller {
        let before = CALLER.get();
        if before.is_none() {
            CALLER.set(Some(Location::caller()));
        }
        AtCaller { before, _thread: PhantomData }
    }

    /// Forgets the outer caller while the guard lives: for library code that calls a closure, hook or layer of the user,
    /// whose own calls are the lines to name.
    ///
    /// ```
    /// use device::{AtCaller, Error, ErrorKind};
    /// #[track_caller]
    /// fn outer(user: impl FnOnce() -> Error) -> Error {
    ///     let _at = AtCaller::enter();
    ///     let _user = AtCaller::leave();
    ///     user()
    /// }
    /// let line = line!() + 1;
    /// let error = outer(|| Error::new(ErrorKind::NoGradient { op: "test" }));
    /// assert_eq!(error.location().line(), line);
    /// ```
    #[inline]
    pub fn leave() -> AtCaller {
        AtCaller { before: CALLER.take(), _thread: PhantomData }
    }

    /// Calls `f`, a closure of the user, without the outer caller.
    #[inline]
    pub fn user<R>(f: impl FnOnce() -> R) -> R {
        let _user = AtCaller::leave();
        f()
    }

    /// Enters at `location`, which [`location`](Self::location) gave: for work of a call that another thread does, or a later
    /// call.
    #[inline]
    pub fn enter_at(location: &'static Location<'static>) -> AtCaller {
        AtCaller { before: CALLER.replace(Some(location)), _thread: PhantomData }
    }

    /// The outermost caller's location, or else that of the call of this function.
    #[inline]
    #[track_caller]
    pub fn location() -> &'static Location<'static> {
        CALLER.get().unwrap_or(Location::caller())
    }
}

impl Drop for AtCaller {
    #[inline]
    fn drop(&mut self) {
        CALLER.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn library(user: impl FnOnce() -> u32) -> [u32; 3] {
        let _at = AtCaller::enter();
        let before = AtCaller::location().line();
        let of_user = {
            let _user = AtCaller::leave();
            user()
        };
        [before, of_user, AtCaller::location().line()]
    }

    /// The user's code within a library call is at its own lines, library code before and after it at the outer call's.
    #[test]
    fn user_code_within_a_call_is_at_its_own_line() {
        let user = || AtCaller::location().line();
        let (outer, lines) = (line!(), library(user));
        assert_eq!(lines, [outer, outer - 1, outer]);
        let nested = || library(user)[0];
        let (outer, lines) = (line!(), library(nested));
        assert_eq!(lines, [outer, outer - 1, outer]);
    }

    /// A panic in the user's code leaves nothing behind.
    #[test]
    fn a_panic_restores_the_caller() {
        let panicked = crate::Panicked::catch(|| library(|| std::panic::resume_unwind(Box::new("test"))));
        assert!(panicked.is_err() && CALLER.get().is_none());
    }
}
