//! The filters' gradient of convolutions with few filters, by vectors of places: a product with filters side by side would leave most of
//! each vector empty.
//!
//! Each element of a filter has [`SUMS`] sums, of places that are as many columns apart, whatever the machine's vectors are. They go on
//! from image to image, and are joined in one order in the end.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::lanes::{Lanes, join_tree, with_scratch};
use super::patches::{Patches, with_patches};
use super::{each, inlined};
use crate::geometry::ConvGeometry;

/// Sums of an element; no vector has more elements.
const SUMS: usize = 16;
/// The most sums of a filters' gradient: they stay in the second-level cache.
const MOST: usize = 1 << 16;
/// Elements of a window side by side, and filters, whose sums are in registers at a time.
const ACROSS: usize = 5;
const FILTERS: usize = 3;

/// Whether the filters' gradient is better made so: a vector is well filled, and better than by filters.
pub(super) fn pays(geometry: &ConvGeometry) -> bool {
    let ConvGeometry { filters, places: [height, width], window, .. } = *geometry;
    window.stride[1] == 1
        && height > 0
        && 4 * filters * width.div_ceil(SUMS) <= 3 * width
        && filters * geometry.filter() * SUMS <= MOST
}

/// The sum over images, each with its results, of patches by results: rows `rows` of `[k, filters]` at `to`.
///
/// # Safety
/// The images and results are of this geometry and can be read, and the rows at `to` be written.
pub(super) unsafe fn add_images<T: Lanes>(
    geometry: &ConvGeometry,
    images: impl Iterator<Item = (*const T, *const T)>,
    rows: Range<usize>,
    to: *mut T,
) {
    let elements = rows.len() * geometry.filters;
    with_scratch(elements * SUMS, |sums: *mut T| {
        // SAFETY: the scratch has `elements * SUMS` elements; the caller promises images and results of this geometry
        // and rows at `to` that may be written.
        unsafe {
            std::slice::from_raw_parts_mut(sums, elements * SUMS).fill(T::ZERO);
            for (image, results) in images {
                with_patches(geometry, image, (0, geometry.places[0]), |patches| {
                    let rows = rows.clone();
                    Arch::new().dispatch(AddImage { geometry, patches, results, rows, sums });
                });
            }
            let first = rows.start * geometry.filters;
            for (e, sums) in
                std::slice::from_raw_parts(sums, elements * SUMS).as_chunks::<SUMS>().0.iter().enumerate()
            {
                *to.add(first + e) = join_tree(*sums, T::add);
            }
        }
    });
}

/// One image's places, which are added to the sums of the rows.
struct AddImage<'a, T> {
    geometry: &'a ConvGeometry,
    patches: Patches<T>,
    results: *const T,
    rows: Range<usize>,
    sums: *mut T,
}

impl<T: Lanes> WithSimd for AddImage<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ConvGeometry { filters, places: [height, width], window, .. } = *self.geometry;
        let [kh, kw] = window.kernel;
        let mut row = self.rows.start;
        while row < self.rows.end {
            let (c, i, j) = (row / (kh * kw), row / kw % kh, row % kw);
            let across = (kw - j).min(self.rows.end - row);
            let across = if across >= ACROSS {
                ACROSS
            } else if across >= 3 {
                3
            } else {
                1
            };
            for first in (0..filters).step_by(FILTERS) {
                let tile = Tile {
                    simd,
                    seen: self.patches.element([c, i, j]),
                    down: self.patches.down(),
                    beside: window.dilation[1],
                    results: self.results.wrapping_add(first * height * width),
                    places: [height, width],
                    sums: self.sums.wrapping_add(((row - self.rows.start) * filters + first) * SUMS),
                    next: filters * SUMS,
                };
                // SAFETY: `across` stays within the row of the window and `self.rows`, and `filters - first` within
                // the filters, so images, results and sums have all that a tile uses.
                unsafe {
                    match (across, (filters - first).min(FILTERS)) {
                        (ACROSS, FILTERS) => tile.add::<ACROSS, FILTERS>(),
                        (ACROSS, 2) => tile.add::<ACROSS, 2>(),
                        (ACROSS, _) => tile.add::<ACROSS, 1>(),
                        (3, FILTERS) => tile.add::<3, FILTERS>(),
                        (3, 2) => tile.add::<3, 2>(),
                        (3, _) => tile.add::<3, 1>(),
                        (_, FILTERS) => tile.add::<1, FILTERS>(),
                        (_, 2) => tile.add::<1, 2>(),
                        _ => tile.add::<1, 1>(),
                    }
                }
            }
            row += across;
        }
    }
}

/// Sums of elements of the window side by side, and of filters that follow each other.
struct Tile<T, S> {
    simd: S,
    /// What the first element is at the first place, and the steps to the next row of places and to the element beside it.
    seen: *const T,
    down: usize,
    beside: usize,
    /// The first filter's results.
    results: *const T,
    places: [usize; 2],
    /// The first element's sums for the first filter, and the step to the next element's.
    sums: *mut T,
    next: usize,
}

impl<T: Lanes, S: Simd> Tile<T, S> {
    /// # Safety
    /// There are so many elements and filters, which can be read, and their sums be written.
    #[inline(always)]
    unsafe fn add<const N: usize, const F: usize>(&self) {
        for from in (0..SUMS.min(self.places[1])).step_by(T::lanes::<S>()) {
            // SAFETY: the caller promises `N` elements and `F` filters that can be read and sums that can be written;
            // `from` is below `SUMS` and the row's columns.
            unsafe { self.add_columns::<N, F>(from) };
        }
    }

    /// As [`add`](Self::add), of the vectors of columns from `from` on that are whole numbers of [`SUMS`] further.
    #[inline(always)]
    unsafe fn add_columns<const N: usize, const F: usize>(&self, from: usize) {
        let Tile { simd, places: [height, width], .. } = *self;
        let lanes = T::lanes::<S>();
        let mut sums = [[T::splat(simd, T::ZERO); F]; N];
        let whole = if width < from + lanes { 0 } else { (width - from - lanes) / SUMS + 1 };
        let last = from + whole * SUMS;
        let rest = T::mask(simd, width.saturating_sub(last));
        // SAFETY: the caller promises `N` elements, `F` filters and their sums; whole vectors end before `width`, and
        // the last one is masked.
        unsafe {
            each::<N>(inlined!(|n| {
                each::<F>(inlined!(|f| sums[n][f] = T::load(simd, self.sum(n, f).add(from))))
            }));
            for y in 0..height {
                let (seen, results) = (self.seen.add(y * self.down), self.results.add(y * width));
                for at in (from..last).step_by(SUMS) {
                    let load = inlined!(|from: *const T| T::load(simd, from));
                    self.add_vector(seen.add(at), results.add(at), &mut sums, load);
                }
                if last < width {
                    let load = inlined!(|from: *const T| T::load_masked(simd, rest, from));
                    self.add_vector(seen.add(last), results.add(last), &mut sums, load);
                }
            }
            each::<N>(inlined!(|n| {
                each::<F>(inlined!(|f| T::store(simd, self.sum(n, f).add(from), sums[n][f])))
            }));
        }
    }

    /// Adds one vector of places: what is seen there, and the results, where `load` finds them.
    ///
    /// # Safety
    /// `load` may be called for all elements and filters.
    #[inline(always)]
    unsafe fn add_vector<const N: usize, const F: usize>(
        &self,
        seen: *const T,
        results: *const T,
        sums: &mut [[T::Vector<S>; F]; N],
        load: impl Fn(*const T) -> T::Vector<S>,
    ) {
        let (simd, [height, width]) = (self.simd, self.places);
        let mut g = [T::splat(simd, T::ZERO); F];
        each::<F>(inlined!(|f| g[f] = load(results.wrapping_add(f * height * width))));
        each::<N>(inlined!(|n| {
            let x = load(seen.wrapping_add(n * self.beside));
            each::<F>(inlined!(|f| sums[n][f] = T::mul_add(simd, x, g[f], sums[n][f])));
        }));
    }

    /// Where an element's sums for a filter begin.
    #[inline(always)]
    fn sum(&self, n: usize, f: usize) -> *mut T {
        self.sums.wrapping_add(n * self.next + f * SUMS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Window;

    /// Numbers of both signs whose sums are rounded.
    fn numbers<T: Lanes>(count: usize, seed: usize) -> Vec<T> {
        (0..count).map(|i| T::from_f64(((i * 37 + seed * 11) % 101) as f64 / 7.0 - 6.5)).collect()
    }

    /// What the sums are by definition, one place after the other.
    fn by_places<T: Lanes + Into<f64>>(
        geometry: &ConvGeometry,
        images: &[T],
        results: &[T],
        mul_add: fn(T, T, T) -> T,
    ) -> Vec<u64> {
        let ConvGeometry { images: count, channels, filters, image: [height, width], window, .. } = *geometry;
        let [kh, kw] = window.kernel;
        let [rows, columns] = geometry.places;
        let seen = |n: usize, c: usize, at: [usize; 2]| {
            let inside = |axis: usize| at[axis].checked_sub(window.padding[axis]);
            let (y, x) = (inside(0).filter(|&y| y < height)?, inside(1).filter(|&x| x < width)?);
            Some(images[((n * channels + c) * height + y) * width + x])
        };
        let mut all = Vec::new();
        for e in 0..geometry.filter() {
            let (c, i, j) = (e / (kh * kw), e / kw % kh, e % kw);
            for f in 0..filters {
                let mut sums = [T::ZERO; SUMS];
                for (n, y, x) in
                    (0..count).flat_map(|n| (0..rows).flat_map(move |y| (0..columns).map(move |x| (n, y, x))))
                {
                    let at = [y * window.stride[0] + i * window.dilation[0], x + j * window.dilation[1]];
                    let g = results[((n * filters + f) * rows + y) * columns + x];
                    sums[x % SUMS] = mul_add(seen(n, c, at).unwrap_or(T::ZERO), g, sums[x % SUMS]);
                }
                all.push(join_tree(sums, T::add).into().to_bits());
            }
        }
        all
    }

    fn check<T: Lanes + Into<f64>>(geometry: &ConvGeometry, mul_add: fn(T, T, T) -> T) {
        let ConvGeometry { images: count, channels, filters, .. } = *geometry;
        let images = numbers::<T>(count * channels * geometry.pixels(), 1);
        let results = numbers::<T>(count * filters * geometry.all_places(), 2);
        let (k, expected) = (geometry.filter(), by_places(geometry, &images, &results, mul_add));
        for cut in [0, 1, k / 2, k] {
            let mut found = vec![T::from_f64(f64::NAN); k * filters];
            for rows in [0..cut, cut..k] {
                let each = (0..count).map(|n| {
                    let from = images[n * channels * geometry.pixels()..].as_ptr();
                    (from, results[n * filters * geometry.all_places()..].as_ptr())
                });
                // SAFETY: `images`, `results` and `found` were allocated for this geometry.
                unsafe { add_images(geometry, each, rows, found.as_mut_ptr()) };
            }
            let found: Vec<u64> = found.iter().map(|&x| x.into().to_bits()).collect();
            assert_eq!(found, expected, "{geometry:?} cut at {cut}");
        }
    }

    #[test]
    fn sums_are_those_of_places_sixteen_apart_whatever_vectors_are() {
        for (kernel, places, filters) in [
            ([5, 5], [6, 28], 6),
            ([3, 3], [3, 16], 1),
            ([1, 7], [2, 33], 4),
            ([2, 4], [4, 7], 2),
            ([3, 2], [1, 1], 5),
            ([1, 1], [5, 15], 8),
        ] {
            for (padding, dilation, down) in [([0, 0], [1, 1], 1), ([1, 2], [1, 1], 2), ([0, 1], [2, 3], 1)] {
                let window = Window { kernel, stride: [down, 1], padding, dilation };
                let extent = |axis: usize| (places[axis] - 1) * window.stride[axis] + window.extent(axis);
                let image = [0, 1].map(|axis| extent(axis).saturating_sub(2 * padding[axis]).max(1));
                let fits = (0..2).all(|axis| extent(axis) <= image[axis] + 2 * padding[axis]);
                if fits {
                    let geometry =
                        ConvGeometry { images: 2, groups: 1, channels: 2, filters, image, places, window };
                    check(&geometry, f32::mul_add);
                    check(&geometry, f64::mul_add);
                }
            }
        }
    }
}
