//! Convolutions as products: filters by patches, results by patches, and results by filters, whose elements are then added
//! where the window saw them. The product reads patches where they lie, or copies them when it needs them; no matrix of them is
//! ever stored whole.
//!
//! How the work is cut into parts follows from shapes alone wherever it shows in a sum.

use std::ops::Range;

use pulp::Arch;

use super::inlined;
use super::lanes::{Lanes, simd_for, update, with_scratch};
use super::patches::{lies_well, run_in_place, with_patches, with_patches_in_place};
use super::product::{Init, Matrix, Product, Stored, copy_matrix, run_between};
use crate::geometry::ConvGeometry;
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_chunks, for_range, threads};
use crate::window::inside;

/// Places of a part: enough columns for the product, and few enough that the image's rows stay in the cache.
const PLACES: usize = 1024;
/// Elements of the products whose elements are added to the images, at a time.
const COLUMNS: usize = 1 << 15;
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
            let init = bias.map_or(Init::Zero, |bias| Init::Column(bias.at((group * count) as isize), 1));
            let image = images.at((block * channels * size) as isize);
            // SAFETY: the operands have these parts; those of the result are disjoint.
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
            // SAFETY: the operands have these parts; those of the images are disjoint.
            unsafe {
                for c in 0..some {
                    let value = bias.map_or(T::ZERO, |bias| *bias.at((first + c) as isize));
                    images.slice_mut(start + c * size, size).fill(value);
                }
                if geometry.is_pointwise() {
                    let init = if bias.is_some() { Init::Existing } else { Init::Zero };
                    let b =
                        Matrix::row_major(results.at((block * count * places) as isize).cast_mut(), places);
                    let (a, c) = (Matrix::row_major(weights, k).t(), Matrix::row_major(image, places));
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
                        Product { m: some * taps, n, k: count, a, b, c, init: Init::Zero }.run(arch);
                        simd_for::<T, _>(inlined!(|| add_patches(geometry, some, (y, rows), columns, image)));
                    }
                });
            }
        }
    });
}

/// Adds patches, of which each element of the window has a row in `columns`, to the channels that they were seen in.
///
/// # Safety
/// The channels lie at `image`, and `columns` has the rows of as many elements of the window, `rows` rows of places wide.
#[inline(always)]
unsafe fn add_patches<T: Lanes>(
    geometry: &ConvGeometry,
    channels: usize,
    (first, rows): (usize, usize),
    columns: *const T,
    image: *mut T,
) {
    let ConvGeometry { image: [height, width], places, window, .. } = *geometry;
    let [kh, kw] = window.kernel;
    let mut row = columns;
    for c in 0..channels {
        for i in 0..kh {
            let (top, bottom) = inside(i, window.along(0), height, places[0]);
            for j in 0..kw {
                let (left, right) = inside(j, window.along(1), width, places[1]);
                let at = (left * window.stride[1] + j * window.dilation[1]).saturating_sub(window.padding[1]);
                let len = right - left;
                for y in top.max(first)..bottom.min(first + rows) {
                    let line = y * window.stride[0] + i * window.dilation[0] - window.padding[0];
                    // SAFETY: `inside` gives places at which the element is in the image.
                    unsafe {
                        let from = row.add((y - first) * places[1] + left);
                        let to = image.add((c * height + line) * width + at);
                        update((to, window.stride[1] as isize), (from, 1), len, T::add);
                    }
                }
                row = row.wrapping_add(rows * places[1]);
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
            // SAFETY: the operands have these images and rows; the parts write rows of their own.
            unsafe {
                let rows = band * rows..k.min((band + 1) * rows);
                add_images(geometry, images_of, (group, rows), [images, results], to);
            }
        });
        // SAFETY: all sums have been written, and there are as many filters.
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
    let ConvGeometry { groups, channels, filters: count, places: [height, width], .. } = *geometry;
    let (size, places) = (geometry.pixels(), geometry.all_places());
    let arch = Arch::new();
    let m = rows.len();
    let c = Matrix::row_major(sums.wrapping_add(rows.start * count), count);
    if these.is_empty() || places == 0 {
        // SAFETY: the rows are there.
        return unsafe { std::slice::from_raw_parts_mut(c.ptr, m * count).fill(T::ZERO) };
    }
    let parts = these.enumerate().map(|(i, image)| {
        let block = image * groups + group;
        let from = images.at((block * channels * size) as isize);
        let g = Matrix::row_major(results.at((block * count * places) as isize).cast_mut(), places).t();
        (from, g, if i == 0 { Init::Zero } else { Init::Existing })
    });
    if geometry.is_pointwise() {
        for (from, b, init) in parts {
            let a = Matrix::row_major(from.cast_mut(), places).at(rows.start, 0);
            // SAFETY: the operands have these parts.
            unsafe { Product { m, n: count, k: places, a, b, c, init }.run(arch) };
        }
        return;
    }
    with_patches_in_place(geometry, height, |in_place| {
        for (from, g, init) in parts {
            // SAFETY: as above.
            unsafe {
                with_patches(geometry, from, (0, height), |patches| {
                    let below = in_place(patches).without_rows(rows.start);
                    let g = Stored { matrix: g, pack: true };
                    run_between(arch, [m, count, height * width], below, g, c, init);
                });
            }
        }
    });
}

/// Adds the partial sums in order; their filters lie side by side, those of the gradient one after the other.
///
/// # Safety
/// There are `partials` times as many sums as elements of the filters, which can be written.
unsafe fn join_partials<T: Lanes>(geometry: &ConvGeometry, partials: usize, sums: *mut T, filters: *mut T) {
    let (k, count, groups) = (geometry.filter(), geometry.filters, geometry.groups);
    let all = groups * k * count;
    // SAFETY: the offsets stay below `partials * all` in the sums, and below `all` in the filters.
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
