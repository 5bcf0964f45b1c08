//! A communicator of the library, of which no call blocks.

use std::ffi::c_int;
use std::fmt;

use parking_lot::Mutex;

use super::exit::apart;
use super::group::Patience;
use super::library::{Config, Library, RawComm, RawId};
use crate::failure::unavailable;
use crate::{Error, Result};

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// A communicator, used by one thread at a time, which anybody may abort meanwhile.
pub(super) struct Handle {
    library: &'static Library,
    /// Held over a call and what it began.
    calls: Mutex<()>,
    /// `None` once it is gone. Held over a function of the library, each of which returns at once.
    raw: Mutex<Option<RawComm>>,
}

// SAFETY: NCCL's communicators may be used from any thread, by one at a time. Every call is made under the `raw`
// lock.
unsafe impl Send for Handle {}
// SAFETY: a shared handle reaches the communicator only under the `raw` lock.
unsafe impl Sync for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Rank `rank` of `size`, on the device that is current; waits for the others.
    pub(super) fn init(rank: usize, size: usize, id: RawId, patience: &Patience<'_>) -> Result<Handle> {
        const CALL: &str = "ncclCommInitRankConfig";
        let library = Library::get()?;
        let (mut raw, mut config) = (std::ptr::null_mut(), Config::non_blocking());
        let (rank, size) = (number("rank", rank)?, number("size", size)?);
        // SAFETY: `raw` and `config` are valid for the whole call. NCCL copies the configuration and writes the
        // handle before it returns, even if the communicator is not ready yet.
        let code = unsafe { (library.init)(&mut raw, size, id, rank, &mut config) };
        if !has_begun(code) {
            return Err(library.error(CALL, code, None));
        }
        Handle::settled(library, raw, CALL, patience)
    }

    fn settled(
        library: &'static Library,
        raw: RawComm,
        call: &'static str,
        patience: &Patience<'_>,
    ) -> Result<Handle> {
        let handle = Handle { library, calls: Mutex::default(), raw: Mutex::new(Some(raw)) };
        handle.settle(call, patience)?;
        Ok(handle)
    }

    /// Calls the library, once it has ended what it did before, and waits until it has ended this; for what a call begins.
    pub(super) fn call(
        &self,
        name: &'static str,
        patience: &Patience<'_>,
        call: impl FnOnce(&'static Library, RawComm) -> c_int,
    ) -> Result<()> {
        let _one = self.calls.lock();
        let code = self.with(name, |raw| Ok(call(self.library, raw)))?;
        match code {
            // A split says that it has succeeded when it has begun.
            SUCCESS | IN_PROGRESS => self.settle(name, patience),
            code => self.with(name, |raw| Err(self.library.error(name, code, Some(raw)))),
        }
    }

    /// Waits until what was begun has ended.
    pub(super) fn settle(&self, call: &'static str, patience: &Patience<'_>) -> Result<()> {
        patience.wait(|| Ok(self.is_settled(call)?.then_some(())))
    }

    /// Whether nothing is under way.
    ///
    /// # Errors
    /// What failed since.
    pub(super) fn is_settled(&self, call: &'static str) -> Result<bool> {
        self.with(call, |raw| {
            let mut state = SUCCESS;
            // SAFETY: `with` passes a communicator that has not been destroyed, under its lock. `state` is valid for
            // the call.
            let code = unsafe { (self.library.async_error)(raw, &mut state) };
            match (code, state) {
                (SUCCESS, SUCCESS) => Ok(true),
                (SUCCESS, IN_PROGRESS) => Ok(false),
                (SUCCESS, failed) => Err(self.library.error(call, failed, Some(raw))),
                (code, _) => Err(self.library.error("ncclCommGetAsyncError", code, None)),
            }
        })
    }

    /// One of those ranks that give the same color, with the rank and the size that it has there.
    pub(super) fn split(
        &self,
        color: Option<usize>,
        key: usize,
        patience: &Patience<'_>,
    ) -> Result<Option<Handle>> {
        const CALL: &str = "ncclCommSplit";
        let color = color.map_or(Ok(-1), |color| number("color", color))?;
        let key = number("key", key)?;
        /// What the library may write to for as long as it is under way.
        struct Places {
            raw: RawComm,
            config: Config,
        }
        let places =
            Box::into_raw(Box::new(Places { raw: std::ptr::null_mut(), config: Config::non_blocking() }));
        self.call(CALL, patience, |library, raw| {
            // SAFETY: `call` passes a communicator that has not been destroyed, under its lock. `places` is a leaked
            // box, so both fields stay valid while NCCL writes to them.
            unsafe { (library.split)(raw, color, key, &raw mut (*places).raw, &raw mut (*places).config) }
        })?;
        // SAFETY: `places` came from `Box::into_raw` and is turned back once. `call` returned after NCCL had finished
        // the split; after an error the box stays leaked.
        let raw = unsafe { Box::from_raw(places) }.raw;
        if raw.is_null() {
            return Ok(None);
        }
        Handle::settled(self.library, raw, CALL, patience).map(Some)
    }

    /// Which rank it is, and how many there are.
    pub(super) fn place(&self) -> Result<(usize, usize)> {
        let ask = |call, function: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int| {
            self.with(call, |raw| {
                let mut number = 0;
                // SAFETY: `with` passes a communicator that has not been destroyed, under its lock. `number` is valid
                // for the call.
                let code = unsafe { function(raw, &mut number) };
                match (code, usize::try_from(number)) {
                    (SUCCESS, Ok(number)) => Ok(number),
                    _ => Err(self.library.error(call, code, Some(raw))),
                }
            })
        };
        Ok((ask("ncclCommUserRank", self.library.rank)?, ask("ncclCommCount", self.library.count)?))
    }

    /// Begins to let go of it: what it has under way on the device has run.
    pub(super) fn finalize(&self) -> Result<()> {
        const CALL: &str = "ncclCommFinalize";
        self.with(CALL, |raw| {
            // SAFETY: `with` passes a communicator that has not been destroyed, under its lock.
            match unsafe { (self.library.finalize)(raw) } {
                code if has_begun(code) => Ok(()),
                code => Err(self.library.error(CALL, code, Some(raw))),
            }
        })
    }

    /// Lets go of it, which is finalized.
    pub(super) fn destroy(&self) {
        if let Some(raw) = self.raw.lock().take() {
            // SAFETY: `take` made this the last use of the communicator. The status no longer matters.
            unsafe { (self.library.destroy)(raw) };
        }
    }

    /// Ends what is under way, on the device, too, and lets go of it. The library waits for graphs that have its work to go, so
    /// nobody waits for the library.
    pub(super) fn abort(&self) {
        /// The only one who has it.
        struct Last(RawComm);
        // SAFETY: NCCL's communicators may be used from any thread, by one at a time, and `take` made this value the
        // only one with it.
        unsafe impl Send for Last {}
        if let Some(raw) = self.raw.lock().take() {
            let (library, last) = (self.library, Last(raw));
            apart("nccl abort", move || {
                let Last(raw) = { last };
                // SAFETY: `take` made this the last use of the communicator. The status no longer matters.
                unsafe { (library.abort)(raw) };
            });
        }
    }

    fn with<R>(&self, call: &'static str, f: impl FnOnce(RawComm) -> Result<R>) -> Result<R> {
        match *self.raw.lock() {
            Some(raw) => f(raw),
            None => Err(unavailable(format_args!("{call} of ranks that have failed"))),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Whether an answer is that of a call that was understood, and may not have ended.
pub(super) fn has_begun(code: c_int) -> bool {
    code == SUCCESS || code == IN_PROGRESS
}

/// As the library counts.
fn number(argument: &'static str, value: usize) -> Result<c_int> {
    c_int::try_from(value)
        .map_err(|_| Error::invalid("nccl", argument, "at most 2147483647", format_args!("{value}")))
}
