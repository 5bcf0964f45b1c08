//! What a command does, on whichever device it is launched.

use std::sync::Arc;

use crate::cuda::Queue;
use crate::device::Core;
use crate::{Result, Team};

/// A command's work: a value, which [`Stream::launch`](crate::Stream::launch) runs on the stream's device, once or, where it is
/// kept, again.
///
/// It reaches memory through addresses that it holds. Whoever makes one answers for it that they lie in the buffers which the
/// launch is told of.
pub trait Work: Send + 'static {
    /// Does it on a thread of the host, for a CPU device. A panic is [`Error::Async`](crate::Error::Async) at the next
    /// synchronising call. Must not call the device.
    fn run(&self, cpu: &Cpu<'_>);

    /// Enqueues it on a stream of a CUDA device, before the launch returns.
    ///
    /// # Errors
    /// What the queue returns; what was enqueued until then runs.
    fn enqueue(&self, queue: &Queue<'_>) -> Result<()>;
}

/// Where a command of a CPU device runs.
pub struct Cpu<'a> {
    core: &'a Core,
    threads: usize,
}

impl<'a> Cpu<'a> {
    #[inline(always)]
    pub(crate) fn new(core: &'a Core, threads: usize) -> Cpu<'a> {
        Cpu { core, threads }
    }

    /// The threads to split a kernel over, if it is worth it: `cost` is about the number of its elementary operations.
    pub fn team(&self, cost: usize) -> Option<&'a Arc<Team>> {
        // Some times what a hand-off costs to threads that are awake, as those of a busy stream are.
        const WORTH_SPLITTING: usize = 1 << 17;
        if cost < WORTH_SPLITTING || self.threads < 2 {
            return None;
        }
        self.core.workers()
    }
}

impl std::fmt::Debug for Cpu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu").field("threads", &self.threads).finish_non_exhaustive()
    }
}
