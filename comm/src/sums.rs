//! Reductions over the elements of all ranks, in rank order.

use std::num::Wrapping;
use std::ops::{Add, Div, Mul};

use device::{DType, bf16, f16};
use smallvec::SmallVec;

use crate::Reduce;

/// The address of each rank's elements, by rank.
pub(crate) type Inputs = SmallVec<[*const u8; 8]>;

/// `out = inputs[0] + inputs[1] + ..`, or as `reduce` says, of this many elements of each input, in that order. A mean is over
/// `count`. 16-bit floats are reduced in F32 and rounded once.
///
/// # Safety
/// There is at least one input. Each has this many elements, and `out` has room for them, aligned. `out` may be one of the inputs
/// and overlaps no other. Nobody else writes them meanwhile.
pub(crate) unsafe fn reduce(
    dtype: DType,
    reduce: Reduce,
    inputs: &[*const u8],
    elements: usize,
    out: *mut u8,
    count: usize,
) {
    let job = Job { reduce, inputs, elements, out };
    // SAFETY: the caller promises `elements` aligned elements of `dtype` at each address, and each arm uses the type of its
    // `dtype`. Bool is one byte, as U8 is, and `Wrapping` has the layout of its integer.
    unsafe {
        match dtype {
            DType::F32 => job.run(|x: f32| x, |x| x, count as f32),
            DType::F64 => job.run(|x: f64| x, |x| x, count as f64),
            DType::BF16 => job.run(bf16::to_f32, bf16::from_f32, count as f32),
            DType::F16 => job.run(f16::to_f32, f16::from_f32, count as f32),
            // Communicators refuse means of integers, and all but the largest and the smallest of Bool.
            DType::I64 => job.run(|x: Wrapping<i64>| x, |x| x, Wrapping(1)),
            _ => job.run(|x: Wrapping<u8>| x, |x| x, Wrapping(1)),
        }
    }
}

struct Job<'a> {
    reduce: Reduce,
    inputs: &'a [*const u8],
    elements: usize,
    out: *mut u8,
}

impl Job<'_> {
    /// Reduces elements that are stored as `T` and added as `N`.
    ///
    /// # Safety
    /// As for [`reduce`], with elements of type `T`.
    unsafe fn run<T: Copy, N>(self, widen: impl Fn(T) -> N, narrow: impl Fn(N) -> T, count: N)
    where
        N: Copy + Default + PartialOrd + Add<Output = N> + Mul<Output = N> + Div<Output = N>,
    {
        let is_nan = |x: &N| x.partial_cmp(x).is_none();
        let larger = |x: N, y: N| if x > y || is_nan(&x) { x } else { y };
        let smaller = |x: N, y: N| if x < y || is_nan(&x) { x } else { y };
        // SAFETY: the contract is passed on.
        unsafe {
            match self.reduce {
                Reduce::Sum => self.fold(widen, N::add, narrow),
                Reduce::Mean => self.fold(widen, N::add, |sum| narrow(sum / count)),
                Reduce::Prod => self.fold(widen, N::mul, narrow),
                Reduce::Max => self.fold(widen, larger, narrow),
                Reduce::Min => self.fold(widen, smaller, narrow),
            }
        }
    }

    /// Folds in rank order, a block of elements at a time.
    #[inline(always)]
    unsafe fn fold<T: Copy, N: Copy + Default>(
        self,
        widen: impl Fn(T) -> N,
        both: impl Fn(N, N) -> N,
        narrow: impl Fn(N) -> T,
    ) {
        const BLOCK: usize = 512;
        let mut sums = [N::default(); BLOCK];
        let (first, others) = self.inputs.split_at(1);
        for start in (0..self.elements).step_by(BLOCK) {
            let len = BLOCK.min(self.elements - start);
            let sums = &mut sums[..len];
            // SAFETY: the caller promises that the input has `elements` elements, which nobody else writes. The slice is
            // dead when `out` is written below.
            let block =
                |input: &*const u8| unsafe { std::slice::from_raw_parts(input.cast::<T>().add(start), len) };
            sums.iter_mut().zip(block(&first[0])).for_each(|(sum, &x)| *sum = widen(x));
            for other in others {
                sums.iter_mut().zip(block(other)).for_each(|(sum, &x)| *sum = both(*sum, widen(x)));
            }
            // SAFETY: the caller promises room for `elements` elements at `out`, which nobody else uses. If `out` is an
            // input, too, no slice of it is alive here.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.cast::<T>().add(start), len) };
            out.iter_mut().zip(&*sums).for_each(|(out, &sum)| *out = narrow(sum));
        }
    }
}
