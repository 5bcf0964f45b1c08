//! How MPI moves the elements of a collective that all ranks have come to.

use std::ffi::c_int;
use std::ops::Range;

use super::group::Group;
use super::library::{Functions, Started};
use crate::sums::{self, Inputs};
use crate::{Call, Collective, Memory, Reduce, ReduceOrder, Result};

/// Memory that the library sends from and receives in. It is not the operands': who waits in vain for the end of an operation
/// leaves it to the library, and goes on.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// Words, so that all elements are aligned.
    from: Vec<u64>,
    to: Vec<u64>,
}

impl Staging {
    fn from(&mut self) -> *mut u8 {
        self.from.as_mut_ptr().cast()
    }

    fn to(&mut self) -> *mut u8 {
        self.to.as_mut_ptr().cast()
    }
}

/// A collective of this rank.
pub(super) struct Exchange<'a> {
    pub(super) group: &'a Group,
    pub(super) call: &'a Call,
    pub(super) memory: Memory,
    pub(super) staging: Staging,
}

/// The most that is moved at once, in bytes of all ranks' parts.
const MOST: usize = 32 << 20;
/// Up to so many bytes every rank adds all by itself, which takes one operation less.
const SMALL: usize = 8 << 10;

impl Exchange<'_> {
    /// Does this rank's part.
    ///
    /// # Safety
    /// The memory is that of the call.
    pub(super) unsafe fn run(&mut self) -> Result<()> {
        let (elements, size) = (self.call.elements(), self.group.size());
        // SAFETY: `run`'s caller vouches for the operands of `call`. The counts below are those of its shape: the
        // elements of the input, or of one rank's part of it.
        unsafe {
            match self.call.collective {
                Collective::AllReduce(reduce) => self.all_reduce(reduce, elements),
                Collective::ReduceScatter(reduce) => self.reduce_scatter(reduce, elements / size),
                Collective::AllGather => self.all_gather(elements),
                Collective::AllToAll => self.all_to_all(elements / size),
                Collective::Broadcast { root } => self.broadcast(root, elements),
                Collective::Barrier | Collective::Send { .. } | Collective::Recv { .. } => Ok(()),
            }
        }
    }

    unsafe fn all_reduce(&mut self, reduce: Reduce, elements: usize) -> Result<()> {
        let library = self.group.mpi.names.reduction(self.call.dtype, reduce);
        let library = library.filter(|_| self.call.order == ReduceOrder::Fast);
        for range in self.rounds(elements, 1) {
            // SAFETY: `rounds` yields ranges of `0..elements`, and both operands of an all-reduce have `elements`
            // elements.
            unsafe {
                match library {
                    Some(library) => self.all_reduce_fast(reduce, range, library)?,
                    None if self.bytes(range.len()) <= SMALL => self.all_reduce_small(reduce, range)?,
                    None => self.all_reduce_large(reduce, range)?,
                }
            }
        }
        Ok(())
    }

    /// The library adds, in an order of its own.
    unsafe fn all_reduce_fast(
        &mut self,
        reduce: Reduce,
        range: Range<usize>,
        library: (usize, usize),
    ) -> Result<()> {
        let (count, out) = (range.len(), self.output(range.start));
        self.room(count, count);
        // SAFETY: `room` made both staging buffers at least `count` elements long, which is what the library reads
        // and writes. `range` lies in both operands, as the caller promises, and `Staging` is aligned for any type.
        unsafe {
            self.give(range.start, 0, count);
            self.operate(|functions, staging, comm| {
                functions.iallreduce(staging.from(), staging.to(), count as c_int, library, comm)
            })?;
            let sum = self.staging.to();
            sums::reduce(self.call.dtype, reduce, &[sum], count, out, self.group.size());
        }
        Ok(())
    }

    /// Every rank gets all elements and adds them.
    unsafe fn all_reduce_small(&mut self, reduce: Reduce, range: Range<usize>) -> Result<()> {
        let (count, size) = (range.len(), self.group.size());
        self.room(count, count * size);
        // SAFETY: `room` made the staging long enough for `count` elements to send and `count` of each rank to
        // receive. `range` lies in both operands, as the caller promises.
        unsafe {
            self.give(range.start, 0, count);
            self.gather(count)?;
            self.add(reduce, count, count, self.output(range.start));
        }
        Ok(())
    }

    /// Every rank adds a part, and gets the others'.
    unsafe fn all_reduce_large(&mut self, reduce: Reduce, range: Range<usize>) -> Result<()> {
        let (count, size) = (range.len(), self.group.size());
        let part = count.div_ceil(size);
        self.room(part * size, part * size);
        // SAFETY: `room` made both staging buffers `part * size >= count` elements long, and `range` lies in both
        // operands, as the caller promises. The staging behind `count` is initialised, and its sums are not copied
        // out.
        unsafe {
            self.give(range.start, 0, count);
            self.swap(part)?;
            let sum = self.staging.from();
            self.add(reduce, part, part, sum);
            self.gather(part)?;
            self.take(0, range.start, count);
        }
        Ok(())
    }

    unsafe fn reduce_scatter(&mut self, reduce: Reduce, part: usize) -> Result<()> {
        for range in self.rounds(part, self.group.size()) {
            // SAFETY: `range` lies in `0..part`; the input has `part` elements for each rank and the output has
            // `part`. `swap_parts` received `range.len()` elements of each rank.
            unsafe {
                self.swap_parts(part, &range)?;
                self.add(reduce, range.len(), range.len(), self.output(range.start));
            }
        }
        Ok(())
    }

    unsafe fn all_to_all(&mut self, part: usize) -> Result<()> {
        for range in self.rounds(part, self.group.size()) {
            // SAFETY: `range` lies in `0..part`, and both operands have `part` elements for each rank.
            unsafe {
                self.swap_parts(part, &range)?;
                self.take_parts(part, &range);
            }
        }
        Ok(())
    }

    unsafe fn all_gather(&mut self, elements: usize) -> Result<()> {
        for range in self.rounds(elements, self.group.size()) {
            self.room(range.len(), range.len() * self.group.size());
            // SAFETY: `range` lies in the input and in each rank's part of the output, which has `elements` elements.
            // `room` made the staging long enough for both sides.
            unsafe {
                self.give(range.start, 0, range.len());
                self.gather(range.len())?;
                self.take_parts(elements, &range);
            }
        }
        Ok(())
    }

    unsafe fn broadcast(&mut self, root: usize, elements: usize) -> Result<()> {
        for range in self.rounds(elements, 1) {
            let bytes = self.bytes(range.len()) as c_int;
            self.room(0, range.len());
            // SAFETY: `range` lies in `0..elements`, which the root's input and every output have. `room` made the
            // receiving staging `range.len()` elements long.
            unsafe {
                if root == self.group.rank {
                    let from = self.input(range.start);
                    std::ptr::copy_nonoverlapping(from, self.staging.to(), bytes as usize);
                }
                self.operate(|functions, staging, comm| {
                    functions.ibcast(staging.to(), bytes, root as c_int, comm)
                })?;
                self.take(0, range.start, range.len());
            }
        }
        Ok(())
    }

    /// Rank `r` gets this range of part `r` of every rank's input.
    unsafe fn swap_parts(&mut self, part: usize, range: &Range<usize>) -> Result<()> {
        let (count, size) = (range.len(), self.group.size());
        self.room(count * size, count * size);
        for rank in 0..size {
            // SAFETY: the caller promises that `range` lies in each of the input's parts of `part` elements, and
            // `room` made the staging `count * size` elements long.
            unsafe { self.give(rank * part + range.start, rank * count, count) };
        }
        // SAFETY: `room` made both staging buffers `count * size` elements long.
        unsafe { self.swap(count) }
    }

    /// To this range of each part of the output, what came from its rank.
    unsafe fn take_parts(&mut self, part: usize, range: &Range<usize>) {
        for rank in 0..self.group.size() {
            // SAFETY: the caller promises that the staging holds `range.len()` elements of each rank, and that
            // `range` lies in each of the output's parts of `part` elements.
            unsafe { self.take(rank * range.len(), rank * part + range.start, range.len()) };
        }
    }

    /// All ranks exchange `count` elements with each.
    unsafe fn swap(&mut self, count: usize) -> Result<()> {
        let bytes = self.bytes(count) as c_int;
        // SAFETY: the library accesses `count` elements per rank in both staging buffers, which the caller made that
        // long with `room`.
        unsafe {
            self.operate(|functions, staging, comm| {
                functions.ialltoall(staging.from(), staging.to(), bytes, comm)
            })
        }
    }

    /// All ranks get `count` elements of each.
    unsafe fn gather(&mut self, count: usize) -> Result<()> {
        let bytes = self.bytes(count) as c_int;
        // SAFETY: the library reads `count` elements of the sending staging and writes `count` per rank to the
        // receiving one. The caller made both that long with `room`.
        unsafe {
            self.operate(|functions, staging, comm| {
                functions.iallgather(staging.from(), staging.to(), bytes, comm)
            })
        }
    }

    /// Adds what came from each rank, which lies `step` elements behind that of the one before.
    unsafe fn add(&mut self, reduce: Reduce, step: usize, count: usize, out: *mut u8) {
        let (size, to, step) = (self.group.size(), self.staging.to(), self.bytes(step));
        let inputs: Inputs = (0..size).map(|rank| to.wrapping_add(rank * step).cast_const()).collect();
        // SAFETY: the caller promises `count` received elements at each `step` of the staging, and room for `count`
        // at `out`, which is the output or the sending staging and so overlaps no input. No operation uses the
        // staging now.
        unsafe { sums::reduce(self.call.dtype, reduce, &inputs, count, out, size) };
    }

    /// Has the library do an operation with the staging.
    unsafe fn operate(
        &mut self,
        start: impl FnOnce(&dyn Functions, &mut Staging, usize) -> Started,
    ) -> Result<()> {
        let (group, staging) = (self.group, std::mem::take(&mut self.staging));
        // SAFETY: callers start operations on `staging` only, within its length. `start` keeps it alive until the
        // operation has ended.
        let pending =
            unsafe { group.mpi.start(staging, |functions, staging| start(functions, staging, group.data)) };
        self.staging = group.end(self.call.op(), pending.map_err(|error| group.fail(error))?)?;
        Ok(())
    }

    /// Elements of the input to the staging.
    unsafe fn give(&mut self, from: usize, to: usize, count: usize) {
        let (from, to) = (self.input(from), self.staging.from().wrapping_add(self.bytes(to)));
        // SAFETY: the caller promises that the input has `count` elements from `from` on and the staging room for
        // `count` from `to` on. The staging is an allocation of its own.
        unsafe { std::ptr::copy_nonoverlapping(from, to, self.bytes(count)) };
    }

    /// Elements that have come, to the output.
    unsafe fn take(&mut self, from: usize, to: usize, count: usize) {
        let from = self.staging.to().wrapping_add(self.bytes(from));
        // SAFETY: the caller promises that the staging holds `count` elements from `from` on, and that the output has
        // room for `count` from `to` on. The staging is an allocation of its own.
        unsafe { std::ptr::copy_nonoverlapping(from, self.output(to), self.bytes(count)) };
    }

    fn input(&self, at: usize) -> *const u8 {
        self.memory.input.wrapping_add(self.bytes(at))
    }

    fn output(&self, at: usize) -> *mut u8 {
        self.memory.output.wrapping_add(self.bytes(at))
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.call.dtype.size_bytes()
    }

    /// Room for so many elements to be sent, and received.
    fn room(&mut self, from: usize, to: usize) {
        let [from, to] = [from, to].map(|elements| self.bytes(elements).div_ceil(8));
        self.staging.from.resize(self.staging.from.len().max(from), 0);
        self.staging.to.resize(self.staging.to.len().max(to), 0);
    }

    /// Ranges of so many elements, of which there are `parts` at a time.
    fn rounds(&self, elements: usize, parts: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let most = (MOST / self.call.dtype.size_bytes() / parts).max(1);
        (0..elements).step_by(most).map(move |start| start..(start + most).min(elements))
    }
}
