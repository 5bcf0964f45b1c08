//! Fills, copies and conversions. Copies do not care what the bits mean, so they are written once for each size.

use device::{DType, bf16, f16};

use super::walk::{map0, map1};
use super::{for_bits, simd_of};
use crate::half::{Half, odd_from_f64, odd_from_i64};
use crate::layout::{Dst, Src};
use crate::loops::{Places, Tiles};
use crate::par::{Workers, for_range};

/// `out = bits`, in elements of `size` bytes.
///
/// # Safety
/// As for [`map0`].
pub(crate) unsafe fn fill(size: usize, bits: u64, walk: &Places<1>, workers: &Workers, out: Dst<u8>) {
    // SAFETY: the caller keeps the contract of `map0` for elements of `size` bytes, and only their bits matter.
    unsafe { for_bits!(size, B => map0(walk, workers, out.cast(), bits as B)) }
}

/// `out = x`, converted from the second type to the first.
///
/// # Safety
/// As for [`map1`].
pub(crate) unsafe fn copy(
    (to, from): (DType, DType),
    walk: &Places<2>,
    workers: &Workers,
    out: Dst<u8>,
    x: Src<u8>,
) {
    // SAFETY: the caller keeps the contract of `map1` for elements of types `to` and `from`, which the arms cast to.
    unsafe {
        if to == from {
            return for_bits!(to.size_bytes(), B => copy_bits::<B>(walk, workers, out.cast(), x.cast()));
        }
        match from {
            DType::F32 => convert::<f32>(to, walk, workers, out, x.cast()),
            DType::F64 => convert::<f64>(to, walk, workers, out, x.cast()),
            DType::I64 => convert::<i64>(to, walk, workers, out, x.cast()),
            DType::U8 => convert::<u8>(to, walk, workers, out, x),
            DType::Bool => convert::<Truth>(to, walk, workers, out, x.cast()),
            DType::BF16 => convert::<bf16>(to, walk, workers, out, x.cast()),
            DType::F16 => convert::<f16>(to, walk, workers, out, x.cast()),
            _ => {}
        }
    }
}

/// An element that can be converted to every type.
trait Convert: Copy {
    type Number: Number;

    /// The number that is converted in its place.
    fn number(self) -> Self::Number;
}

/// What every type can be made of. Floats become integers by rounding towards 0 and saturating; integers wrap around.
trait Number: Copy {
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn to_u8(self) -> u8;
    fn to_truth(self) -> u8;
    /// Rounded once. Types that F32 cannot hold come by way of an odd number.
    fn to_half<H: Half>(self) -> H;
}

macro_rules! number {
    ($number:ty, $to_f32:expr) => {
        impl Convert for $number {
            type Number = Self;

            #[inline(always)]
            fn number(self) -> Self {
                self
            }
        }

        impl Number for $number {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn to_u8(self) -> u8 {
                self as u8
            }
            #[inline(always)]
            fn to_truth(self) -> u8 {
                u8::from(self != 0 as $number)
            }
            #[inline(always)]
            fn to_half<H: Half>(self) -> H {
                H::round($to_f32(self))
            }
        }
    };
}
number!(f32, std::convert::identity);
number!(f64, odd_from_f64);
number!(i64, odd_from_i64);
number!(u8, f32::from);

impl<H: Half> Convert for H {
    type Number = f32;

    #[inline(always)]
    fn number(self) -> f32 {
        self.widen()
    }
}

/// The byte of a truth value: whatever was uploaded, 0 or 1 comes out.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Truth(u8);

impl Convert for Truth {
    type Number = u8;

    #[inline(always)]
    fn number(self) -> u8 {
        u8::from(self.0 != 0)
    }
}

/// # Safety
/// As for [`map1`].
unsafe fn convert<A: Convert>(to: DType, walk: &Places<2>, workers: &Workers, out: Dst<u8>, x: Src<A>) {
    // SAFETY: the caller keeps the contract of `map1` for elements of types `to` and `A`, which the arms cast to.
    unsafe {
        match to {
            DType::F32 => map1::<false, _, _>(walk, workers, out.cast(), x, |x| x.number().to_f32()),
            DType::F64 => map1::<false, _, _>(walk, workers, out.cast(), x, |x| x.number().to_f64()),
            DType::I64 => map1::<false, _, _>(walk, workers, out.cast(), x, |x| x.number().to_i64()),
            DType::U8 => map1::<false, _, _>(walk, workers, out, x, |x| x.number().to_u8()),
            DType::Bool => map1::<false, _, _>(walk, workers, out, x, |x| x.number().to_truth()),
            DType::BF16 => map1::<false, bf16, _>(walk, workers, out.cast(), x, |x| x.number().to_half()),
            DType::F16 => map1::<false, f16, _>(walk, workers, out.cast(), x, |x| x.number().to_half()),
            _ => {}
        }
    }
}

/// Copies of at least this many bytes are left to `memmove`, which knows the machine's caches.
const LARGE_BYTES: usize = 1 << 12;
const LARGE_CHUNK: usize = 1 << 18;

/// # Safety
/// As for [`map1`].
unsafe fn copy_bits<T: Copy>(walk: &Places<2>, workers: &Workers, out: Dst<T>, x: Src<T>) {
    // SAFETY: the caller keeps the contract of `map1`. A run is `elements` elements from both addresses on.
    // `Tiles::of` takes only loops with different steps of `out` and `x`, so there `out` is not `x` and overlaps it
    // nowhere.
    unsafe {
        match walk {
            Places::Run { elements, steps: [1, 1] } if elements * size_of::<T>() >= LARGE_BYTES => {
                for_range(workers, *elements, LARGE_CHUNK, &|range| {
                    let (start, len) = (range.start as isize, range.end - range.start);
                    std::ptr::copy(x.at(start), out.at(start), len);
                });
            }
            Places::Loops(loops) => match Tiles::of(loops, TILE, TILE as isize) {
                Some(tiles) => tiles.copy(workers, out, x),
                None => map1::<false, _, _>(walk, workers, out, x, std::convert::identity),
            },
            Places::Run { .. } => map1::<false, _, _>(walk, workers, out, x, std::convert::identity),
        }
    }
}

/// Going through a copy that transposes in small tiles uses every cache line that is loaded.
const TILE: usize = 8;
/// Rows of a part when a copy is split over threads.
const STRIPE: usize = 64;

impl Tiles {
    /// # Safety
    /// As for [`map1`]; `out` does not overlap `x`.
    unsafe fn copy<T: Copy>(&self, workers: &Workers, out: Dst<T>, x: Src<T>) {
        let stripes = self.rows.size.div_ceil(STRIPE);
        for_range(workers, self.outer.elements * stripes, 1, &|range| {
            for index in range {
                let [oo, ox] = self.outer.offsets(index / stripes);
                let start = index % stripes * STRIPE;
                let stripe = start..self.rows.size.min(start + STRIPE);
                simd_of::<false, _>(
                    #[inline(always)]
                    // SAFETY: `oo` and `ox` are offsets of the outer loops and `stripe` lies in the rows, so the
                    // elements are those that the caller vouches for.
                    || unsafe { self.stripe(stripe, out.at(oo), x.at(ox)) },
                );
            }
        });
    }

    /// # Safety
    /// As for [`copy`](Self::copy).
    #[inline(always)]
    unsafe fn stripe<T: Copy>(&self, rows: std::ops::Range<usize>, out: *mut T, x: *const T) {
        let (row_step, column_step) = (self.rows.strides[0], self.columns.strides[1]);
        let whole = self.columns.size / TILE * TILE;
        // SAFETY: `rows` lies in the row axis and columns stay below `columns.size`, so every offset is one of an
        // element that `copy`'s caller vouches for.
        unsafe {
            let mut row = rows.start;
            while row + TILE <= rows.end {
                let (o, x) = (out.offset(row as isize * row_step), x.add(row));
                for column in (0..whole).step_by(TILE) {
                    let x = x.offset(column as isize * column_step);
                    let mut tile = [[*x; TILE]; TILE];
                    for (j, line) in tile.iter_mut().enumerate() {
                        *line = x.offset(j as isize * column_step).cast::<[T; TILE]>().read();
                    }
                    let tile: [[T; TILE]; TILE] = std::array::from_fn(|i| tile.map(|line| line[i]));
                    for (i, line) in tile.into_iter().enumerate() {
                        o.offset(i as isize * row_step).add(column).cast::<[T; TILE]>().write(line);
                    }
                }
                for column in whole..self.columns.size {
                    for i in 0..TILE {
                        *o.offset(i as isize * row_step).add(column) =
                            *x.offset(column as isize * column_step).add(i);
                    }
                }
                row += TILE;
            }
            for row in row..rows.end {
                for column in 0..self.columns.size {
                    *out.offset(row as isize * row_step).add(column) =
                        *x.offset(column as isize * column_step).add(row);
                }
            }
        }
    }
}
