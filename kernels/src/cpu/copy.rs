//! Fills, copies and conversions. Copies do not care what the bits mean, so they are written once for each size.

use device::{DType, bf16, f16};

use super::half::{Half, odd_from_f64, odd_from_i64};
use super::simd_of;
use super::walk::{map0, map1};
use crate::layout::{Dst, LoopAxis, Loops, Src};
use crate::loops::Places;
use crate::par::{Workers, for_range};

/// `out = bits`, in elements of `size` bytes.
///
/// # Safety
/// As for [`map0`].
pub(crate) unsafe fn fill(size: usize, bits: u64, walk: &Places<1>, workers: &Workers, out: Dst<u8>) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => map0(walk, workers, out, bits as u8),
            2 => map0(walk, workers, out.cast(), bits as u16),
            4 => map0(walk, workers, out.cast(), bits as u32),
            _ => map0(walk, workers, out.cast(), bits),
        }
    }
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
    // SAFETY: the caller's promise.
    unsafe {
        if to == from {
            return match to.size_bytes() {
                1 => copy_bits::<u8>(walk, workers, out, x),
                2 => copy_bits::<u16>(walk, workers, out.cast(), x.cast()),
                4 => copy_bits::<u32>(walk, workers, out.cast(), x.cast()),
                _ => copy_bits::<u64>(walk, workers, out.cast(), x.cast()),
            };
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
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn to_u8(self) -> u8;
    fn to_truth(self) -> u8;

    /// Rounded once. Types that F32 cannot hold come by way of an odd number.
    #[inline(always)]
    fn to_half<H: Half>(self) -> H {
        H::round(self.to_f32())
    }
}

impl<H: Half> Convert for H {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.widen()
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self.widen())
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        self.widen() as i64
    }
    #[inline(always)]
    fn to_u8(self) -> u8 {
        self.widen() as u8
    }
    #[inline(always)]
    fn to_truth(self) -> u8 {
        u8::from(self.widen() != 0.0)
    }
}

impl Convert for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
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
        u8::from(self != 0.0)
    }
}

impl Convert for f64 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
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
        u8::from(self != 0.0)
    }
    #[inline(always)]
    fn to_half<H: Half>(self) -> H {
        H::round(odd_from_f64(self))
    }
}

impl Convert for i64 {
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
        self
    }
    #[inline(always)]
    fn to_u8(self) -> u8 {
        self as u8
    }
    #[inline(always)]
    fn to_truth(self) -> u8 {
        u8::from(self != 0)
    }
    #[inline(always)]
    fn to_half<H: Half>(self) -> H {
        H::round(odd_from_i64(self))
    }
}

impl Convert for u8 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        i64::from(self)
    }
    #[inline(always)]
    fn to_u8(self) -> u8 {
        self
    }
    #[inline(always)]
    fn to_truth(self) -> u8 {
        u8::from(self != 0)
    }
}

/// The byte of a truth value: whatever was uploaded, 0 or 1 comes out.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Truth(u8);

impl Convert for Truth {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(self.to_truth())
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self.to_truth())
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        i64::from(self.to_truth())
    }
    #[inline(always)]
    fn to_u8(self) -> u8 {
        self.to_truth()
    }
    #[inline(always)]
    fn to_truth(self) -> u8 {
        u8::from(self.0 != 0)
    }
}

/// # Safety
/// As for [`map1`].
unsafe fn convert<A: Convert>(to: DType, walk: &Places<2>, workers: &Workers, out: Dst<u8>, x: Src<A>) {
    // SAFETY: the caller's promise.
    unsafe {
        match to {
            DType::F32 => map1::<false, _, _>(walk, workers, out.cast(), x, A::to_f32),
            DType::F64 => map1::<false, _, _>(walk, workers, out.cast(), x, A::to_f64),
            DType::I64 => map1::<false, _, _>(walk, workers, out.cast(), x, A::to_i64),
            DType::U8 => map1::<false, _, _>(walk, workers, out, x, A::to_u8),
            DType::Bool => map1::<false, _, _>(walk, workers, out, x, A::to_truth),
            DType::BF16 => map1::<false, _, _>(walk, workers, out.cast(), x, A::to_half::<bf16>),
            DType::F16 => map1::<false, _, _>(walk, workers, out.cast(), x, A::to_half::<f16>),
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
    // SAFETY: the caller's promise.
    unsafe {
        match walk {
            Places::Run { elements, steps: [1, 1] } if elements * size_of::<T>() >= LARGE_BYTES => {
                for_range(workers, *elements, LARGE_CHUNK, &|range| {
                    let (start, len) = (range.start as isize, range.end - range.start);
                    std::ptr::copy(x.at(start), out.at(start), len);
                });
            }
            Places::Loops(loops) => match Tiles::of(loops) {
                Some(tiles) => tiles.copy(workers, out, x),
                None => map1::<false, _, _>(walk, workers, out, x, std::convert::identity),
            },
            Places::Run { .. } => map1::<false, _, _>(walk, workers, out, x, std::convert::identity),
        }
    }
}

/// A copy that transposes: contiguous along one axis in `x` and along another in `out`. Going through it in small
/// tiles uses every cache line that is loaded.
struct Tiles {
    outer: Loops<2>,
    /// Contiguous in `x`.
    rows: LoopAxis<2>,
    /// Contiguous in `out`.
    columns: LoopAxis<2>,
}

const TILE: usize = 8;
/// Rows of a part when a copy is split over threads.
const STRIPE: usize = 64;

impl Tiles {
    fn of(loops: &Loops<2>) -> Option<Tiles> {
        let (columns, others) = loops.axes.split_last()?;
        let rows = others.iter().rposition(|axis| axis.strides[1] == 1 && axis.size >= TILE)?;
        if columns.strides[0] != 1 || columns.strides[1] < TILE as isize || columns.size < TILE {
            return None;
        }
        let outer = others.iter().enumerate().filter(|&(i, _)| i != rows).map(|(_, axis)| *axis);
        Some(Tiles { outer: Loops::from_axes(outer), rows: others[rows], columns: *columns })
    }

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
                    // SAFETY: the caller's promise.
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
        // SAFETY: rows and columns lie within their axes.
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
