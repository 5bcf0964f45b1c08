//! What the calling thread is within: a command or a host read, which must not wait for the device.

use std::cell::Cell;

use crate::{Error, Result, StreamId, fork};

/// What a thread is within, by the locks that it holds meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Holds {
    /// None: a host read, or a command on a thread of its stream's own.
    Nothing,
    /// What it takes to launch: the tail of a stream whose command runs inline, or the explorer that runs it.
    Launches,
}

thread_local! {
    /// 0, or the innermost stream times 2; and 1 more if this or an outer one [`Holds::Launches`].
    static WITHIN: Cell<u64> = const { Cell::new(0) };
}

/// While it lives, the thread is within a command or a host read.
pub(crate) struct Within {
    outer: u64,
}

impl Within {
    #[inline]
    pub(crate) fn enter(stream: StreamId, holds: Holds) -> Within {
        let outer = WITHIN.get();
        WITHIN.set((stream.as_u64() << 1) | holds as u64 | (outer & 1));
        Within { outer }
    }
}

/// What a thread is within, for the threads that help it.
#[derive(Clone, Copy)]
pub(crate) struct CurrentWithin(u64);

impl CurrentWithin {
    #[inline]
    pub(crate) fn get() -> CurrentWithin {
        CurrentWithin(WITHIN.get())
    }

    /// While the result lives, the calling thread is within the same. What it is within itself is restored then: a thread
    /// that helps another one for a while may be within a command of its own.
    #[inline]
    pub(crate) fn enter(self) -> Within {
        Within { outer: WITHIN.replace(self.0 | (WITHIN.get() & 1)) }
    }
}

impl Drop for Within {
    #[inline]
    fn drop(&mut self) {
        WITHIN.set(self.outer);
    }
}

/// That the thread may wait for a command.
///
/// # Errors
/// `Deadlock` within another command or a host read: either may be what the command waits for; `Forked`.
pub(crate) fn may_wait(op: &'static str) -> Result<()> {
    fork::check(op)?;
    match WITHIN.get() {
        0 => Ok(()),
        within => Err(deadlock(op, within)),
    }
}

/// That the thread may wait for what it takes to launch.
///
/// # Errors
/// `Deadlock` within a command whose thread holds the same of its own stream.
pub(crate) fn may_launch(op: &'static str) -> Result<()> {
    match WITHIN.get() {
        within if within & 1 == 1 => Err(deadlock(op, within)),
        _ => Ok(()),
    }
}

#[cold]
fn deadlock(op: &'static str, within: u64) -> Error {
    Error::deadlock(op, format!("a command or host read of stream #{}", within >> 1))
}
