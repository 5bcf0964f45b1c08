//! What each rank does with all ranks' elements while they are at a meeting.

use std::cell::RefCell;
use std::ops::Range;

use device::{DType, bf16, f16};

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
        // SAFETY: whole operands and parts of them as the shapes have it, which the caller vouches for. Ranks write what is their
        // own only, and only where no other rank reads it in the same step.
        unsafe {
            match self.call.collective {
                Collective::AllReduce(reduce) if bytes <= SMALL_BYTES => self.all_reduce_small(reduce, meet),
                Collective::AllReduce(reduce) => self.all_reduce_large(reduce, meet),
                Collective::ReduceScatter(reduce) => {
                    let part = self.part(self.rank);
                    self.reduce(reduce, part.clone(), own.output);
                    meet();
                }
                Collective::AllGather => {
                    for (rank, shown) in self.shown.iter().enumerate() {
                        std::ptr::copy_nonoverlapping(shown.input, own.output.add(rank * bytes), bytes);
                    }
                    meet();
                }
                Collective::AllToAll => {
                    let part = bytes / self.size();
                    for (rank, shown) in self.shown.iter().enumerate() {
                        let from = shown.input.add(self.rank * part);
                        std::ptr::copy_nonoverlapping(from, own.output.add(rank * part), part);
                    }
                    meet();
                }
                Collective::Broadcast { root } => {
                    let from = self.shown[root].input;
                    if from != own.output.cast_const() {
                        std::ptr::copy_nonoverlapping(from, own.output, bytes);
                    }
                    meet();
                }
                Collective::Barrier | Collective::Send { .. } | Collective::Recv { .. } => meet(),
            }
        }
    }

    /// Part `rank` of all elements.
    fn part(&self, rank: usize) -> Range<usize> {
        let (elements, size) = (self.call.elements(), self.size());
        elements * rank / size..elements * (rank + 1) / size
    }

    /// Each rank adds all, beside its operand, which others read.
    unsafe fn all_reduce_small(&self, reduce: Reduce, meet: &dyn Fn()) {
        let (bytes, own) = (self.call.bytes(), self.shown[self.rank]);
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(bytes.div_ceil(8), 0);
            let sum = scratch.as_mut_ptr().cast::<u8>();
            // SAFETY: the scratch has room for all elements.
            unsafe { self.reduce(reduce, 0..self.call.elements(), sum) };
            meet();
            // SAFETY: the output has that many bytes, and nobody reads it any more if it is the input, too.
            unsafe { std::ptr::copy_nonoverlapping(sum, own.output, bytes) };
        });
    }

    /// Each rank adds a part, which nobody else looks at if the operand is in place, and gets the others'.
    unsafe fn all_reduce_large(&self, reduce: Reduce, meet: &dyn Fn()) {
        let (each, own) = (self.call.dtype.size_bytes(), self.shown[self.rank]);
        let part = self.part(self.rank);
        // SAFETY: the part lies in the output.
        unsafe { self.reduce(reduce, part.clone(), own.output.add(part.start * each)) };
        meet();
        for rank in (0..self.size()).filter(|&rank| rank != self.rank) {
            let part = self.part(rank);
            let (start, bytes) = (part.start * each, part.len() * each);
            // SAFETY: the part lies in both outputs, which are of different devices. Its rank has written it, and does not again.
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
        // SAFETY: the caller's promise, with the type that the elements have.
        unsafe {
            match self.call.dtype {
                DType::F32 => self.reduce_as::<f32>(reduce, range, out.cast()),
                DType::F64 => self.reduce_as::<f64>(reduce, range, out.cast()),
                DType::I64 => self.reduce_as::<i64>(reduce, range, out.cast()),
                DType::BF16 => self.reduce_as::<bf16>(reduce, range, out.cast()),
                DType::F16 => self.reduce_as::<f16>(reduce, range, out.cast()),
                // Of truth values the largest and the smallest are asked for, of which 0 and 1 are right.
                _ => self.reduce_as::<u8>(reduce, range, out.cast()),
            }
        }
    }

    /// As [`reduce`](Self::reduce).
    unsafe fn reduce_as<T: Stored>(&self, reduce: Reduce, range: Range<usize>, out: *mut T) {
        let same = |x: T::Number| x;
        let size = self.size();
        // SAFETY: the caller's promise.
        unsafe {
            match reduce {
                Reduce::Sum => self.fold(range, out, T::Number::plus, same),
                Reduce::Mean => self.fold(range, out, T::Number::plus, |x| x.over(size)),
                Reduce::Max => self.fold(range, out, T::Number::larger, same),
                Reduce::Min => self.fold(range, out, T::Number::smaller, same),
                Reduce::Prod => self.fold(range, out, T::Number::times, same),
            }
        }
    }

    /// Folds in rank order, a block of elements at a time, in the type that is computed in.
    #[inline(always)]
    unsafe fn fold<T: Stored>(
        &self,
        range: Range<usize>,
        out: *mut T,
        both: impl Fn(T::Number, T::Number) -> T::Number,
        end: impl Fn(T::Number) -> T::Number,
    ) {
        const BLOCK: usize = 512;
        let mut sums = [T::Number::default(); BLOCK];
        let (first, others) = self.shown.split_at(1);
        for start in range.clone().step_by(BLOCK) {
            let len = BLOCK.min(range.end - start);
            let sums = &mut sums[..len];
            // SAFETY: the elements lie in the input, as the caller says. Nobody writes them in this step: only this rank writes
            // these of its own, below.
            let block = |memory: &Memory| unsafe {
                std::slice::from_raw_parts(memory.input.cast::<T>().add(start), len)
            };
            sums.iter_mut().zip(block(&first[0])).for_each(|(sum, x)| *sum = x.widen());
            for other in others {
                sums.iter_mut().zip(block(other)).for_each(|(sum, x)| *sum = both(*sum, x.widen()));
            }
            // SAFETY: there is room, as the caller says, and no slice of the inputs is alive.
            let out = unsafe { std::slice::from_raw_parts_mut(out.add(start - range.start), len) };
            out.iter_mut().zip(&*sums).for_each(|(out, sum)| *out = T::narrow(end(*sum)));
        }
    }
}

/// An element as it is stored.
trait Stored: Copy {
    /// What is computed with.
    type Number: Number;
    fn widen(self) -> Self::Number;
    fn narrow(number: Self::Number) -> Self;
}

/// A number that is computed with.
trait Number: Copy + Default {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn over(self, count: usize) -> Self;
}

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            fn over(self, count: usize) -> Self {
                self / count as $t
            }
        }
    )*};
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn over(self, _: usize) -> Self {
                // Refused at the launch.
                self
            }
        }
    )*};
}

macro_rules! stored_as_computed {
    ($($t:ty),*) => {$(
        impl Stored for $t {
            type Number = $t;
            fn widen(self) -> $t {
                self
            }
            fn narrow(number: $t) -> $t {
                number
            }
        }
    )*};
}

macro_rules! halves {
    ($($t:ty),*) => {$(
        impl Stored for $t {
            type Number = f32;
            fn widen(self) -> f32 {
                self.to_f32()
            }
            fn narrow(number: f32) -> $t {
                <$t>::from_f32(number)
            }
        }
    )*};
}

floats!(f32, f64);
integers!(i64, u8);
stored_as_computed!(f32, f64, i64, u8);
halves!(bf16, f16);
