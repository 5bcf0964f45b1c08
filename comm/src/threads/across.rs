//! Collectives of ranks whose devices are CUDA devices: copies between these, which the ranks' threads launch while they meet.
//!
//! A rank's stream copies what it needs from where the others have it. Such a copy is a command with its uses, which orders it
//! after what wrote the operand, on whatever device, and before what will. So the threads meet, not the streams.

use std::ops::Range;

use device::cuda::Queue;
use device::{Binder, Buffer, Capture, Cpu, DType, Stream, Use, Work};
use kernels::{Layout, View, join_parts};

use super::member::{Member, Shown};
use crate::call::Piece;
use crate::failure::unavailable;
use crate::operand::Operand;
use crate::{Call, Collective, Memory, Reduce, Result};

/// A rank's operands at a meeting.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) stream: &'a Stream,
    pub(super) x: Option<View<'a>>,
    pub(super) out: Option<View<'a>>,
}

impl Member {
    /// Launches `call` as copies; the host waits until all ranks do.
    pub(super) fn launch_copies(&self, call: &Call, operands: Operands<'_>) -> Result<()> {
        Capture::none(call.op())?;
        let done = match call.collective {
            Collective::Send { to } => return self.send_copy(call, operands, to),
            Collective::Recv { from } => return self.recv_copy(call, operands, from),
            Collective::Barrier => self.meet_for(call, operands, |_| Ok(())),
            Collective::AllReduce(reduce) | Collective::ReduceScatter(reduce) => {
                self.reduce_copies(call, operands, reduce)
            }
            Collective::AllGather | Collective::AllToAll | Collective::Broadcast { .. } => {
                let out = operands.out.map(Operand::new);
                self.meet_for(call, operands, |shown| match out {
                    Some(out) => self.copy_pieces(call, operands.stream, shown, out.buffer, out.start),
                    None => Ok(()),
                })
            }
        };
        done.map_err(|error| self.group.fail(error))
    }

    /// Calls `copy` with what all ranks have shown; returns when all have launched what it launches.
    fn meet_for(
        &self,
        call: &Call,
        operands: Operands<'_>,
        copy: impl FnOnce(&Shown) -> Result<()>,
    ) -> Result<()> {
        let shown = Memory { input: std::ptr::from_ref(&operands).cast(), ..Memory::NONE };
        let number = self.arrive(call, shown)?;
        self.group.begin(call.op(), number)?;
        let shown: Shown = self.group.shown(number)?;
        let launched = copy(&shown);
        // Nobody leaves before: the others look at this rank's operands.
        self.meet();
        launched
    }

    /// Joins all ranks' elements once they are here.
    fn reduce_copies(&self, call: &Call, operands: Operands<'_>, reduce: Reduce) -> Result<()> {
        let (Operands { stream, .. }, Some(out)) = (operands, operands.out) else { return Ok(()) };
        let ranks = self.group.size();
        let elements = out.shape().iter().product();
        let parts = allocator::allocate_shared(stream, ranks * elements * call.dtype.size_bytes())?;
        self.meet_for(call, operands, |shown| self.copy_pieces(call, stream, shown, &parts, 0))?;
        // Not before: the output may be the input, which others have copied now.
        let to = Operand::new(out);
        let uses = [Use::read(&parts), Use::write(to.buffer)];
        let join = Join { reduce, dtype: call.dtype, ranks, elements, parts: parts.ptr(), out: to.address() };
        stream.launch(call.op(), &uses, join)
    }

    /// Launches the copies of what is shown to a buffer, from byte `start` on.
    fn copy_pieces(
        &self,
        call: &Call,
        stream: &Stream,
        shown: &Shown,
        to: &Buffer,
        start: usize,
    ) -> Result<()> {
        let each = call.dtype.size_bytes();
        for piece in call.pieces(self.rank, self.group.size()) {
            let Piece { rank, from, len, to: at } = piece;
            // SAFETY: in `meet_for` every rank shows its `Operands`, which stay on its stack until all ranks have
            // called `meet`. This rank calls it after `copy`, in which this runs.
            let operands = unsafe { &*shown[rank].input.cast::<Operands<'_>>() };
            let Some(x) = operands.x.map(Operand::new) else { continue };
            let range = x.start + from * each..x.start + (from + len) * each;
            let at = start + at * each;
            if rank != self.rank {
                stream.copy_across(call.op(), to, at, x.buffer, range)?;
            } else if !(std::ptr::eq(x.buffer, to) && at == range.start) {
                copy_within(stream, to, at, x.buffer, range)?;
            }
        }
        Ok(())
    }

    /// Sends what is there, by way of the host.
    fn send_copy(&self, call: &Call, operands: Operands<'_>, to: usize) -> Result<()> {
        let Some(x) = operands.x.map(Operand::new) else { return Ok(()) };
        x.buffer.download(|bytes| {
            let input = bytes.get(x.start..x.start + x.bytes).unwrap_or_default().as_ptr();
            self.send(call, Memory { input, ..Memory::NONE }, to)
        })?
    }

    fn recv_copy(&self, call: &Call, operands: Operands<'_>, from: usize) -> Result<()> {
        let Some(out) = operands.out.map(Operand::new) else { return Ok(()) };
        let mut bytes = vec![0; out.bytes];
        self.recv(call, Memory { output: bytes.as_mut_ptr(), ..Memory::NONE }, from)?;
        operands.stream.upload(call.op(), out.buffer, out.start, &bytes)
    }
}

/// Copies bytes on one device.
fn copy_within(stream: &Stream, to: &Buffer, at: usize, from: &Buffer, range: Range<usize>) -> Result<()> {
    let bytes = |buffer: &Buffer, start: usize| {
        Layout::contiguous(&[buffer.len_bytes()]).narrow("copy", 0, start, range.len())
    };
    let (to_layout, from_layout) = (bytes(to, at)?, bytes(from, range.start)?);
    kernels::copy(stream, View::new(from, DType::U8, &from_layout), View::new(to, DType::U8, &to_layout))
}

/// Joins the ranks' elements, in rank order.
struct Join {
    reduce: Reduce,
    dtype: DType,
    ranks: usize,
    elements: usize,
    parts: *mut u8,
    out: *mut u8,
}

// SAFETY: plain addresses. Only the launched command dereferences them, and it declares both buffers as its uses.
unsafe impl Send for Join {}
// SAFETY: no method changes the addresses through a shared reference; see `Send` for the memory behind them.
unsafe impl Sync for Join {}

impl Work for Join {
    fn run(&self, cpu: &Cpu<'_>) {
        cpu.fail(unavailable("copies between devices are of CUDA devices"));
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let Join { reduce, dtype, ranks, elements, parts, out } = *self;
        // SAFETY: `reduce_copies` allocated `ranks * elements` elements for `parts`, `out` has `elements`, and the
        // launch declares both.
        unsafe { join_parts(queue, reduce, dtype, parts, ranks, elements, out) }
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.parts = binder.address(self.parts);
        self.out = binder.address(self.out);
    }
}
