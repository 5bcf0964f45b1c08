//! A thread that looks after all ranks of the process: what never ends is aborted, and who has gone is let go of.

use std::ffi::c_int;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::rank::Rank;
use crate::{Error, ErrorKind, Result};

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// How long the process's end waits for what it has let go of. The library must not be in use when its memory goes.
const END: Duration = Duration::from_secs(5);

/// Who is looked after.
struct Watched {
    /// Whether there is a thread.
    runs: bool,
    ranks: Vec<Weak<Rank>>,
    /// Ranks whose members have gone, why, and whether something of theirs may be under way.
    leaving: Vec<(Arc<Rank>, &'static str)>,
    /// How many threads use the library, besides those of members.
    busy: usize,
    /// Whether the process ends.
    ends: bool,
}

static WATCHED: Mutex<Watched> =
    Mutex::new(Watched { runs: false, ranks: Vec::new(), leaving: Vec::new(), busy: 0, ends: false });
/// Somebody came, or went.
static CHANGED: Condvar = Condvar::new();

/// Looks after `rank` from now on.
pub(super) fn join(rank: &Arc<Rank>) -> Result<()> {
    start()?;
    WATCHED.lock().ranks.push(Arc::downgrade(rank));
    CHANGED.notify_all();
    Ok(())
}

/// The member of `rank` has gone, for `reason`: it goes, too, once what it has under way has ended.
pub(super) fn leave(rank: Arc<Rank>, reason: &'static str) {
    if rank.is_idle() {
        rank.group.leave(rank.rank, reason);
    }
    WATCHED.lock().leaving.push((rank, reason));
    CHANGED.notify_all();
}

/// Calls `f` on a thread of its own: the library frees memory, for which the driver waits for all that any device does, and for
/// graphs to go.
pub(super) fn apart(name: &str, f: impl FnOnce() + Send + 'static) {
    await_end();
    WATCHED.lock().busy += 1;
    let f = move || {
        f();
        WATCHED.lock().busy -= 1;
        CHANGED.notify_all();
    };
    // What there is no thread for is not done: it would hold up who asks.
    if std::thread::Builder::new().name(name.into()).spawn(f).is_err() {
        WATCHED.lock().busy -= 1;
    }
}

fn start() -> Result<()> {
    let mut watched = WATCHED.lock();
    if !watched.runs {
        let thread = std::thread::Builder::new().name("nccl watch".into());
        thread.spawn(watch).map_err(|error| {
            Error::new(ErrorKind::CommUnavailable { reason: format!("no thread: {error}").into() })
        })?;
        watched.runs = true;
        await_end();
    }
    Ok(())
}

/// Has the process's end wait for threads that use the library.
fn await_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `end` is a function of this program with the signature that `atexit` expects, and needs nothing but
        // statics. It runs before the handlers of NCCL and the driver, which were registered earlier. If it cannot be
        // registered, the process does not wait.
        let _ = unsafe { atexit(end) };
    });
}

unsafe extern "C" {
    fn atexit(call: extern "C" fn()) -> c_int;
}

/// The process ends: nobody uses the library from now on, and who does has a while to have done with it.
extern "C" fn end() {
    let (mut watched, deadline) = (WATCHED.lock(), Instant::now() + END);
    while !watched.leaving.is_empty() || watched.busy > 0 {
        if CHANGED.wait_until(&mut watched, deadline).timed_out() {
            break;
        }
    }
    watched.ends = true;
}

fn watch() {
    loop {
        let (ranks, leaving) = {
            let mut watched = WATCHED.lock();
            watched.ranks.retain(|rank| rank.strong_count() > 0);
            while watched.ends || (watched.ranks.is_empty() && watched.leaving.is_empty()) {
                CHANGED.wait(&mut watched);
            }
            watched.busy += 1;
            (watched.ranks.clone(), std::mem::take(&mut watched.leaving))
        };
        for rank in ranks.iter().filter_map(Weak::upgrade) {
            rank.look();
        }
        let left: Vec<_> = leaving.into_iter().filter(|(rank, reason)| !let_go(rank, reason)).collect();
        {
            let mut watched = WATCHED.lock();
            watched.leaving.extend(left);
            watched.busy -= 1;
        }
        CHANGED.notify_all();
        std::thread::sleep(INTERVAL);
    }
}

/// Lets go of a rank, unless something of it is under way.
fn let_go(rank: &Arc<Rank>, reason: &str) -> bool {
    rank.look();
    if !rank.is_idle() {
        return false;
    }
    rank.group.leave(rank.rank, reason);
    let rank = Arc::clone(rank);
    // What fails here has nobody left to tell; the handle aborts what is left.
    apart("nccl close", move || drop(rank.close()));
    true
}
