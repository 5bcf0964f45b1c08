//! What the ranks of one process know of each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::failure::{Failure, Side, late, mismatch};
use crate::{Call, Collective, Error, ErrorKind, Result};

/// The ranks of a group that are in this process: all of them, or one.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) size: usize,
    /// Whether all ranks are here.
    is_local: bool,
    /// The ranks as the first communicator counts them; those elsewhere count as here.
    members: Mutex<Vec<usize>>,
    pub(super) failure: Arc<Failure>,
    /// The rank whose call another rank's did not match; that one got the error from its launch.
    mismatched: Mutex<Option<usize>>,
    calls: Mutex<Calls>,
    /// The ranks of this process that have gone.
    left: Mutex<Vec<usize>>,
    splits: Mutex<Splits>,
}

/// The groups that are being split from one, by the number of the split and the color, with how many ranks have come.
type Splits = HashMap<(u64, usize), (Arc<Group>, usize)>;

/// Who takes part in a call: all ranks, or one that sends and one that receives.
type Channel = Option<(usize, usize)>;

/// What the ranks have launched.
#[derive(Debug, Default)]
struct Calls {
    /// How many calls of a channel a rank has launched.
    counts: HashMap<(Channel, usize), u64>,
    /// The calls that not all who take part have launched: the first rank that has, its call, and how many have.
    open: HashMap<(Channel, u64), (usize, Call, usize)>,
    /// How often a rank has split the group.
    splits: HashMap<usize, u64>,
}

fn channel(rank: usize, collective: Collective) -> Channel {
    match collective {
        Collective::Send { to } => Some((rank, to)),
        Collective::Recv { from } => Some((from, rank)),
        _ => None,
    }
}

impl Group {
    /// A group of `size` ranks: all of them are in this process if it `is_local`, else one.
    pub(super) fn new(size: usize, is_local: bool, failure: Arc<Failure>) -> Arc<Group> {
        let members = Mutex::new((0..size).collect());
        Arc::new(Group { size, is_local, members, failure, ..Group::default() })
    }

    /// The group that `rank` is in after the split with this number, by its color: as rank `place` of `size`.
    pub(super) fn split(
        self: &Arc<Group>,
        number: u64,
        color: usize,
        rank: usize,
        place: usize,
        size: usize,
    ) -> Arc<Group> {
        let new = || Group::new(size, self.is_local, Failure::of_part(&self.failure));
        let made = if self.is_local {
            let mut splits = self.splits.lock();
            let (made, came) = splits.entry((number, color)).or_insert_with(|| (new(), 0));
            *came += 1;
            let (made, all_came) = (Arc::clone(made), *came == size);
            if all_came {
                splits.remove(&(number, color));
            }
            made
        } else {
            new()
        };
        made.members.lock()[place] = self.member(rank);
        made
    }

    /// The rank as the first communicator counts it.
    pub(super) fn member(&self, rank: usize) -> usize {
        self.members.lock().get(rank).copied().unwrap_or(rank)
    }

    /// Why nothing can be sent to `rank` any more.
    pub(super) fn message_failure(&self, rank: usize) -> Option<Error> {
        let reaches = |failure: &Error| {
            matches!(failure.kind(), ErrorKind::RankLost { .. }) && !self.left.lock().contains(&rank)
        };
        self.failure.get().filter(|failure| !reaches(failure))
    }

    /// Marks `rank` as gone, for `reason`, on the ranks of this process only.
    pub(super) fn leave(&self, rank: usize, reason: &str) {
        self.left.lock().push(rank);
        self.failure.set(self.failure.of_leaving(self.member(rank), reason));
    }

    /// `rank` launches `call`: compared with what the other ranks of this process launch.
    ///
    /// # Errors
    /// `CollectiveMismatch`; the group has failed then.
    pub(super) fn launch(&self, rank: usize, call: &Call) -> Result<()> {
        if !self.is_local {
            return Ok(());
        }
        let channel = channel(rank, call.collective);
        let mut calls = self.calls.lock();
        let count = calls.counts.entry((channel, rank)).or_default();
        let number = *count;
        *count += 1;
        let all = if channel.is_some() { 2 } else { self.size };
        let (first, other, came) =
            calls.open.entry((channel, number)).or_insert_with(|| (rank, call.clone(), 0));
        *came += 1;
        let same = (channel.is_some() || other.collective == call.collective)
            && (other.dtype, &other.shape, other.order) == (call.dtype, &call.shape, call.order);
        if !same {
            self.mismatched.lock().get_or_insert(*first);
            let mut sides = [(*first, other.to_string()), (rank, call.to_string())];
            sides.sort();
            let [first, second] = sides.map(|(rank, call)| Side { rank: self.member(rank), call });
            return Err(self.failure.set(mismatch(number, first, second)));
        }
        if *came == all {
            calls.open.remove(&(channel, number));
        }
        Ok(())
    }

    /// The failure, if it is that another rank's call did not match one of `rank`.
    pub(super) fn mismatch_of(&self, rank: usize) -> Option<Error> {
        let is_mismatched = *self.mismatched.lock() == Some(rank);
        self.failure.get().filter(|_| is_mismatched)
    }

    /// `rank` begins to split the group, which takes all ranks. Returns how often it has done so before.
    pub(super) fn begin_split(&self, rank: usize) -> u64 {
        let mut calls = self.calls.lock();
        let count = calls.splits.entry(rank).or_default();
        *count += 1;
        *count - 1
    }

    /// The ranks of this process that have not launched what `rank` has.
    fn behind(&self, rank: usize) -> Vec<usize> {
        if !self.is_local {
            return Vec::new();
        }
        let calls = self.calls.lock();
        let is_behind = |other: usize| {
            let count = |channel, rank| calls.counts.get(&(channel, rank));
            // No count is less than any.
            calls.splits.get(&rank) > calls.splits.get(&other)
                || [None, Some((rank, other)), Some((other, rank))]
                    .into_iter()
                    .any(|channel| count(channel, rank) > count(channel, other))
        };
        (0..self.size).filter(|&other| other != rank && is_behind(other)).collect()
    }

    /// The failure, if it means that what `rank` waits for never comes: a rank that has gone launched some of it before.
    pub(super) fn hopeless(&self, rank: usize) -> Option<Error> {
        let failure = self.failure.get()?;
        let left = self.left.lock().clone();
        let is_lost = matches!(failure.kind(), ErrorKind::RankLost { .. });
        let is_hopeless = !is_lost || self.behind(rank).iter().any(|rank| left.contains(rank));
        is_hopeless.then_some(failure)
    }

    /// The ranks that `rank` may wait for, as the first communicator counts: where it cannot be told, all others.
    fn missing(&self, rank: usize) -> Box<[usize]> {
        let behind = self.behind(rank);
        let others = (0..self.size).filter(|&other| other != rank);
        others
            .filter(|other| behind.is_empty() || behind.contains(other))
            .map(|rank| self.member(rank))
            .collect()
    }

    /// The error for ranks that did not come in time.
    pub(super) fn late(&self, rank: usize, op: &'static str, timeout: Duration) -> Error {
        late(op, timeout, self.missing(rank))
    }

    /// How long `rank` waits for the others in `op`, from now on.
    pub(super) fn patience(&self, rank: usize, op: &'static str, timeout: Duration) -> Patience<'_> {
        Patience {
            group: self,
            rank,
            op,
            timeout,
            deadline: Instant::now().checked_add(timeout),
            is_last: false,
        }
    }
}

/// How long a rank waits for what it has begun.
pub(super) struct Patience<'a> {
    group: &'a Group,
    rank: usize,
    op: &'static str,
    timeout: Duration,
    /// `None` for ever.
    deadline: Option<Instant>,
    /// Whether a failure of the group does not matter any more.
    pub(super) is_last: bool,
}

/// How long to look all the time, before sleeping between two looks: a launch takes some tens of microseconds.
const SPIN: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(50);

impl Patience<'_> {
    /// Waits until `look` finds something.
    pub(super) fn wait<T>(&self, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if let Some(failure) = self.group.hopeless(self.rank).filter(|_| !self.is_last) {
                return Err(failure);
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| now >= deadline) {
                return Err(self.group.late(self.rank, self.op, self.timeout));
            }
            if now - begin < SPIN { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
    }
}
