//! Collectives of ranks whose devices are CUDA devices: copies between these, which the ranks' threads launch while they meet.
//!
//! A rank's stream copies what it needs from where the others have it. Such a copy is a command with its uses, which orders it
//! after what wrote the operand, on whatever device, and before what will. So the threads meet, not the streams.

use std::ops::Range;

use device::cuda::Queue;
use device::{Binder, Buffer, Capture, Cpu, DType, Stream, Use, Work};
use kernels::{Layout, View, join_parts};

use super::member::{Member, Shown};
use crate::{Call, Collective, Error, ErrorKind, Memory, Reduce, Result};

/// A rank's operands at a meeting.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) stream: &'a Stream,
    pub(super) x: Option<View<'a>>,
    pub(super) out: Option<View<'a>>,
}

/// What is copied of one rank's input, in elements, and to which element.
struct Piece {
    rank: usize,
    from: usize,
    len: usize,
    to: usize,
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
                let out = operands.out.as_ref().map(place);
                self.meet_for(call, operands, |shown| match out {
                    Some((buffer, offset)) => {
                        self.copy_pieces(call, operands.stream, shown, (buffer, offset))
                    }
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
        let at = std::ptr::from_ref(&operands).cast::<u8>();
        let shown = Memory { input: at, output: std::ptr::null_mut(), workspace: std::ptr::null_mut() };
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
        self.meet_for(call, operands, |shown| self.copy_pieces(call, stream, shown, (&parts, 0)))?;
        // Not before: the output may be the input, which others have copied now.
        let (buffer, offset) = place(&out);
        let uses = [Use::read(&parts), Use::write(buffer)];
        let join = Join {
            reduce,
            dtype: call.dtype,
            ranks,
            elements,
            parts: parts.ptr(),
            out: buffer.ptr().wrapping_add(offset),
        };
        stream.launch(call.op(), &uses, join)
    }

    /// What this rank copies.
    fn pieces(&self, call: &Call) -> Vec<Piece> {
        let (ranks, own, elements) = (self.group.size(), self.rank, call.elements());
        let part = elements / ranks;
        let whole = |rank: usize, to: usize| Piece { rank, from: 0, len: elements, to };
        let own_part = |rank: usize| Piece { rank, from: own * part, len: part, to: rank * part };
        match call.collective {
            Collective::Broadcast { root } => vec![whole(root, 0)],
            Collective::AllToAll | Collective::ReduceScatter(_) => (0..ranks).map(own_part).collect(),
            _ => (0..ranks).map(|rank| whole(rank, rank * elements)).collect(),
        }
    }

    /// Launches the copies of what is shown to a buffer, from a byte on.
    fn copy_pieces(
        &self,
        call: &Call,
        stream: &Stream,
        shown: &Shown,
        (to, offset): (&Buffer, usize),
    ) -> Result<()> {
        let each = call.dtype.size_bytes();
        for Piece { rank, from, len, to: at } in self.pieces(call).into_iter().filter(|piece| piece.len > 0) {
            // SAFETY: in `meet_for` every rank shows its `Operands`, which stay on its stack until all ranks have
            // called `meet`. This rank calls it after `copy`, in which this runs.
            let operands = unsafe { &*shown[rank].input.cast::<Operands<'_>>() };
            let Some((buffer, start)) = operands.x.as_ref().map(place) else { continue };
            let range = start + from * each..start + (from + len) * each;
            let at = offset + at * each;
            if rank != self.rank {
                stream.copy_across(call.op(), to, at, buffer, range)?;
            } else if !(std::ptr::eq(buffer, to) && at == range.start) {
                copy_within(stream, (to, at), (buffer, range))?;
            }
        }
        Ok(())
    }

    /// Sends what is there, by way of the host.
    fn send_copy(&self, call: &Call, operands: Operands<'_>, to: usize) -> Result<()> {
        let Some((buffer, offset)) = operands.x.as_ref().map(place) else { return Ok(()) };
        buffer.download(|bytes| {
            let input = bytes[offset..offset + call.bytes()].as_ptr();
            let (output, workspace) = (std::ptr::null_mut(), std::ptr::null_mut());
            self.send(call, Memory { input, output, workspace }, to)
        })?
    }

    fn recv_copy(&self, call: &Call, operands: Operands<'_>, from: usize) -> Result<()> {
        let Some((buffer, offset)) = operands.out.as_ref().map(place) else { return Ok(()) };
        let mut bytes = vec![0; call.bytes()];
        let (input, workspace) = (std::ptr::null(), std::ptr::null_mut());
        self.recv(call, Memory { input, output: bytes.as_mut_ptr(), workspace }, from)?;
        operands.stream.upload(call.op(), buffer, offset, &bytes)
    }
}

/// Where a view begins: its buffer, and the byte.
fn place<'a>(view: &View<'a>) -> (&'a Buffer, usize) {
    (view.buffer, view.layout.offset() * view.dtype.size_bytes())
}

/// Copies bytes on one device.
fn copy_within(
    stream: &Stream,
    (to, at): (&Buffer, usize),
    (from, range): (&Buffer, Range<usize>),
) -> Result<()> {
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
        cpu.fail(Error::new(ErrorKind::CommUnavailable {
            reason: "copies between devices are of CUDA devices".into(),
        }))
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        let Join { reduce, dtype, ranks, elements, parts, out } = *self;
        // SAFETY: `reduce_copies` allocated `ranks * elements` elements for `parts`, `out` has `elements`, and the
        // launch declares both.
        unsafe { join_parts(queue, reduce.op(), dtype, parts, ranks, elements, out) }
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.parts = binder.address(self.parts);
        self.out = binder.address(self.out);
    }
}
