//! Pooling, a plane at a time.

use device::{Error, ErrorKind, failure};
use pulp::{Simd, WithSimd};

use super::inlined;
use super::lanes::{Lanes, with_scratch};
use super::number::Number;
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
                        pulp::Arch::new().dispatch(maxima);
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

/// Calls `body(place, pixel)` for all places of a plane with the pixel that the index names, which is one of the plane. An index
/// of any other one is reported as the failure of the command, an `op`.
#[inline(always)]
fn for_taps<I: Tap>(
    op: &'static str,
    planes: &Planes,
    window: &Window,
    steps: &[isize],
    index: &[I],
    mut body: impl FnMut(usize, usize),
) {
    let [rows, columns] = planes.places;
    let width = planes.image[1] as isize;
    let size = planes.pixels();
    for y in 0..rows {
        let line = (y * window.stride[0]) as isize - window.padding[0] as isize;
        for x in 0..columns {
            let place = y * columns + x;
            let tap = index[place].try_into().unwrap_or(usize::MAX);
            let column = (x * window.stride[1]) as isize - window.padding[1] as isize;
            let pixel = (line * width + column + steps.get(tap).copied().unwrap_or(isize::MIN / 2)) as usize;
            if pixel < size {
                body(place, pixel);
            } else {
                outside(op, tap, steps.len());
            }
        }
    }
}

#[cold]
#[inline(never)]
fn outside(op: &'static str, tap: usize, size: usize) {
    let index = i64::try_from(tap).unwrap_or(i64::MAX);
    failure::report(Error::new(ErrorKind::IndexOutOfRange { op, index, size }));
}

// How far each element of a window is from its first one.
fn steps(planes: &Planes, window: &Window) -> Vec<isize> {
    let [kh, kw] = window.kernel;
    let step = |i: usize, j: usize| i * window.dilation[0] * planes.image[1] + j * window.dilation[1];
    (0..kh).flat_map(|i| (0..kw).map(move |j| step(i, j) as isize)).collect()
}

/// Calls `body` with where each plane's pixels and its places begin, and with room for a row of pixels of any values.
fn for_planes<T: Number>(planes: &Planes, workers: &Workers, body: impl Fn(usize, usize, &mut [T]) + Sync) {
    for_range(workers, planes.count, chunk(planes), &|range| {
        let mut line = vec![T::ZERO; planes.image[1]];
        range.for_each(|plane| body(plane * planes.pixels(), plane * planes.all_places(), &mut line));
    });
}

/// Adds each place's element to the pixel that the index names.
pub(crate) unsafe fn max_grad<T: Lanes, I: Tap>(
    (planes, window): &(Planes, Window),
    workers: &Workers,
    (out, g, index): (Dst<T>, Src<T>, Src<I>),
) {
    let (size, places) = (planes.pixels(), planes.all_places());
    let steps = steps(planes, window);
    for_planes::<T>(planes, workers, |first_pixel, first_place, _| {
        // SAFETY: `for_planes` passes the first pixel and place of each plane of the operands once, so the slices are
        // in bounds and one part's.
        let (index, g, to) = unsafe {
            (index.slice(first_place, places), g.slice(first_place, places), out.slice_mut(first_pixel, size))
        };
        to.fill(T::ZERO);
        for_taps("max_pool2d_grad", planes, window, &steps, index, |place, pixel| {
            to[pixel] = to[pixel].add(g[place])
        });
    });
}

/// Takes for each place the pixel that the index names.
pub(crate) unsafe fn pick<T: Lanes, I: Tap>(
    (planes, window): &(Planes, Window),
    workers: &Workers,
    (out, x, index): (Dst<T>, Src<T>, Src<I>),
) {
    let (size, places) = (planes.pixels(), planes.all_places());
    let steps = steps(planes, window);
    for_planes::<T>(planes, workers, |first_pixel, first_place, _| {
        // SAFETY: `for_planes` passes the first pixel and place of each plane of the operands once, so the slices are
        // in bounds and one part's.
        let (index, x, to) = unsafe {
            (index.slice(first_place, places), x.slice(first_pixel, size), out.slice_mut(first_place, places))
        };
        for_taps("max_pool2d_pick", planes, window, &steps, index, |place, pixel| to[place] = x[pixel]);
    });
}

/// What the places along both axes see.
fn seen<T: Lanes>(planes: &Planes, means: &Means) -> [Vec<Seen>; 2] {
    [0, 1].map(|axis| {
        let sizes = [planes.image[axis], planes.places[axis]];
        (0..sizes[1]).map(|at| means.seen(T::DTYPE, axis, at, sizes)).collect()
    })
}

/// Weighs the rows that a place sees and adds them up, then the columns of that sum.
pub(crate) unsafe fn mean<T: Lanes>(
    (planes, means): &(Planes, Means),
    workers: &Workers,
    (out, x): (Dst<T>, Src<T>),
) {
    let (size, places, width) = (planes.pixels(), planes.all_places(), planes.image[1]);
    let [down, across] = seen::<T>(planes, means);
    for_planes(planes, workers, |first_pixel, first_place, line| {
        // SAFETY: `for_planes` passes the first pixel and place of each plane of the operands once, so the slices are
        // in bounds and one part's.
        let (from, to) = unsafe { (x.slice(first_pixel, size), out.slice_mut(first_place, places)) };
        for (rows, to) in down.iter().zip(to.chunks_exact_mut(across.len().max(1))) {
            let [first, rest] = rows.weights.map(T::from_f64);
            line.fill(T::ZERO);
            for row in rows.start..rows.end {
                let from = &from[row * width..][..width];
                match row == rows.start {
                    true => line.iter_mut().zip(from).for_each(inlined!(|(to, x)| *to = first.mul(*x))),
                    false => {
                        line.iter_mut().zip(from).for_each(inlined!(|(to, x)| *to = to.add(rest.mul(*x))))
                    }
                }
            }
            for (columns, to) in across.iter().zip(to) {
                let [first, rest] = columns.weights.map(T::from_f64);
                let mut seen = line[columns.start..columns.end].iter();
                let sum = seen.next().map_or(T::ZERO, |&x| first.mul(x));
                let sum = seen.fold(sum, |sum, &x| sum.add(rest.mul(x)));
                *to = divided(sum, means.divisor(rows, columns));
            }
        }
    });
}

/// As [`mean`], transposed: adds what each row of `g` gives to the columns, then that line to the rows.
pub(crate) unsafe fn mean_grad<T: Lanes>(
    (planes, means): &(Planes, Means),
    workers: &Workers,
    (out, g): (Dst<T>, Src<T>),
) {
    let (size, places, width) = (planes.pixels(), planes.all_places(), planes.image[1]);
    let [down, across] = seen::<T>(planes, means);
    for_planes(planes, workers, |first_pixel, first_place, line| {
        // SAFETY: `for_planes` passes the first pixel and place of each plane of the operands once, so the slices are
        // in bounds and one part's.
        let (g, to) = unsafe { (g.slice(first_place, places), out.slice_mut(first_pixel, size)) };
        to.fill(T::ZERO);
        for (rows, g) in down.iter().zip(g.chunks_exact(across.len().max(1))) {
            line.fill(T::ZERO);
            for (columns, &g) in across.iter().zip(g) {
                let g = divided(g, means.divisor(rows, columns));
                for (k, to) in line[columns.start..columns.end].iter_mut().enumerate() {
                    *to = to.add(T::from_f64(columns.weights[k.min(1)]).mul(g));
                }
            }
            for row in rows.start..rows.end {
                let weight = T::from_f64(rows.weights[(row - rows.start).min(1)]);
                let to = &mut to[row * width..][..width];
                to.iter_mut().zip(&*line).for_each(inlined!(|(to, x)| *to = to.add(weight.mul(*x))));
            }
        }
    });
}

#[inline(always)]
fn divided<T: Lanes>(sum: T, divisor: f64) -> T {
    if divisor == 1.0 { sum } else { sum.div(T::from_f64(divisor)) }
}
