//! A thread that makes the driver's calls of launches.
//!
//! The driver keeps its caller for some microseconds a launch, longer than all else that an eager command asks of the host. Where
//! there is a core to spare, these calls are made on a thread of the device's own, in the order in which they were given to it,
//! while the program goes on to its next commands. Calls that ask for something (events, waits, copies of the host's, whatever
//! looks at a stream or captures it) are made where they are asked for, after those that the stream has given away: see
//! [`DriverStream::raw`](super::stream::DriverStream).
//!
//! A thread that is asleep is not worth waking for a few launches: unless it is to have them all, it is woken within a long run of
//! them, and the caller makes the calls until it is up.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ffi::sys;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::context::Context;
use super::enqueue::Call;
use super::fault::FaultWord;
use crate::spin::spin_until;
use crate::{Result, StreamId, Thread};

/// Launches in a row for which the thread is woken: about as long as waking it takes the caller.
const WORTH_WAKING: u32 = 8;
/// How long the thread looks out for more before it sleeps: longer than a step that waits for its loss lets it wait.
const LINGER: Duration = Duration::from_micros(200);
/// Calls that may lie in the queue, beside as many that the thread has taken: some milliseconds of its time.
const MOST: usize = 512;

/// The command of which a call is a part.
pub(super) type CommandId = (&'static str, StreamId);

pub(crate) struct Launcher {
    shared: Arc<State>,
    /// Ends with the device and its last stream, whose calls are made by then.
    _thread: Thread,
}

struct State {
    queue: Mutex<CallQueue>,
    /// Whether the queue holds something, for a look without its lock.
    backlog: AtomicBool,
    /// Somebody has a call, or no more will come.
    called: Condvar,
    /// Launches in a row for which it is woken, and those since the driver was last asked for something, while it sleeps.
    worth_waking: u32,
    run: AtomicU32,
    made: CacheLine<AtomicU64>,
    /// Where refusals are reported.
    fault: Arc<FaultWord>,
}

/// On a cache line of its own: the thread writes it all the time.
#[repr(align(128))]
struct CacheLine<T>(T);

#[derive(Default)]
struct CallQueue {
    batch: Batch,
    /// How many calls there ever were.
    given: u64,
    asleep: bool,
    closed: bool,
}

/// Calls in order, and the arguments of all of them.
#[derive(Default)]
struct Batch {
    calls: Vec<Given>,
    words: Vec<u64>,
}

/// A call on a stream, which has so many words of arguments.
struct Given {
    call: Call,
    words: usize,
    stream: Raw,
    command: CommandId,
}

#[derive(Clone, Copy)]
struct Raw(sys::CUstream);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Raw {}

/// A launcher that takes calls: it is awake, or woken by them.
pub(super) struct Awake<'a> {
    queue: MutexGuard<'a, CallQueue>,
    backlog: &'a AtomicBool,
}

impl Context {
    /// A launcher that is given `all` launches, or those of long runs.
    ///
    /// # Errors
    /// `Io` if the system gives no thread.
    pub(crate) fn launcher(self: &Arc<Self>, fault: &Arc<FaultWord>, all: bool) -> Result<Arc<Launcher>> {
        let shared = Arc::new(State {
            queue: Mutex::default(),
            backlog: AtomicBool::new(false),
            called: Condvar::new(),
            worth_waking: if all { 1 } else { WORTH_WAKING },
            run: AtomicU32::new(0),
            made: CacheLine(AtomicU64::new(0)),
            fault: Arc::clone(fault),
        });
        let (theirs, context) = (Arc::clone(&shared), Arc::clone(self));
        let thread = Thread::new("launches", move || theirs.work(&context))?;
        Ok(Arc::new(Launcher { shared, _thread: thread }))
    }
}

impl Launcher {
    /// The launcher, if it is up or takes every call.
    #[inline]
    pub(super) fn awake(&self) -> Option<Awake<'_>> {
        let shared = &*self.shared;
        let mut queue = shared.queue.lock();
        if queue.asleep {
            let run = shared.run.fetch_add(1, Ordering::Relaxed) + 1;
            if run == shared.worth_waking {
                shared.called.notify_one();
            }
            if shared.worth_waking > 1 {
                return None;
            }
        }
        if queue.batch.calls.len() >= MOST {
            let wanted = queue.given - MOST as u64 / 2;
            drop(queue);
            self.wait_for(wanted);
            queue = shared.queue.lock();
        }
        Some(Awake { queue, backlog: &shared.backlog })
    }

    /// Waits until the first `given` calls are made.
    #[inline]
    pub(super) fn wait_for(&self, given: u64) {
        self.shared.run.store(0, Ordering::Relaxed);
        spin_until(|| self.has_made(given));
    }

    /// Whether the first `given` calls are made.
    #[inline]
    pub(super) fn has_made(&self, given: u64) -> bool {
        self.shared.made.0.load(Ordering::Acquire) >= given
    }
}

impl Awake<'_> {
    /// Has the thread make a call with these arguments; says how many calls it was given so far, this one included.
    ///
    /// # Safety
    /// As for [`Call::make`]; the stream is not destroyed before the call is made.
    #[inline]
    pub(super) unsafe fn give(
        mut self,
        call: Call,
        words: &[u64],
        stream: sys::CUstream,
        command: CommandId,
    ) -> u64 {
        let queue = &mut *self.queue;
        queue.batch.calls.push(Given { call, words: words.len(), stream: Raw(stream), command });
        queue.batch.words.extend_from_slice(words);
        queue.given += 1;
        self.backlog.store(true, Ordering::Release);
        queue.given
    }
}

impl State {
    fn work(&self, context: &Context) {
        // A driver that refuses this refuses the calls, which is told.
        let _bound = context.bind();
        let mut batch = Batch::default();
        while self.next(&mut batch) {
            let mut rest = &mut batch.words[..];
            for Given { mut call, words, stream, command: (op, id) } in batch.calls.drain(..) {
                let words = rest.split_off_mut(..words).unwrap_or_default();
                // SAFETY: whoever gave it answers for it, and these are its words.
                if let Err(error) = unsafe { call.make(words, stream.0) } {
                    self.fault.keep(error.met_by(op, id));
                }
                // This thread is the only one to write it.
                let made = self.made.0.load(Ordering::Relaxed) + 1;
                self.made.0.store(made, Ordering::Release);
            }
            batch.words.clear();
        }
    }

    /// Takes all that there is, or waits for something; false if nothing will come any more.
    fn next(&self, batch: &mut Batch) -> bool {
        self.look_out();
        let mut queue = self.queue.lock();
        loop {
            if !queue.batch.calls.is_empty() {
                std::mem::swap(&mut queue.batch, batch);
                self.backlog.store(false, Ordering::Relaxed);
                return true;
            }
            if queue.closed {
                return false;
            }
            queue.asleep = true;
            self.run.store(0, Ordering::Relaxed);
            self.called.wait(&mut queue);
            queue.asleep = false;
            // It was woken for calls that are coming.
            drop(queue);
            self.look_out();
            queue = self.queue.lock();
        }
    }

    /// Waits for a call, but not for long.
    fn look_out(&self) {
        let start = Instant::now();
        let mut spins = 0u32;
        while !self.backlog.load(Ordering::Acquire) {
            spin_loop();
            spins += 1;
            if spins.is_multiple_of(128) && start.elapsed() > LINGER {
                return;
            }
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        // Not while the thread looks into the queue, which says that there is nothing.
        self.shared.backlog.store(true, Ordering::Release);
        self.shared.called.notify_one();
    }
}
