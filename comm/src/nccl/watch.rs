//! A thread that looks after all ranks of the process: what never ends is aborted, and ranks whose members have gone are closed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::exit::{InUse, apart};
use super::rank::WatchedRank;
use crate::Result;
use crate::failure::unavailable;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(5);

struct Watched {
    has_thread: bool,
    ranks: Vec<Weak<WatchedRank>>,
    leaving: Vec<Leaving>,
}

/// A rank whose member has gone, while something of it may be under way.
struct Leaving {
    rank: Arc<WatchedRank>,
    reason: &'static str,
    /// The end of the process waits until the rank is closed.
    _in_use: Option<InUse>,
}

static WATCHED: Mutex<Watched> =
    Mutex::new(Watched { has_thread: false, ranks: Vec::new(), leaving: Vec::new() });
static CHANGED: Condvar = Condvar::new();

/// Looks after `rank` from now on.
pub(super) fn join(rank: &Arc<WatchedRank>) -> Result<()> {
    let mut watched = WATCHED.lock();
    if !watched.has_thread {
        let thread = std::thread::Builder::new().name("nccl watch".into()).spawn(watch);
        thread.map_err(|error| unavailable(format_args!("no thread: {error}")))?;
        watched.has_thread = true;
        // From now on the process's end waits.
        drop(InUse::begin());
    }
    watched.ranks.push(Arc::downgrade(rank));
    CHANGED.notify_all();
    Ok(())
}

/// The member of `rank` has gone, for `reason`: the rank is closed once what it has under way has ended.
pub(super) fn leave(rank: Arc<WatchedRank>, reason: &'static str) {
    if rank.is_idle() {
        rank.group.leave(rank.rank, reason);
    }
    WATCHED.lock().leaving.push(Leaving { rank, reason, _in_use: InUse::begin() });
    CHANGED.notify_all();
}

fn watch() {
    loop {
        let (ranks, leaving) = {
            let mut watched = WATCHED.lock();
            watched.ranks.retain(|rank| rank.strong_count() > 0);
            while watched.ranks.is_empty() && watched.leaving.is_empty() {
                CHANGED.wait(&mut watched);
            }
            (watched.ranks.clone(), std::mem::take(&mut watched.leaving))
        };
        let Some(in_use) = InUse::begin() else {
            // The process ends, and with it the driver that dropping them would call.
            return std::mem::forget(leaving);
        };
        ranks.iter().filter_map(Weak::upgrade).for_each(|rank| rank.look());
        let left: Vec<_> = leaving.into_iter().filter(|leaving| !close(leaving)).collect();
        WATCHED.lock().leaving.extend(left);
        drop(in_use);
        std::thread::sleep(INTERVAL);
    }
}

/// Closes a rank, unless something of it is under way.
fn close(Leaving { rank, reason, .. }: &Leaving) -> bool {
    rank.look();
    if !rank.is_idle() {
        return false;
    }
    rank.group.leave(rank.rank, reason);
    let rank = Arc::clone(rank);
    // An error has no receiver any more; dropping the handle aborts pending work.
    apart("nccl close", move || drop(rank.close()));
    true
}
