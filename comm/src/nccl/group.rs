//! What the ranks of one process know of each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::{Call, Collective, Error, ErrorKind, Result};

/// The ranks of a group that are in this process: all of them, or one.
#[derive(Debug)]
pub(super) struct Group {
    size: usize,
    /// Whether all ranks are here.
    is_local: bool,
    /// The ranks as the first communicator counts them; those elsewhere count as here.
    members: Mutex<Vec<usize>>,
    /// The group that this one was split from.
    parent: Option<Arc<Group>>,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
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

impl Calls {
    fn count(&self, channel: Channel, rank: usize) -> u64 {
        self.counts.get(&(channel, rank)).copied().unwrap_or(0)
    }

    fn splits(&self, rank: usize) -> u64 {
        self.splits.get(&rank).copied().unwrap_or(0)
    }
}

fn channel(rank: usize, collective: Collective) -> Channel {
    match collective {
        Collective::Send { to } => Some((rank, to)),
        Collective::Recv { from } => Some((from, rank)),
        _ => None,
    }
}

impl Group {
    /// One of `size` ranks, the others of which are elsewhere.
    pub(super) fn alone(size: usize) -> Arc<Group> {
        Group::new(size, false, None)
    }

    /// All ranks.
    pub(super) fn local(size: usize) -> Arc<Group> {
        Group::new(size, true, None)
    }

    fn new(size: usize, is_local: bool, parent: Option<Arc<Group>>) -> Arc<Group> {
        Arc::new(Group {
            size,
            is_local,
            members: Mutex::new((0..size).collect()),
            parent,
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            mismatched: Mutex::default(),
            calls: Mutex::default(),
            left: Mutex::default(),
            splits: Mutex::default(),
        })
    }

    /// The group that `rank` is in as `place` of `size` after the split with this number, by its color.
    pub(super) fn split(
        self: &Arc<Group>,
        (number, color): (u64, usize),
        rank: usize,
        (place, size): (usize, usize),
    ) -> Arc<Group> {
        let new = || Group::new(size, self.is_local, Some(Arc::clone(self)));
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

    /// Why the group is of no use any more.
    pub(super) fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::Acquire) { self.failure.lock().clone() } else { None }
    }

    /// Why nothing can be sent to `rank` any more.
    pub(super) fn message_failure(&self, rank: usize) -> Option<Error> {
        let reaches = |failure: &Error| {
            matches!(failure.kind(), ErrorKind::RankLost { .. }) && !self.left.lock().contains(&rank)
        };
        self.failure().filter(|failure| !reaches(failure))
    }

    /// The group is of no use any more, because of `error` if nothing else came first.
    pub(super) fn fail(&self, error: Error) -> Error {
        let first = self.failure.lock().get_or_insert(error).clone();
        self.failed.store(true, Ordering::Release);
        first
    }

    /// `rank` goes, for `reason`. Only the ranks of this process are told.
    pub(super) fn leave(&self, rank: usize, reason: &str) {
        self.left.lock().push(rank);
        let lost = Error::new(ErrorKind::RankLost {
            op: "collective",
            rank: self.member(rank),
            reason: reason.into(),
        });
        // Who leaves because of another rank is not the one to name.
        self.fail(self.inherited_failure().unwrap_or(lost));
    }

    fn inherited_failure(&self) -> Option<Error> {
        let parent = self.parent.as_deref()?;
        parent.failure().or_else(|| parent.inherited_failure())
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
            let (one, two) = ((*first, other.to_string()), (rank, call.to_string()));
            self.mismatched.lock().get_or_insert(*first);
            let ((rank, call), (other, other_call)) = if one.0 < two.0 { (one, two) } else { (two, one) };
            return Err(self.fail(Error::new(ErrorKind::CollectiveMismatch {
                number,
                rank: self.member(rank),
                call: call.into(),
                other: self.member(other),
                other_call: other_call.into(),
            })));
        }
        if *came == all {
            calls.open.remove(&(channel, number));
        }
        Ok(())
    }

    /// The failure, if it is that another rank's call did not match one of `rank`.
    pub(super) fn mismatch_of(&self, rank: usize) -> Option<Error> {
        let is_mismatched = *self.mismatched.lock() == Some(rank);
        self.failure().filter(|_| is_mismatched)
    }

    /// `rank` splits the group, which takes all ranks.
    pub(super) fn split_by(&self, rank: usize) {
        *self.calls.lock().splits.entry(rank).or_default() += 1;
    }

    /// The ranks of this process that have not launched what `rank` has.
    fn behind(&self, rank: usize) -> Vec<usize> {
        if !self.is_local {
            return Vec::new();
        }
        let calls = self.calls.lock();
        let is_behind = |other: usize| {
            calls.splits(rank) > calls.splits(other)
                || [None, Some((rank, other)), Some((other, rank))]
                    .into_iter()
                    .any(|channel| calls.count(channel, rank) > calls.count(channel, other))
        };
        (0..self.size).filter(|&other| other != rank && is_behind(other)).collect()
    }

    /// Whether `failure` means that what `rank` waits for never comes. A rank that has gone launched some of it before.
    pub(super) fn is_hopeless(&self, rank: usize, failure: &Error) -> bool {
        match failure.kind() {
            ErrorKind::RankLost { .. } => {
                let left = self.left.lock().clone();
                self.behind(rank).iter().any(|rank| left.contains(rank))
            }
            _ => true,
        }
    }

    /// The ranks that `rank` may wait for, as the first communicator counts: where it cannot be told, all others.
    pub(super) fn missing(&self, rank: usize) -> Box<[usize]> {
        let behind = self.behind(rank);
        let others = (0..self.size).filter(|&other| other != rank);
        others
            .filter(|other| behind.is_empty() || behind.contains(other))
            .map(|rank| self.member(rank))
            .collect()
    }
}
