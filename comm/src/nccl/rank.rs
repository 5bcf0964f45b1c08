//! A rank of NCCL: what it has under way, and how it ends.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use device::{Buffer, Device, Moment, Shared};
use parking_lot::Mutex;

use super::group::Group;
use super::handle::{Handle, Patience};
use crate::{Call, CommOptions, Error, ErrorKind, Result, met_by};

/// One rank's end of a group. The watch looks after it, and ends it when its member has gone.
pub(super) struct Rank {
    pub(super) handle: Handle,
    pub(super) group: Arc<Group>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) device: Device,
    pub(super) options: CommOptions,
    /// How often it split the group.
    pub(super) splits: AtomicU64,
    /// What every command of the communicator writes: its log says what is under way.
    token: OnceLock<Shared<Buffer>>,
    /// The newest call.
    op: Mutex<&'static str>,
    /// What was under way when the watch began to wait for it, and when that was.
    awaited: Mutex<Option<(Moment, Instant)>>,
    /// Whether it was aborted.
    aborted: AtomicBool,
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nccl::Rank({} of {} on {})", self.rank, self.size, self.device)
    }
}

impl Rank {
    pub(super) fn new(
        handle: Handle,
        group: Arc<Group>,
        (rank, size): (usize, usize),
        device: &Device,
        options: CommOptions,
    ) -> Rank {
        Rank {
            handle,
            group,
            rank,
            size,
            device: device.clone(),
            options,
            splits: AtomicU64::new(0),
            token: OnceLock::new(),
            op: Mutex::new("collective"),
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

    /// Calls `f` with how long to wait for other ranks in `op`, from now on.
    pub(super) fn patiently<R>(
        &self,
        op: &'static str,
        f: impl FnOnce(&Patience<'_>) -> Result<R>,
    ) -> Result<R> {
        let hopeless = || self.group.failure().filter(|failure| self.group.is_hopeless(self.rank, failure));
        let late = || self.late(op);
        let deadline = Instant::now().checked_add(self.options.timeout);
        f(&Patience { deadline, failure: &hopeless, late: &late })
    }

    /// The error for ranks that did not come in time.
    fn late(&self, op: &'static str) -> Error {
        let waited_ms = self.options.timeout.as_millis() as u64;
        Error::new(ErrorKind::CollectiveTimeout { op, waited_ms, missing: self.group.missing(self.rank) })
    }

    /// Enqueues `call` by `calls`, whose errors end the group.
    pub(super) fn launch(&self, call: &Call, calls: impl FnOnce(&Patience<'_>) -> Result<()>) -> Result<()> {
        *self.op.lock() = call.op();
        self.patiently(call.op(), calls).map_err(|error| match error.kind() {
            // What a captured step cannot do was not begun.
            ErrorKind::Captured { .. } => error,
            _ => self.end(error),
        })
    }

    /// Waits until nothing is under way.
    pub(super) fn settle(&self, op: &'static str) -> Result<()> {
        self.patiently(op, |patience| patience.wait(|| Ok(self.pending().is_none().then_some(()))))
            .map_err(|error| self.end(error))
    }

    /// Splits the library's communicator, for which it needs all ranks.
    pub(super) fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Handle>> {
        self.group.split_by(self.rank);
        self.patiently("split", |patience| self.handle.split(color, key, patience))
            .map_err(|error| self.end(error))
    }

    /// The group has failed, with `error` if nothing else came first: what this rank has under way ends, which the next
    /// synchronising call is told.
    fn end(&self, error: Error) -> Error {
        let failure = self.group.fail(error);
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
        } else if let Some(failure) = self.group.failure().filter(|it| self.group.is_hopeless(self.rank, it))
        {
            self.end(failure);
        } else if self.waited(newest) >= self.options.timeout {
            self.end(self.late(self.op()));
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
        self.patiently("finalize", |patience| {
            let deadline = Instant::now().checked_add(LINGER);
            let patience = Patience { deadline, failure: &|| None, late: patience.late };
            patience.wait(|| Ok(self.handle.is_settled("ncclCommFinalize")?.then_some(())))
        })?;
        self.handle.destroy();
        Ok(())
    }
}

/// How long a communicator may take to let go of what it has, none of which is under way.
const LINGER: Duration = Duration::from_secs(10);
