//! Cumulative sums and rotations.

use std::ops::Range;

use smallvec::SmallVec;

use super::inlined;
use super::lanes::{Scratch, simd_for, with_scratch};
use super::number::{Number, Real};
use super::product::{Matrix, copy_matrix};
use crate::layout::{Dst, Src};
use crate::loops::{Loops, Rows, ScanOrder};
use crate::par::{Workers, for_range, threads};

/// Columns that are summed side by side, where there are many, and where there are few.
const WIDTH: usize = 64;
const NARROW: usize = 8;
const RUN: usize = ScanOrder::RUN;
/// Elements of a tile.
const TILE: usize = RUN * ScanOrder::TILE_RUNS;

/// The sums of blocks of values, of `W` columns side by side. A sum never is -0, since each begins at 0: adding 0 changes no bit.
struct Blocks<T, const W: usize> {
    /// The number of values.
    count: usize,
    /// Where bit `k` of `count` is set, the sum of the newest block of `2^k` values that begins at a multiple of as many.
    sums: SmallVec<[[T; W]; 8]>,
}

impl<T: Number, const W: usize> Blocks<T, W> {
    fn new() -> Blocks<T, W> {
        Blocks { count: 0, sums: SmallVec::new() }
    }

    /// The sum of all values: of the blocks, the smallest first.
    #[inline(always)]
    fn sum(&self) -> [T; W] {
        let set = |level: &usize| self.count >> level & 1 == 1;
        (0..self.sums.len()).filter(set).fold([T::ZERO; W], |sum, level| plus(&self.sums[level], &sum))
    }

    #[inline(always)]
    fn push(&mut self, value: [T; W]) {
        let level = self.count.trailing_ones() as usize;
        let block = self.sums[..level].iter().fold(value, |block, before| plus(before, &block));
        match self.sums.get_mut(level) {
            Some(sum) => *sum = block,
            None => self.sums.push(block),
        }
        self.count += 1;
    }
}

#[inline(always)]
fn plus<T: Number, const W: usize>(a: &[T; W], b: &[T; W]) -> [T; W] {
    let mut sums = *a;
    for (sum, b) in sums.iter_mut().zip(b) {
        *sum = sum.add(*b);
    }
    sums
}

/// A scan of rows of `len` elements, from their end if `reverse`.
struct Scan<'a, T> {
    rows: &'a Rows<2>,
    reverse: bool,
    out: Dst<T>,
    x: Src<T>,
}

impl<T: Number + Scratch> Scan<'_, T> {
    /// Scans positions `range` of a tile of `width` columns, whose first elements are at `offsets` and lie at steps of `sides`. The
    /// tiles before add up to `before`; without that nothing is written. Returns the sums of the columns.
    ///
    /// # Safety
    /// The operands have these elements, and nobody else uses those of the output.
    #[inline(always)]
    unsafe fn tile<const W: usize>(
        &self,
        range: Range<usize>,
        width: usize,
        offsets: [isize; 2],
        sides: [isize; 2],
        before: Option<&[T; W]>,
    ) -> [T; W] {
        let (Rows { len, steps, .. }, arch) = (self.rows, pulp::Arch::new());
        let mut runs = Blocks::<T, W>::new();
        let mut block = [[T::ZERO; W]; RUN];
        for start in range.clone().step_by(RUN) {
            let count = RUN.min(range.end - start);
            let first = if self.reverse { len - start - count } else { start } as isize;
            let ptr = block.as_mut_ptr().cast();
            let of = |ptr: *mut T, k: usize| {
                let ptr = ptr.wrapping_offset(offsets[k] + first * steps[k]);
                Matrix { ptr, row: steps[k], col: sides[k] }
            };
            // SAFETY: the caller promises these elements of the operands, and the block has room for as many.
            unsafe { copy_matrix(arch, count, width, of(self.x.0.cast_mut(), 1), Matrix::row_major(ptr, W)) };
            let base = before.map_or([T::ZERO; W], |before| plus(before, &runs.sum()));
            let mut sums = [T::ZERO; W];
            for i in 0..count {
                let elements = &mut block[if self.reverse { count - 1 - i } else { i }];
                sums = plus(&sums, elements);
                *elements = plus(&base, &sums);
            }
            if before.is_some() {
                // SAFETY: as above.
                unsafe { copy_matrix(arch, count, width, Matrix::row_major(ptr, W), of(self.out.0, 0)) };
            }
            runs.push(sums);
        }
        runs.sum()
    }

    /// Scans neighbouring rows side by side, tile after tile.
    ///
    /// # Safety
    /// As for [`tile`](Self::tile).
    unsafe fn side_by_side<const W: usize>(&self, workers: &Workers) {
        let Rows { kept, len, .. } = self.rows;
        for_range(workers, kept.elements, ((1 << 13) / len).max(1).next_multiple_of(W), &|range| {
            let mut runs = kept.runs(range);
            let sides = runs.steps();
            while let Some((offsets, count)) = runs.next() {
                for first in (0..count).step_by(W) {
                    let at = [0, 1].map(|k| offsets[k] + first as isize * sides[k]);
                    let mut tiles = Blocks::<T, W>::new();
                    for start in (0..*len).step_by(TILE) {
                        let (range, width) = (start..(*len).min(start + TILE), W.min(count - first));
                        let before = tiles.sum();
                        // SAFETY: the rows are those of the operands by the caller's promise, and disjoint parts.
                        let tile = inlined!(|| unsafe { self.tile(range, width, at, sides, Some(&before)) });
                        let sums = simd_for::<T, _>(tile);
                        tiles.push(sums);
                    }
                }
            }
        });
    }

    /// Scans the whole tiles of each row side by side, once their sums are known, and then the rest.
    ///
    /// # Safety
    /// As for [`tile`](Self::tile).
    unsafe fn tile_by_tile<const W: usize>(&self, workers: &Workers) {
        let Rows { kept, len, steps } = self.rows;
        let (whole, direction) = (len / TILE, if self.reverse { -1 } else { 1 });
        let sides = steps.map(|step| direction * step * TILE as isize);
        // Threads share out the rows, or the tiles of one.
        let none = None;
        let [of_rows, of_tiles] =
            if kept.elements >= threads(workers) { [workers, &none] } else { [&none, workers] };
        for_range(of_rows, kept.elements, 1, &|rows| {
            for at in rows.map(|row| kept.offsets(row)) {
                with_scratch(whole, |sums: *mut T| {
                    let sums = Dst(sums);
                    let pass = |write: bool| {
                        // SAFETY: the scratch has an element for each tile, and is initialised. The tiles are those of the row,
                        // which the operands have by the caller's promise.
                        for_range(of_tiles, whole.div_ceil(W), 1, &|groups| unsafe {
                            for first in groups.map(|group| group * W) {
                                let known = sums.slice_mut(first, W.min(whole - first));
                                let (width, mut before) = (known.len(), [T::ZERO; W]);
                                before[..width].copy_from_slice(known);
                                let (range, before) =
                                    (first * TILE..(first + 1) * TILE, write.then_some(&before));
                                let tile = inlined!(|| self.tile(range, width, at, sides, before));
                                known.copy_from_slice(&simd_for::<T, _>(tile)[..width]);
                            }
                        });
                    };
                    pass(false);
                    let mut blocks = Blocks::<T, 1>::new();
                    // SAFETY: as above; the first pass has ended.
                    for sum in unsafe { sums.slice_mut(0, whole) } {
                        let [before] = blocks.sum();
                        blocks.push([std::mem::replace(sum, before)]);
                    }
                    pass(true);
                    // SAFETY: as above.
                    unsafe { self.tile(whole * TILE..*len, 1, at, sides, Some(&blocks.sum())) };
                });
            }
        });
    }
}

/// Sums along rows, from their start or, if `reverse`, from their end, in the order of [`ScanOrder`].
pub(crate) unsafe fn cumsum<T: Number + Scratch>(
    rows: &Rows<2>,
    workers: &Workers,
    reverse: bool,
    (out, x): (Dst<T>, Src<T>),
) {
    let scan = Scan { rows, reverse, out, x };
    // SAFETY: the rows are those of the operands by the module's contract.
    unsafe {
        if rows.len > NARROW * TILE && rows.kept.elements < WIDTH * threads(workers) {
            return scan.tile_by_tile::<WIDTH>(workers);
        }
        match rows.kept.inner().size {
            0..=1 => scan.side_by_side::<1>(workers),
            2..=NARROW => scan.side_by_side::<NARROW>(workers),
            _ => scan.side_by_side::<WIDTH>(workers),
        }
    }
}

/// Turns pairs, the other way if `inverse`. Operands of `pairs` are output, input, cosine and sine, and the second element of
/// a pair is `apart` from the first in output and input.
pub(crate) unsafe fn rotary<T: Real>(
    pairs: &Loops<4>,
    workers: &Workers,
    (apart, inverse): ([isize; 2], bool),
    (out, x, cos, sin): (Dst<T>, Src<T>, Src<T>, Src<T>),
) {
    for_range(workers, pairs.elements, 1 << 13, &|range| {
        let mut runs = pairs.runs(range);
        let steps = runs.steps();
        while let Some((offsets, count)) = runs.next() {
            for i in 0..count as isize {
                let at = |k: usize| offsets[k] + i * steps[k];
                // SAFETY: `pairs` reaches the first element of each pair, and `apart` leads to the second, both
                // within the operands by the module's contract. Pairs are disjoint.
                unsafe {
                    let (a, b) = (*x.at(at(1)), *x.at(at(1) + apart[1]));
                    let (cos, sin) = (*cos.at(at(2)), *sin.at(at(3)));
                    let sin = if inverse { sin.neg() } else { sin };
                    *out.at(at(0)) = a.mul(cos).sub(b.mul(sin));
                    *out.at(at(0) + apart[0]) = b.mul(cos).add(a.mul(sin));
                }
            }
        }
    });
}
