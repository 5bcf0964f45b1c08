//! Convolutions whose filters see one channel each: there is nothing to gain from a product, so they are done directly, in
//! runs of places along a row.

use super::inlined;
use super::lanes::{Items, Lanes, join_tree, update};
use super::patches::pad;
use crate::geometry::ConvGeometry;
use crate::layout::{Dst, Src};
use crate::par::Workers;

/// Places that are worked on at once. Channels have room behind them, so that a run need not end with its row.
const RUN: usize = 16;

/// The padded channel that a window sees.
struct Channel {
    width: usize,
    size: usize,
    room: usize,
}

impl Channel {
    fn of(geometry: &ConvGeometry) -> Channel {
        let ConvGeometry { image: [height, width], window, .. } = *geometry;
        let width = width + 2 * window.padding[1];
        let size = width * (height + 2 * window.padding[0]);
        Channel { width, size, room: size + RUN * window.stride[1] }
    }

    /// # Safety
    /// The channel can be read at `from`, and `to` has the room.
    #[inline(always)]
    unsafe fn copy<T: Lanes>(&self, geometry: &ConvGeometry, from: *const T, to: *mut T) {
        let rows = geometry.image[0] + 2 * geometry.window.padding[0];
        // SAFETY: the caller promises the channel at `from` and `room` elements at `to`, of which the padded channel
        // takes `size`.
        unsafe {
            pad(from, geometry.image, geometry.window.padding, 0, rows, to);
            std::slice::from_raw_parts_mut(to.add(self.size), self.room - self.size).fill(T::ZERO);
        }
    }
}

pub(crate) unsafe fn forward<T: Lanes>(
    geometry: &ConvGeometry,
    workers: &Workers,
    (results, [images, filters], bias): (Dst<T>, [Src<T>; 2], Option<Src<T>>),
) {
    let ConvGeometry { groups, filters: each, places: [height, width], window, .. } = *geometry;
    let (size, places, taps) = (geometry.pixels(), geometry.all_places(), geometry.taps());
    let channel = Channel::of(geometry);
    let items = Items { workers, len: geometry.images * groups, chunk: 1, room: channel.room };
    items.for_each(inlined!(|plane, padded: *mut T| {
        // SAFETY: `plane` counts images and groups, and `filter` the filters, so the offsets stay within the operands
        // of `geometry`. A plane's results are one part's. `padded` has `channel.room` elements, enough for a run
        // from every place.
        unsafe {
            channel.copy(geometry, images.at((plane * size) as isize), padded);
            for f in 0..each {
                let filter = plane % groups * each + f;
                let weights = filters.at((filter * taps) as isize);
                let first = bias.map_or(T::ZERO, |bias| *bias.at(filter as isize));
                let to = results.at(((plane * each + f) * places) as isize);
                for y in 0..height {
                    let from = padded.add(y * window.stride[0] * channel.width);
                    let to = to.add(y * width);
                    for x in (0..width).step_by(RUN) {
                        let from = from.add(x * window.stride[1]);
                        let sums = run_of(geometry, &channel, from, weights, first);
                        let count = RUN.min(width - x);
                        std::ptr::copy_nonoverlapping(sums.as_ptr(), to.add(x), count);
                    }
                }
            }
        }
    }));
}

/// The results at [`RUN`] places from the one that sees `from` first.
///
/// # Safety
/// The filter lies at `weights`, and the channel with its room behind `from`.
#[inline(always)]
unsafe fn run_of<T: Lanes>(
    geometry: &ConvGeometry,
    channel: &Channel,
    from: *const T,
    weights: *const T,
    first: T,
) -> [T; RUN] {
    let window = geometry.window;
    let [kh, kw] = window.kernel;
    let mut sums = [first; RUN];
    for i in 0..kh {
        for j in 0..kw {
            // SAFETY: `[i, j]` is in the filter at `weights`, and the caller promises room behind the channel for
            // what it sees from `RUN` places on.
            unsafe {
                let weight = *weights.add(i * kw + j);
                let from = from.add(i * window.dilation[0] * channel.width + j * window.dilation[1]);
                if window.stride[1] == 1 {
                    for (e, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.add(weight.mul(*from.add(e)));
                    }
                } else {
                    for (e, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.add(weight.mul(*from.add(e * window.stride[1])));
                    }
                }
            }
        }
    }
    sums
}

pub(crate) unsafe fn input_grad<T: Lanes>(
    geometry: &ConvGeometry,
    workers: &Workers,
    (images, [results, filters], bias): (Dst<T>, [Src<T>; 2], Option<Src<T>>),
) {
    let ConvGeometry { groups, filters: each, image, places: [height, width], window, .. } = *geometry;
    let (size, places, taps) = (geometry.pixels(), geometry.all_places(), geometry.taps());
    let channel = Channel::of(geometry);
    let items = Items { workers, len: geometry.images * groups, chunk: 1, room: channel.size };
    items.for_each(inlined!(|plane, padded: *mut T| {
        // SAFETY: `plane` counts images and groups, and `tap` the filters' elements, so the offsets stay within the
        // operands of `geometry`. A plane's pixels are one part's. What a window sees at a place lies in the padded
        // channel.
        unsafe {
            let group = plane % groups;
            let first = bias.map_or(T::ZERO, |bias| *bias.at(group as isize));
            std::slice::from_raw_parts_mut(padded, channel.size).fill(first);
            for tap in 0..each * taps {
                let (f, i, j) = (tap / taps, tap % taps / window.kernel[1], tap % window.kernel[1]);
                let weight = *filters.at((group * each * taps + tap) as isize);
                let g = results.at(((plane * each + f) * places) as isize);
                let to = padded.add(i * window.dilation[0] * channel.width + j * window.dilation[1]);
                for y in 0..height {
                    let to = (to.add(y * window.stride[0] * channel.width), window.stride[1] as isize);
                    update(to, (g.add(y * width), 1), width, inlined!(|to, g| to.add(weight.mul(g))));
                }
            }
            let inner = padded.add(window.padding[0] * channel.width + window.padding[1]);
            for r in 0..image[0] {
                let to = images.at((plane * size + r * image[1]) as isize);
                std::ptr::copy_nonoverlapping(inner.add(r * channel.width), to, image[1]);
            }
        }
    }));
}

pub(crate) unsafe fn weight_grad<T: Lanes>(
    geometry: &ConvGeometry,
    workers: &Workers,
    (filters, [images, results]): (Dst<T>, [Src<T>; 2]),
) {
    let ConvGeometry { groups, filters: each, places: [height, width], window, .. } = *geometry;
    let (size, places, taps) = (geometry.pixels(), geometry.all_places(), geometry.taps());
    let channel = Channel::of(geometry);
    // There is a run of sums for each element of the group's filters.
    let room = channel.room + each * taps * RUN;
    let items = Items { workers, len: groups, chunk: 1, room };
    items.for_each(inlined!(|group, padded: *mut T| {
        let sums = padded.wrapping_add(channel.room);
        // SAFETY: `group` and `image` count those of the geometry, so the offsets stay within its operands. A group's
        // filters are one part's. The scratch has `channel.room` elements, enough for a run from every place, and the
        // sums behind them.
        unsafe {
            std::slice::from_raw_parts_mut(sums, each * taps * RUN).fill(T::ZERO);
            for image in 0..geometry.images {
                let plane = image * groups + group;
                channel.copy(geometry, images.at((plane * size) as isize), padded);
                for f in 0..each {
                    let g = results.at(((plane * each + f) * places) as isize);
                    for y in 0..height {
                        let from = padded.add(y * window.stride[0] * channel.width);
                        let sums = sums.add(f * taps * RUN);
                        add_row(geometry, &channel, from, g.add(y * width), sums);
                    }
                }
            }
            for tap in 0..each * taps {
                let sum = join_tree(*sums.add(tap * RUN).cast::<[T; RUN]>(), T::add);
                *filters.at((group * each * taps + tap) as isize) = sum;
            }
        }
    }));
}

/// Adds a row of g times what each element of the window sees at its places.
///
/// # Safety
/// The row lies at `g`, the channel with its room behind `from`, and a run of sums for each element of the window at `sums`.
#[inline(always)]
unsafe fn add_row<T: Lanes>(
    geometry: &ConvGeometry,
    channel: &Channel,
    from: *const T,
    g: *const T,
    sums: *mut T,
) {
    let ConvGeometry { places: [_, width], window, .. } = *geometry;
    let [kh, kw] = window.kernel;
    for i in 0..kh {
        for j in 0..kw {
            // SAFETY: `[i, j]` is in the window, for each element of which `sums` has a run, and `x` stays below
            // `width`, the length of the row at `g`.
            unsafe {
                let from = from.add(i * window.dilation[0] * channel.width + j * window.dilation[1]);
                let sums = &mut *sums.add((i * kw + j) * RUN).cast::<[T; RUN]>();
                // Vectors where what is seen lies side by side.
                if window.stride[1] == 1 {
                    add_products(width, sums, |x| (*from.add(x)).mul(*g.add(x)));
                } else {
                    add_products(width, sums, |x| (*from.add(x * window.stride[1])).mul(*g.add(x)));
                }
            }
        }
    }
}

/// Adds `width` terms to a run of sums, in turn.
#[inline(always)]
fn add_products<T: Lanes>(width: usize, sums: &mut [T; RUN], term: impl Fn(usize) -> T) {
    let mut x = 0;
    while x + RUN <= width {
        for (e, sum) in sums.iter_mut().enumerate() {
            *sum = sum.add(term(x + e));
        }
        x += RUN;
    }
    for (e, sum) in sums.iter_mut().enumerate().take(width - x) {
        *sum = sum.add(term(x + e));
    }
}
