//! Convolutions as products: filters by patches, results by patches, and results by filters, whose elements are then added
//! where the window saw them. The product reads patches where they lie, or copies them when it needs them; no matrix of them is
//! ever stored whole.
//!
//! How the work is cut into parts follows from shapes alone wherever it shows in a sum.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::few;
use super::inlined;
use super::lanes::{Lanes, simd_for, update, with_scratch};
use super::patches::{Offsets, lies_well, run_in_place, with_patches};
use super::product::{Matrix, Product, Stored, copy_matrix, run_between};
use crate::geometry::ConvGeometry;
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_chunks, for_range, threads};
use crate::window::inside;

/// Places of a part: enough columns for the product, and few enough that the image's rows stay in the cache.
const PLACES: usize = 1024;
/// Elements of the products whose elements are added to the images, at a time.
const COLUMNS: usize = 1 << 15;
/// The widest windows whose elements are added in registers.
const MOST_TAPS: usize = 16;
/// Elements of all partial sums of the filters' gradient, and the most that there are for each.
const PARTIALS: usize = 1 << 20;
const MOST_PARTIALS: usize = 8;

pub(crate) unsafe fn forward<T: Lanes>(
    geometry: &ConvGeometry,
    workers: &Workers,
    (results, [images, filters], bias): (Dst<T>, [Src<T>; 2], Option<Src<T>>),
) {
    let ConvGeometry { groups, channels, filters: count, places: [height, width], .. } = *geometry;
    let (size, places, k) = (geometry.pixels(), geometry.all_places(), geometry.filter());
    let blocks = geometry.images * groups;
    // Where the parts are cut does not show in the product.
    let wanted = (4 * threads(workers)).div_ceil(blocks);
    let rows = PLACES.div_ceil(width).min(if wanted > 1 { height.div_ceil(wanted) } else { height }).max(1);
    let bands = height.div_ceil(rows);
    let arch = Arch::new();
    for_range(workers, blocks * bands, 1, &|range| {
        for part in range {
            let (block, first) = (part / bands, part % bands * rows);
            let rows = rows.min(height - first);
            let n = rows * width;
            let group = block % groups;
            let a = Matrix::row_major(filters.at((group * count * k) as isize).cast_mut(), k);
            let c = Matrix::row_major(results.at((block * count * places + first * width) as isize), places);
            let init = bias.map(|bias| {
                let of_filters = bias.at((group * count) as isize).cast_mut();
                Matrix { ptr: of_filters, row: 1, col: 0 }
            });
            let image = images.at((block * channels * size) as isize);
            // SAFETY: `block` counts images and groups, and `first + rows` is at most the rows of places, so the
            // offsets stay within the operands of `geometry`. Parts write disjoint rows of the results.
            unsafe {
                if geometry.is_pointwise() {
                    let b = Matrix::row_major(image.add(first * width).cast_mut(), places);
                    Product { m: count, n, k, a, b, c, init }.run(arch);
                } else {
                    let pack = n >= 256 && k >= 512;
                    with_patches(geometry, image, (first, rows), |patches| {
                        if lies_well(geometry, count, rows) {
                            run_in_place(arch, [count, k, rows], a, patches, c, init);
                        } else {
                            run_between(arch, [count, n, k], Stored { matrix: a, pack }, patches, c, init);
                        }
                    });
                }
            }
        }
    });
}

pub(crate) unsafe fn input_grad<T: Lanes>(
    geometry: &ConvGeometry,
    workers: &Workers,
    (images, [results, filters], bias): (Dst<T>, [Src<T>; 2], Option<Src<T>>),
) {
    let ConvGeometry { groups, channels, filters: count, places: [height, width], .. } = *geometry;
    let (size, places, taps, k) =
        (geometry.pixels(), geometry.all_places(), geometry.taps(), geometry.filter());
    // The order in which parts of the places are added to a channel shows in its sums: it depends on sizes only.
    let rows = (COLUMNS / (taps * width).max(1)).clamp(1, height.max(1));
    let together = (COLUMNS / (taps * rows * width).max(1)).clamp(1, channels);
    let parts = channels.div_ceil(together);
    let arch = Arch::new();
    for_range(workers, geometry.images * groups * parts, 1, &|range| {
        for part in range {
            let (block, channel) = (part / parts, part % parts * together);
            let some = together.min(channels - channel);
            let group = block % groups;
            let first = group * channels + channel;
            let start = (block * channels + channel) * size;
            let image = images.at(start as isize);
            let weights = filters.at((group * count * k + channel * taps) as isize).cast_mut();
            // SAFETY: `block` counts images and groups, and `channel + some` is at most the channels, so the offsets
            // stay within the operands of `geometry`. Parts write disjoint channels of the images.
            unsafe {
                for c in 0..some {
                    let value = bias.map_or(T::ZERO, |bias| *bias.at((first + c) as isize));
                    images.slice_mut(start + c * size, size).fill(value);
                }
                if geometry.is_pointwise() {
                    let b =
                        Matrix::row_major(results.at((block * count * places) as isize).cast_mut(), places);
                    let (a, c) = (Matrix::row_major(weights, k).t(), Matrix::row_major(image, places));
                    let init = bias.map(|_| c);
                    Product { m: some, n: places, k: count, a, b, c, init }.run(arch);
                    continue;
                }
                with_scratch(some * taps * rows * width, |columns: *mut T| {
                    for y in (0..height).step_by(rows) {
                        let rows = rows.min(height - y);
                        let n = rows * width;
                        let from = results.at((block * count * places + y * width) as isize).cast_mut();
                        let (a, b, c) = (
                            Matrix::row_major(weights, k).t(),
                            Matrix::row_major(from, places),
                            Matrix::row_major(columns, n),
                        );
                        Product { m: some * taps, n, k: count, a, b, c, init: None }.run(arch);
                        AddPatches { geometry, channels: some, rows: y..y + rows, columns, image }.run(arch);
                    }
                });
            }
        }
    });
}

/// Patches, of which each element of the window has a row in `columns`, that are added to the channels that they were seen in.
struct AddPatches<'a, T> {
    geometry: &'a ConvGeometry,
    channels: usize,
    /// The rows of places.
    rows: Range<usize>,
    columns: *const T,
    image: *mut T,
}

impl<T: Lanes> AddPatches<'_, T> {
    /// # Safety
    /// The channels lie at `image`, and `columns` has a row for each element of the window in each, as long as the rows of places.
    unsafe fn run(self, arch: Arch) {
        arch.dispatch(self);
    }

    /// The rows of one channel's elements of the window, and the channel.
    #[inline(always)]
    fn channels(&self) -> impl Iterator<Item = (*const T, *mut T)> {
        let each = self.geometry.taps() * self.rows.len() * self.geometry.places[1];
        let (columns, image, pixels) = (self.columns, self.image, self.geometry.pixels());
        (0..self.channels).map(move |c| (columns.wrapping_add(c * each), image.wrapping_add(c * pixels)))
    }

    /// Each run of places onto the image.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn scatter(&self) {
        let ConvGeometry { image: [height, width], places, window, .. } = *self.geometry;
        let ([kh, kw], stride) = (window.kernel, window.stride[1] as isize);
        for (mut row, image) in self.channels() {
            for i in 0..kh {
                let (top, bottom) = inside(i, window.along(0), height, places[0]);
                for j in 0..kw {
                    let (left, right) = inside(j, window.along(1), width, places[1]);
                    let at =
                        (left * window.stride[1] + j * window.dilation[1]).saturating_sub(window.padding[1]);
                    for y in top.max(self.rows.start)..bottom.min(self.rows.end) {
                        let line = y * window.stride[0] + i * window.dilation[0] - window.padding[0];
                        // SAFETY: `inside` returns the columns and rows of places at which the window's element lies
                        // in the image, so `line` and `at` are a pixel, and `y` and `left` a column of this row of
                        // `columns`.
                        unsafe {
                            let from = row.add((y - self.rows.start) * places[1] + left);
                            // A run of no places may be beyond the line.
                            let to = image.wrapping_add(line * width + at);
                            update((to, stride), (from, 1), right - left, T::add);
                        }
                    }
                    row = row.wrapping_add(self.rows.len() * places[1]);
                }
            }
        }
    }

    /// As [`scatter`](Self::scatter), in the same order for each pixel, for dense windows on images no wider than a vector: the
    /// pixels of a row take what they are given one after the other, and are written once.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn gather<S: Simd>(&self, simd: S) {
        let ConvGeometry { image: [height, width], places, window, .. } = *self.geometry;
        let ([kh, kw], [above, before]) = (window.kernel, window.padding);
        let n = self.rows.len() * places[1];
        // Those that are seen from the rows.
        let lines =
            self.rows.start.saturating_sub(above)..(self.rows.end + kh - 1).saturating_sub(above).min(height);
        let pixels = T::mask(simd, width);
        // Which of them see each column of the window, and where in a row of places the first one would.
        let mut seen = [(pixels, 0); MOST_TAPS];
        for (j, seen) in seen[..kw].iter_mut().enumerate() {
            let first = before as isize - j as isize;
            let end = (places[1] as isize - first).clamp(0, width as isize);
            *seen = (T::mask_of(simd, (-first).clamp(0, end) as usize..end as usize), first);
        }
        for (columns, image) in self.channels() {
            for line in lines.clone() {
                let to = image.wrapping_add(line * width);
                // SAFETY: `line` is below the height and `pixels` masks the image's columns; `seen` masks the columns
                // of places, and `self.rows` contains `y`.
                unsafe {
                    let mut sum = T::load_masked(simd, pixels, to);
                    for i in 0..kh {
                        let Some(y) = (line + above).checked_sub(i) else { break };
                        if !self.rows.contains(&y) {
                            continue;
                        }
                        let row = columns.wrapping_add(i * kw * n + (y - self.rows.start) * places[1]);
                        for (j, &(seen, first)) in seen[..kw].iter().enumerate() {
                            let from = row.wrapping_add(j * n).wrapping_offset(first);
                            sum = T::add_masked(simd, seen, sum, T::load_masked(simd, seen, from));
                        }
                    }
                    T::store_masked(simd, pixels, to, sum);
                }
            }
        }
    }
}

impl<T: Lanes> WithSimd for AddPatches<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let ConvGeometry { window, image: [_, width], .. } = self.geometry;
        let is_dense = window.stride == [1, 1] && window.dilation == [1, 1];
        // SAFETY: `run`'s caller promises the channels at `image` and the rows at `columns` that both ways ask for.
        unsafe {
            // Longer runs are whole vectors, mostly.
            if is_dense && window.kernel[1] <= MOST_TAPS && *width <= T::lanes::<S>() {
                self.gather(simd);
            } else {
                self.scatter();
            }
        }
    }
}

pub(crate) unsafe fn weight_grad<T: Lanes>(
    geometry: &ConvGeometry,
    workers: &Workers,
    (filters, [images, results]): (Dst<T>, [Src<T>; 2]),
) {
    let ConvGeometry { groups, filters: count, .. } = *geometry;
    let k = geometry.filter();
    let all = groups * k * count;
    // Images are summed in parts, whose number depends on sizes only, and the parts' sums in order.
    let partials = (PARTIALS / all).clamp(1, MOST_PARTIALS).min(geometry.images.max(1));
    let together = geometry.images.div_ceil(partials).max(1);
    let partials = geometry.images.div_ceil(together).max(1);
    // Where rows are cut does not show.
    let rows = if partials * groups < threads(workers) { k.div_ceil(4).next_multiple_of(24) } else { k };
    let bands = k.div_ceil(rows);
    with_scratch(partials * all, |sums: *mut T| {
        let to = Dst(sums);
        for_chunks(workers, partials * groups * bands, 1, &|part, _| {
            let (partial, rest) = (part / (groups * bands), part % (groups * bands));
            let (group, band) = (rest / bands, rest % bands);
            let first = partial * together;
            let images_of = first..geometry.images.min(first + together);
            let to = to.at((partial * all + group * k * count) as isize);
            // SAFETY: images, group and rows are those of the geometry, whose operands the module's contract covers.
            // The scratch has `partials` times `all` sums, and each part writes rows of its own.
            unsafe {
                let rows = band * rows..k.min((band + 1) * rows);
                add_images(geometry, images_of, (group, rows), [images, results], to);
            }
        });
        // SAFETY: `for_chunks` has written all `partials * all` sums and returned, and `filters` has `all` elements
        // by the module's contract.
        unsafe { join_partials(geometry, partials, sums, filters.at(0)) };
    });
}

/// The sum over some images of patches by results, rows `rows` of `[k, filters]` at `sums`.
///
/// # Safety
/// The operands are of this geometry and can be read, and the rows of the sums be written.
unsafe fn add_images<T: Lanes>(
    geometry: &ConvGeometry,
    these: Range<usize>,
    (group, rows): (usize, Range<usize>),
    [images, results]: [Src<T>; 2],
    sums: *mut T,
) {
    let ConvGeometry { groups, channels, filters: count, places: [height, _], .. } = *geometry;
    let (size, places) = (geometry.pixels(), geometry.all_places());
    let arch = Arch::new();
    let m = rows.len();
    let c = Matrix::row_major(sums.wrapping_add(rows.start * count), count);
    if these.is_empty() || places == 0 {
        // SAFETY: the caller promises that the rows of the sums, `m` of `count` elements from `c` on, may be written.
        return unsafe { std::slice::from_raw_parts_mut(c.ptr, m * count).fill(T::ZERO) };
    }
    let images = these.map(|image| {
        let block = image * groups + group;
        (images.at((block * channels * size) as isize), results.at((block * count * places) as isize))
    });
    if few::pays(geometry) {
        // SAFETY: the caller promises operands of this geometry and rows that may be written, which is what
        // `few::add_images` asks for.
        return unsafe { few::add_images(geometry, images, rows, sums) };
    }
    let parts = images.enumerate().map(|(i, (from, results))| {
        let g = Matrix::row_major(results.cast_mut(), places).t();
        (from, g, (i > 0).then_some(c))
    });
    if geometry.is_pointwise() {
        for (from, b, init) in parts {
            let a = Matrix::row_major(from.cast_mut(), places).at(rows.start, 0);
            // SAFETY: `from` has `k` rows of `places` elements, of which `rows` are some, `b` is one group's results,
            // and `c` has `m` rows of `count`, as the caller promises.
            unsafe { Product { m, n: count, k: places, a, b, c, init }.run(arch) };
        }
        return;
    }
    let offsets = Offsets::of(geometry, height);
    for (from, g, init) in parts {
        // SAFETY: `from` is one image's group of channels and `g` its results, as the caller promises; `c` has `m` rows
        // of `count` elements that may be written.
        unsafe {
            with_patches(geometry, from, (0, height), |patches| {
                let below = offsets.in_place(patches, rows.start);
                run_between(arch, [m, count, places], below, Stored { matrix: g, pack: true }, c, init);
            });
        }
    }
}

/// Adds the partial sums in order; their filters lie side by side, those of the gradient one after the other.
///
/// # Safety
/// There are `partials` times as many sums as elements of the filters, which can be written.
unsafe fn join_partials<T: Lanes>(geometry: &ConvGeometry, partials: usize, sums: *mut T, filters: *mut T) {
    let (k, count, groups) = (geometry.filter(), geometry.filters, geometry.groups);
    let all = groups * k * count;
    // SAFETY: the offsets stay below `partials * all` in the sums and below `all` in the filters, which the caller
    // promises to be there.
    unsafe {
        simd_for::<T, _>(inlined!(|| {
            for partial in 1..partials {
                update((sums, 1), (sums.add(partial * all), 1), all, T::add);
            }
        }));
        for group in 0..groups {
            let from = Matrix::row_major(sums.add(group * k * count), count).t();
            let to = Matrix::row_major(filters.add(group * k * count), k);
            copy_matrix(Arch::new(), count, k, from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Window;

    /// What the channels are by either way, from rows `rows` of the places on, as bits.
    fn both_ways<T: Lanes + Into<f64>>(geometry: &ConvGeometry, rows: Range<usize>) -> [Vec<u64>; 2] {
        let value = |i: usize| {
            T::from_f64(if i.is_multiple_of(7) { -0.0 } else { ((i * 37 + 11) % 101) as f64 / 7.0 - 6.0 })
        };
        let columns: Vec<T> = (0..geometry.filter() * rows.len() * geometry.places[1]).map(value).collect();
        [true, false].map(|gathers| {
            let mut image: Vec<T> = (0..geometry.channels * geometry.pixels()).map(value).collect();
            let patches = AddPatches {
                geometry,
                channels: geometry.channels,
                rows: rows.clone(),
                columns: columns.as_ptr(),
                image: image.as_mut_ptr(),
            };
            // SAFETY: `image` has the pixels of all channels, and `columns` a row for each element of the window in
            // each, as long as `rows` of places.
            unsafe { if gathers { patches.run(Arch::new()) } else { patches.scatter() } };
            image.into_iter().map(|x| x.into().to_bits()).collect()
        })
    }

    #[test]
    fn pixels_add_up_what_they_are_given_in_one_order() {
        let sizes: [([usize; 2], [usize; 2]); 6] = [
            ([5, 5], [14, 14]),
            ([3, 5], [9, 7]),
            ([3, 3], [9, 37]),
            ([1, 1], [2, 16]),
            ([2, 16], [7, 40]),
            ([4, 3], [4, 3]),
        ];
        // Of padding and dilation, and how many places there could be beyond those that there are.
        let others = [
            ([0, 0], [1, 1], 0),
            ([2, 1], [1, 1], 1),
            ([5, 7], [1, 1], 0),
            ([5, 7], [2, 3], 0),
            ([1, 4], [1, 2], 1),
        ];
        for ((kernel, image), (padding, dilation, fewer)) in
            sizes.into_iter().flat_map(|size| others.map(|other| (size, other)))
        {
            let places = |axis: usize| -> Option<usize> {
                let last =
                    (image[axis] + 2 * padding[axis]).checked_sub(dilation[axis] * (kernel[axis] - 1) + 1);
                last.and_then(|last| (last + 1).checked_sub(fewer)).filter(|&places| places > 0)
            };
            let (Some(height), Some(width)) = (places(0), places(1)) else { continue };
            let window = Window { kernel, stride: [1, 1], padding, dilation };
            let places = [height, width];
            let geometry =
                ConvGeometry { images: 1, groups: 1, channels: 2, filters: 1, image, places, window };
            for rows in [0..height, 0..1, height / 2..height, height - 1..height] {
                let [gathered, scattered] = both_ways::<f32>(&geometry, rows.clone());
                assert_eq!(gathered, scattered, "{geometry:?}, rows {rows:?}");
                let [gathered, scattered] = both_ways::<f64>(&geometry, rows.clone());
                assert_eq!(gathered, scattered, "{geometry:?}, rows {rows:?}");
            }
        }
    }
}
