//! A thread that looks after all ranks of the process: what never ends is aborted, and who has gone is let go of.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::rank::Rank;
use crate::{Error, Result};

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// Who is looked after.
#[derive(Default)]
struct Watched {
    /// Whether there is a thread.
    runs: bool,
    ranks: Vec<Weak<Rank>>,
    /// Ranks whose members have gone, why, and whether something of theirs may be under way.
    leaving: Vec<(Arc<Rank>, &'static str)>,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { runs: false, ranks: Vec::new(), leaving: Vec::new() });
static CAME: Condvar = Condvar::new();

/// Looks after `rank` from now on.
pub(super) fn join(rank: &Arc<Rank>) -> Result<()> {
    start()?;
    WATCHED.lock().ranks.push(Arc::downgrade(rank));
    CAME.notify_all();
    Ok(())
}

/// The member of `rank` has gone, for `reason`: it goes, too, once what it has under way has ended.
pub(super) fn leave(rank: Arc<Rank>, reason: &'static str) {
    if rank.is_idle() {
        rank.group.leave(rank.rank, reason);
    }
    WATCHED.lock().leaving.push((rank, reason));
    CAME.notify_all();
}

fn start() -> Result<()> {
    let mut watched = WATCHED.lock();
    if !watched.runs {
        let thread = std::thread::Builder::new().name("nccl watch".into());
        thread
            .spawn(watch)
            .map_err(|error| Error::CommUnavailable { reason: format!("no thread: {error}").into() })?;
        watched.runs = true;
    }
    Ok(())
}

fn watch() {
    loop {
        let (ranks, leaving) = {
            let mut watched = WATCHED.lock();
            watched.ranks.retain(|rank| rank.strong_count() > 0);
            if watched.ranks.is_empty() && watched.leaving.is_empty() {
                CAME.wait(&mut watched);
            }
            (watched.ranks.clone(), std::mem::take(&mut watched.leaving))
        };
        for rank in ranks.iter().filter_map(Weak::upgrade) {
            rank.look();
        }
        let busy: Vec<_> = leaving.into_iter().filter(|(rank, reason)| !let_go(rank, reason)).collect();
        WATCHED.lock().leaving.extend(busy);
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
    // What fails here has nobody left to tell; the handle aborts what is left.
    let _ = rank.close();
    true
}
