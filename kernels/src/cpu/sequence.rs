//! Cumulative sums and rotations.

use smallvec::SmallVec;

use super::number::{Number, Real};
use crate::layout::{Dst, Src};
use crate::loops::{Loops, Rows, ScanOrder};
use crate::par::{Workers, for_range};

/// Rows that are summed side by side.
const WIDTH: usize = 64;

/// One value for each of the rows that are summed side by side.
type Side<T> = [T; WIDTH];

/// The running sums of one row or of several side by side, in the order of [`ScanOrder`].
///
/// A sum never is -0, since each begins at 0: adding 0 changes no bit.
struct Scan<T> {
    /// The number of whole runs so far.
    runs: usize,
    /// Where bit `k` of `runs` is set, the sum of the newest block of `2^k` runs that begins at a multiple of as many.
    blocks: SmallVec<[Side<T>; 8]>,
    /// The sum of all whole tiles.
    tiles: Side<T>,
    /// The sum of all whole runs, to which a run's own sums are added.
    base: Side<T>,
}

impl<T: Number> Scan<T> {
    fn new() -> Scan<T> {
        Scan { runs: 0, blocks: SmallVec::new(), tiles: [T::ZERO; WIDTH], base: [T::ZERO; WIDTH] }
    }

    /// Adds the blocks of the levels that are set in `runs`, the smallest first.
    fn joined(&self, levels: std::ops::Range<usize>, width: usize) -> Side<T> {
        let mut sums = [T::ZERO; WIDTH];
        for level in levels.filter(|level| self.runs >> level & 1 == 1) {
            add_to(&self.blocks[level], &mut sums, width);
        }
        sums
    }

    /// Appends the sum of a whole run.
    fn push(&mut self, mut run: Side<T>, width: usize) {
        const TILE_LEVEL: usize = ScanOrder::TILE_RUNS.ilog2() as usize;
        let level = self.runs.trailing_ones() as usize;
        for block in &self.blocks[..level] {
            add_to(block, &mut run, width);
        }
        if level == self.blocks.len() {
            self.blocks.push(run);
        } else {
            self.blocks[level] = run;
        }
        self.runs += 1;
        if self.runs.is_multiple_of(ScanOrder::TILE_RUNS) {
            self.tiles = self.joined(TILE_LEVEL..self.blocks.len(), width);
        }
        self.base = self.joined(0..TILE_LEVEL.min(self.blocks.len()), width);
        add_to(&self.tiles, &mut self.base, width);
    }
}

/// `sums = before + sums`.
#[inline(always)]
fn add_to<T: Number>(before: &Side<T>, sums: &mut Side<T>, width: usize) {
    for (before, sum) in before[..width].iter().zip(&mut sums[..width]) {
        *sum = before.add(*sum);
    }
}

/// Sums along rows, from their start or, if `reverse`, from their end.
pub(crate) unsafe fn cumsum<T: Number>(
    &Rows { ref kept, len, steps }: &Rows<2>,
    workers: &Workers,
    reverse: bool,
    (out, x): (Dst<T>, Src<T>),
) {
    for_range(workers, kept.elements, ((1 << 13) / len).max(1).next_multiple_of(WIDTH), &|range| {
        let mut runs = kept.runs(range);
        let sides = runs.steps();
        while let Some((offsets, count)) = runs.next() {
            for first in (0..count).step_by(WIDTH) {
                let width = WIDTH.min(count - first);
                let mut scan = Scan::<T>::new();
                for start in (0..len).step_by(ScanOrder::RUN) {
                    let mut sums = [T::ZERO; WIDTH];
                    for i in start..len.min(start + ScanOrder::RUN) {
                        let i = if reverse { len - 1 - i } else { i } as isize;
                        for (c, (sum, base)) in sums[..width].iter_mut().zip(&scan.base).enumerate() {
                            let at = |k: usize| offsets[k] + (first + c) as isize * sides[k] + i * steps[k];
                            // SAFETY: `i` is below `len`, and `first + c` a row of `rows`, which are those of the
                            // operands by the module's contract. Rows are disjoint parts.
                            unsafe {
                                *sum = sum.add(*x.at(at(1)));
                                *out.at(at(0)) = base.add(*sum);
                            }
                        }
                    }
                    scan.push(sums, width);
                }
            }
        }
    });
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
