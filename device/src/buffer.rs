//! Buffers: ranges of device memory with a log of their uses.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use crate::core::Host;
use crate::cuda::Staged;
use crate::fifo::{Fifo, find, reached};
use crate::graph::capture::{Capture, forget};
use crate::launch::Ordered;
use crate::log::Log;
use crate::order::RunsOn;
use crate::recorder::{CommandKind, Label, Syncing};
use crate::shared::Home;
use crate::within::{Holds, Within};
use crate::writes::Operand;
use crate::{
    Access, AtCaller, Device, Error, Moment, OnDrop, Result, Shared, SpinLock, Stream, StreamId, fork,
};

/// Which block of its pool a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// The part of the pool; not `u32::MAX - 1`, which stands for memory of a captured step.
    pub arena: u32,
    /// The block in it.
    pub index: u32,
}

/// The arena of buffers that stand for memory of a captured step. Pools have `u32::MAX` for blocks of no bytes.
const PLANNED: u32 = u32::MAX - 1;

/// Where buffers come from and go back to.
pub trait Pool: Any + Send + Sync {
    /// Takes back a block whose last uses were `uses`: its newest write, and the newest read of each stream since,
    /// which stands for a write of that stream. They may still be pending: the block may be handed out again
    /// only to who comes after all of them. Neither blocks nor fails.
    ///
    /// A pool that keeps the device alive for its buffers, as [`Buffer::from_kept_block`] asks, gives back what it
    /// keeps the device alive by if no such buffer is left. It cannot drop that itself: the device may go with it, and
    /// the pool with the device.
    ///
    /// # Safety
    /// `block` was given to a buffer of this pool, which is gone, and is returned once.
    unsafe fn release(&self, block: BlockId, uses: &[Moment]) -> Option<Device>;

    /// Gives the driver back what is free and, as `reached` says, not in use any more, where the driver has no memory for
    /// something else. A pool that keeps nothing has nothing to do.
    fn make_room(&self, _reached: &dyn Fn(Moment) -> bool) {}
}

/// A range of device memory with a log of its uses. It goes back to its pool when dropped, which never blocks.
pub struct Buffer {
    ptr: NonNull<u8>,
    len_bytes: usize,
    block: BlockId,
    /// A handle, which counts among the device's handles only if `counted`.
    device: ManuallyDrop<Device>,
    counted: bool,
    version: AtomicU32,
    /// Where it lives if it was made for several owners.
    home: Option<Home<Buffer>>,
    pub(crate) log: SpinLock<Log>,
}

// SAFETY: `ptr` is an address that only launched commands follow, in the order that the log enforces.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer gives its address, but no access to the memory; every other field is `Sync` by itself.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer over a block that its pool just handed out on `stream`. Other streams' first use of it comes after
    /// the newest command of `stream`. The buffer keeps the device alive.
    ///
    /// # Safety
    /// `ptr` is the start of `len_bytes` bytes of the memory of `stream`'s device. Until the pool gets `block` back,
    /// nobody else uses them, and a command launched on `stream` from now on comes after every earlier use.
    pub unsafe fn from_block(stream: &Stream, ptr: NonNull<u8>, len_bytes: usize, block: BlockId) -> Buffer {
        // SAFETY: the caller keeps the contract. The handle that the buffer takes over keeps the device alive.
        let mut buffer = unsafe { Buffer::from_kept_block(stream, ptr, len_bytes, block) };
        buffer.device = ManuallyDrop::new(stream.device().clone());
        buffer.counted = true;
        buffer
    }

    /// [`from_block`](Self::from_block) where the pool keeps the device alive: one handle for many buffers saves each
    /// of them the counting.
    ///
    /// # Safety
    /// As for `from_block`; and until the pool gets `block` back, it has a handle of the device.
    #[inline]
    pub unsafe fn from_kept_block(
        stream: &Stream,
        ptr: NonNull<u8>,
        len_bytes: usize,
        block: BlockId,
    ) -> Buffer {
        // SAFETY: the copy is never dropped, and the caller promises that the pool keeps the device alive.
        let device = ManuallyDrop::new(unsafe { std::ptr::read(stream.device()) });
        Buffer::new(ptr, len_bytes, block, device, false, stream.now())
    }

    /// The buffer that `make` gives, for several owners, which commands that are kept may be among.
    #[inline]
    pub fn new_shared(make: impl FnOnce() -> Buffer) -> Shared<Buffer> {
        let mut buffer = Shared::new_with(make);
        let home = buffer.home();
        if let Some(only) = buffer.get_mut() {
            only.home = Some(home);
        }
        buffer
    }

    /// One more owner; `None` unless the buffer was made by [`new_shared`](Self::new_shared).
    pub(crate) fn owner(&self) -> Option<Shared<Buffer>> {
        let home = self.home.as_ref().filter(|home| home.is_of(self))?;
        // SAFETY: the buffer lies there, and is borrowed from an owner.
        Some(unsafe { home.owner() })
    }

    /// A buffer that stands for memory which a captured step will have.
    pub(crate) fn planned(
        device: &Device,
        capture: StreamId,
        at: usize,
        bytes: usize,
        index: usize,
    ) -> Buffer {
        let block = BlockId { arena: PLANNED, index: index as u32 };
        let write = Moment { stream: capture, tick: 1 };
        let ptr = NonNull::without_provenance(NonZero::new(at).unwrap_or(NonZero::<usize>::MAX));
        Buffer::new(ptr, bytes, block, ManuallyDrop::new(device.clone()), true, write)
    }

    #[inline(always)]
    fn new(
        ptr: NonNull<u8>,
        len_bytes: usize,
        block: BlockId,
        device: ManuallyDrop<Device>,
        counted: bool,
        write: Moment,
    ) -> Buffer {
        let log = SpinLock::new(Log { write, reads: SmallVec::new(), host_reads: 0 });
        Buffer { ptr, len_bytes, block, device, counted, version: AtomicU32::new(0), home: None, log }
    }

    /// Which memory of which capture it stands for.
    pub(crate) fn plan(&self) -> Option<(StreamId, usize)> {
        (self.block.arena == PLANNED).then(|| (self.log.lock().write.stream, self.block.index as usize))
    }

    /// Whether it stands for memory of a captured step, which has no content.
    pub fn is_planned(&self) -> bool {
        self.block.arena == PLANNED
    }

    /// The address of the first byte, to be followed by launched commands only.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Size in bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether `bytes` bytes from `start` on are inside.
    pub(crate) fn has_range(&self, start: usize, bytes: usize) -> bool {
        start.checked_add(bytes).is_some_and(|end| end <= self.len_bytes)
    }

    /// The device that the memory belongs to.
    #[inline]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How often the content was changed in place.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Counts a change in place.
    pub fn bump_version(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The newest write; it may be pending.
    pub fn last_write(&self) -> Moment {
        self.log.lock().write
    }

    /// Shows the content to the host. Blocks until the buffer's last write has run, and on a CPU for nothing else; on a
    /// CUDA device, if that is still pending, until what was launched on its stream so far has run; a command
    /// that is launched meanwhile and writes to the buffer waits until `read` returns, and until the host's other
    /// reads under way have ended. `read` must not wait for the device.
    ///
    /// # Errors
    /// `Async` with the device's first failed command not reported yet; `HiddenSync` if such reads are
    /// refused; `Deadlock` if it would wait within a command or another read.
    #[track_caller]
    pub fn download<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let _at = AtCaller::enter();
        let read = |bytes: &[u8]| {
            let _user = AtCaller::leave();
            read(bytes)
        };
        let core = self.device.core();
        if Capture::is_current() || self.is_planned() {
            let place = AtCaller::location();
            return Err(Error::captured(
                "download",
                &format!("the host would read a value at {place}, which is known in a replay only"),
            ));
        }
        core.observers.hidden.meet("download")?;
        let mut syncing = core.host_sync("download", std::iter::once_with(|| self.last_write()))?;
        if core.cuda().is_some() {
            return self.download_staged(read, &mut syncing);
        }
        let mut read = Some(read);
        loop {
            if let Some(result) = self.read_if_sound(&mut read) {
                return Ok(result);
            }
            let write = self.last_write();
            if let Some(fifo) = find(write.stream) {
                fifo.host_wait("download", core, write.tick)?;
            }
            core.take_fault()?;
        }
    }

    /// Shows the content to the host if that takes no wait: `None` if the buffer's last write has not run, if the
    /// host cannot read the device's memory, if a command failed and that was not reported yet, or within a captured step.
    /// Counts as no host synchronisation. Otherwise as [`download`](Self::download).
    #[track_caller]
    pub fn peek<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if Capture::of(self.device.core()).is_some() || fork::is_child() {
            return None;
        }
        self.read_if_sound(&mut Some(read))
    }

    /// Lets the host write the content, in place. Blocks until every use of the buffer that was launched has run; a command
    /// that is launched meanwhile and uses the buffer waits until `write` returns. `write` must not wait for the device. It
    /// finds what was there; bytes that it leaves alone stay.
    ///
    /// # Errors
    /// `InvalidArgument` if the memory is a CUDA device's; `Async` with the device's first failed command not
    /// reported yet; `Deadlock` if it would wait within a command or a host read; `Captured` within a
    /// captured step.
    #[track_caller]
    pub fn update<R>(&self, write: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let _at = AtCaller::enter();
        const OP: &str = "update";
        fork::check(OP)?;
        let core = self.device.core();
        if Capture::is_current() || self.is_planned() {
            return Err(Error::captured(OP, "the host would write once what each replay reads"));
        }
        let is_host = core.cuda().is_none();
        Error::require(is_host, OP, "self", "in the host's memory, as `Device::host` has it", self.device())?;
        let moment = loop {
            core.take_fault()?;
            match self.begin_update() {
                Ok(moment) => break moment,
                Err(pending) => {
                    let _syncing = core.host_sync(OP, [pending])?;
                    if let Some(fifo) = find(pending.stream) {
                        fifo.host_wait(OP, core, pending.tick)?;
                    }
                }
            }
        };
        let _within = Within::enter(moment.stream, Holds::Nothing);
        let _ended = OnDrop(|| {
            core.host.end(moment);
            self.log.lock().end_host_write(moment);
        });
        // SAFETY: `from_block` promised the range. All its uses have run, and the write logged above keeps later ones away
        // until `_ended` drops.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) };
        let _user = AtCaller::leave();
        let done = write(bytes);
        // SAFETY: the write is over, and its moment ends when `_ended` drops.
        unsafe { core.observers.ran(moment) };
        Ok(done)
    }

    /// Logs a write of the host that begins now; else a use that has not run yet.
    #[track_caller]
    fn begin_update(&self) -> Result<Moment, Moment> {
        let mut log = self.log.lock();
        if let Some(pending) = log.pending() {
            return Err(pending);
        }
        let moment = self.begin_outside(&self.device.core().host, "host write", true);
        log.record(moment, true);
        Ok(moment)
    }

    /// Begins a use by code that is no command, under the lock of the log.
    #[track_caller]
    fn begin_outside(&self, host: &Host, op: &'static str, write: bool) -> Moment {
        let (observers, place) = (&self.device.core().observers, AtCaller::location());
        let (audit, used) = (&observers.audit, Use { buffer: self, write });
        host.begin(|moment| {
            if observers.writes.is_on() {
                observers.writes.command(moment, op, place, &[used], Operand::whole(&[used]));
            }
            if audit.is_on() {
                audit.command(moment, op, place, [used.access()].into_iter().collect());
            }
        })
    }

    /// Whether every use of the buffer that was launched has run, as far as the host can see without waiting.
    pub fn is_idle(&self) -> bool {
        self.log.lock().pending().is_none()
    }

    /// Reads through a copy in host memory. If the last write is still pending, the copy is a command of the stream that
    /// wrote, so that no stream waits for another; else it runs beside all of them.
    #[track_caller]
    fn download_staged<R>(
        &self,
        read: impl FnOnce(&[u8]) -> R,
        syncing: &mut Option<Syncing<'_>>,
    ) -> Result<R> {
        let core = self.device.core();
        let (fifo, staged, moment) = loop {
            let write = self.last_write();
            let fifo = match find(write.stream) {
                Some(fifo) if !reached(write) => fifo,
                _ => Arc::clone(core.reads()?),
            };
            if let Some((staged, moment)) = self.stage(&fifo, write)? {
                break (fifo, staged, moment);
            }
        };
        syncing.iter_mut().for_each(|syncing| syncing.awaited = vec![moment]);
        fifo.wait_or_fail("download", core, moment.tick)?;
        self.log.lock().forget_read(moment);
        core.take_fault()?;
        // SAFETY: the copy has run.
        Ok(read(unsafe { staged.bytes() }))
    }

    /// Launches a copy to the host on `fifo`, which made the last `write` if it is still that; else does nothing.
    #[track_caller]
    fn stage(&self, fifo: &Fifo, write: Moment) -> Result<Option<(Staged, Moment)>> {
        const OP: &str = "download";
        let (core, uses) = (self.device.core(), [Use::read(self)]);
        // A loan has no driver: refused before a tick is taken, which nothing would complete.
        fifo.driver()?;
        let label = Label::of(CommandKind::Download { bytes: self.len_bytes });
        let noted = core.observers.recorder.launching(OP, &uses, &label);
        let mut tail = fifo.lock_tail(OP)?;
        let mut log = self.log.lock();
        if log.write != write {
            return Ok(None);
        }
        fifo.take(&mut tail);
        if fifo.audit.is_on() {
            fifo.audit_command(&tail, OP, &uses, AtCaller::location());
        }
        let mut command = Ordered { core, fifo, op: OP, uses: &uses, tail, place: RunsOn::Driver, noted };
        let moment = command.moment();
        log.record(moment, false);
        drop(log);
        // SAFETY: the buffer has that many bytes, and the command reads them.
        let staged =
            command.drive(|driver, moment| unsafe { driver.download(self.ptr(), self.len_bytes, moment) })?;
        command.noted();
        Ok(Some((staged, moment)))
    }

    /// Lends the memory to code outside the engine, as to a stream of another library: until the loan ends, commands that
    /// conflict with such a use wait for its end, and the memory is given to nobody else, even if the buffer is dropped.
    /// Neither blocks nor makes a driver call.
    ///
    /// # Safety
    /// Until the loan ends the foreign code only reads the memory, or only it writes to it if `write`. It begins after
    /// the buffer's [`last_write`](Self::last_write), and if `write`, after every command launched with the buffer so
    /// far. The loan is ended only when the foreign use is over.
    #[must_use = "the loan ends when the value drops"]
    #[track_caller]
    pub unsafe fn lend(&self, write: bool) -> Loan {
        let audit = &self.device.core().observers.audit;
        let host = Host::new(audit);
        let mut log = self.log.lock();
        let moment = self.begin_outside(&host, "lend", write);
        // The foreign code waits, as the caller promises.
        log.needs(moment.stream, write, |need| audit.wait(moment, need));
        // Planned memory has no order yet, and its log says whose it is.
        if !self.is_planned() {
            log.record(moment, write);
        }
        drop(log);
        Loan { host, moment, _device: self.device().clone() }
    }

    /// Reads if the last write has run and no failure is unreported, which it is asked after the write.
    #[track_caller]
    fn read_if_sound<R>(&self, read: &mut Option<impl FnOnce(&[u8]) -> R>) -> Option<R> {
        let core = self.device.core();
        if core.cuda().is_some() || self.is_planned() {
            return None;
        }
        let host = &core.host;
        let moment = {
            let mut log = self.log.lock();
            if !reached(log.write) || core.has_fault() {
                return None;
            }
            let moment = self.begin_outside(host, "host read", false);
            log.begin_host_read(moment);
            moment
        };
        let _within = Within::enter(moment.stream, Holds::Nothing);
        let _ended = OnDrop(|| {
            host.end(moment);
            self.log.lock().end_host_read(moment.stream);
        });
        // SAFETY: `from_block` promised the range; its last write has run, and the read logged above keeps later
        // writes away until `_ended` drops.
        let bytes = unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) };
        read.take().map(|read| read(bytes))
    }
}

impl Buffer {
    #[cold]
    fn drop_plan(&mut self) {
        forget(self.log.get_mut().write.stream, self.block.index as usize);
        // SAFETY: a buffer is dropped once, and does not look at its device after this.
        unsafe { ManuallyDrop::drop(&mut self.device) };
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.is_planned() {
            return self.drop_plan();
        }
        let uses = self.log.get_mut().last_uses();
        // SAFETY: `from_block` was given the block by the pool, and a buffer is dropped once.
        let release = |pool: &dyn Pool| unsafe { pool.release(self.block, uses) };
        // A forked process keeps it, since it may be another thread that has the pool's lock.
        let kept = self.device.core().pool().filter(|_| !fork::is_child()).and_then(release);
        if self.counted {
            // SAFETY: a buffer is dropped once, and does not look at its device after this.
            unsafe { ManuallyDrop::drop(&mut self.device) };
        }
        // The device, and with it the pool, may go here.
        drop(kept);
    }
}

/// Memory that code outside the engine uses, see [`Buffer::lend`]. The use is over when this drops, on any thread.
pub struct Loan {
    /// A place in the order of things for this loan alone, so that nothing waits for two.
    host: Host,
    moment: Moment,
    /// The device's memory outlives the loan.
    _device: Device,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.host.end(self.moment);
    }
}

debug_fields!(Loan { moment });

debug_fields!(Buffer { ptr, len_bytes });

/// That a command reads or writes a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) write: bool,
}

impl<'a> Use<'a> {
    /// The command reads `buffer`.
    #[inline]
    pub fn read(buffer: &'a Buffer) -> Self {
        Use { buffer, write: false }
    }

    /// The command writes `buffer`, and may read it.
    #[inline]
    pub fn write(buffer: &'a Buffer) -> Self {
        Use { buffer, write: true }
    }

    pub(crate) fn access(&self) -> Access {
        let start = self.buffer.ptr() as usize;
        Access { start, end: start + self.buffer.len_bytes(), write: self.write }
    }
}
