//! Sums and other folds in a fixed order.
//!
//! Elements are folded in the row-major order of the reduced axes, whatever their strides: they are cut into blocks of
//! [`BLOCK`]; in a block, element `i` goes to lane `i % LANES`; lanes are joined as a tree (`l` with `l + 32`, then
//! with `l + 16`, ..), and if there are several blocks, their values are folded in the same way. Columns next to each
//! other are folded side by side, in vectors, which changes nothing in the order of each.

use std::ops::Range;

use super::inlined;
use super::lanes::{Scratch, map, simd_for, with_scratch};
use super::number::{Number, Real};
use super::walk::collect;
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_range};
use crate::reduction::Axes;

/// Elements that are folded before blocks are joined.
pub(crate) const BLOCK: usize = 4096;
/// Independent parts of a block's fold.
pub(crate) const LANES: usize = 64;
/// Columns that are folded side by side. There is room for a block of one column in the lanes.
pub(crate) const WIDTH: usize = BLOCK / LANES;

/// What a fold does with the elements; a sum of them by default.
pub(crate) trait Fold<T: Number>: Copy + Send + Sync {
    /// Whether `lift` does anything to an element.
    const LIFTS: bool = false;
    /// The value of no elements.
    #[inline(always)]
    fn empty(self) -> T {
        T::ZERO
    }
    /// What is folded for element `x`; `shift` is a value of its output, such as the mean.
    #[inline(always)]
    fn lift(self, x: T, _shift: T) -> T {
        x
    }
    /// The fold of two parts.
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        a.add(b)
    }
}

/// `a + b`
#[derive(Clone, Copy)]
pub(crate) struct Sum;
/// `a b`
#[derive(Clone, Copy)]
pub(crate) struct Prod;
/// The larger; NaN wins.
#[derive(Clone, Copy)]
pub(crate) struct Max;
/// The smaller; NaN wins.
#[derive(Clone, Copy)]
pub(crate) struct Min;
/// Sum of `((x - shift) scale)^2`.
#[derive(Clone, Copy)]
pub(crate) struct SumSquares<T>(pub(crate) T);
/// Sum of `exp(x - shift)`.
#[derive(Clone, Copy)]
pub(crate) struct SumExp;

impl<T: Number> Fold<T> for Sum {}

impl<T: Number> Fold<T> for Prod {
    #[inline(always)]
    fn empty(self) -> T {
        T::ONE
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        a.mul(b)
    }
}

impl<T: Number> Fold<T> for Max {
    #[inline(always)]
    fn empty(self) -> T {
        // The smallest value of an integer type.
        T::from_f64(f64::NEG_INFINITY)
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        a.maximum(b)
    }
}

impl<T: Number> Fold<T> for Min {
    #[inline(always)]
    fn empty(self) -> T {
        // The largest value of an integer type.
        T::from_f64(f64::INFINITY)
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        a.minimum(b)
    }
}

impl<T: Number> Fold<T> for SumSquares<T> {
    const LIFTS: bool = true;
    #[inline(always)]
    fn lift(self, x: T, shift: T) -> T {
        let d = x.sub(shift).mul(self.0);
        d.mul(d)
    }
}

impl<T: Real> Fold<T> for SumExp {
    const LIFTS: bool = true;
    #[inline(always)]
    fn lift(self, x: T, shift: T) -> T {
        x.sub(shift).exp()
    }
}

// Lanes that elements fall into. To leave out the others, which hold the empty value, changes no bit.
#[inline(always)]
fn lanes_for(len: usize) -> usize {
    len.next_power_of_two().min(LANES)
}

// Joins `x[i]` into `acc[i]`.
#[inline(always)]
fn join_each<T: Number, F: Fold<T>>(fold: F, acc: &mut [T], x: &[T]) {
    for (a, &x) in acc.iter_mut().zip(x) {
        *a = fold.join(*a, x);
    }
}

// Joins `lanes` lanes of `width` columns each into the first lane.
#[inline(always)]
fn join_lanes<T: Number, F: Fold<T>>(fold: F, lanes: usize, width: usize, acc: &mut [T]) {
    let mut half = lanes / 2;
    while half > 0 {
        let (low, high) = acc.split_at_mut(half * width);
        join_each(fold, low, high);
        half /= 2;
    }
}

/// Folds a block of at most [`BLOCK`] values.
#[inline(always)]
fn fold_block<T: Number, F: Fold<T>>(fold: F, x: &[T]) -> T {
    let mut acc = [fold.empty(); LANES];
    // Rows of a known length keep the lanes in registers.
    let (rows, rest) = x.as_chunks::<LANES>();
    for row in rows {
        join_each(fold, &mut acc, row);
    }
    join_each(fold, &mut acc, rest);
    join_lanes(fold, lanes_for(x.len()), 1, &mut acc);
    acc[0]
}

/// Folds a slice.
#[inline(always)]
pub(crate) fn fold_slice<T: Number + Scratch, F: Fold<T>>(fold: F, x: &[T]) -> T {
    if x.len() <= BLOCK {
        return fold_block(fold, x);
    }
    let blocks = x.len().div_ceil(BLOCK);
    with_scratch(
        blocks,
        inlined!(|partials: *mut T| {
            for (b, block) in x.chunks(BLOCK).enumerate() {
                // SAFETY: the scratch has `blocks` elements, and `b` is below that.
                unsafe { *partials.add(b) = fold_block(fold, block) };
            }
            // SAFETY: the loop above wrote all `blocks` values.
            let partials = unsafe { std::slice::from_raw_parts(partials, blocks) };
            let mut value = fold.empty();
            fold_partials(fold, partials, 1, &mut |_, all| value = all);
            value
        }),
    )
}

/// Lanes of at most [`WIDTH`] columns that are folded side by side: lane after lane, in each column after column.
pub(crate) struct Columns<'a, T> {
    acc: &'a mut [T],
    lanes: usize,
    width: usize,
}

impl<'a, T: Number> Columns<'a, T> {
    /// Lanes for a block of `len` rows, in memory for [`Columns::SIZE`] elements.
    ///
    /// # Safety
    /// The memory is valid and nobody else uses it.
    #[inline(always)]
    pub(crate) unsafe fn new<F: Fold<T>>(fold: F, memory: *mut T, len: usize, width: usize) -> Self {
        let lanes = lanes_for(len);
        // SAFETY: the caller promises `SIZE` elements that nobody else uses, and there are at most `LANES` lanes of
        // `WIDTH` columns. Scratch is initialised.
        let acc = unsafe { std::slice::from_raw_parts_mut(memory, lanes * width) };
        acc.fill(fold.empty());
        Columns { acc, lanes, width }
    }

    /// Elements that the lanes may take.
    pub(crate) const SIZE: usize = LANES * WIDTH;

    /// Row `i` of the block.
    #[inline(always)]
    fn row<F: Fold<T>>(&mut self, fold: F, i: usize, x: &[T]) {
        join_each(fold, &mut self.acc[i % LANES * self.width..][..self.width], x);
    }

    /// All rows of a block that lie next to each other: lane and column follow from the place alone.
    #[inline(always)]
    pub(crate) fn dense<F: Fold<T>>(&mut self, fold: F, x: &[T]) {
        // All lanes, or all rows where there are fewer.
        for rows in x.chunks(self.acc.len()) {
            join_each(fold, self.acc, rows);
        }
    }

    /// The value of each column.
    #[inline(always)]
    pub(crate) fn join<F: Fold<T>>(self, fold: F) -> &'a [T] {
        join_lanes(fold, self.lanes, self.width, self.acc);
        &self.acc[..self.width]
    }
}

/// Folds `width <= WIDTH` columns of values; row after row they fill `x`. Calls `done(column, value)`.
pub(crate) fn fold_partials<T: Number + Scratch, F: Fold<T>>(
    fold: F,
    x: &[T],
    width: usize,
    done: &mut dyn FnMut(usize, T),
) {
    let rows = x.len() / width;
    let blocks = rows.div_ceil(BLOCK);
    let size = if blocks > 1 { blocks * width } else { 0 };
    with_scratch(Columns::<T>::SIZE + size, |memory: *mut T| {
        let partials = memory.wrapping_add(Columns::<T>::SIZE);
        for (b, block) in x.chunks(BLOCK * width).enumerate() {
            // SAFETY: the scratch has `SIZE` elements for the lanes and `blocks * width` behind them; `b` and `c`
            // stay below those.
            unsafe {
                let mut columns = Columns::new(fold, memory, block.len() / width, width);
                columns.dense(fold, block);
                for (c, &value) in columns.join(fold).iter().enumerate() {
                    if blocks > 1 {
                        *partials.add(b * width + c) = value;
                    } else {
                        done(c, value);
                    }
                }
            }
        }
        if blocks > 1 {
            // SAFETY: the loop above wrote all `size` values.
            let partials = unsafe { std::slice::from_raw_parts(partials, size) };
            fold_partials(fold, partials, width, done);
        }
    });
}

impl Axes {
    // Whether outputs are folded one by one along memory, or side by side.
    fn by_rows(&self) -> bool {
        self.reduced.inner().strides[0] == 1 && self.reduced.elements > LANES || self.kept.elements == 1
    }
}

/// Folds `x` over `axes`: `out[k] = fold of lift(x, shifts[k])` for every kept element `k`.
///
/// # Safety
/// The elements that `axes` reaches can be read, `out` has room for all outputs, nobody else uses it meanwhile, and
/// `shifts`, which a fold that lifts has, has a value for each output. `shifts` may be `out`.
pub(crate) unsafe fn fold<T: Number + Scratch, F: Fold<T>>(
    axes: &Axes,
    workers: &Workers,
    x: Src<T>,
    shifts: Option<Src<T>>,
    out: Dst<T>,
    fold: F,
) {
    let Axes { kept, reduced } = axes;
    // Once even without elements, for the value of none.
    let blocks = reduced.elements.div_ceil(BLOCK).max(1);
    let width = if axes.by_rows() { 1 } else { WIDTH };
    let groups = kept.elements.div_ceil(width);
    let cost = width * reduced.elements.clamp(1, BLOCK);
    let size = if blocks > 1 { kept.elements * blocks } else { 0 };
    with_scratch(size, |partials: *mut T| {
        // Group after group, and in each block after block.
        let to = if blocks > 1 { Dst(partials) } else { out };
        for_range(workers, groups * blocks, (1_usize << 15).div_ceil(cost), &|range| {
            with_lanes(inlined!(|lanes| {
                let folding = Folding { axes, x, shifts, fold, lanes };
                for part in range.clone() {
                    let (first, block) = (part / blocks * width, part % blocks);
                    let count = width.min(kept.elements - first);
                    let rows = block * BLOCK..reduced.elements.min((block + 1) * BLOCK);
                    let to = to.at((first * blocks + block * count) as isize);
                    // SAFETY: the caller's promise; parts write disjoint places.
                    unsafe { folding.block(first..first + count, rows, to) };
                }
            }));
        });
        if blocks == 1 {
            return;
        }
        for_range(workers, groups, 64, &|range| {
            for group in range {
                let first = group * width;
                let count = width.min(kept.elements - first);
                // SAFETY: `for_range` above has written all partial values, of which these are one group's, and
                // returned.
                let values = unsafe { to.src().slice(first * blocks, count * blocks) };
                fold_partials(fold, values, count, &mut |c, value| {
                    // SAFETY: `first + c` is a kept element, for which the caller promises room; groups write
                    // disjoint outputs.
                    unsafe { *out.at((first + c) as isize) = value };
                });
            }
        });
    });
}

// Runs `work` as vector code, with memory for lanes.
#[inline(always)]
fn with_lanes<T: Number + Scratch>(work: impl FnOnce(*mut T)) {
    with_scratch(
        Columns::<T>::SIZE,
        inlined!(|lanes: *mut T| {
            simd_for::<T, _>(inlined!(|| work(lanes)));
        }),
    );
}

/// A fold over axes, and memory for the lanes of a thread.
struct Folding<'a, T, F> {
    axes: &'a Axes,
    x: Src<T>,
    shifts: Option<Src<T>>,
    fold: F,
    lanes: *mut T,
}

/// # Safety
/// Each method reads elements that the axes reach, and has the lanes to itself.
impl<T: Number + Scratch, F: Fold<T>> Folding<'_, T, F> {
    /// Folds rows `rows`, one block, of neighbouring outputs into `out`, which has room for them.
    #[inline(always)]
    unsafe fn block(&self, outputs: Range<usize>, rows: Range<usize>, out: *mut T) {
        let mut shifts = [T::ZERO; WIDTH];
        if let (true, Some(from)) = (F::LIFTS, self.shifts) {
            for (shift, output) in shifts.iter_mut().zip(outputs.clone()) {
                // SAFETY: there is a value for each output.
                *shift = unsafe { *from.at(output as isize) };
            }
        }
        // SAFETY: the caller's promise; there is room for each output.
        unsafe {
            if self.axes.by_rows() {
                *out = self.row(outputs.start, rows, shifts[0]);
            } else {
                self.columns(outputs, rows, &shifts, out);
            }
        }
    }

    /// The fold of one output's elements along memory.
    #[inline(always)]
    unsafe fn row(&self, output: usize, rows: Range<usize>, shift: T) -> T {
        let (reduced, len) = (&self.axes.reduced, rows.len());
        let [start] = self.axes.kept.offsets(output);
        // SAFETY: `len` elements lie next to each other there or in the lanes, which have room for a block.
        unsafe {
            let mut block = if reduced.axes.len() == 1 && reduced.inner().strides[0] == 1 {
                self.x.at(start + rows.start as isize)
            } else {
                collect(reduced, rows, self.x.at(start), self.lanes);
                self.lanes.cast_const()
            };
            if F::LIFTS {
                map(len, self.lanes, [block], inlined!(|[x]| self.fold.lift(x, shift)));
                block = self.lanes;
            }
            fold_block(self.fold, std::slice::from_raw_parts(block, len))
        }
    }

    /// Folds outputs side by side into `out`.
    #[inline(always)]
    unsafe fn columns(&self, outputs: Range<usize>, rows: Range<usize>, shifts: &[T; WIDTH], out: *mut T) {
        let (Axes { kept, reduced }, fold) = (self.axes, self.fold);
        let (count, len) = (outputs.len(), rows.len());
        let (step, side) = (reduced.inner().strides[0], kept.inner().strides[0]);
        let mut offsets = [0; WIDTH];
        let (mut c, mut runs) = (0, 0);
        kept.for_runs(outputs, |[offset], len| {
            for i in 0..len {
                offsets[c] = offset + i as isize * side;
                c += 1;
            }
            runs += 1;
        });
        let next_to_each_other = runs == 1 && (side == 1 || count == 1);
        // SAFETY: the caller lent the memory.
        let mut columns = unsafe { Columns::new(fold, self.lanes, len, count) };
        if next_to_each_other && !F::LIFTS && reduced.axes.len() == 1 && step == count as isize {
            let from = self.x.at(offsets[0] + rows.start as isize * step);
            // SAFETY: the rows lie next to each other.
            columns.dense(fold, unsafe { std::slice::from_raw_parts(from, len * count) });
        } else {
            let mut copy = [T::ZERO; WIDTH];
            let mut i = 0;
            reduced.for_runs(
                rows,
                inlined!(|[offset], len| {
                    for row in 0..len as isize {
                        let mut from = self.x.at(offset + row * step);
                        // SAFETY: the elements of the row exist.
                        unsafe {
                            if next_to_each_other {
                                from = from.offset(offsets[0]);
                            } else {
                                for (to, &offset) in copy[..count].iter_mut().zip(&offsets) {
                                    *to = *from.offset(offset);
                                }
                                from = copy.as_ptr();
                            }
                            if F::LIFTS {
                                map(
                                    count,
                                    copy.as_mut_ptr(),
                                    [from, shifts.as_ptr()],
                                    inlined!(|[x, shift]| fold.lift(x, shift)),
                                );
                                from = copy.as_ptr();
                            }
                            columns.row(fold, i, std::slice::from_raw_parts(from, count));
                        }
                        i += 1;
                    }
                }),
            );
        }
        for (c, &value) in columns.join(fold).iter().enumerate() {
            // SAFETY: there is room for `count` outputs.
            unsafe { *out.add(c) = value };
        }
    }
}
