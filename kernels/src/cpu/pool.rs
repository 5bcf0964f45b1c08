//! Pooling, a plane at a time.

use std::ops::Range;

use device::{Error, ErrorKind, failure};
use pulp::{Arch, Simd, WithSimd};

use super::inlined;
use super::lanes::{Items, Lanes, with_scratch};
use super::number::Number;
use super::product::{Matrix, copy_matrix};
use crate::geometry::{Means, Planes, Seen};
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_range};
use crate::window::Window;

/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 14;
/// No vector has more elements.
const VECTOR: usize = 64;
/// Elements of a window that floats count exactly.
const COUNTED: usize = 1 << 24;
/// Rows of places that are worked on side by side.
const SIDE: usize = 16;
type Side<T> = [T; SIDE];

/// The number of an element of a window; one below 0 is none.
pub(crate) trait Tap: Number + TryInto<usize> {}
impl Tap for u8 {}
impl Tap for i64 {}

fn chunk(planes: &Planes) -> usize {
    (CHUNK / planes.pixels().max(planes.all_places()).max(1)).max(1)
}

/// How a plane is laid out for maxima, its padding included: in as many parts as the window steps over columns, each of the columns
/// that are a step apart, so that what neighbouring places see lies side by side.
struct Spread {
    parts: usize,
    rows: usize,
    /// Columns of a part.
    columns: usize,
}

impl Spread {
    fn of(planes: &Planes, window: &Window) -> Spread {
        let extent = |axis: usize| {
            let seen = planes.places[axis].saturating_sub(1) * window.stride[axis] + window.extent(axis);
            seen.max(window.padding[axis] + planes.image[axis])
        };
        let parts = window.stride[1];
        Spread { parts, rows: extent(0), columns: extent(1).div_ceil(parts) }
    }

    fn part(&self) -> usize {
        self.rows.saturating_mul(self.columns)
    }

    /// Elements of all parts; vectors may begin at the last one.
    fn elements(&self) -> usize {
        self.parts.saturating_mul(self.part()).saturating_add(VECTOR)
    }

    /// Where each element of the window is for the first place.
    fn taps(&self, window: &Window) -> Vec<usize> {
        let across = |j: usize| (j * window.dilation[1] % self.parts, j * window.dilation[1] / self.parts);
        let tap = |i: usize, (part, column): (usize, usize)| {
            part * self.part() + i * window.dilation[0] * self.columns + column
        };
        let [rows, columns] = window.kernel;
        (0..rows).flat_map(|i| (0..columns).map(move |j| tap(i, across(j)))).collect()
    }

    /// Lays out a plane.
    ///
    /// # Safety
    /// There is room for all [`elements`](Self::elements).
    #[inline(always)]
    unsafe fn fill<T: Lanes>(&self, width: usize, [top, left]: [usize; 2], x: &[T], to: *mut T) {
        // Lines follow each other there, too, if nothing lies between them.
        let whole = left == 0 && width == self.parts * self.columns;
        let len = if whole { x.len() } else { width };
        for (line, x) in x.chunks_exact(len.max(1)).enumerate() {
            // Where column `of` of the line goes, and those that are whole steps further behind it.
            let place = |of: usize| {
                let at = (left + of) % self.parts * self.part() + (top + line) * self.columns;
                // SAFETY: `at` and the column behind it lie in the `elements()` that the caller promises, or one past
                // them for a line of one column.
                unsafe { to.add(at + (left + of) / self.parts) }
            };
            // SAFETY: a line has `len` elements, which `place` puts into the memory that the caller lends; nobody
            // else uses it.
            unsafe {
                match self.parts {
                    1 => std::ptr::copy_nonoverlapping(x.as_ptr(), place(0), len),
                    2 => {
                        // Both at once are vector code.
                        let (pairs, rest) = x.as_chunks::<2>();
                        let [first, second] = [place(0), place(1)];
                        for (k, &[a, b]) in pairs.iter().enumerate() {
                            *first.add(k) = a;
                            *second.add(k) = b;
                        }
                        rest.iter().for_each(inlined!(|&last| *first.add(pairs.len()) = last));
                    }
                    parts => {
                        for (of, &x) in x.iter().enumerate() {
                            *place(of % parts).add(of / parts) = x;
                        }
                    }
                }
            }
        }
    }
}

pub(crate) unsafe fn max<T: Lanes + Into<f64>, I: Tap>(
    how: &(Planes, Window),
    workers: &Workers,
    (x, out, index): (Src<T>, Dst<T>, Dst<I>),
) {
    let (planes, window) = how;
    let spread = Spread::of(planes, window);
    // Windows may be far larger than what they see.
    let taps = window.kernel[0].saturating_mul(window.kernel[1]);
    let fits = taps <= COUNTED && spread.elements() <= 4 * planes.pixels() + CHUNK;
    let taps = if fits { spread.taps(window) } else { Vec::new() };
    let places = planes.all_places();
    let (laid_out, pooled) = if fits { (spread.elements(), places + VECTOR) } else { (0, 0) };
    for_range(workers, planes.count, chunk(planes), &|range| {
        with_scratch(laid_out + 2 * pooled, |memory: *mut T| {
            // SAFETY: the scratch has `laid_out + 2 * pooled` elements and is initialised.
            unsafe { std::slice::from_raw_parts_mut(memory, laid_out) }.fill(T::from_f64(f64::NEG_INFINITY));
            for plane in range {
                let first = plane * places;
                // SAFETY: `plane` counts the planes of the operands, and each is one part's. The scratch has
                // `laid_out` elements and two times `pooled` behind them.
                unsafe {
                    let x = x.slice(plane * planes.pixels(), planes.pixels());
                    let (out, index) = (out.slice_mut(first, places), index.slice_mut(first, places));
                    let found = [memory.add(laid_out), memory.add(laid_out + pooled)];
                    let maxima = Maxima { how, spread: &spread, taps: &taps, x, memory, found, out, index };
                    if fits {
                        Arch::new().dispatch(maxima);
                    } else {
                        maxima.plainly(|_| true);
                    }
                }
            }
        });
    });
}

/// The maxima of a plane.
struct Maxima<'a, T, I> {
    how: &'a (Planes, Window),
    spread: &'a Spread,
    taps: &'a [usize],
    x: &'a [T],
    /// Room for the plane as it is laid out, and for maxima and their elements of the window, each with a vector behind it.
    memory: *mut T,
    found: [*mut T; 2],
    out: &'a mut [T],
    index: &'a mut [I],
}

impl<T: Lanes + Into<f64>, I: Tap> WithSimd for Maxima<'_, T, I> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Maxima { how: (planes, window), spread, taps, x, memory, found: [best_to, taken_to], .. } = self;
        // Vectors do not know NaN.
        if x.iter().fold(false, inlined!(|found, x: &T| found | x.is_nan())) {
            return self.plainly(|_| true);
        }
        let ([rows, columns], lanes) = (planes.places, T::lanes::<S>());
        // SAFETY: `spread` has room for a vector behind its last element, so every load from a place on lies in it,
        // and so do stores to the two results, which have `places + VECTOR` elements.
        unsafe {
            spread.fill(planes.image[1], window.padding, x, memory);
            for y in 0..rows {
                for column in (0..columns).step_by(lanes) {
                    let from = memory.add(y * window.stride[0] * spread.columns + column);
                    let mut best = T::splat(simd, T::from_f64(f64::NEG_INFINITY));
                    let mut taken = T::splat(simd, T::ZERO);
                    for (tap, &at) in taps.iter().enumerate() {
                        let (x, tap) = (T::load(simd, from.add(at)), T::splat(simd, T::from_f64(tap as f64)));
                        taken = T::v_select_less(simd, [best, x], [tap, taken]);
                        best = T::v_select_less(simd, [best, x], [x, best]);
                    }
                    T::store(simd, best_to.add(y * columns + column), best);
                    T::store(simd, taken_to.add(y * columns + column), taken);
                }
            }
            let [best, taken] = [best_to, taken_to].map(|of| std::slice::from_raw_parts(of, rows * columns));
            self.out.copy_from_slice(best);
            for (to, &tap) in self.index.iter_mut().zip(taken) {
                *to = I::from_f64(tap.into());
            }
        }
        // They may be the padding's.
        let lowest = T::from_f64(f64::NEG_INFINITY);
        if self.out.iter().fold(false, inlined!(|found, x: &T| found | (*x == lowest))) {
            self.plainly(|x| x == lowest);
        }
    }
}

impl<T: Lanes, I: Tap> Maxima<'_, T, I> {
    /// Finds those of any elements that are `missing`, by what is known of each: the first of the largest, or the last NaN.
    #[cold]
    fn plainly(self, missing: impl Fn(T) -> bool) {
        let Maxima { how: (planes, window), x, out, index, .. } = self;
        let width = planes.image[1];
        let seen = |axis: usize, place: usize, tap: usize| {
            let at = place * window.stride[axis] + tap * window.dilation[axis];
            at.checked_sub(window.padding[axis]).filter(|&at| at < planes.image[axis])
        };
        for (place, (out, index)) in
            out.iter_mut().zip(index).enumerate().filter(|(_, (out, _))| missing(**out))
        {
            let (y, column) = (place / planes.places[1], place % planes.places[1]);
            let mut best: Option<(T, usize)> = None;
            for (i, row) in (0..window.kernel[0]).filter_map(|i| Some((i, seen(0, y, i)?))) {
                for (j, at) in (0..window.kernel[1]).filter_map(|j| Some((j, seen(1, column, j)?))) {
                    let value = x[row * width + at];
                    if best.is_none_or(|(best, _)| value > best || value.is_nan()) {
                        best = Some((value, i * window.kernel[1] + j));
                    }
                }
            }
            let (value, tap) = best.unwrap_or((T::from_f64(f64::NEG_INFINITY), 0));
            (*out, *index) = (value, I::from_i64(tap as i64));
        }
    }
}

/// Calls `begin` with the pixels of each plane, and then `body(place, pixel)` for its places, with the pixel that the index names, which is
/// one of the plane. An index of any other one is reported as the failure of the command, an `op`.
///
/// # Safety
/// The index can be read.
#[inline(always)]
unsafe fn for_taps<I: Tap>(
    op: &'static str,
    (planes, window): &(Planes, Window),
    workers: &Workers,
    index: Src<I>,
    begin: impl Fn(Range<usize>) + Sync,
    body: impl Fn(isize, isize) + Sync,
) {
    let ([rows, columns], width, size) = (planes.places, planes.image[1] as isize, planes.pixels());
    let [kernel, stride, padding, dilation] =
        [window.kernel, window.stride, window.padding, window.dilation].map(|of| of.map(|n| n as isize));
    // How far each element of the window is from its first one.
    let step = |tap: isize| tap / kernel[1] * dilation[0] * width + tap % kernel[1] * dilation[1];
    let steps: Vec<isize> = (0..kernel[0] * kernel[1]).map(step).collect();
    for_range(workers, planes.count, chunk(planes), &|range| {
        for plane in range {
            let (first_pixel, first_place) = (plane * size, plane * rows * columns);
            begin(first_pixel..first_pixel + size);
            for y in 0..rows {
                let line = (y as isize * stride[0] - padding[0]) * width - padding[1];
                for x in 0..columns {
                    let place = (first_place + y * columns + x) as isize;
                    // SAFETY: the caller promises an element for each place.
                    let tap = unsafe { *index.at(place) }.try_into().unwrap_or(usize::MAX);
                    let step = steps.get(tap).copied().unwrap_or(isize::MIN / 2);
                    let pixel = line + x as isize * stride[1] + step;
                    if (pixel as usize) < size {
                        body(place, first_pixel as isize + pixel);
                    } else {
                        outside(op, tap, steps.len());
                    }
                }
            }
        }
    });
}

#[cold]
#[inline(never)]
fn outside(op: &'static str, tap: usize, size: usize) {
    let index = i64::try_from(tap).unwrap_or(i64::MAX);
    failure::report(Error::new(ErrorKind::IndexOutOfRange { op, operand: "index", index, size }));
}

/// Adds each place's element to the pixel that the index names.
pub(crate) unsafe fn max_grad<T: Lanes, I: Tap>(
    how: &(Planes, Window),
    workers: &Workers,
    (out, g, index): (Dst<T>, Src<T>, Src<I>),
) {
    // SAFETY: `for_taps` passes pixels and places of the operands, those of each plane in one part.
    unsafe {
        let begin = |pixels: Range<usize>| out.slice_mut(pixels.start, pixels.len()).fill(T::ZERO);
        for_taps("max_pool2d_grad", how, workers, index, begin, |place, pixel| {
            *out.at(pixel) = (*out.at(pixel)).add(*g.at(place));
        });
    }
}

/// Takes for each place the pixel that the index names.
pub(crate) unsafe fn pick<T: Lanes, I: Tap>(
    how: &(Planes, Window),
    workers: &Workers,
    (out, x, index): (Dst<T>, Src<T>, Src<I>),
) {
    // SAFETY: as for `max_grad`.
    unsafe {
        for_taps(
            "max_pool2d_pick",
            how,
            workers,
            index,
            |_| {},
            |place, pixel| *out.at(place) = *x.at(pixel),
        );
    }
}

/// What the places along both axes see.
fn seen<T: Lanes>(planes: &Planes, means: &Means) -> [Vec<Seen>; 2] {
    [0, 1].map(|axis| {
        let sizes = [planes.image[axis], planes.places[axis]];
        (0..sizes[1]).map(|at| means.seen(T::DTYPE, axis, at, sizes)).collect()
    })
}

/// The divisors of places in a column and in so many rows side by side.
#[inline(always)]
fn divide<T: Lanes>(sums: &mut Side<T>, means: &Means, heights: &Side<f64>, columns: &Seen) {
    let fixed = match *means {
        Means::Nearest | Means::Bilinear { .. } => return,
        Means::Sliding { divisor, .. } => divisor.map(f64::from),
        Means::Adaptive => None,
    };
    for (sum, height) in sums.iter_mut().zip(heights) {
        *sum = sum.div(T::from_f64(fixed.unwrap_or(height * columns.counted as f64)));
    }
}

/// A matrix whose columns are `SIDE` rows of another one.
fn turned<T>(ptr: *mut T) -> Matrix<T> {
    Matrix { ptr, row: 1, col: SIDE as isize }
}

/// Weighs the rows that a place sees and adds them up, then the columns of that sum: many rows side by side.
pub(crate) unsafe fn mean<T: Lanes>(
    (planes, means): &(Planes, Means),
    workers: &Workers,
    (out, x): (Dst<T>, Src<T>),
) {
    let ([height, width], [rows, columns], arch) = (planes.image, planes.places, Arch::new());
    let [down, across] = seen::<T>(planes, means);
    let all = planes.count * rows;
    let (chunk, room) = (CHUNK / SIDE / width.max(columns).max(1), SIDE * (2 * width + columns));
    let items = Items { workers, len: all.div_ceil(SIDE), chunk, room };
    items.for_each(inlined!(|block, memory: *mut T| {
        let first = block * SIDE;
        let count = SIDE.min(all - first);
        let mut heights = [1.0; SIDE];
        // SAFETY: the rows are those of all planes of the operands, each of which is one item's. The scratch has room for `SIDE` lines
        // of pixels twice, and of places.
        unsafe {
            let (sums, results) = (memory.add(SIDE * width), memory.add(2 * SIDE * width));
            for k in 0..count {
                let (plane, seen) = ((first + k) / rows, &down[(first + k) % rows]);
                heights[k] = seen.counted as f64;
                let [weight, rest] = seen.weights.map(T::from_f64);
                let line = std::slice::from_raw_parts_mut(memory.add(k * width), width);
                line.fill(T::ZERO);
                for row in seen.start..seen.end {
                    let from = x.slice((plane * height + row) * width, width);
                    for (to, x) in line.iter_mut().zip(from) {
                        *to = if row == seen.start { weight.mul(*x) } else { to.add(rest.mul(*x)) };
                    }
                }
            }
            copy_matrix(arch, count, width, Matrix::row_major(memory, width), turned(sums));
            for (column, seen) in across.iter().enumerate() {
                let [weight, rest] = seen.weights.map(T::from_f64);
                let mut side = [T::ZERO; SIDE];
                for at in seen.start..seen.end {
                    let line = sums.add(at * SIDE).cast::<Side<T>>().read();
                    for k in 0..SIDE {
                        side[k] = if at == seen.start {
                            weight.mul(line[k])
                        } else {
                            side[k].add(rest.mul(line[k]))
                        };
                    }
                }
                divide(&mut side, means, &heights, seen);
                results.add(column * SIDE).cast::<Side<T>>().write(side);
            }
            let to = out.at((first * columns) as isize);
            copy_matrix(arch, count, columns, turned(results), Matrix::row_major(to, columns));
        }
    }));
}

/// As [`mean`], transposed: adds what each row of `g` gives to the columns, then that line to the rows.
pub(crate) unsafe fn mean_grad<T: Lanes>(
    (planes, means): &(Planes, Means),
    workers: &Workers,
    (out, g): (Dst<T>, Src<T>),
) {
    let ([height, width], [rows, columns], arch) = (planes.image, planes.places, Arch::new());
    let [down, across] = seen::<T>(planes, means);
    let room = SIDE * (2 * width + columns);
    let items = Items { workers, len: planes.count, chunk: chunk(planes), room };
    items.for_each_part(inlined!(|range: Range<usize>, memory: *mut T| {
        // SAFETY: the planes of pixels are one part's, and those of places are of the same ones of the operands. The scratch has room for
        // `SIDE` lines of places, and of pixels twice.
        unsafe {
            let pixels = out.slice_mut(range.start * height * width, range.len() * height * width);
            pixels.fill(T::ZERO);
            let (slopes, lines) = (memory.add(SIDE * width), memory.add(SIDE * (width + columns)));
            let (begin, end) = (range.start * rows, range.end * rows);
            for row in (begin..end).step_by(SIDE) {
                let count = SIDE.min(end - row);
                let from = Matrix::row_major(g.at((row * columns) as isize).cast_mut(), columns);
                copy_matrix(arch, count, columns, from, turned(slopes));
                let mut heights = [1.0; SIDE];
                for k in 0..count {
                    heights[k] = down[(row + k) % rows].counted as f64;
                }
                std::slice::from_raw_parts_mut(lines, SIDE * width).fill(T::ZERO);
                for (column, seen) in across.iter().enumerate() {
                    let mut side = slopes.add(column * SIDE).cast::<Side<T>>().read();
                    divide(&mut side, means, &heights, seen);
                    for at in seen.start..seen.end {
                        let weight = T::from_f64(seen.weights[(at - seen.start).min(1)]);
                        let line = &mut *lines.add(at * SIDE).cast::<Side<T>>();
                        for k in 0..SIDE {
                            line[k] = line[k].add(weight.mul(side[k]));
                        }
                    }
                }
                copy_matrix(arch, count, width, turned(lines), Matrix::row_major(memory, width));
                for k in 0..count {
                    let (plane, seen) = ((row + k) / rows, &down[(row + k) % rows]);
                    for at in seen.start..seen.end {
                        let weight = T::from_f64(seen.weights[(at - seen.start).min(1)]);
                        let to = out.slice_mut((plane * height + at) * width, width);
                        let line = std::slice::from_raw_parts(memory.add(k * width), width);
                        for (to, x) in to.iter_mut().zip(line) {
                            *to = to.add(weight.mul(*x));
                        }
                    }
                }
            }
        }
    }));
}
