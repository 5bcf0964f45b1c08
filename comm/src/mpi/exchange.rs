//! How MPI moves the elements of a collective that all ranks have come to.

use std::ffi::c_int;
use std::ops::Range;

use super::abi::Reduction;
use super::group::Group;
use super::library::{Operation, Pattern};
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
                Collective::ReduceScatter(reduce) => {
                    self.in_parts(Pattern::AllToAll, elements / size, Some(reduce))
                }
                Collective::AllGather => self.in_parts(Pattern::AllGather, elements, None),
                Collective::AllToAll => self.in_parts(Pattern::AllToAll, elements / size, None),
                Collective::Broadcast { root } => self.broadcast(root, elements),
                Collective::Barrier | Collective::Send { .. } | Collective::Recv { .. } => Ok(()),
            }
        }
    }

    unsafe fn all_reduce(&mut self, reduce: Reduce, elements: usize) -> Result<()> {
        let library = self.group.mpi.names.reduction(self.call.dtype, reduce);
        let library = library.filter(|_| self.call.order == ReduceOrder::Fast);
        if library.is_none() && self.bytes(elements) <= SMALL {
            // SAFETY: the caller promises `elements` elements in both operands.
            return unsafe { self.in_parts(Pattern::AllGather, elements, Some(reduce)) };
        }
        for range in self.rounds(elements, 1) {
            // SAFETY: `rounds` yields ranges of `0..elements`, and both operands of an all-reduce have `elements`
            // elements.
            unsafe {
                match library {
                    Some(library) => self.all_reduce_fast(reduce, range, library)?,
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
        reduction: Reduction,
    ) -> Result<()> {
        let (count, out) = (range.len(), self.output(range.start));
        self.room(count, count);
        // SAFETY: `room` made both staging buffers at least `count` elements long, which is what the library reads
        // and writes. `range` lies in both operands, as the caller promises, and `Staging` is aligned for any type.
        unsafe {
            self.give(range.start, 0, count);
            self.operate(|from, to| Operation::AllReduce { from, to, count: count as c_int, reduction })?;
            let sum = self.staging.to();
            sums::reduce(self.call.dtype, reduce, &[sum], count, out, self.group.size());
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
            self.exchange(Pattern::AllToAll, part)?;
            let sum = self.staging.from();
            self.add(reduce, part, sum);
            self.exchange(Pattern::AllGather, part)?;
            self.take(0, range.start, count);
        }
        Ok(())
    }

    /// Exchanges parts of `part` elements: each rank's whole input in an all-gather, one part of it for each rank in an
    /// all-to-all. What comes is reduced to the output, or lies there by rank.
    unsafe fn in_parts(&mut self, pattern: Pattern, part: usize, reduce: Option<Reduce>) -> Result<()> {
        let size = self.group.size();
        let sent = match pattern {
            Pattern::AllToAll => size,
            Pattern::AllGather => 1,
        };
        for range in self.rounds(part, size) {
            let count = range.len();
            self.room(count * sent, count * size);
            // SAFETY: the caller promises that the input has `sent` parts of `part` elements, in which `range` lies, and that
            // the output has one part if it is reduced, else one for each rank. `room` made the staging long enough for both
            // sides.
            unsafe {
                for rank in 0..sent {
                    self.give(rank * part + range.start, rank * count, count);
                }
                self.exchange(pattern, count)?;
                match reduce {
                    Some(reduce) => self.add(reduce, count, self.output(range.start)),
                    None => {
                        (0..size).for_each(|rank| self.take(rank * count, rank * part + range.start, count))
                    }
                }
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
                self.operate(|_, at| Operation::Broadcast { at, bytes, root: root as c_int })?;
                self.take(0, range.start, range.len());
            }
        }
        Ok(())
    }

    /// All ranks exchange `count` elements with each.
    unsafe fn exchange(&mut self, pattern: Pattern, count: usize) -> Result<()> {
        let bytes = self.bytes(count) as c_int;
        // SAFETY: the library reads `count` elements of the sending staging, per rank for an all-to-all, and writes `count`
        // per rank to the receiving one. The caller made both that long with `room`.
        unsafe { self.operate(|from, to| Operation::Exchange { pattern, from, to, bytes }) }
    }

    /// Reduces the `count` elements that came from each rank.
    unsafe fn add(&mut self, reduce: Reduce, count: usize, out: *mut u8) {
        let (size, to, step) = (self.group.size(), self.staging.to(), self.bytes(count));
        let inputs: Inputs = (0..size).map(|rank| to.wrapping_add(rank * step).cast_const()).collect();
        // SAFETY: the caller promises `count` received elements of each rank in the staging, and room for `count`
        // at `out`, which is the output or the sending staging and so overlaps no input. No operation uses the
        // staging now.
        unsafe { sums::reduce(self.call.dtype, reduce, &inputs, count, out, size) };
    }

    /// Has the library do an operation from the one staging to the other.
    unsafe fn operate(&mut self, operation: impl FnOnce(*mut u8, *mut u8) -> Operation) -> Result<()> {
        let (group, staging) = (self.group, std::mem::take(&mut self.staging));
        // SAFETY: callers start operations on `staging` only, within its length. `start` keeps it alive until the
        // operation has ended.
        let pending = unsafe {
            group.mpi.start(staging, group.data, |staging| operation(staging.from(), staging.to()))
        };
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
