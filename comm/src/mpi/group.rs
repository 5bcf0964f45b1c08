//! Where ranks that are processes of MPI meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::abi::Word;
use super::mail::{Inbox, Kind, MOST, Record};
use super::process::{Mpi, Pending, TAG_RECORD, look};
use crate::failure::{ANY_OP, Failure, Side, late, lost, mismatch};
use crate::{CommOptions, Error, ErrorKind, Result};

/// One rank's end of a group.
pub(super) struct Group {
    pub(super) mpi: &'static Mpi,
    /// What moves elements, in the order of the collectives.
    pub(super) data: Word,
    /// What moves records, and is split: by the host, while collectives may be under way.
    pub(super) control: Word,
    pub(super) rank: usize,
    /// The ranks as the first communicator counts them.
    pub(super) members: Box<[usize]>,
    pub(super) options: CommOptions,
    pub(super) failure: Arc<Failure>,
    /// Whether the others know of the failure.
    is_told: AtomicBool,
    inboxes: Mutex<Vec<Inbox>>,
    /// How often the ranks met.
    calls: AtomicU64,
    splits: AtomicU64,
    /// How many messages of each rank were received.
    pub(super) received: Box<[AtomicU64]>,
    pub(super) splitting: Mutex<()>,
}

/// How long to look who is there, when a collective does not end.
const GRACE: Duration = Duration::from_secs(2);

impl Group {
    pub(super) fn new(
        mpi: &'static Mpi,
        data: Word,
        control: Word,
        rank: usize,
        members: Box<[usize]>,
        options: CommOptions,
        failure: Arc<Failure>,
    ) -> Group {
        mpi.listen(control);
        let inboxes = members.iter().map(|_| Inbox::default()).collect();
        let received = members.iter().map(|_| AtomicU64::new(0)).collect();
        Group {
            mpi,
            data,
            control,
            rank,
            members,
            options,
            failure,
            is_told: AtomicBool::new(false),
            inboxes: Mutex::new(inboxes),
            calls: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            received,
            splitting: Mutex::default(),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// The group is of no use any more, because of `error` if nothing else came first. The others are told.
    pub(super) fn fail(&self, error: Error) -> Error {
        let first = self.failure.set(error);
        self.mpi.part();
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let (rank, reason) = blame(&first, self.members[self.rank]);
            self.tell(Kind::Failed, rank, &reason);
        }
        first
    }

    /// Fails the group because this rank received an unexpected message from rank `from`. That rank receives both calls, the
    /// others a failure like any other.
    pub(super) fn fail_mismatch(&self, from: usize, number: usize, mismatch: Error) -> Error {
        if let ErrorKind::CollectiveMismatch { rank, call, other, other_call, .. } = mismatch.kind() {
            let text = [&rank.to_string(), &**call, &other.to_string(), &**other_call].join("\n");
            let _ = self.tell_one(from, Kind::Mismatch, number, &text);
        }
        self.fail(mismatch)
    }

    /// Why the group is of no use any more, as far as messages that have come say.
    pub(super) fn check(&self) -> Result<()> {
        self.read()?;
        self.failure.get().map_or(Ok(()), Err)
    }

    /// Tells the others, as far as they are there.
    pub(super) fn tell(&self, kind: Kind, number: usize, text: &str) {
        let others = (0..self.size()).filter(|&to| to != self.rank);
        others.for_each(|to| drop(self.tell_one(to, kind, number, text)));
    }

    pub(super) fn tell_one(&self, to: usize, kind: Kind, number: usize, text: &str) -> Result<()> {
        let record = Record::new(kind, self.rank, number, text).encode();
        self.mpi.post(&record, to, TAG_RECORD, self.control)
    }

    /// Takes what has come.
    fn read(&self) -> Result<()> {
        let mut inboxes = self.inboxes.lock();
        let mut bytes = [0; MOST];
        while self.mpi.poll(&mut bytes, TAG_RECORD, self.control)? {
            let record = Record::decode(&bytes).filter(|record| record.from < inboxes.len());
            bytes.fill(0);
            let Some(record) = record else { continue };
            let inbox = &mut inboxes[record.from];
            match record.kind {
                Kind::Stuck => inbox.is_stuck = true,
                Kind::Left => inbox.left = Some((record.number, record.text)),
                Kind::Failed | Kind::Mismatch => {
                    let error = match record.kind {
                        Kind::Failed => lost(ANY_OP, record.number, &record.text),
                        _ => match decode_mismatch(&record) {
                            Some(mismatch) => mismatch,
                            None => continue,
                        },
                    };
                    self.failure.set(error);
                    // The rank that failed has told all others.
                    self.is_told.store(true, Ordering::Relaxed);
                    self.mpi.part();
                }
                kind => inbox.of(kind).push_back(record),
            }
        }
        Ok(())
    }

    /// Waits until every other rank has come to the same, of a kind that `text` says more about, and gives each rank's number.
    pub(super) fn meet(&self, op: &'static str, kind: Kind, number: usize, text: &str) -> Result<Vec<usize>> {
        if let Some(failure) = self.failure.get() {
            return Err(failure);
        }
        let count = if kind == Kind::Split { &self.splits } else { &self.calls };
        let meeting = count.fetch_add(1, Ordering::Relaxed);
        self.tell(kind, number, text);
        let own = Record::new(kind, self.rank, number, text);
        let come = |inboxes: &mut Vec<Inbox>| -> Option<Vec<Record>> {
            let all = (0..inboxes.len()).all(|rank| rank == self.rank || !inboxes[rank].of(kind).is_empty());
            let take = |(rank, inbox): (usize, &mut Inbox)| match rank == self.rank {
                true => Some(own.clone()),
                false => inbox.of(kind).pop_front(),
            };
            if all { inboxes.iter_mut().enumerate().map(take).collect() } else { None }
        };
        let missing =
            |inboxes: &mut Vec<Inbox>, rank: usize| rank != self.rank && inboxes[rank].of(kind).is_empty();
        let records = self.wait(op, come, missing)?;
        let first = &records[0];
        if let Some(other) = records.iter().find(|record| !record.agrees(first)) {
            // Every rank finds it by itself.
            self.is_told.store(true, Ordering::Relaxed);
            let first = Side { rank: self.members[0], call: &first.text };
            let second = Side { rank: self.members[other.from], call: &other.text };
            return Err(self.fail(mismatch(meeting, first, second)));
        }
        Ok(records.into_iter().map(|record| record.number).collect())
    }

    /// The next message that `from` has sent.
    pub(super) fn message(&self, op: &'static str, from: usize) -> Result<Record> {
        let come = |inboxes: &mut Vec<Inbox>| inboxes[from].of(Kind::Message).pop_front();
        let missing = |inboxes: &mut Vec<Inbox>, rank: usize| {
            rank == from && inboxes[rank].of(Kind::Message).is_empty()
        };
        self.wait(op, come, missing)
    }

    /// Waits until something has come, of ranks of which none may have left that is `missing`.
    fn wait<T>(
        &self,
        op: &'static str,
        mut come: impl FnMut(&mut Vec<Inbox>) -> Option<T>,
        missing: impl Fn(&mut Vec<Inbox>, usize) -> bool,
    ) -> Result<T> {
        let found = look(self.deadline(), || {
            if let Err(error) = self.read() {
                return Some(Err(error));
            }
            let inboxes = &mut *self.inboxes.lock();
            if let Some(come) = come(inboxes) {
                return Some(Ok(come));
            }
            if let Some(failure) = self.failure.get() {
                return Some(Err(failure));
            }
            let mut ranks = 0..self.size();
            let left = ranks.find_map(|rank| inboxes[rank].left.clone().filter(|_| missing(inboxes, rank)));
            left.map(|(rank, reason)| Err(lost(op, rank, &reason)))
        });
        let found = found.unwrap_or_else(|| {
            let inboxes = &mut *self.inboxes.lock();
            let missed = (0..self.size()).filter(|&rank| missing(inboxes, rank));
            let missing: Vec<usize> = missed.map(|rank| self.members[rank]).collect();
            Err(late(op, self.options.timeout, missing))
        });
        found.map_err(|error| self.fail(error))
    }

    /// Waits for the end of an operation of a collective at which all ranks are.
    pub(super) fn end<M>(&self, op: &'static str, mut pending: Pending<M>) -> Result<M> {
        let ended = look(self.deadline(), || match pending.ended() {
            Ok(Some(memory)) => Some(Ok(memory)),
            Err(error) => Some(Err(error)),
            Ok(None) => match self.read() {
                Err(error) => Some(Err(error)),
                Ok(()) => self.failure.get().map(Err),
            },
        });
        ended.unwrap_or_else(|| Err(self.stuck(op))).map_err(|error| self.fail(error))
    }

    /// The error for a collective that does not end: names the ranks that say nothing.
    pub(super) fn stuck(&self, op: &'static str) -> Error {
        self.tell(Kind::Stuck, 0, "");
        let silent = |inboxes: &[Inbox]| -> Vec<usize> {
            (0..inboxes.len()).filter(|&rank| rank != self.rank && !inboxes[rank].is_alive()).collect()
        };
        let grace = Instant::now() + GRACE.min(self.options.timeout);
        let _ = look(Some(grace), || {
            let read = self.read().is_err() || self.failure.get().is_some();
            (read || silent(&self.inboxes.lock()).is_empty()).then_some(())
        });
        let silent = silent(&self.inboxes.lock());
        let missing: Vec<usize> = silent.into_iter().map(|rank| self.members[rank]).collect();
        late(op, self.options.timeout, missing)
    }

    fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.options.timeout)
    }
}

/// What [`Group::fail_mismatch`] sends.
fn decode_mismatch(record: &Record) -> Option<Error> {
    let mut parts = record.text.split('\n');
    let mut side = || Some(Side { rank: parts.next()?.parse().ok()?, call: parts.next()? });
    Some(mismatch(record.number as u64, side()?, side()?))
}

/// The rank whose fault an error is, as far as it says, and why.
pub(super) fn blame(error: &Error, own: usize) -> (usize, String) {
    match error.kind() {
        ErrorKind::RankLost { rank, reason, .. } => (*rank, reason.to_string()),
        ErrorKind::CollectiveTimeout { missing, .. } => {
            (missing.first().copied().unwrap_or(own), format!("rank {own}: {error}"))
        }
        ErrorKind::CollectiveMismatch { other, .. } => (*other, format!("rank {own}: {error}")),
        other => (own, other.to_string()),
    }
}
