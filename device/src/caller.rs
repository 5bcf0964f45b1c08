//! The line of the program that called the library, for errors and audits.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

thread_local! {
    static CALLER: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// While it lives, what the calling thread does is done for the caller of the outermost function that entered.
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
    is_outermost: bool,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl AtCaller {
    /// Enters a function, which must be `#[track_caller]`.
    #[inline]
    #[track_caller]
    pub fn enter() -> AtCaller {
        let is_outermost = CALLER.get().is_none();
        if is_outermost {
            CALLER.set(Some(Location::caller()));
        }
        AtCaller { is_outermost, _thread: PhantomData }
    }

    /// The place of the outermost caller, or else of this function's.
    #[inline]
    #[track_caller]
    pub fn location() -> &'static Location<'static> {
        CALLER.get().unwrap_or(Location::caller())
    }
}

impl Drop for AtCaller {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost {
            CALLER.set(None);
        }
    }
}
