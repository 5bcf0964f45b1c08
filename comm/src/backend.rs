//! What moves bytes between ranks.

use std::fmt;
use std::sync::Arc;

use device::cuda::Queue;
use device::{Buffer, Device, Shared, Stream};
use kernels::View;

use crate::failure::unavailable;
use crate::{Call, Collective, Memory, Result};

/// One rank's end of a group, which moves the bytes: of threads, of NCCL, of MPI.
///
/// A backend is given one call at a time, in the order of the launches, and its memory is ready then. It goes when the last
/// handle of its communicator and the last command have gone: the others are then told that this rank is lost, where they
/// wait for it.
///
/// # Safety
/// [`run`](Self::run), [`try_run`](Self::try_run), [`launch`](Self::launch) and [`enqueue`](Self::enqueue) touch nothing but the
/// operands, whose sizes follow from the call and [`size`](Self::size), while the call runs, and have other ranks touch them then
/// only. [`size`](Self::size) is always the same number, and so is [`rank`](Self::rank), which is less.
///
/// ```compile_fail,E0200
/// # use std::sync::Arc;
/// # use comm::{Backend, Call, Collective, Memory};
/// # use device::{Error, Result};
/// #[derive(Debug)]
/// struct Lies;
/// impl Backend for Lies {
///     fn rank(&self) -> usize { 7 }
///     fn size(&self) -> usize { 1 }
///     fn failure(&self, _: Collective) -> Option<Error> { None }
///     fn run(&self, _: &Call, _: Memory) -> Result<()> { Ok(()) }
///     fn split(&self, _: Option<usize>, _: usize) -> Result<Option<Arc<dyn Backend>>> { Ok(None) }
/// }
/// ```
pub unsafe trait Backend: fmt::Debug + Send + Sync + 'static {
    /// This rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Why the group is of no use any more to a collective that is about to be launched, if it is not. A rank that has left is of
    /// none to collectives of all ranks, and to messages to it: what it sent is there to be received, and the others' go on.
    fn failure(&self, collective: Collective) -> Option<crate::Error>;

    /// Whether it knows the host's memory only: operands of a CUDA device are then copied to pinned memory and back.
    fn runs_on_host(&self) -> bool {
        false
    }

    /// How much memory a call needs besides its operands, on `device`.
    fn workspace_bytes(&self, call: &Call, device: &Device) -> usize {
        let _ = (call, device);
        0
    }

    /// Called once, with what every command of its communicator writes: whether one is under way is in its log.
    fn follow(&self, token: &Shared<Buffer>) {
        let _ = token;
    }

    /// Does a call, on a thread of the stream's own; waits for the other ranks.
    ///
    /// # Errors
    /// `RankLost`, `CollectiveMismatch`,
    /// `CollectiveTimeout`, and those of the library behind it.
    fn run(&self, call: &Call, memory: Memory) -> Result<()>;

    /// Whether a call has what it waits for, or this rank is to wait for the others, and not they for it: where ranks choose among
    /// calls of several groups, all choose the same.
    fn is_ready(&self, call: &Call) -> bool {
        let _ = call;
        true
    }

    /// Does a call if that takes but a moment: `false` if not. What it began then, [`run`](Self::run), which is called next, ends.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    fn try_run(&self, call: &Call, memory: Memory) -> Result<bool> {
        let _ = (call, memory);
        Ok(false)
    }

    /// Launches a call as commands of its own on a CUDA device's `stream`, where a rank has one and its backend does not enqueue
    /// calls; `None` where it does, and on a CPU.
    fn launch(
        &self,
        call: &Call,
        stream: &Stream,
        x: Option<View<'_>>,
        out: Option<View<'_>>,
    ) -> Option<Result<()>> {
        let _ = (call, stream, x, out);
        None
    }

    /// Enqueues a call on a stream of a CUDA device.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and what the queue returns; `CommUnavailable` by default.
    fn enqueue(&self, call: &Call, memory: Memory, queue: &Queue<'_>) -> Result<()> {
        let _ = (memory, queue);
        Err(unavailable(format_args!("{} is not enqueued on CUDA streams by this backend", call.op())))
    }

    /// The rank's end of a group of those ranks that give the same `color`, in the order of `key`, those with equal ones in the
    /// order of their ranks. `None` gives none. Every rank calls it; waits for them.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Arc<dyn Backend>>>;
}
