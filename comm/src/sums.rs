//! Sums of ranks' elements, in rank order.

use device::{DType, bf16, f16};
use smallvec::SmallVec;

use crate::Reduce;

/// Where each rank's elements lie, by rank.
pub(crate) type Inputs = SmallVec<[*const u8; 8]>;

/// `out = inputs[0] + inputs[1] + ..`, or as `reduce` says, of so many elements of each, in that order. A mean is over
/// `count`.
///
/// # Safety
/// The inputs, of which there is one at least, have these elements, and `out` has room for them, aligned; it may be one of the
/// inputs, beside no other one. Nobody else writes them meanwhile.
pub(crate) unsafe fn reduce(
    dtype: DType,
    reduce: Reduce,
    inputs: &[*const u8],
    elements: usize,
    out: *mut u8,
    count: usize,
) {
    // SAFETY: the caller promises `elements` aligned elements of `dtype` at each address, and each arm casts to the
    // type of its `dtype`. Bool is one byte, as U8 is.
    unsafe {
        match dtype {
            DType::F32 => reduce_as::<f32>(reduce, inputs, elements, out.cast(), count),
            DType::F64 => reduce_as::<f64>(reduce, inputs, elements, out.cast(), count),
            DType::I64 => reduce_as::<i64>(reduce, inputs, elements, out.cast(), count),
            DType::BF16 => reduce_as::<bf16>(reduce, inputs, elements, out.cast(), count),
            DType::F16 => reduce_as::<f16>(reduce, inputs, elements, out.cast(), count),
            // Of truth values the largest and the smallest are asked for, of which 0 and 1 are right.
            _ => reduce_as::<u8>(reduce, inputs, elements, out.cast(), count),
        }
    }
}

/// As [`reduce`].
unsafe fn reduce_as<T: Stored>(
    reduce: Reduce,
    inputs: &[*const u8],
    elements: usize,
    out: *mut T,
    count: usize,
) {
    let same = |x: T::Number| x;
    // SAFETY: the contract of `reduce`, with elements of type `T`, is passed on to `fold`.
    unsafe {
        match reduce {
            Reduce::Sum => fold(inputs, elements, out, T::Number::plus, same),
            Reduce::Mean => fold(inputs, elements, out, T::Number::plus, |x| x.over(count)),
            Reduce::Max => fold(inputs, elements, out, T::Number::larger, same),
            Reduce::Min => fold(inputs, elements, out, T::Number::smaller, same),
            Reduce::Prod => fold(inputs, elements, out, T::Number::times, same),
        }
    }
}

/// Folds in rank order, a block of elements at a time, in the type that is computed in.
#[inline(always)]
unsafe fn fold<T: Stored>(
    inputs: &[*const u8],
    elements: usize,
    out: *mut T,
    both: impl Fn(T::Number, T::Number) -> T::Number,
    end: impl Fn(T::Number) -> T::Number,
) {
    const BLOCK: usize = 512;
    let mut sums = [T::Number::default(); BLOCK];
    let (first, others) = inputs.split_at(1);
    for start in (0..elements).step_by(BLOCK) {
        let len = BLOCK.min(elements - start);
        let sums = &mut sums[..len];
        // SAFETY: the caller promises that the input has `elements` elements, which nobody else writes. The slice is
        // dead when `out` is written below.
        let block =
            |input: &*const u8| unsafe { std::slice::from_raw_parts(input.cast::<T>().add(start), len) };
        sums.iter_mut().zip(block(&first[0])).for_each(|(sum, x)| *sum = x.widen());
        for other in others {
            sums.iter_mut().zip(block(other)).for_each(|(sum, x)| *sum = both(*sum, x.widen()));
        }
        // SAFETY: the caller promises room for `elements` elements at `out`, which nobody else uses. If `out` is an
        // input, too, no slice of it is alive here.
        let out = unsafe { std::slice::from_raw_parts_mut(out.add(start), len) };
        out.iter_mut().zip(&*sums).for_each(|(out, sum)| *out = T::narrow(end(*sum)));
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
