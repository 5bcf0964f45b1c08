//! Where the ranks of a group meet.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use device::{Buffer, Shared, SpinLock};
use parking_lot::{Condvar, Mutex};

use super::mail::Mail;
use crate::failure::{Failure, Side, late, mismatch, reason_of_drop};
use crate::split::{Asked, by_color};
use crate::{Call, CommOptions, Error, Memory, Result};

/// State that the ranks share.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// The ranks as the first communicator counts them.
    pub(super) members: Box<[usize]>,
    pub(super) options: CommOptions,
    pub(super) failure: Arc<Failure>,
    /// How many meetings have begun, times 2, and 1 more once the group has failed. A meeting begins when the last rank arrives,
    /// unless the group failed before, and never without all: what a rank shows to the others stays until the meeting ends.
    state: AtomicU64,
    /// How often a rank arrived.
    arrivals: AtomicU64,
    /// How often a rank ended a step of a meeting.
    steps: AtomicU64,
    posts: Box<[Post]>,
    /// Whether it failed by more than that ranks have gone.
    is_broken: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
    pub(super) mail: Mail,
    /// The splits that are under way, by number.
    splits: Mutex<HashMap<u64, Split>>,
}

/// What a rank shows to the others, on a line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Post {
    /// The meetings that the rank has arrived at.
    arrived: AtomicU64,
    /// Whether the rank has gone.
    left: AtomicBool,
    /// What every command of the rank's communicator writes, while there is one.
    token: Mutex<Option<Shared<Buffer>>>,
    shown: SpinLock<Option<(Call, Memory)>>,
}

#[derive(Debug, Default)]
struct Split {
    /// By rank, of those that have come.
    asked: BTreeMap<usize, Asked>,
    /// The groups by color, once all ranks have come.
    made: BTreeMap<usize, Arc<Group>>,
    taken: usize,
}

const FAILED: u64 = 1;

/// How often to look around before sleeping; a yield each.
const LOOKS: usize = 64;

impl Group {
    pub(super) fn new(members: Box<[usize]>, options: CommOptions, failure: Arc<Failure>) -> Arc<Group> {
        let post = |_| Post {
            arrived: AtomicU64::new(0),
            left: AtomicBool::new(false),
            token: Mutex::default(),
            shown: SpinLock::new(None),
        };
        let posts = members.iter().map(post).collect();
        Arc::new(Group { members, options, failure, posts, ..Group::default() })
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// Why `peer` and another rank can send each other nothing any more.
    pub(super) fn message_failure(&self, peer: usize) -> Option<Error> {
        let failure = self.failure.get()?;
        let is_over = self.is_broken.load(Ordering::Acquire) || self.posts[peer].left.load(Ordering::Acquire);
        is_over.then_some(failure)
    }

    /// The group is of no use any more, because of `error` if nothing else came first. Meetings that have begun go on.
    pub(super) fn fail(&self, error: Error) -> Error {
        self.is_broken.store(true, Ordering::Release);
        self.end(error)
    }

    /// The communicator of `rank` has this token.
    pub(super) fn follow(&self, rank: usize, token: &Shared<Buffer>) {
        *self.posts[rank].token.lock() = Some(token.clone());
    }

    /// A command `op` of `rank` that has run has failed after all, which the rank's next synchronising call reports.
    pub(super) fn report(&self, op: &'static str, rank: usize, error: Error) {
        // The lock keeps the device, which must not be dropped here.
        if let Some(token) = &*self.posts[rank].token.lock() {
            token.device().fail(op, token.last_write().stream, error);
        }
    }

    /// `rank` leaves: the group fails for those that still need it.
    pub(super) fn leave(&self, rank: usize) {
        // Not dropped under the lock: it may be the last use of the device.
        let token = self.posts[rank].token.lock().take();
        drop(token);
        self.posts[rank].left.store(true, Ordering::Release);
        self.end(self.failure.of_leaving(self.members[rank], reason_of_drop()));
    }

    fn end(&self, error: Error) -> Error {
        let first = self.failure.set(error);
        self.state.fetch_or(FAILED, Ordering::SeqCst);
        self.tell();
        first
    }

    /// Shows `call` and `memory` to the others as those of `rank` in meeting `number`.
    pub(super) fn arrive(&self, rank: usize, number: u64, call: &Call, memory: Memory) {
        *self.posts[rank].shown.lock() = Some((call.clone(), memory));
        self.posts[rank].arrived.store(number + 1, Ordering::Release);
        let all = (number + 1) * self.size() as u64;
        if self.arrivals.fetch_add(1, Ordering::AcqRel) + 1 == all {
            let (before, begun) = (number * 2, (number + 1) * 2);
            // Not if the group has failed.
            let _ = self.state.compare_exchange(before, begun, Ordering::SeqCst, Ordering::Relaxed);
            self.tell();
        }
    }

    /// Whether meeting `number` has begun, or why it never will.
    pub(super) fn has_begun(&self, number: u64) -> Option<Result<()>> {
        // One look: a group that has failed by then begins no meeting any more.
        let state = self.state.load(Ordering::Acquire);
        if state >> 1 > number {
            return Some(Ok(()));
        }
        if state & FAILED == 0 { None } else { self.failure.get().map(Err) }
    }

    /// Whether these ranks have arrived at meeting `number`.
    pub(super) fn has_come(&self, mut ranks: Range<usize>, number: u64) -> bool {
        ranks.all(|rank| self.posts[rank].arrived.load(Ordering::Acquire) > number)
    }

    /// Blocks until meeting `number`, of `op`, has begun.
    pub(super) fn begin(&self, op: &'static str, number: u64) -> Result<()> {
        self.wait(|| self.has_begun(number)).unwrap_or_else(|| {
            let is_late = |rank: &usize| self.posts[*rank].arrived.load(Ordering::Acquire) <= number;
            let missing: Vec<usize> =
                (0..self.size()).filter(is_late).map(|rank| self.members[rank]).collect();
            let failure = self.fail(late(op, self.options.timeout, missing));
            // Somebody may have come meanwhile.
            self.has_begun(number).unwrap_or(Err(failure))
        })
    }

    /// What each rank shows in meeting `number`, which has begun, to the rank that shows `call`.
    pub(super) fn shown<R: FromIterator<Memory>>(&self, number: u64) -> Result<R> {
        let mut first: Option<Call> = None;
        let shown = |(rank, post): (usize, &Post)| {
            let shown = post.shown.lock();
            let (call, memory) = shown.as_ref().unwrap_or_else(|| unreachable!("the rank has arrived"));
            match &first {
                None => first = Some(call.clone()),
                Some(first) if first == call => {}
                Some(first) => {
                    let first = Side { rank: self.members[0], call: first };
                    return Err(mismatch(number, first, Side { rank: self.members[rank], call }));
                }
            }
            Ok(*memory)
        };
        self.posts.iter().enumerate().map(shown).collect()
    }

    /// Blocks until every rank has ended `step` steps of meetings, which takes them no other wait.
    pub(super) fn meet(&self, step: u64) {
        let all = step * self.size() as u64;
        if self.steps.fetch_add(1, Ordering::SeqCst) + 1 == all {
            return self.tell();
        }
        let met = || (self.steps.load(Ordering::Acquire) >= all).then_some(());
        // Nobody may leave: the others look at this rank's memory.
        while self.wait(met).is_none() {}
    }

    /// Something has changed: wakes those who wait.
    pub(super) fn tell(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.changed.notify_all();
        }
    }

    /// Blocks until `look` finds something; `None` after the time-out.
    pub(super) fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        for _ in 0..LOOKS {
            if let Some(found) = look() {
                return Some(found);
            }
            std::thread::yield_now();
        }
        let deadline = Instant::now().checked_add(self.options.timeout);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut lock = self.lock.lock();
        let found = loop {
            std::sync::atomic::fence(Ordering::SeqCst);
            if let Some(found) = look() {
                break Some(found);
            }
            match deadline {
                None => self.changed.wait(&mut lock),
                Some(deadline) if Instant::now() >= deadline => break None,
                Some(deadline) => drop(self.changed.wait_until(&mut lock, deadline)),
            }
        };
        drop(lock);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// The group of the ranks that ask for the color of `rank` in split `number`; waits for all ranks.
    pub(super) fn split(
        self: &Arc<Group>,
        rank: usize,
        number: u64,
        asked: Asked,
    ) -> Result<Option<Arc<Group>>> {
        if let Some(failure) = self.failure.get() {
            return Err(failure);
        }
        {
            let mut splits = self.splits.lock();
            let split = splits.entry(number).or_default();
            split.asked.insert(rank, asked);
            if split.asked.len() == self.size() {
                let made = |ranks: Vec<usize>| {
                    let members = ranks.into_iter().map(|rank| self.members[rank]).collect();
                    Group::new(members, self.options, Failure::of_part(&self.failure))
                };
                let colors = by_color(split.asked.values().copied());
                split.made = colors.into_iter().map(|(color, ranks)| (color, made(ranks))).collect();
            }
        }
        self.tell();
        let have_all_come =
            || self.splits.lock().get(&number).is_some_and(|split| split.asked.len() == self.size());
        let come = self.wait(|| if have_all_come() { Some(Ok(())) } else { self.failure.get().map(Err) });
        if !matches!(come, Some(Ok(())))
            && let Some(missing) = self.withdraw(rank, number)
        {
            return Err(come
                .and_then(Result::err)
                .unwrap_or_else(|| self.fail(late("split", self.options.timeout, missing))));
        }
        let mut splits = self.splits.lock();
        let Some(split) = splits.get_mut(&number) else { return Ok(None) };
        let made = asked.color.and_then(|color| split.made.get(&color).cloned());
        split.taken += 1;
        if split.taken == self.size() {
            splits.remove(&number);
        }
        Ok(made)
    }

    /// Removes what `rank` asked for in a split, and returns the ranks that have not come; `None` once all have.
    fn withdraw(&self, rank: usize, number: u64) -> Option<Box<[usize]>> {
        let mut splits = self.splits.lock();
        let asked = &mut splits.get_mut(&number)?.asked;
        let missing = (0..self.size()).filter(|rank| !asked.contains_key(rank));
        let missing: Box<[usize]> = missing.map(|rank| self.members[rank]).collect();
        if missing.is_empty() {
            return None;
        }
        asked.remove(&rank);
        Some(missing)
    }

    /// How long a call takes on the modelled network.
    pub(super) fn modelled(&self, call: &Call) -> Option<Duration> {
        self.options.model.map(|model| model.time(call.collective, call.bytes(), self.size()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use device::DType;
    use kernels::Dims;

    use super::*;
    use crate::{Collective, ReduceOrder};

    /// Who is told that a meeting never begins stays away from it, and the others would wait for it for ever.
    #[test]
    fn a_meeting_that_is_given_up_never_begins() {
        let (order, shape) = (ReduceOrder::default(), Dims::new());
        let call = Call { collective: Collective::Barrier, dtype: DType::U8, shape, order };
        let memory = Memory::NONE;
        for _ in 0..100_000 {
            let group = Group::new(Box::new([0, 1]), CommOptions::default(), Arc::default());
            group.arrive(0, 0, &call, memory);
            std::thread::scope(|scope| {
                let told = scope.spawn(|| {
                    loop {
                        if let Some(told) = group.has_begun(0) {
                            break told.is_ok();
                        }
                    }
                });
                group.arrive(1, 0, &call, memory);
                group.fail(late("barrier", group.options.timeout, [1]));
                assert!(told.join().unwrap());
            });
        }
    }
}
