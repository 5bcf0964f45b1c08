//! What a command does, on whichever device it is launched.

use std::any::Any;
use std::sync::Arc;

use crate::core::Core;
use crate::cuda::Queue;
use crate::{CommandKind, Error, Result, Team, failure};

/// A command's work: a value, which [`Stream::launch`](crate::Stream::launch) runs on the stream's device, once or, where it is
/// kept, again.
///
/// It reaches memory through addresses that it holds. Whoever makes one answers for it that they lie in the buffers which the
/// launch is told of.
pub trait Work: Send + Sync + 'static {
    /// Does it on a thread of the host, for a CPU device. A panic is `Async` at the next
    /// synchronising call. Must not call the device.
    fn run(&self, cpu: &Cpu<'_>);

    /// Enqueues it on a stream of a CUDA device, before the launch returns. In a capture it is called with a queue that only
    /// notes what it would be, too.
    ///
    /// # Errors
    /// What the queue returns; what was enqueued until then runs.
    fn enqueue(&self, queue: &Queue<'_>) -> Result<()>;

    /// Gives `binder` every address that it holds, and keeps the one that it answers with; and every scalar that may be another
    /// one when it runs again, to be changed in place. Both in the same order each time.
    ///
    /// Called only for work that is kept, between two calls of [`run`](Work::run) or [`enqueue`](Work::enqueue): when its memory
    /// is known, and before a replay that changes something. All else that it holds stays as it was at the capture.
    fn bind(&mut self, binder: &mut dyn Binder);

    /// About how many elementary operations a CPU needs, 0 if it is not known.
    fn cost(&self) -> usize {
        0
    }

    /// What it does, for a layer that makes one command of several that are kept; `None` where nobody knows more than this trait.
    fn part(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// What recordings say that it is.
    fn kind(&self) -> CommandKind {
        CommandKind::Compute
    }

    /// Whether it may wait for something that no stream of its device does, as a collective waits for other ranks. It then has a
    /// thread of the stream's own, whatever the stream's placement, unless [`try_run`](Work::try_run) does it; and in a
    /// captured step such commands keep the program's order among themselves, so that all ranks wait in the same order.
    fn waits(&self) -> bool {
        false
    }

    /// Whether work that [waits](Work::waits) has what it waits for, or is to wait first, so that others can follow: an explored
    /// device runs what else there is before it.
    fn is_ready(&self) -> bool {
        true
    }

    /// Does work that [waits](Work::waits) at once, on the launching thread, if that takes but a moment: whether it is done. What
    /// it began otherwise, [`run`](Work::run) ends.
    fn try_run(&self, cpu: &Cpu<'_>) -> bool {
        let _ = cpu;
        false
    }

    /// Whether it may fail by what it finds in memory, as with an index out of range: then it runs even if nobody uses what it
    /// writes.
    fn may_fail(&self) -> bool {
        true
    }
}

/// Gives a command that is kept other addresses and scalars; see [`Work::bind`].
pub trait Binder {
    /// The address to use from now on instead of `at`.
    fn address(&mut self, at: *mut u8) -> *mut u8;

    /// A scalar that may change from step to step, such as the key of a random op, to be changed in place.
    fn scalar(&mut self, value: &mut dyn Any);
}

/// Where a command of a CPU device runs.
pub struct Cpu<'a> {
    helpers: Helpers<'a>,
    threads: usize,
}

/// Whom a kernel may be split over.
enum Helpers<'a> {
    /// The device's threads.
    Device(&'a Core),
    /// The threads that replay a captured step, where they have nothing else to do.
    Crew(&'a Arc<Team>),
}

impl<'a> Cpu<'a> {
    #[inline(always)]
    pub(crate) fn new(core: &'a Core, threads: usize) -> Cpu<'a> {
        Cpu { helpers: Helpers::Device(core), threads }
    }

    /// On a thread of a crew whose others, where they are idle, help as `team`.
    pub(crate) fn of_crew(team: &'a Arc<Team>) -> Cpu<'a> {
        Cpu { helpers: Helpers::Crew(team), threads: team.helpers() + 1 }
    }

    /// The threads that a replay runs on beside this one.
    pub(crate) fn crew(&self) -> Option<&'a Arc<Team>> {
        match self.helpers {
            Helpers::Device(core) if self.threads > 1 => core.workers(),
            _ => None,
        }
    }

    /// The seed of the order of a replay's commands, on an explored device that picks one.
    pub(crate) fn plan_order(&self) -> Option<u64> {
        match self.helpers {
            Helpers::Device(core) => core.explorer()?.plan_order(),
            Helpers::Crew(_) => None,
        }
    }

    /// As [`failure::report`].
    #[cold]
    pub fn fail(&self, error: Error) {
        failure::report(error);
    }

    /// The threads to split a kernel over, if it is worth it: `cost` is about the number of its elementary operations.
    pub fn team(&self, cost: usize) -> Option<&'a Arc<Team>> {
        // Some times what a hand-off costs to threads that are awake, as those of a busy stream are.
        const WORTH_SPLITTING: usize = 1 << 17;
        if cost < WORTH_SPLITTING || self.threads < 2 {
            return None;
        }
        match self.helpers {
            Helpers::Device(core) => core.workers(),
            Helpers::Crew(team) => Some(team),
        }
    }
}

debug_fields!(Cpu<'_> { threads });
