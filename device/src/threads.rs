//! The threads that the library starts, all of them here.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use crate::sync::thread::{Builder, JoinHandle};
use crate::{Error, Result};

// A thread that the system gives and then cannot set up ends the process, so the library stays well below what systems give.

/// How many there may be at once in the process.
const MOST: usize = 8192;

/// The addresses that must be free for one more: for its stack, the stack of its signals, and an arena of the C library.
const ROOM: usize = 128 << 20;

static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// One of the threads that are alive.
struct Alive;

impl Alive {
    fn new() -> io::Result<Alive> {
        let one_more = |alive| if alive < MOST { Some(alive + 1) } else { None };
        match ALIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Alive),
            Err(alive) => Err(io::Error::other(format!("the process has {alive} threads of streamgrad"))),
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
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
/// [`Error::Io`] if there are too many, the system gives none, or the process may have too little memory for it.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let path = format!("thread {name}");
    let (started, start) = channel();
    let spawned = Alive::new().and_then(|alive| {
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
    spawned.map_err(|error| Error::Io { path: path.into(), source: Arc::new(error) })
}
