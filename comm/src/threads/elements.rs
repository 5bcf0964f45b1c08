//! What each rank does with all ranks' elements while they are at a meeting.

use std::cell::RefCell;
use std::ops::Range;

use crate::call::Piece;
use crate::sums::{self, Inputs};
use crate::{Call, Collective, Memory, Reduce};

/// A meeting as one of its ranks sees it.
pub(super) struct Elements<'a> {
    pub(super) call: &'a Call,
    pub(super) rank: usize,
    /// By rank.
    pub(super) shown: &'a [Memory],
}

/// Up to so many bytes every rank adds all by itself, which takes one step less.
const SMALL_BYTES: usize = 8 << 10;

thread_local! {
    /// What a rank adds while its operand is shown. Words, so that all elements are aligned.
    static SCRATCH: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Elements<'_> {
    fn size(&self) -> usize {
        self.shown.len()
    }

    /// Does this rank's part. `meet` returns when all ranks have called it as often.
    ///
    /// # Safety
    /// The memory of each rank is that of `call`, and stays, untouched by others, until all ranks have called `meet` for the last
    /// time.
    pub(super) unsafe fn exchange(&self, meet: &dyn Fn()) {
        let (bytes, own) = (self.call.bytes(), self.shown[self.rank]);
        // SAFETY: `exchange`'s caller promises operands of the sizes that the call's collective has. Each rank writes
        // only its own output; if that is its input, too, it writes no element that another rank reads in the same
        // step.
        unsafe {
            match self.call.collective {
                Collective::AllReduce(reduce) if bytes <= SMALL_BYTES => self.all_reduce_small(reduce, meet),
                Collective::AllReduce(reduce) => self.all_reduce_large(reduce, meet),
                Collective::ReduceScatter(reduce) => {
                    self.reduce(reduce, self.part(self.rank), own.output);
                    meet();
                }
                Collective::AllGather | Collective::AllToAll | Collective::Broadcast { .. } => {
                    let each = self.call.dtype.size_bytes();
                    for Piece { rank, from, len, to } in self.call.pieces(self.rank, self.size()) {
                        let (from, to) = (self.shown[rank].input.add(from * each), own.output.add(to * each));
                        // The root of a broadcast in place has its elements already.
                        if from != to.cast_const() {
                            std::ptr::copy_nonoverlapping(from, to, len * each);
                        }
                    }
                    meet();
                }
                Collective::Barrier | Collective::Send { .. } | Collective::Recv { .. } => meet(),
            }
        }
    }

    fn part(&self, rank: usize) -> Range<usize> {
        self.call.part(rank, self.size())
    }

    /// Each rank adds all, beside its operand, which others read.
    unsafe fn all_reduce_small(&self, reduce: Reduce, meet: &dyn Fn()) {
        let (bytes, own) = (self.call.bytes(), self.shown[self.rank]);
        let add = |scratch: &mut Vec<u64>| {
            scratch.resize(bytes.div_ceil(8), 0);
            let sum = scratch.as_mut_ptr().cast::<u8>();
            // SAFETY: the scratch was resized to all elements, is aligned to 8 bytes, and overlaps no input.
            unsafe { self.reduce(reduce, 0..self.call.elements(), sum) };
            meet();
            // SAFETY: the output has `bytes` bytes. All ranks have met since they read the inputs, so none still
            // reads this one's, which may be the output.
            unsafe { std::ptr::copy_nonoverlapping(sum, own.output, bytes) };
        };
        // A thread that is ending keeps none.
        if SCRATCH.try_with(|scratch| add(&mut scratch.borrow_mut())).is_err() {
            add(&mut Vec::new());
        }
    }

    /// Each rank adds a part, which nobody else looks at if the operand is in place, and gets the others'.
    unsafe fn all_reduce_large(&self, reduce: Reduce, meet: &dyn Fn()) {
        let (each, own) = (self.call.dtype.size_bytes(), self.shown[self.rank]);
        let part = self.part(self.rank);
        // SAFETY: `part` lies in the output. If that is the input, too, other ranks read it only outside `part` in
        // this step.
        unsafe { self.reduce(reduce, part.clone(), own.output.add(part.start * each)) };
        meet();
        for rank in (0..self.size()).filter(|&rank| rank != self.rank) {
            let part = self.part(rank);
            let (start, bytes) = (part.start * each, part.len() * each);
            // SAFETY: `part` lies in both outputs, which belong to different ranks. Its rank wrote it before the
            // ranks met and does not write it again.
            unsafe {
                let from = self.shown[rank].output.add(start);
                std::ptr::copy_nonoverlapping(from, own.output.add(start), bytes);
            }
        }
        meet();
    }

    /// Reduces the elements `range` of all inputs, to `out` on.
    ///
    /// # Safety
    /// The inputs have these elements, and `out` has room for them; it may be where they are in one of the inputs.
    unsafe fn reduce(&self, reduce: Reduce, range: Range<usize>, out: *mut u8) {
        let start = range.start * self.call.dtype.size_bytes();
        let inputs: Inputs = self.shown.iter().map(|memory| memory.input.wrapping_add(start)).collect();
        // SAFETY: the caller promises that the inputs have these elements and `out` has room for them. In this step
        // each rank writes only scratch, its output, or its own part of an input, so nobody else writes these
        // elements.
        unsafe { sums::reduce(self.call.dtype, reduce, &inputs, range.len(), out, self.size()) };
    }
}
