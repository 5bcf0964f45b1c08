//! A rank of NCCL: what it has under way, and how it ends.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use device::{Buffer, Device, Moment, Shared};
use parking_lot::Mutex;

use super::group::{Group, Patience};
use super::handle::Handle;
use crate::failure::{ANY_OP, met_by};
use crate::{Call, CommOptions, Error, ErrorKind, Result};

/// One rank's end of a group. The watch looks after it, and ends it when its member has gone.
pub(super) struct WatchedRank {
    pub(super) handle: Handle,
    pub(super) group: Arc<Group>,
    pub(super) rank: usize,
    pub(super) device: Device,
    pub(super) options: CommOptions,
    /// What every command of the communicator writes: its log says what is under way.
    token: OnceLock<Shared<Buffer>>,
    /// The newest call.
    op: Mutex<&'static str>,
    /// What was under way when the watch began to wait for it, and when that was.
    awaited: Mutex<Option<(Moment, Instant)>>,
    /// Whether it was aborted.
    aborted: AtomicBool,
}

impl fmt::Debug for WatchedRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nccl::WatchedRank({} of {} on {})", self.rank, self.group.size, self.device)
    }
}

impl WatchedRank {
    pub(super) fn new(
        handle: Handle,
        group: Arc<Group>,
        rank: usize,
        device: &Device,
        options: CommOptions,
    ) -> WatchedRank {
        WatchedRank {
            handle,
            group,
            rank,
            device: device.clone(),
            options,
            token: OnceLock::new(),
            op: Mutex::new(ANY_OP),
            awaited: Mutex::default(),
            aborted: AtomicBool::new(false),
        }
    }

    /// Whose log says what is under way.
    pub(super) fn follow(&self, token: &Shared<Buffer>) {
        let _ = self.token.set(token.clone());
    }

    fn op(&self) -> &'static str {
        *self.op.lock()
    }

    /// The newest command of the communicator, if it has not run.
    fn pending(&self) -> Option<Moment> {
        let newest = self.token.get()?.last_write();
        (!self.device.reached(newest)).then_some(newest)
    }

    /// How long to wait for other ranks in `op`, from now on.
    pub(super) fn patience(&self, op: &'static str) -> Patience<'_> {
        self.group.patience(self.rank, op, self.options.timeout)
    }

    /// Enqueues `call` by `calls`, whose errors end the group.
    pub(super) fn launch(&self, call: &Call, calls: impl FnOnce(&Patience<'_>) -> Result<()>) -> Result<()> {
        *self.op.lock() = call.op();
        calls(&self.patience(call.op())).map_err(|error| match error.kind() {
            // What a captured step cannot do was not begun.
            ErrorKind::Captured { .. } => error,
            _ => self.end(error),
        })
    }

    /// Splits the library's communicator, for which nothing may be under way, and which needs all ranks. Returns also how
    /// often that was done before.
    pub(super) fn split(&self, color: Option<usize>, key: usize) -> Result<(Option<Handle>, u64)> {
        let is_settled = || Ok(self.pending().is_none().then_some(()));
        self.patience("split").wait(is_settled).map_err(|error| self.end(error))?;
        self.device.make_current()?;
        let number = self.group.begin_split(self.rank);
        let made = self.handle.split(color, key, &self.patience("split"));
        Ok((made.map_err(|error| self.end(error))?, number))
    }

    /// The group has failed, with `error` if nothing else came first: what this rank has under way ends, which the next
    /// synchronising call is told.
    fn end(&self, error: Error) -> Error {
        let failure = self.group.failure.set(error);
        if !self.aborted.swap(true, Ordering::AcqRel) {
            if let Some(pending) = self.pending() {
                self.device.fail(self.op(), pending.stream, met_by(self.op(), failure.clone()));
            }
            self.handle.abort();
        }
        failure
    }

    /// Looks whether what is under way will ever end.
    pub(super) fn look(&self) {
        if self.aborted.load(Ordering::Acquire) {
            return;
        }
        let Some(newest) = self.pending() else {
            *self.awaited.lock() = None;
            return self.look_for_mismatch();
        };
        if let Err(error) = self.handle.is_settled("ncclCommGetAsyncError") {
            self.end(error);
        } else if let Some(failure) = self.group.hopeless(self.rank) {
            self.end(failure);
        } else if self.waited(newest) >= self.options.timeout {
            self.end(self.group.late(self.rank, self.op(), self.options.timeout));
        }
    }

    /// Ends this rank if another one's call does not match one of its calls that have run, such as a message that was sent.
    fn look_for_mismatch(&self) {
        let (Some(failure), Some(token)) = (self.group.mismatch_of(self.rank), self.token.get()) else {
            return;
        };
        if !self.aborted.swap(true, Ordering::AcqRel) {
            self.device.fail(self.op(), token.last_write().stream, met_by(self.op(), failure));
            self.handle.abort();
        }
    }

    /// How long the watch has waited for the command that was the newest when it began to.
    fn waited(&self, newest: Moment) -> Duration {
        let mut awaited = self.awaited.lock();
        match *awaited {
            Some((moment, since)) if !self.device.reached(moment) => since.elapsed(),
            _ => {
                *awaited = Some((newest, Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Whether nothing is under way, or never will end.
    pub(super) fn is_idle(&self) -> bool {
        self.aborted.load(Ordering::Acquire) || self.pending().is_none()
    }

    /// Lets go of the library's communicator: the end of a rank that is idle.
    pub(super) fn close(&self) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) {
            return Ok(());
        }
        self.device.make_current()?;
        self.handle.finalize()?;
        let mut patience = self.group.patience(self.rank, "finalize", LINGER);
        patience.is_last = true;
        self.handle.settle("ncclCommFinalize", &patience)?;
        self.handle.destroy();
        Ok(())
    }
}

/// How long a communicator may take to let go of what it has, none of which is under way.
const LINGER: Duration = Duration::from_secs(10);
