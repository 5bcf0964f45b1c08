//! Pooling, a plane at a time.

use std::hint::select_unpredictable;

use super::inlined;
use super::lanes::{Items, Lanes};
use super::number::Number;
use crate::geometry::{Means, Planes, Seen};
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_range};
use crate::window::{Window, inside};

/// Places that are worked on at once.
const RUN: usize = 16;
/// Elements of a part when a kernel is split over threads.
const CHUNK: usize = 1 << 14;

/// The number of an element of a window; one below 0 is none.
pub(crate) trait Tap: Number + TryInto<usize> {}
impl Tap for u8 {}
impl Tap for i64 {}

fn chunk(planes: &Planes) -> usize {
    (CHUNK / planes.pixels().max(1)).max(1)
}

pub(crate) unsafe fn max<T: Lanes, I: Tap>(
    (planes, window): &(Planes, Window),
    workers: &Workers,
    (x, out, index): (Src<T>, Dst<T>, Dst<I>),
) {
    let [kh, kw] = window.kernel;
    let Planes { count, image: [_, width], places: [rows, columns], .. } = *planes;
    let all = count * planes.pixels();
    let across: Vec<(usize, usize)> = (0..kw).map(|j| inside(j, window.along(1), width, columns)).collect();
    let items = Items { workers, len: count, chunk: chunk(planes), room: 0 };
    items.for_each(inlined!(|plane, _: *mut T| {
        for y in 0..rows {
            for first in (0..columns).step_by(RUN) {
                let count = RUN.min(columns - first);
                let mut best = [T::from_f64(f64::NEG_INFINITY); RUN];
                let mut taps = [0_u32; RUN];
                for i in 0..kh {
                    let Some(line) = line(planes, window, y, i) else { continue };
                    let line = plane * planes.pixels() + line * width;
                    for (j, &(left, right)) in across.iter().enumerate() {
                        let (left, right) = (left.max(first), right.min(first + count));
                        if left >= right {
                            continue;
                        }
                        let tap = (i * kw + j) as u32;
                        let at = line + left * window.stride[1] + j * window.dilation[1] - window.padding[1];
                        // Beyond the row, elements may be read that are not used.
                        let whole = right - left == count && at + RUN * window.stride[1] <= all;
                        let from = x.at(at as isize);
                        // SAFETY: the elements are in the plane or, where a run is whole, in the operand.
                        unsafe {
                            match (whole, window.stride[1]) {
                                (true, 1) => take(&mut best, &mut taps, tap, &*from.cast()),
                                (true, 2) => take(&mut best, &mut taps, tap, &every_other(from)),
                                (_, step) => {
                                    for e in left - first..right - first {
                                        let value = *from.add((e - (left - first)) * step);
                                        take_one(&mut best[e], &mut taps[e], tap, value);
                                    }
                                }
                            }
                        }
                    }
                }
                let to = (plane * planes.all_places() + y * columns + first) as isize;
                for e in 0..count {
                    if best[e] == T::from_f64(f64::NEG_INFINITY) {
                        taps[e] = first_tap(planes, window, y, &across, first + e);
                    }
                    // SAFETY: place `first + e` of the plane exists.
                    unsafe {
                        *out.at(to + e as isize) = best[e];
                        *index.at(to + e as isize) = I::from_i64(i64::from(taps[e]));
                    }
                }
            }
        }
    }));
}

// The row of the plane that row `i` of the window sees at places in row `y`.
#[inline(always)]
fn line(planes: &Planes, window: &Window, y: usize, i: usize) -> Option<usize> {
    let at = y * window.stride[0] + i * window.dilation[0];
    at.checked_sub(window.padding[0]).filter(|&line| line < planes.image[0])
}

// Takes elements that are larger, or NaN.
#[inline(always)]
fn take<T: Lanes>(best: &mut [T; RUN], taps: &mut [u32; RUN], tap: u32, values: &[T; RUN]) {
    for e in 0..RUN {
        take_one(&mut best[e], &mut taps[e], tap, values[e]);
    }
}

#[inline(always)]
fn take_one<T: Lanes>(best: &mut T, taken: &mut u32, tap: u32, value: T) {
    // Without a branch, so that several are compared at once.
    let better = (value > *best) | value.is_nan();
    *best = select_unpredictable(better, value, *best);
    *taken = select_unpredictable(better, tap, *taken);
}

/// The first, third, .. of twice as many elements, which are read at once.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn every_other<T: Lanes>(from: *const T) -> [T; RUN] {
    // SAFETY: an array has no other alignment than its elements.
    let both = unsafe { *from.cast::<[T; 2 * RUN]>() };
    std::array::from_fn(inlined!(|e| both[2 * e]))
}

// The first element of the window that sees the plane.
#[cold]
fn first_tap(planes: &Planes, window: &Window, y: usize, across: &[(usize, usize)], x: usize) -> u32 {
    let i = (0..window.kernel[0]).find(|&i| line(planes, window, y, i).is_some()).unwrap_or(0);
    let j = across.iter().position(|&(left, right)| (left..right).contains(&x)).unwrap_or(0);
    (i * window.kernel[1] + j) as u32
}

/// Calls `body(place, pixel)` for all places of a plane with the pixel that the index names, which is one of the plane.
#[inline(always)]
fn for_taps<I: Tap>(
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
            assert!(pixel < size, "element {tap} of the window is not in the image");
            body(place, pixel);
        }
    }
}

// How far each element of a window is from its first one.
fn steps(planes: &Planes, window: &Window) -> Vec<isize> {
    let [kh, kw] = window.kernel;
    let step = |i: usize, j: usize| i * window.dilation[0] * planes.image[1] + j * window.dilation[1];
    (0..kh).flat_map(|i| (0..kw).map(move |j| step(i, j) as isize)).collect()
}

/// Calls `body` with where each plane's pixels and its places begin.
fn for_planes(planes: &Planes, workers: &Workers, body: impl Fn(usize, usize) + Sync) {
    for_range(workers, planes.count, chunk(planes), &|range| {
        range.for_each(|plane| body(plane * planes.pixels(), plane * planes.all_places()));
    });
}

/// Adds each place's element to the pixel that the index names, if what lies at that of `positive` is above 0.
pub(crate) unsafe fn max_grad<T: Lanes, I: Tap>(
    (planes, window): &(Planes, Window),
    workers: &Workers,
    (out, g, index): (Dst<T>, Src<T>, Src<I>),
    positive: Option<Src<T>>,
) {
    let (size, places) = (planes.pixels(), planes.all_places());
    let steps = steps(planes, window);
    for_planes(planes, workers, |first_pixel, first_place| {
        // SAFETY: there are as many planes, of which each is one part's.
        let (index, g, to, positive) = unsafe {
            let positive = positive.map(|of| of.slice(first_pixel, size));
            let (index, g) = (index.slice(first_place, places), g.slice(first_place, places));
            (index, g, out.slice_mut(first_pixel, size), positive)
        };
        to.fill(T::ZERO);
        match positive {
            None => {
                for_taps(planes, window, &steps, index, |place, pixel| to[pixel] = to[pixel].add(g[place]))
            }
            Some(positive) => for_taps(planes, window, &steps, index, |place, pixel| {
                let slope = if positive[pixel] > T::ZERO { g[place] } else { T::ZERO };
                to[pixel] = to[pixel].add(slope);
            }),
        }
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
    for_planes(planes, workers, |first_pixel, first_place| {
        // SAFETY: there are as many planes, of which each is one part's.
        let (index, x, to) = unsafe {
            (index.slice(first_place, places), x.slice(first_pixel, size), out.slice_mut(first_place, places))
        };
        for_taps(planes, window, &steps, index, |place, pixel| to[place] = x[pixel]);
    });
}

/// Calls `body(place, rows, columns, divisor)` for all places of a plane, with what they see.
#[inline(always)]
fn for_seen(planes: &Planes, means: &Means, mut body: impl FnMut(usize, Seen, Seen, f64)) {
    let seen = |axis: usize, at: usize| means.seen(axis, at, planes.image[axis], planes.places[axis]);
    let across: Vec<Seen> = (0..planes.places[1]).map(|x| seen(1, x)).collect();
    for y in 0..planes.places[0] {
        let rows = seen(0, y);
        for (x, &columns) in across.iter().enumerate() {
            body(y * across.len() + x, rows, columns, means.divisor(rows, columns));
        }
    }
}

pub(crate) unsafe fn mean<T: Lanes>(
    (planes, means): &(Planes, Means),
    workers: &Workers,
    (out, x): (Dst<T>, Src<T>),
) {
    let (size, places, width) = (planes.pixels(), planes.all_places(), planes.image[1]);
    for_planes(planes, workers, |first_pixel, first_place| {
        // SAFETY: there are as many planes, of which each is one part's, with a result for each place.
        let (from, to) = unsafe { (x.slice(first_pixel, size), out.slice_mut(first_place, places)) };
        for_seen(planes, means, |place, rows, columns, divisor| {
            let mut sum = T::ZERO;
            for row in rows.start..rows.end {
                for &value in &from[row * width + columns.start..row * width + columns.end] {
                    sum = sum.add(value);
                }
            }
            to[place] = sum.div(T::from_f64(divisor));
        });
    });
}

pub(crate) unsafe fn mean_grad<T: Lanes>(
    (planes, means): &(Planes, Means),
    workers: &Workers,
    (out, g): (Dst<T>, Src<T>),
) {
    let (size, places, width) = (planes.pixels(), planes.all_places(), planes.image[1]);
    for_planes(planes, workers, |first_pixel, first_place| {
        // SAFETY: as in `mean`.
        let (g, to) = unsafe { (g.slice(first_place, places), out.slice_mut(first_pixel, size)) };
        to.fill(T::ZERO);
        for_seen(planes, means, |place, rows, columns, divisor| {
            let share = g[place].div(T::from_f64(divisor));
            for row in rows.start..rows.end {
                for to in &mut to[row * width + columns.start..row * width + columns.end] {
                    *to = to.add(share);
                }
            }
        });
    });
}
