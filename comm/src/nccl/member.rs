//! NCCL as a backend: which of its functions make a call.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::cuda::Queue;
use device::{Buffer, DType, Device, Shared};
use kernels::{Dims, join_parts};

use super::group::Group;
use super::handle::{Handle, Patience, has_begun, number};
use super::library::{Library, RawComm, RawStream};
use super::rank::Rank;
use super::watch;
use crate::{Backend, Call, Collective, CommOptions, Error, ErrorKind, Memory, Reduce, ReduceOrder, Result};

/// What a communicator has of a rank. The rank goes when this has.
#[derive(Debug)]
pub(super) struct Member(pub(super) Arc<Rank>);

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

impl Member {
    /// How `call` is reduced. The library's largest and smallest of floats are not NaN where one of them is.
    fn how(&self, call: &Call, reduce: Reduce) -> How {
        let ordered = call.dtype.is_float() && matches!(reduce, Reduce::Max | Reduce::Min);
        let whole = matches!(call.collective, Collective::AllReduce(_));
        match call.order {
            ReduceOrder::Fast if !ordered => How::Library,
            _ if whole && (self.0.size <= 2 || call.bytes() <= SMALL_BYTES) => How::Gathered,
            _ => How::Parts,
        }
    }

    /// The elements of part `rank` of all.
    fn part(&self, elements: usize, rank: usize) -> Range<usize> {
        elements * rank / self.0.size..elements * (rank + 1) / self.0.size
    }

    /// Bytes that the ranks' elements need that this rank joins.
    fn reduced_bytes(&self, call: &Call, how: How) -> usize {
        let elements = match how {
            How::Library => 0,
            How::Gathered => call.elements(),
            How::Parts => self.part(call.elements(), self.0.rank).len(),
        };
        elements * self.0.size * call.dtype.size_bytes()
    }

    /// Enqueues a reduction.
    fn reduce(&self, calls: &Calls<'_>, reduce: Reduce) -> Result<()> {
        let Calls { call, memory, .. } = *calls;
        let part = |rank| self.part(call.elements(), rank);
        let own = part(self.0.rank);
        match (self.how(call, reduce), call.collective) {
            (How::Library, Collective::ReduceScatter(_)) => calls.reduce_scatter(reduce),
            (How::Library, _) => calls.all_reduce(reduce, call.elements(), (memory.input, memory.output)),
            (How::Gathered, _) => {
                calls.all_gather(memory.workspace)?;
                calls.join(reduce, call.elements(), memory.output)
            }
            (How::Parts, Collective::ReduceScatter(_)) => {
                calls.exchange(part, part, memory.workspace)?;
                calls.join(reduce, own.len(), memory.output)
            }
            (How::Parts, _) => {
                let inbox = |rank| own.len() * rank..own.len() * (rank + 1);
                calls.exchange(part, inbox, memory.workspace)?;
                calls.join(
                    reduce,
                    own.len(),
                    memory.output.wrapping_add(own.start * call.dtype.size_bytes()),
                )?;
                calls.share(part)
            }
        }
    }

    /// The most bytes that an operand of a [stand-in](Self::enqueue_stand_in) has.
    fn stand_in_bytes(&self, call: &Call) -> usize {
        self.0.size * call.dtype.size_bytes()
    }

    /// Enqueues `calls`, which have no elements, with one element a rank, in the workspace. NCCL ignores a call without
    /// elements, so a rank whose call has some would pair it with this rank's next call.
    fn enqueue_stand_in(&self, calls: Calls<'_>) -> Result<()> {
        let in_parts = matches!(calls.call.collective, Collective::ReduceScatter(_) | Collective::AllToAll);
        let elements = if in_parts { self.0.size } else { 1 };
        let call = Call { shape: Dims::from_slice(&[elements]), ..calls.call.clone() };
        let bytes = self.stand_in_bytes(&call);
        let first = calls.memory.workspace;
        // SAFETY: `workspace_bytes` asks for three operands of `stand_in_bytes` for a call without elements, and the
        // command declares the workspace as written.
        unsafe { calls.queue.fill_bytes(first, 0, 3 * bytes)? };
        let memory = Memory {
            input: first,
            output: first.wrapping_add(bytes),
            workspace: first.wrapping_add(2 * bytes),
        };
        self.enqueue_call(&Calls { call: &call, memory, ..calls })
    }

    fn enqueue_call(&self, calls: &Calls<'_>) -> Result<()> {
        let Calls { call, memory, queue, .. } = *calls;
        match call.collective {
            Collective::AllReduce(reduce) | Collective::ReduceScatter(reduce) => self.reduce(calls, reduce),
            Collective::AllGather => calls.all_gather(memory.output),
            Collective::AllToAll => {
                let part = |rank| self.part(call.elements(), rank);
                calls.exchange(part, part, memory.output)
            }
            Collective::Broadcast { root } => calls.broadcast(root),
            Collective::Send { to } => calls.send(to),
            Collective::Recv { from } => calls.recv(from),
            Collective::Barrier => {
                // SAFETY: `workspace_bytes` asks for one byte for a barrier, and the command declares the workspace
                // as written.
                unsafe { queue.fill_bytes(memory.workspace, 0, 1)? };
                calls.all_reduce(Reduce::Sum, 1, (memory.workspace, memory.workspace))
            }
        }
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
        self.0.size
    }

    fn failure(&self, collective: Collective) -> Option<Error> {
        match collective {
            Collective::Recv { .. } => None,
            Collective::Send { to } => self.0.group.message_failure(to),
            _ => self.0.group.failure(),
        }
    }

    fn workspace_bytes(&self, call: &Call, _: &Device) -> usize {
        match call.collective {
            Collective::Barrier => 1,
            _ if call.elements() == 0 => 3 * self.stand_in_bytes(call),
            collective => {
                collective.reduce().map_or(0, |reduce| self.reduced_bytes(call, self.how(call, reduce)))
            }
        }
    }

    fn follow(&self, token: &Shared<Buffer>) {
        self.0.follow(token);
    }

    fn run(&self, call: &Call, _: Memory) -> Result<()> {
        Err(Error::new(ErrorKind::CommUnavailable {
            reason: format!("{} by NCCL is on CUDA devices", call.op()).into(),
        }))
    }

    fn enqueue(&self, call: &Call, memory: Memory, queue: &Queue<'_>) -> Result<()> {
        let dtype = type_of(call)?;
        let has_elements = call.elements() > 0 || call.collective == Collective::Barrier;
        self.0.launch(call, |patience| {
            let told = Cell::new(false);
            let calls = Calls { rank: &self.0, asked: call, call, memory, queue, patience, dtype, told };
            if has_elements { self.enqueue_call(&calls) } else { self.enqueue_stand_in(calls) }
        })
    }

    fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Arc<dyn Backend>>> {
        let rank = &self.0;
        rank.settle("split")?;
        rank.device.make_current()?;
        let number = rank.splits.fetch_add(1, Ordering::Relaxed);
        let made = rank.split(color, key)?;
        let (Some(handle), Some(color)) = (made, color) else { return Ok(None) };
        let place = handle.place()?;
        let group = rank.group.split((number, color), rank.rank, place);
        Ok(Some(Arc::new(Member::new(handle, group, place, &rank.device, rank.options)?)))
    }
}

impl Member {
    pub(super) fn new(
        handle: Handle,
        group: Arc<Group>,
        place: (usize, usize),
        device: &Device,
        options: CommOptions,
    ) -> Result<Member> {
        let rank = Arc::new(Rank::new(handle, group, place, device, options));
        watch::join(&rank)?;
        Ok(Member(rank))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let reason =
            if std::thread::panicking() { "its thread panicked" } else { "its communicator was dropped" };
        watch::leave(Arc::clone(&self.0), reason);
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
        dtype => return Err(Error::dtype_unsupported(call.op(), dtype)),
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
    rank: &'a Rank,
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

    fn all_reduce(&self, reduce: Reduce, count: usize, (from, to): (*const u8, *mut u8)) -> Result<()> {
        let (dtype, how) = (self.dtype, reduction_of(reduce));
        // SAFETY: callers pass addresses with `count` elements: the operands of an all-reduce, or the one byte of a
        // barrier's workspace.
        unsafe {
            self.enqueue("ncclAllReduce", |library, comm, stream| {
                (library.all_reduce)(from.cast(), to.cast(), count, dtype, how, comm, stream)
            })
        }
    }

    fn reduce_scatter(&self, reduce: Reduce) -> Result<()> {
        let (dtype, how, Memory { input, output, .. }) = (self.dtype, reduction_of(reduce), self.memory);
        let count = self.call.elements() / self.rank.size;
        // SAFETY: a reduce-scatter's output has `count` elements, and its input has `count` for each rank.
        unsafe {
            self.enqueue("ncclReduceScatter", |library, comm, stream| {
                (library.reduce_scatter)(input.cast(), output.cast(), count, dtype, how, comm, stream)
            })
        }
    }

    /// All ranks' inputs, one behind the other from `to` on.
    fn all_gather(&self, to: *mut u8) -> Result<()> {
        let (dtype, from, count) = (self.dtype, self.memory.input, self.call.elements());
        // SAFETY: the input has `count` elements. `to` is the output or a workspace of `reduced_bytes`, both with
        // room for `count` of each rank.
        unsafe {
            self.enqueue("ncclAllGather", |library, comm, stream| {
                (library.all_gather)(from.cast(), to.cast(), count, dtype, comm, stream)
            })
        }
    }

    fn broadcast(&self, root: usize) -> Result<()> {
        let (dtype, count, Memory { input, output, .. }) = (self.dtype, self.call.elements(), self.memory);
        let root = number("root", root)?;
        // SAFETY: the input, where it is read, and the output of a broadcast have `count` elements.
        unsafe {
            self.enqueue("ncclBroadcast", |library, comm, stream| {
                (library.broadcast)(input.cast(), output.cast(), count, dtype, root, comm, stream)
            })
        }
    }

    fn send(&self, to: usize) -> Result<()> {
        let (dtype, from, count) = (self.dtype, self.memory.input, self.call.elements());
        let to = number("rank", to)?;
        // SAFETY: the input of a send has `count` elements.
        unsafe {
            self.enqueue("ncclSend", |library, comm, stream| {
                (library.send)(from.cast(), count, dtype, to, comm, stream)
            })
        }
    }

    fn recv(&self, from: usize) -> Result<()> {
        let (dtype, to, count) = (self.dtype, self.memory.output, self.call.elements());
        let from = number("rank", from)?;
        // SAFETY: the output of a receive has `count` elements.
        unsafe {
            self.enqueue("ncclRecv", |library, comm, stream| {
                (library.recv)(to.cast(), count, dtype, from, comm, stream)
            })
        }
    }

    /// Every rank gets the elements `sent(rank)` of the input, and what each gives lies at `received(rank)` from `to` on.
    fn exchange(
        &self,
        sent: impl Fn(usize) -> Range<usize>,
        received: impl Fn(usize) -> Range<usize>,
        to: *mut u8,
    ) -> Result<()> {
        let all = (0..self.rank.size).map(|rank| Message {
            rank,
            from: self.at(self.memory.input, sent(rank).start),
            sent: sent(rank).len(),
            to: self.at(to, received(rank).start),
            received: received(rank).len(),
        });
        self.messages(all)
    }

    /// Every rank gets this rank's part of the output, and gives its own.
    fn share(&self, part: impl Fn(usize) -> Range<usize>) -> Result<()> {
        let own = part(self.rank.rank);
        let output = self.memory.output;
        let others = (0..self.rank.size).filter(|&rank| rank != self.rank.rank).map(|rank| Message {
            rank,
            from: self.at(output, own.start),
            sent: own.len(),
            to: self.at(output, part(rank).start),
            received: part(rank).len(),
        });
        self.messages(others)
    }

    /// Gives and gets all at once.
    fn messages(&self, all: impl Iterator<Item = Message>) -> Result<()> {
        let dtype = self.dtype;
        // SAFETY: `exchange` and `share` cut the ranges from the operands, and from a workspace of `reduced_bytes`,
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
        let (call, ranks) = (self.call, self.rank.size);
        // SAFETY: the workspace of `reduced_bytes` holds `elements` elements of each rank, and the output has room
        // for `elements` from `to` on.
        unsafe { join_parts(self.queue, reduce.op(), call.dtype, self.memory.workspace, ranks, elements, to) }
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
