//! What a window sees of an image, as a matrix that is never stored: row `k` is an element of the window (channel, then
//! row, then column), column `p` a place of it. A product copies the parts that it needs.

use pulp::Simd;

use super::lanes::{Lanes, with_scratch};
use super::product::{Matrix, Operand, ROW_PAD};
use crate::geometry::ConvGeometry;
use crate::window::Window;

/// The patches of one image, which has its padding around it.
#[derive(Clone, Copy)]
pub(crate) struct Patches<T> {
    image: *const T,
    /// Steps from one channel to the next, and from one row.
    channel: usize,
    row: usize,
    window: Window,
    /// Places along a row.
    width: usize,
    /// The row of the matrix that is its first one.
    first: usize,
}

/// Calls `work` with the patches of `rows` rows of places, from row `first` on, of the channels at `image`.
///
/// # Safety
/// The channels of `geometry` can be read there, and it has these rows of places.
pub(crate) unsafe fn with_patches<T: Lanes, R>(
    geometry: &ConvGeometry,
    image: *const T,
    (first, rows): (usize, usize),
    work: impl FnOnce(Patches<T>) -> R,
) -> R {
    let ConvGeometry { channels, image: [height, width], places, window, .. } = *geometry;
    let [stride, _] = window.stride;
    let patches = |image, channel, row| Patches { image, channel, row, window, width: places[1], first: 0 };
    if window.padding == [0; 2] {
        return work(patches(image.wrapping_add(first * stride * width), height * width, width));
    }
    let seen = (rows - 1) * stride + window.extent(0);
    let padded = width + 2 * window.padding[1];
    with_scratch(channels * seen * padded, |to: *mut T| {
        for c in 0..channels {
            // SAFETY: the channel can be read, and there is room for as many rows.
            unsafe {
                let (from, to) = (image.add(c * height * width), to.add(c * seen * padded));
                pad(from, [height, width], window.padding, first * stride, seen, to);
            }
        }
        work(patches(to, seen * padded, padded))
    })
}

/// Copies `rows` rows of a channel with its padding, from row `first` of the padded channel on.
///
/// # Safety
/// The channel can be read, and there is room for the rows.
#[inline]
pub(crate) unsafe fn pad<T: Lanes>(
    from: *const T,
    [height, width]: [usize; 2],
    padding: [usize; 2],
    first: usize,
    rows: usize,
    to: *mut T,
) {
    let padded = width + 2 * padding[1];
    for r in 0..rows {
        // SAFETY: row `r` has `padded` elements, the row of the channel `width`.
        unsafe {
            let to = std::slice::from_raw_parts_mut(to.add(r * padded), padded);
            match (first + r).checked_sub(padding[0]).filter(|&row| row < height) {
                None => to.fill(T::ZERO),
                Some(row) => {
                    to[..padding[1]].fill(T::ZERO);
                    let source = std::slice::from_raw_parts(from.add(row * width), width);
                    to[padding[1]..][..width].copy_from_slice(source);
                    to[padding[1] + width..].fill(T::ZERO);
                }
            }
        }
    }
}

impl<T: Lanes> Patches<T> {
    /// The matrix without its first rows.
    pub(crate) fn without_rows(self, first: usize) -> Self {
        Patches { first, ..self }
    }

    /// Copies rows `at[0]..` and columns `at[1]..` of the matrix, `step` elements from row to row.
    ///
    /// # Safety
    /// The matrix has them, and `to` room for them.
    #[inline(always)]
    unsafe fn copy<S: Simd>(self, simd: S, at: [usize; 2], size: [usize; 2], to: *mut T, step: usize) {
        let Window { kernel: [kh, kw], stride, dilation, .. } = self.window;
        let row = self.first + at[0];
        let (mut j, mut i, mut c) = (row % kw, row / kw % kh, row / (kw * kh));
        let (y, x) = (at[1] / self.width, at[1] % self.width);
        let first = self.image.wrapping_add(y * stride[0] * self.row);
        for k in 0..size[0] {
            let tap = c * self.channel + i * dilation[0] * self.row + j * dilation[1];
            let mut from = first.wrapping_add(tap);
            let (mut x, mut done) = (x, 0);
            while done < size[1] {
                let run = (self.width - x).min(size[1] - done);
                // SAFETY: the places exist, and what the window sees there is in the padded image; `to` has room.
                unsafe {
                    let (from, to) = (from.wrapping_add(x * stride[1]), to.add(k * step + done));
                    if stride[1] == 1 {
                        copy_run(simd, run, from, to);
                    } else {
                        for e in 0..run {
                            *to.add(e) = *from.add(e * stride[1]);
                        }
                    }
                }
                done += run;
                x = 0;
                from = from.wrapping_add(stride[0] * self.row);
            }
            j += 1;
            if j == kw {
                (j, i) = (0, i + 1);
            }
            if i == kh {
                (i, c) = (0, c + 1);
            }
        }
    }
}

/// Copies short runs, which a call of `memcpy` is not worth.
///
/// # Safety
/// There are `len` elements each, which do not overlap.
#[inline(always)]
unsafe fn copy_run<T: Lanes, S: Simd>(simd: S, len: usize, from: *const T, to: *mut T) {
    let lanes = T::lanes::<S>();
    let mut e = 0;
    // SAFETY: loads and stores end at `len`, the last ones by their mask.
    unsafe {
        while e + lanes <= len {
            T::store(simd, to.add(e), T::load(simd, from.add(e)));
            e += lanes;
        }
        if e < len {
            let rest = T::mask(simd, len - e);
            T::store_masked(simd, rest, to.add(e), T::load_masked(simd, rest, from.add(e)));
        }
    }
}

impl<T: Lanes> Operand<T> for Patches<T> {
    #[inline(always)]
    fn packs(self) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn rows<S: Simd>(self, simd: S, at: [usize; 2], size: [usize; 2], to: *mut T) -> Matrix<T> {
        let step = size[1] + ROW_PAD;
        // SAFETY: the matrix has this part, and there is room for it.
        unsafe { self.copy(simd, at, size, to, step) };
        Matrix::row_major(to, step)
    }

    #[inline(always)]
    unsafe fn panel<S: Simd>(self, simd: S, at: [usize; 2], size: [usize; 2], to: *mut T) -> Matrix<T> {
        let step = 2 * T::lanes::<S>();
        // SAFETY: the matrix has this part, and there is room for it.
        unsafe { self.copy(simd, at, size, to, step) };
        Matrix::row_major(to, step)
    }
}
