//! The threads that the library starts, all of them here.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use crate::sync::thread::{Builder, JoinHandle, current};
use crate::{Error, ErrorKind, OnDrop, Panicked, Result, fork};

// A thread that the system gives and then cannot set up ends the process, so the library stays well below what systems give.

/// How many there may be at once in the process.
const MOST: usize = 8192;

/// The addresses that must be free for one more: for its stack, the stack of its signals, and an arena of the C library.
const ROOM: usize = 128 << 20;

static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts a thread, until the result drops.
fn count_thread() -> io::Result<OnDrop<impl FnMut()>> {
    let one_more = |alive| if alive < MOST { Some(alive + 1) } else { None };
    match ALIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
        Ok(_) => Ok(OnDrop(|| _ = ALIVE.fetch_sub(1, Ordering::Relaxed))),
        Err(alive) => Err(io::Error::other(format!("the process has {alive} threads of streamgrad"))),
    }
}

fn check_room() -> io::Result<()> {
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(ROOM)?;
    // Unseen, the reservation might be left out.
    black_box(&mut room);
    Ok(())
}

/// Starts a thread.
///
/// # Errors
/// `Io` if there are too many, the system gives none, or the process may have too little memory for it;
/// `Forked`.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    fork::watch();
    fork::check("thread")?;
    let path = format!("thread {name}");
    let (started, start) = channel();
    let spawned = count_thread().and_then(|alive| {
        check_room()?;
        Builder::new().name(name).spawn(move || {
            let _alive = alive;
            // Its giver may be waiting.
            let _ = started.send(());
            work();
        })
    });
    if spawned.is_ok() && !cfg!(loom) {
        // The next one finds the room that this one leaves. The sender is not lost.
        let _ = start.recv();
    }
    spawned.map_err(|error| Error::new(ErrorKind::Io { path: path.into(), source: Arc::new(error) }))
}

/// A thread that works for its owner, who waits for its end when dropped.
///
/// ```
/// use std::sync::mpsc::channel;
/// let (sender, receiver) = channel();
/// let thread = device::Thread::new("adder", move || drop(sender.send(1 + 1)))?;
/// drop(thread);
/// assert_eq!(receiver.recv(), Ok(2));
/// # Ok::<(), device::Error>(())
/// ```
pub struct Thread(Option<JoinHandle<()>>);

impl Thread {
    /// Starts `work` on a thread of this name. A panic in it goes no further.
    ///
    /// # Errors
    /// `Io` if the system gives no thread.
    pub fn new(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Thread> {
        // Whoever has something to tell of a panic catches it in `work`.
        spawn(name.to_owned(), || drop(Panicked::catch(work))).map(|thread| Thread(Some(thread)))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // A thread that drops its own handle ends without anybody's waiting. A forked process has no such thread.
        let is_here = |thread: &JoinHandle<()>| !fork::is_child() && thread.thread().id() != current().id();
        if let Some(thread) = self.0.take().filter(is_here) {
            let _ = thread.join();
        }
    }
}

debug_fields!(Thread {});
