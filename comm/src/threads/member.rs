//! A rank of a group of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use device::cuda::Queue;
use device::{Buffer, Shared, Stream};
use kernels::View;
use smallvec::SmallVec;

use super::across::Operands;
use super::elements::Elements;
use super::group::Group;
use crate::{Backend, Call, Collective, Error, ErrorKind, Memory, Result};

/// One rank's end of a group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) group: Arc<Group>,
    pub(super) rank: usize,
    /// The meetings that it has been at, or is.
    meetings: AtomicU64,
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
        if let Some(failure) = self.group.failure() {
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

// SAFETY: other ranks access a rank's memory only in a meeting that has begun, in which the rank stays until all have
// ended it; messages are copied by this rank. Rank and size are fixed when the group is made.
unsafe impl Backend for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn failure(&self, collective: Collective) -> Option<Error> {
        match collective {
            Collective::Recv { .. } => None,
            Collective::Send { to } => self.group.message_failure(to),
            _ => self.group.failure(),
        }
    }

    fn follow(&self, token: &Shared<Buffer>) {
        self.group.follow(self.rank, token);
    }

    fn run(&self, call: &Call, memory: Memory) -> Result<()> {
        match call.collective {
            Collective::Send { to } => self.send(call, memory, to),
            Collective::Recv { from } => self.recv(call, memory, from),
            _ => {
                let number = self.arrive(call, memory)?;
                self.group.begin(call.op(), number)?;
                self.take_part(number, call)
            }
        }
    }

    fn is_ready(&self, call: &Call) -> bool {
        match call.collective {
            Collective::Send { .. } => true,
            Collective::Recv { from } => self.has_mail(from),
            // Rank 0 chooses, and the others follow.
            _ => {
                let number = self.meetings.load(Ordering::Relaxed);
                self.group.failure().is_some() || self.group.has_come(0..self.rank, number)
            }
        }
    }

    fn try_run(&self, call: &Call, memory: Memory) -> Result<bool> {
        match call.collective {
            Collective::Send { to } => return self.send(call, memory, to).map(|()| true),
            Collective::Recv { .. } => return Ok(false),
            _ if self.group.options.model.is_some() => return Ok(false),
            _ => {}
        }
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

    fn launch(
        &self,
        call: &Call,
        stream: &Stream,
        x: Option<View<'_>>,
        out: Option<View<'_>>,
    ) -> Option<Result<()>> {
        stream.is_cuda().then(|| self.launch_copies(call, Operands { stream, x, out }))
    }

    fn enqueue(&self, call: &Call, _: Memory, _: &Queue<'_>) -> Result<()> {
        let reason = format!("{} between threads is launched as copies", call.op());
        Err(Error::new(ErrorKind::CommUnavailable { reason: reason.into() }))
    }

    fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Arc<dyn Backend>>> {
        let made = self.split_group(color, key)?;
        Ok(made.map(|member| Arc::new(member) as Arc<dyn Backend>))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let reason =
            if std::thread::panicking() { "its thread panicked" } else { "its communicator was dropped" };
        let rank = self.group.members[self.rank];
        let lost = Error::new(ErrorKind::RankLost { op: "collective", rank, reason: reason.into() });
        // Who leaves because of another rank is not the one to name.
        self.group.leave(self.rank, self.group.inherited_failure().unwrap_or(lost));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use device::DType;
    use kernels::Dims;

    use super::*;
    use crate::{CommOptions, Reduce, ReduceOrder};

    /// A rank whose next call is launched already goes on before another one has looked at what all showed.
    #[test]
    fn what_a_rank_showed_stays_for_those_who_look_later() {
        let group = Group::new(Box::new([0, 1]), CommOptions::default(), None);
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
            Memory { input: output, output, workspace: std::ptr::null_mut() }
        });
        let numbers = [first.arrive(&sum(2), one).unwrap(), second.arrive(&sum(1), other).unwrap()];
        let is_mismatch = |result: Result<()>| {
            matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::CollectiveMismatch { .. }))
        };
        assert!(is_mismatch(first.take_part(numbers[0], &sum(2))));
        assert!(is_mismatch(first.run(&sum(1), one)));
        assert!(is_mismatch(second.take_part(numbers[1], &sum(1))));
        assert_eq!(values, [[1.0; 2]; 2]);
    }
}
