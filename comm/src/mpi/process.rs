//! MPI in this process: begun once, ended with the process.

use std::ffi::c_int;
use std::mem;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use device::Thread;
use parking_lot::{Condvar, Mutex};

use super::abi::{Family, Names, Word};
use super::library::{Begun, Code, Functions, Loaded, Operation, load};
use super::mail::MOST;
use crate::failure::{expect_available, unavailable};
use crate::{Error, Launch, Result};

/// MPI, of which a process has one.
pub(super) struct Mpi {
    functions: Box<dyn Functions>,
    pub(super) names: Names,
    file: String,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// One call at a time, whatever the library can do, but for those that wait.
    lock: Mutex<()>,
    /// Whether a call that waits may leave the others their turn.
    multiple: bool,
    /// Whether ranks may still wait for each other at the end.
    is_whole: AtomicBool,
    outbox: Outbox,
    /// Communicators on which records may come that nobody reads any more.
    controls: Mutex<Vec<Word>>,
}

/// What was sent and may not have gone yet.
#[derive(Default)]
struct Outbox {
    sent: Mutex<Vec<Pending<Box<[u8]>>>>,
    changed: Condvar,
    thread: OnceLock<Thread>,
}

static PROCESS: OnceLock<Result<Mpi>> = OnceLock::new();

/// What ranks tell each other in a group.
pub(super) const TAG_RECORD: c_int = 1;
/// The elements of messages.
pub(super) const TAG_MESSAGE: c_int = 2;
/// What all ranks tell each other last.
const TAG_END: c_int = 3;
/// How often to look around before sleeping; a yield each.
const LOOKS: usize = 1000;
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

impl Mpi {
    /// MPI, begun if it was not.
    pub(super) fn get() -> Result<&'static Mpi> {
        PROCESS.get_or_init(Mpi::begin).as_ref().map_err(|error| Error::new(error.kind().clone()))
    }

    fn begin() -> Result<Mpi> {
        let launch = Launch::from_env()?.filter(|launch| launch.by_mpi);
        let Loaded { functions, names, file } = find()?;
        // SAFETY: `begin` runs once, inside `PROCESS`, so no other thread of this library calls MPI.
        let begun = unsafe { functions.begin() };
        let Begun { is_ours, threads, rank, size } =
            begun.map_err(|code| unavailable(format_args!("{file}: {}", functions.error_string(code))))?;
        let reason = format_args!("{file} is for one thread only");
        expect_available(threads >= names.thread_serialized, reason)?;
        if let Some(launch) = launch.filter(|launch| (launch.rank, launch.size) != (rank, size)) {
            return Err(unavailable(format_args!(
                "{file} is not the library of the launcher, for which this is rank {} of {}: here it is rank {rank} of {size}; \
                 {LIBRARY} names another one",
                launch.rank, launch.size
            )));
        }
        if is_ours {
            // SAFETY: `at_exit` is a function of this program with the signature that `atexit` expects. It needs
            // nothing but statics.
            unsafe { libc::atexit(at_exit) };
        }
        let multiple = threads >= names.thread_multiple;
        Ok(Mpi {
            functions,
            names,
            file,
            rank,
            size,
            lock: Mutex::default(),
            multiple,
            is_whole: AtomicBool::new(true),
            outbox: Outbox::default(),
            controls: Mutex::default(),
        })
    }

    /// Records may come on this communicator until the process ends.
    pub(super) fn listen(&self, control: Word) {
        self.controls.lock().push(control);
    }

    /// The ranks have lost each other: none waits for another one at its end.
    pub(super) fn part(&self) {
        self.is_whole.store(false, Ordering::Relaxed);
    }

    /// Starts an operation on memory that it keeps until the operation has ended.
    ///
    /// # Safety
    /// The operation touches `memory` only.
    pub(super) unsafe fn start<M>(
        &'static self,
        mut memory: M,
        comm: Word,
        operation: impl FnOnce(&mut M) -> Operation,
    ) -> Result<Pending<M>> {
        let operation = operation(&mut memory);
        let turn = self.lock.lock();
        // SAFETY: the caller answers for the operation, and `Pending` keeps the memory. `comm` is a communicator of this process
        // that is never freed. The lock makes this the only call.
        let started = unsafe { self.functions.start(operation, comm) };
        drop(turn);
        let request = started.map_err(|code| self.error(code))?;
        Ok(Pending { mpi: self, request, memory: Some(memory) })
    }

    /// Sends a copy of `bytes`, and waits for nobody.
    pub(super) fn post(&'static self, bytes: &[u8], to: usize, tag: c_int, comm: Word) -> Result<()> {
        let len = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
        // SAFETY: the operation reads `len` bytes of the boxed copy, which has at least that many. `start` keeps the
        // copy alive until the operation has ended.
        let mut pending = unsafe {
            self.start(Box::from(bytes), comm, |bytes: &mut Box<[u8]>| Operation::Send {
                at: bytes.as_ptr(),
                bytes: len,
                to: to as c_int,
                tag,
            })?
        };
        if pending.ended()?.is_none() {
            self.outbox.sent.lock().push(pending);
            self.outbox.changed.notify_all();
            self.outbox.thread(self)?;
        }
        Ok(())
    }

    /// Receives a message of at most as many bytes, if there is one.
    pub(super) fn poll(&self, bytes: &mut [u8], tag: c_int, comm: Word) -> Result<bool> {
        let turn = self.lock.lock();
        // SAFETY: the library writes at most `bytes.len()` bytes to `bytes`, and only before it returns. The lock
        // makes this the only call.
        let received = unsafe { self.functions.poll(bytes.as_mut_ptr(), bytes.len() as c_int, tag, comm) };
        drop(turn);
        received.map_err(|code| self.error(code))
    }

    /// A communicator of those ranks of `comm` with the same color, `None` for no color, in the order of `key`. Every rank calls
    /// it at the same time; `Ok(None)` if that takes longer than `timeout`.
    pub(super) fn split(
        &'static self,
        comm: Word,
        color: Option<usize>,
        key: usize,
        timeout: Duration,
    ) -> Result<Option<Word>> {
        let color = color.map_or(self.names.undefined, |color| color as c_int);
        let (give, made) = channel();
        // The library waits for the other ranks; where they do not come, the thread stays behind.
        let thread = Thread::new("split of an MPI communicator", move || {
            let turn = (!self.multiple).then(|| self.lock.lock());
            // SAFETY: `comm` is a communicator of this process that is never freed. A library that allows one call at
            // a time is locked.
            let made = unsafe { self.functions.split(comm, color, key as c_int) };
            drop(turn);
            let _ = give.send(made);
        })?;
        let made = match made.recv_timeout(timeout) {
            Ok(made) => made,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                mem::forget(thread);
                return Ok(None);
            }
        };
        made.map(Some).map_err(|code| self.error(code))
    }

    fn error(&self, code: Code) -> Error {
        unavailable(format_args!("{}: {}", self.file, self.functions.error_string(code)))
    }

    /// Ends MPI when all ranks end, if none has failed: `MPI_Finalize` waits for all of them.
    fn end(&'static self) {
        // A call that waits for ranks which do not come has it for ever, where the library takes one call at a time.
        if self.lock.try_lock_for(NAPS[1] * 1000).is_none() {
            return;
        }
        let whole = self.is_whole.load(Ordering::Relaxed);
        let last = [u8::from(whole)];
        for to in (0..self.size).filter(|&to| to != self.rank) {
            if self.post(&last, to, TAG_END, self.names.world).is_err() {
                return;
            }
        }
        let (mut ended, mut all_whole) = (1, whole);
        let all_ended = || {
            let mut last = [0];
            while let Ok(true) = self.poll(&mut last, TAG_END, self.names.world) {
                ended += 1;
                all_whole &= last[0] == 1;
            }
            (!all_whole || ended >= self.size && self.outbox.is_empty()).then_some(())
        };
        let _ = look(None, all_ended);
        if all_whole {
            // The library would complain of what nobody has received.
            let mut record = [0; MOST];
            for &control in &*self.controls.lock() {
                while let Ok(true) = self.poll(&mut record, TAG_RECORD, control) {}
            }
            let _turn = self.lock.lock();
            // SAFETY: all ranks have ended, the outbox is empty, the lock is held, and the process exits, so no
            // operation is pending and no call follows.
            let _ = unsafe { self.functions.finalize() };
        }
    }
}

/// Names a library, for those that are elsewhere.
const LIBRARY: &str = "STREAMGRAD_MPI";

/// Loads the library of whoever has started this process.
fn find() -> Result<Loaded> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if let Some(file) = std::env::var(LIBRARY).ok().filter(|file| !file.is_empty()) {
        return load(&file).map_err(|reason| unavailable(format_args!("{LIBRARY}={file:?}: {reason}")));
    }
    let families: &[Family] = if set("OMPI_COMM_WORLD_SIZE") {
        &[Family::OpenMpi, Family::Standard]
    } else if set("PMI_RANK") {
        &[Family::Mpich, Family::Standard]
    } else {
        &[Family::OpenMpi, Family::Mpich, Family::Standard]
    };
    let mut reasons = Vec::new();
    for file in families.iter().flat_map(|family| family.files()) {
        match load(file) {
            Ok(loaded) => return Ok(loaded),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(unavailable(format_args!(
        "no library of MPI was found, nor does {LIBRARY} name one: {}",
        reasons.join("; ")
    )))
}

extern "C" fn at_exit() {
    if let Some(Ok(mpi)) = PROCESS.get() {
        mpi.end();
    }
}

/// An operation under way, with the memory that it reads and writes. That is not given back before its end.
pub(super) struct Pending<M> {
    mpi: &'static Mpi,
    request: Word,
    memory: Option<M>,
}

impl<M> Pending<M> {
    /// The memory, once the operation has ended.
    pub(super) fn ended(&mut self) -> Result<Option<M>> {
        let turn = self.mpi.lock.lock();
        // SAFETY: the request is the one that a started operation returned. Once it has ended, the library sets it to
        // the null request, which may be tested again.
        let ended = unsafe { self.mpi.functions.test(&mut self.request) };
        drop(turn);
        match ended {
            Ok(true) => Ok(self.memory.take()),
            Ok(false) => Ok(None),
            Err(code) => Err(self.mpi.error(code)),
        }
    }
}

impl<M> Drop for Pending<M> {
    fn drop(&mut self) {
        // The library may still use it.
        mem::forget(self.memory.take());
    }
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.sent.lock().is_empty()
    }

    /// Sees to it that what was sent goes, though nobody calls the library.
    fn thread(&'static self, mpi: &Mpi) -> Result<()> {
        let _turn = mpi.lock.lock();
        if self.thread.get().is_none() {
            let _ = self.thread.set(Thread::new("MPI messages", || self.work())?);
        }
        Ok(())
    }

    fn work(&self) {
        let mut sent = self.sent.lock();
        loop {
            // What fails is told where it is missed.
            sent.retain_mut(|pending| matches!(pending.ended(), Ok(None)));
            if sent.is_empty() {
                self.changed.wait(&mut sent);
            } else {
                self.changed.wait_for(&mut sent, NAPS[0]);
            }
        }
    }
}

/// Looks until something is found; `None` after the deadline.
pub(super) fn look<T>(deadline: Option<Instant>, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let mut looks = 0;
    loop {
        if let Some(found) = find() {
            return Some(found);
        }
        looks += 1;
        if looks < LOOKS {
            std::thread::yield_now();
            continue;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return None;
        }
        std::thread::sleep(if looks < 2 * LOOKS { NAPS[0] } else { NAPS[1] });
    }
}
