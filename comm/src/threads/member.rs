//! A rank of a group of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::elements::Elements;
use super::group::Group;
use super::mail::Message;
use crate::failure::{Side, late, mismatch};
use crate::{Call, Memory, Result};

/// One rank's end of a group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) group: Arc<Group>,
    pub(super) rank: usize,
    /// The meetings that it has been at, or is.
    pub(super) meetings: AtomicU64,
    /// The steps of meetings that it has ended.
    steps: AtomicU64,
    /// Whether it has arrived at a meeting that has not begun.
    has_arrived: AtomicBool,
    /// How often it split the group.
    pub(super) splits: AtomicU64,
}

/// What the ranks show at a meeting, by rank.
pub(super) type Shown = SmallVec<[Memory; 8]>;

/// How long a launching thread looks out for the others.
const MOMENT: Duration = Duration::from_micros(20);

impl Member {
    pub(super) fn new(group: Arc<Group>, rank: usize) -> Member {
        Member {
            group,
            rank,
            meetings: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            has_arrived: AtomicBool::new(false),
            splits: AtomicU64::new(0),
        }
    }

    /// The number of the meeting that it arrives at, or has arrived at. At none once the group has failed: others may still be
    /// looking at what this rank showed at the last one.
    pub(super) fn arrive(&self, call: &Call, memory: Memory) -> Result<u64> {
        if self.has_arrived.swap(false, Ordering::Relaxed) {
            return Ok(self.meetings.load(Ordering::Relaxed) - 1);
        }
        if let Some(failure) = self.group.failure.get() {
            return Err(failure);
        }
        let number = self.meetings.fetch_add(1, Ordering::Relaxed);
        self.group.arrive(self.rank, number, call, memory);
        Ok(number)
    }

    /// Does this rank's part of meeting `number`, which has begun.
    fn take_part(&self, number: u64, call: &Call) -> Result<()> {
        let begin = Instant::now();
        let shown: Shown = self.group.shown(number).map_err(|error| self.group.fail(error))?;
        let elements = Elements { call, rank: self.rank, shown: &shown };
        // SAFETY: the meeting has begun, so every rank has shown memory, and `shown` has checked that it is for the
        // same call. No rank leaves or reuses its memory before all have ended the last step.
        unsafe { elements.exchange(&|| self.meet()) };
        self.stay(begin, call);
        Ok(())
    }

    /// Takes part in a meeting for `call`, which waits for the other ranks.
    pub(super) fn run_collective(&self, call: &Call, memory: Memory) -> Result<()> {
        let number = self.arrive(call, memory)?;
        self.group.begin(call.op(), number)?;
        self.take_part(number, call)
    }

    /// [`run_collective`](Self::run_collective) if the others come within a moment. If not, the rank has arrived, and
    /// `run_collective` goes on from there.
    pub(super) fn try_collective(&self, call: &Call, memory: Memory) -> Result<bool> {
        let number = self.arrive(call, memory)?;
        let start = Instant::now();
        while start.elapsed() < MOMENT {
            if let Some(begun) = self.group.has_begun(number) {
                return begun.and_then(|()| self.take_part(number, call)).map(|()| true);
            }
            std::thread::yield_now();
        }
        self.has_arrived.store(true, Ordering::Relaxed);
        Ok(false)
    }

    pub(super) fn send(&self, call: &Call, memory: Memory, to: usize) -> Result<()> {
        if let Some(failure) = self.group.message_failure(to) {
            return Err(failure);
        }
        let mut bytes = vec![0; call.bytes()].into_boxed_slice();
        // SAFETY: the input of a send is dense and has `call.bytes()` bytes, the length of `bytes`, which is an
        // allocation of its own.
        unsafe { std::ptr::copy_nonoverlapping(memory.input, bytes.as_mut_ptr(), bytes.len()) };
        self.group.mail.put(self.rank, to, Message { call: call.clone(), bytes, sent: Instant::now() });
        self.group.tell();
        Ok(())
    }

    pub(super) fn recv(&self, call: &Call, memory: Memory, from: usize) -> Result<()> {
        let group = &self.group;
        let come = || {
            // The failure first: what was sent before its sender left is in the mail.
            let failure = group.message_failure(from);
            group.mail.take(from, self.rank).map(Ok).or(failure.map(Err))
        };
        let (number, message) = group.wait(come).unwrap_or_else(|| {
            Err(group.fail(late(call.op(), group.options.timeout, [group.members[from]])))
        })?;
        if (message.call.dtype, &message.call.shape) != (call.dtype, &call.shape) {
            let sent = Side { rank: group.members[from], call: &message.call };
            let own = Side { rank: group.members[self.rank], call };
            let failure = group.fail(mismatch(number, sent, own));
            group.report(message.call.op(), from, failure.clone());
            return Err(failure);
        }
        // SAFETY: the output is dense, and has the type and shape of the message, which was just checked. The message
        // is an allocation of its own.
        unsafe { std::ptr::copy_nonoverlapping(message.bytes.as_ptr(), memory.output, message.bytes.len()) };
        self.stay(message.sent, call);
        Ok(())
    }

    pub(super) fn meet(&self) {
        self.group.meet(self.steps.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// Waits until `call` would have ended on the modelled network.
    pub(super) fn stay(&self, begin: Instant, call: &Call) {
        if let Some(time) = self.group.modelled(call) {
            std::thread::sleep(time.saturating_sub(begin.elapsed()));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.leave(self.rank);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use device::DType;
    use kernels::Dims;

    use super::*;
    use crate::{Collective, CommOptions, Error, ErrorKind, Reduce, ReduceOrder};

    /// A rank whose next call is launched already goes on before another one has looked at what all showed.
    #[test]
    fn what_a_rank_showed_stays_for_those_who_look_later() {
        let group = Group::new(Box::new([0, 1]), CommOptions::default(), Arc::default());
        let [first, second] = [0, 1].map(|rank| Member::new(Arc::clone(&group), rank));
        let sum = |elements: usize| Call {
            collective: Collective::AllReduce(Reduce::Sum),
            dtype: DType::F32,
            shape: Dims::from_slice(&[elements]),
            order: ReduceOrder::default(),
        };
        let mut values = [[1.0_f32; 2]; 2];
        let [one, other] = values.each_mut().map(|values| {
            let output = values.as_mut_ptr().cast::<u8>();
            Memory { input: output, output, ..Memory::NONE }
        });
        let numbers = [first.arrive(&sum(2), one).unwrap(), second.arrive(&sum(1), other).unwrap()];
        let is_mismatch = |result: Result<()>| {
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::CollectiveMismatch { .. }))
        };
        assert!(is_mismatch(first.take_part(numbers[0], &sum(2))));
        assert!(is_mismatch(first.run_collective(&sum(1), one)));
        assert!(is_mismatch(second.take_part(numbers[1], &sum(1))));
        assert_eq!(values, [[1.0; 2]; 2]);
    }
}
