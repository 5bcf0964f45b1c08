//! NCCL as a backend: which of its functions make a call.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use device::cuda::Queue;
use device::{Buffer, DType, Device, Shared};
use kernels::{Dims, join_parts};

use super::group::Patience;
use super::handle::has_begun;
use super::library::{Library, RawComm, RawStream};
use super::rank::WatchedRank;
use super::watch;
use crate::failure::{reason_of_drop, unavailable};
use crate::{Backend, Call, Collective, Error, Memory, Reduce, ReduceOrder, Result};

/// A communicator's handle of a rank, which is closed when this is dropped.
#[derive(Debug)]
pub(super) struct Member(Arc<WatchedRank>);

impl Member {
    pub(super) fn new(rank: WatchedRank) -> Result<Member> {
        let rank = Arc::new(rank);
        watch::join(&rank)?;
        Ok(Member(rank))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        watch::leave(Arc::clone(&self.0), reason_of_drop());
    }
}

// SAFETY: the enqueued work reads the input and writes the output and the workspace, in the sizes that follow from
// the call and the number of ranks. Other ranks get copies of the input. Rank and size are fixed when the member is
// made.
unsafe impl Backend for Member {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn size(&self) -> usize {
        self.0.group.size
    }

    fn failure(&self, collective: Collective) -> Option<Error> {
        match collective {
            Collective::Recv { .. } => None,
            Collective::Send { to } => self.0.group.message_failure(to),
            _ => self.0.group.failure.get(),
        }
    }

    fn workspace_bytes(&self, call: &Call, _: &Device) -> usize {
        let (size, each) = (self.size(), call.dtype.size_bytes());
        match call.collective {
            Collective::Barrier => 1,
            // A stand-in's operands.
            _ if call.elements() == 0 => 3 * size * each,
            collective => {
                let joined = |reduce| joined_elements(call, reduce, self.rank(), size);
                collective.reduce().map_or(0, |reduce| joined(reduce) * size * each)
            }
        }
    }

    fn follow(&self, token: &Shared<Buffer>) {
        self.0.follow(token);
    }

    fn run(&self, call: &Call, _: Memory) -> Result<()> {
        Err(unavailable(format_args!("{} by NCCL is on CUDA devices", call.op())))
    }

    fn enqueue(&self, call: &Call, memory: Memory, queue: &Queue<'_>) -> Result<()> {
        let dtype = type_of(call)?;
        let has_elements = call.elements() > 0 || call.collective == Collective::Barrier;
        self.0.launch(call, |patience| {
            let told = Cell::new(false);
            let calls = Calls { rank: &self.0, asked: call, call, memory, queue, patience, dtype, told };
            if has_elements { calls.run() } else { calls.run_stand_in() }
        })
    }

    fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Arc<dyn Backend>>> {
        let rank = &self.0;
        let (made, number) = rank.split(color, key)?;
        let (Some(handle), Some(color)) = (made, color) else { return Ok(None) };
        let (place, size) = handle.place()?;
        let group = rank.group.split(number, color, rank.rank, place, size);
        Ok(Some(Arc::new(Member::new(WatchedRank::new(handle, group, place, &rank.device, rank.options))?)))
    }
}

/// Up to so many bytes every rank adds all by itself, which takes one call less.
const SMALL_BYTES: usize = 64 << 10;

/// How a reduction is made.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// By the library, in an order of its own.
    Library,
    /// Each rank gets all elements, and joins them in rank order.
    Gathered,
    /// Each rank gets a part of all, joins that in rank order, and gives it to the others.
    Parts,
}

/// How `call` is reduced. The library's largest and smallest of floats are not NaN where one of them is.
fn how(call: &Call, reduce: Reduce, size: usize) -> How {
    let ordered = call.dtype.is_float() && matches!(reduce, Reduce::Max | Reduce::Min);
    let whole = matches!(call.collective, Collective::AllReduce(_));
    match call.order {
        ReduceOrder::Fast if !ordered => How::Library,
        _ if whole && (size <= 2 || call.bytes() <= SMALL_BYTES) => How::Gathered,
        _ => How::Parts,
    }
}

/// How many elements of each rank this one joins.
fn joined_elements(call: &Call, reduce: Reduce, rank: usize, size: usize) -> usize {
    match how(call, reduce, size) {
        How::Library => 0,
        How::Gathered => call.elements(),
        How::Parts => call.part(rank, size).len(),
    }
}

/// As the library numbers them. Truth values are bytes, of which the largest and the smallest are asked for.
fn type_of(call: &Call) -> Result<c_int> {
    Ok(match call.dtype {
        DType::U8 | DType::Bool => 1,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        dtype => return Err(Error::dtype_unsupported(call.op(), dtype, "floats, i64, u8 and bool")),
    })
}

/// As the library numbers them.
fn reduction_of(reduce: Reduce) -> c_int {
    match reduce {
        Reduce::Sum => 0,
        Reduce::Prod => 1,
        Reduce::Max => 2,
        Reduce::Min => 3,
        Reduce::Mean => 4,
    }
}

/// The library's calls of which a collective is made.
struct Calls<'a> {
    rank: &'a WatchedRank,
    /// The call that the group compares.
    asked: &'a Call,
    /// The call that is enqueued: `asked`, or its stand-in.
    call: &'a Call,
    memory: Memory,
    queue: &'a Queue<'a>,
    patience: &'a Patience<'a>,
    dtype: c_int,
    /// Whether the group was told of the call.
    told: Cell<bool>,
}

impl Calls<'_> {
    /// Has the library enqueue what `call` asks it for.
    ///
    /// # Safety
    /// `call` calls the library with this communicator and this stream, and memory of the command.
    unsafe fn enqueue(
        &self,
        name: &'static str,
        call: impl FnOnce(&'static Library, RawComm, RawStream) -> c_int,
    ) -> Result<()> {
        let enqueue = |stream: RawStream| {
            if !self.told.replace(true) {
                self.rank.group.launch(self.rank.rank, self.asked)?;
            }
            self.rank.handle.call(name, self.patience, |library, comm| call(library, comm, stream))
        };
        // SAFETY: the caller promises that `call` enqueues only on the given stream, and only work on the command's
        // operands.
        unsafe { self.queue.library(self.call.op(), enqueue) }
    }

    /// The address of an element.
    fn at(&self, base: *const u8, element: usize) -> *mut c_void {
        base.wrapping_add(element * self.call.dtype.size_bytes()).cast_mut().cast()
    }

    fn part(&self, rank: usize) -> Range<usize> {
        self.call.part(rank, self.rank.group.size)
    }

    fn run(&self) -> Result<()> {
        let Calls { call, memory, dtype, .. } = *self;
        let (input, output, count) = (memory.input.cast(), memory.output.cast(), call.elements());
        // SAFETY: the input and the output of a broadcast and of a message have `count` elements. `workspace_bytes` asks for one
        // byte for a barrier, and the command declares the workspace as written.
        unsafe {
            match call.collective {
                Collective::AllReduce(reduce) | Collective::ReduceScatter(reduce) => self.reduce(reduce),
                Collective::AllGather => self.all_gather(memory.output),
                Collective::AllToAll => self.exchange(|rank| self.part(rank), memory.output),
                Collective::Broadcast { root } => self.enqueue("ncclBroadcast", |library, comm, stream| {
                    (library.broadcast)(input, output, count, dtype, root as c_int, comm, stream)
                }),
                Collective::Send { to } => self.enqueue("ncclSend", |library, comm, stream| {
                    (library.send)(input, count, dtype, to as c_int, comm, stream)
                }),
                Collective::Recv { from } => self.enqueue("ncclRecv", |library, comm, stream| {
                    (library.recv)(output, count, dtype, from as c_int, comm, stream)
                }),
                Collective::Barrier => {
                    self.queue.fill_bytes(memory.workspace, 0, 1)?;
                    self.all_reduce(Reduce::Sum, 1, memory.workspace, memory.workspace)
                }
            }
        }
    }

    /// Enqueues a call that has no elements with one element a rank, in the workspace. NCCL ignores a call without elements, so a
    /// rank whose call has some would pair it with this rank's next call.
    fn run_stand_in(self) -> Result<()> {
        let size = self.rank.group.size;
        let in_parts = matches!(self.call.collective, Collective::ReduceScatter(_) | Collective::AllToAll);
        let elements = if in_parts { size } else { 1 };
        let call = Call { shape: Dims::from_slice(&[elements]), ..self.call.clone() };
        let (first, bytes) = (self.memory.workspace, size * call.dtype.size_bytes());
        // SAFETY: `workspace_bytes` asks for three operands of this size for a call without elements, and the command
        // declares the workspace as written.
        unsafe { self.queue.fill_bytes(first, 0, 3 * bytes)? };
        let memory = Memory {
            input: first,
            output: first.wrapping_add(bytes),
            workspace: first.wrapping_add(2 * bytes),
        };
        Calls { call: &call, memory, ..self }.run()
    }

    fn reduce(&self, reduce: Reduce) -> Result<()> {
        let Calls { call, memory: Memory { input, output, workspace }, dtype, .. } = *self;
        let (size, own) = (self.rank.group.size, self.part(self.rank.rank));
        match (how(call, reduce, size), call.collective) {
            (How::Library, Collective::ReduceScatter(_)) => {
                let (op, count) = (reduction_of(reduce), call.elements() / size);
                // SAFETY: a reduce-scatter's output has `count` elements, and its input has `count` for each rank.
                unsafe {
                    self.enqueue("ncclReduceScatter", |library, comm, stream| {
                        (library.reduce_scatter)(input.cast(), output.cast(), count, dtype, op, comm, stream)
                    })
                }
            }
            (How::Library, _) => self.all_reduce(reduce, call.elements(), input, output),
            (How::Gathered, _) => {
                self.all_gather(workspace)?;
                self.join(reduce, call.elements(), output)
            }
            (How::Parts, Collective::ReduceScatter(_)) => {
                self.exchange(|rank| self.part(rank), workspace)?;
                self.join(reduce, own.len(), output)
            }
            (How::Parts, _) => {
                self.exchange(|rank| own.len() * rank..own.len() * (rank + 1), workspace)?;
                self.join(reduce, own.len(), self.at(output, own.start).cast())?;
                self.share(own)
            }
        }
    }

    fn all_reduce(&self, reduce: Reduce, count: usize, from: *const u8, to: *mut u8) -> Result<()> {
        let (dtype, op) = (self.dtype, reduction_of(reduce));
        // SAFETY: callers pass addresses with `count` elements: the operands of an all-reduce, or the one byte of a
        // barrier's workspace.
        unsafe {
            self.enqueue("ncclAllReduce", |library, comm, stream| {
                (library.all_reduce)(from.cast(), to.cast(), count, dtype, op, comm, stream)
            })
        }
    }

    /// All ranks' inputs, one behind the other from `to` on.
    fn all_gather(&self, to: *mut u8) -> Result<()> {
        let (dtype, from, count) = (self.dtype, self.memory.input, self.call.elements());
        // SAFETY: the input has `count` elements. `to` is the output or a workspace of `workspace_bytes`, both with
        // room for `count` of each rank.
        unsafe {
            self.enqueue("ncclAllGather", |library, comm, stream| {
                (library.all_gather)(from.cast(), to.cast(), count, dtype, comm, stream)
            })
        }
    }

    /// Sends each rank its part of the input, and receives elements of each at `received(rank)` from `to` on.
    fn exchange(&self, received: impl Fn(usize) -> Range<usize>, to: *mut u8) -> Result<()> {
        let all = (0..self.rank.group.size).map(|rank| Message {
            rank,
            from: self.at(self.memory.input, self.part(rank).start),
            sent: self.part(rank).len(),
            to: self.at(to, received(rank).start),
            received: received(rank).len(),
        });
        self.messages(all)
    }

    /// Sends this rank's part `own` of the output to all ranks, and receives theirs.
    fn share(&self, own: Range<usize>) -> Result<()> {
        let output = self.memory.output;
        let others = (0..self.rank.group.size).filter(|&rank| rank != self.rank.rank).map(|rank| Message {
            rank,
            from: self.at(output, own.start),
            sent: own.len(),
            to: self.at(output, self.part(rank).start),
            received: self.part(rank).len(),
        });
        self.messages(others)
    }

    /// Gives and gets all at once.
    fn messages(&self, all: impl Iterator<Item = Message>) -> Result<()> {
        let dtype = self.dtype;
        // SAFETY: `exchange` and `share` cut the ranges from the operands, and from a workspace of `workspace_bytes`,
        // which has room for one part of each rank. A group that was begun is always ended.
        unsafe {
            self.enqueue("ncclGroupEnd", |library, comm, stream| {
                let mut code = (library.group_start)();
                for Message { rank, from, sent, to, received } in all {
                    let peer = rank as c_int;
                    if has_begun(code) && sent > 0 {
                        code = (library.send)(from, sent, dtype, peer, comm, stream);
                    }
                    if has_begun(code) && received > 0 {
                        code = (library.recv)(to, received, dtype, peer, comm, stream);
                    }
                }
                let end = (library.group_end)();
                if has_begun(code) { end } else { code }
            })
        }
    }

    /// Joins as many elements of each rank as the workspace has, in rank order.
    fn join(&self, reduce: Reduce, elements: usize, to: *mut u8) -> Result<()> {
        let (call, ranks) = (self.call, self.rank.group.size);
        // SAFETY: the workspace of `workspace_bytes` holds `elements` elements of each rank, and the output has room
        // for `elements` from `to` on.
        unsafe { join_parts(self.queue, reduce, call.dtype, self.memory.workspace, ranks, elements, to) }
    }
}

/// What one rank is given, and gives, in elements.
struct Message {
    rank: usize,
    from: *mut c_void,
    sent: usize,
    to: *mut c_void,
    received: usize,
}
