//! The threads that the library starts, all of them here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sync::thread::{Builder, JoinHandle};
use crate::{Error, Result};

/// How many there may be at once in the process. A thread that the system gives and then cannot set up ends the process,
/// so the library stays well below what systems give.
const MOST: usize = 8192;

static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// One of the threads that are alive.
struct Alive;

impl Alive {
    fn new() -> std::io::Result<Alive> {
        let one_more = |alive| if alive < MOST { Some(alive + 1) } else { None };
        match ALIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Alive),
            Err(alive) => {
                Err(std::io::Error::other(format!("the process has {alive} threads of streamgrad")))
            }
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts a thread.
///
/// # Errors
/// [`Error::Io`] if there are too many, or the system gives none.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let path = format!("thread {name}");
    let spawned = Alive::new().and_then(|alive| {
        Builder::new().name(name).spawn(move || {
            let _alive = alive;
            work();
        })
    });
    spawned.map_err(|error| Error::Io { path: path.into(), source: Arc::new(error) })
}
