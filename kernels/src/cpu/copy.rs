//! Fills, copies and conversions. Copies do not care what the bits mean, so they are written once for each size.

use device::{DType, bf16, f16};
use pulp::Arch;

use super::for_bits;
use super::number::functions;
use super::product::{Matrix, copy_matrix};
use super::walk::map;
use crate::half::{Half, odd_from_f64, odd_from_i64};
use crate::layout::{Dst, Src};
use crate::loops::{Places, Tiles};
use crate::par::{Workers, for_range};

/// `out = bits`, in elements of `size` bytes.
///
/// # Safety
/// As for [`map`].
pub(crate) unsafe fn fill(size: usize, bits: u64, walk: &Places<1>, workers: &Workers, out: Dst<u8>) {
    // SAFETY: the caller keeps the contract of `map` for elements of `size` bytes, and only their bits matter.
    unsafe { for_bits!(size, B => map::<false, B, B, _, _>(walk, workers, out.cast(), [], |[]| bits as B)) }
}

/// `out = x`, converted from the second type to the first.
///
/// # Safety
/// As for [`map`].
pub(crate) unsafe fn copy(
    (to, from): (DType, DType),
    walk: &Places<2>,
    workers: &Workers,
    out: Dst<u8>,
    x: Src<u8>,
) {
    // SAFETY: the caller keeps the contract of `map` for elements of types `to` and `from`, which the arms cast to.
    unsafe {
        if to == from {
            return for_bits!(to.size_bytes(), B => copy_bits::<B>(walk, workers, out.cast(), x.cast()));
        }
        match from {
            DType::F32 => convert(to, walk, workers, out, x.cast(), |x: f32| x),
            DType::F64 => convert(to, walk, workers, out, x.cast(), |x: f64| x),
            DType::I64 => convert(to, walk, workers, out, x.cast(), |x: i64| x),
            DType::U8 => convert(to, walk, workers, out, x, |x: u8| x),
            // Whatever was uploaded, 0 or 1 comes out.
            DType::Bool => convert(to, walk, workers, out, x, |x: u8| u8::from(x != 0)),
            DType::BF16 => convert(to, walk, workers, out, x.cast(), bf16::widen),
            DType::F16 => convert(to, walk, workers, out, x.cast(), f16::widen),
            _ => {}
        }
    }
}

/// A number that can be converted to every type. Floats become integers by rounding towards 0 and saturating; integers wrap around.
trait Source: Copy {
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn to_u8(self) -> u8;
    fn to_truth(self) -> u8;
    /// Rounded once. Types that F32 cannot hold come by way of an odd number.
    fn to_half<H: Half>(self) -> H;
}

macro_rules! source {
    ($number:ty, $to_f32:expr) => {
        impl Source for $number {
            functions! {
                fn to_f32(self) -> f32 = self as f32;
                fn to_f64(self) -> f64 = self as f64;
                fn to_i64(self) -> i64 = self as i64;
                fn to_u8(self) -> u8 = self as u8;
                fn to_truth(self) -> u8 = u8::from(self != 0 as $number);
            }

            #[inline(always)]
            fn to_half<H: Half>(self) -> H {
                H::round($to_f32(self))
            }
        }
    };
}
source!(f32, std::convert::identity);
source!(f64, odd_from_f64);
source!(i64, odd_from_i64);
source!(u8, f32::from);

/// Converts the number that each element of `x` is.
///
/// # Safety
/// As for [`map`].
unsafe fn convert<A: Copy, N: Source>(
    to: DType,
    walk: &Places<2>,
    workers: &Workers,
    out: Dst<u8>,
    x: Src<A>,
    number: impl Fn(A) -> N + Sync,
) {
    // SAFETY: the caller keeps the contract of `map` for elements of types `to` and `A`, which the arms cast to.
    unsafe {
        match to {
            DType::F32 => map::<false, _, _, _, _>(walk, workers, out.cast(), [x], |[x]| number(x).to_f32()),
            DType::F64 => map::<false, _, _, _, _>(walk, workers, out.cast(), [x], |[x]| number(x).to_f64()),
            DType::I64 => map::<false, _, _, _, _>(walk, workers, out.cast(), [x], |[x]| number(x).to_i64()),
            DType::U8 => map::<false, _, _, _, _>(walk, workers, out, [x], |[x]| number(x).to_u8()),
            DType::Bool => map::<false, _, _, _, _>(walk, workers, out, [x], |[x]| number(x).to_truth()),
            DType::BF16 => {
                map::<false, bf16, _, _, _>(walk, workers, out.cast(), [x], |[x]| number(x).to_half())
            }
            DType::F16 => {
                map::<false, f16, _, _, _>(walk, workers, out.cast(), [x], |[x]| number(x).to_half())
            }
            _ => {}
        }
    }
}

/// # Safety
/// As for [`map`].
unsafe fn copy_bits<T: Copy>(walk: &Places<2>, workers: &Workers, out: Dst<T>, x: Src<T>) {
    let tiles = match walk {
        Places::Loops(loops) => Tiles::of(loops, TILE, TILE as isize),
        Places::Run { .. } => None,
    };
    // SAFETY: the caller keeps the contract of `map`. `Tiles::of` takes only loops with different steps of `out` and `x`, so
    // there `out` is not `x` and overlaps it nowhere.
    unsafe {
        match tiles {
            Some(tiles) => tiles.copy(workers, out, x),
            None => map::<false, _, _, _, _>(walk, workers, out, [x], |[x]| x),
        }
    }
}

/// The fewest rows and columns of a copy that goes through tiles.
const TILE: usize = 8;
/// Rows of a part when a copy is split over threads.
const STRIPE: usize = 64;

impl Tiles {
    /// # Safety
    /// As for [`map`]; `out` does not overlap `x`.
    unsafe fn copy<T: Copy>(&self, workers: &Workers, out: Dst<T>, x: Src<T>) {
        let Tiles { outer, rows, columns } = self;
        let stripes = rows.size.div_ceil(STRIPE);
        for_range(workers, outer.elements * stripes, 1, &|range| {
            for index in range {
                let [at_out, at_x] = outer.offsets(index / stripes);
                let first = (index % stripes * STRIPE) as isize;
                let stripe = STRIPE.min(rows.size - first as usize);
                let from = Matrix { ptr: x.at(at_x + first).cast_mut(), row: 1, col: columns.strides[1] };
                let to =
                    Matrix { ptr: out.at(at_out + first * rows.strides[0]), row: rows.strides[0], col: 1 };
                // SAFETY: both are the rows of the stripe from offsets of the outer loops on, so the elements are those
                // that the caller vouches for.
                unsafe { copy_matrix(Arch::new(), stripe, columns.size, from, to) };
            }
        });
    }
}
