//! Image kernels, a row at a time. Every product and sum is rounded by itself, as on a CUDA device.

use crate::geometry::{Images, Sampling};
use crate::layout::{Dst, Src};
use crate::par::{Workers, for_range};

/// Rows of a part when a kernel is split over threads.
const CHUNK: usize = 16;

/// # Safety
/// The images of `x` have pixels.
pub(crate) unsafe fn warp(
    sampling: Sampling,
    [from, to]: &[Images; 2],
    workers: &Workers,
    (x, matrices, out): (Src<f32>, Src<f32>, Dst<f32>),
) {
    for_range(workers, to.all_rows(), CHUNK, &|range| {
        for row in range {
            let (image, i) = (row / to.rows, (row % to.rows) as f32);
            // SAFETY: `row` counts the rows of all images, so image, matrix and row are within the operands by the
            // module's contract; each row is one part's.
            let (pixels, m, out) = unsafe {
                (
                    x.slice(image * from.pixels(), from.pixels()),
                    matrices.slice(image / to.channels * 6, 6),
                    out.slice_mut(row * to.columns, to.columns),
                )
            };
            let (y_start, x_start) = (m[0] * i + m[2], m[3] * i + m[5]);
            for (j, out) in out.iter_mut().enumerate() {
                let (y, x) = (y_start + m[1] * j as f32, x_start + m[4] * j as f32);
                *out = match sampling {
                    Sampling::Nearest => nearest(pixels, from, y, x),
                    Sampling::Bilinear => bilinear(pixels, from, y, x),
                };
            }
        }
    });
}

#[inline(always)]
fn nearest(pixels: &[f32], from: &Images, y: f32, x: f32) -> f32 {
    let (y, x) = (y.round_ties_even(), x.round_ties_even());
    // Neither holds for NaN.
    if y >= 0.0 && y < from.rows as f32 && x >= 0.0 && x < from.columns as f32 {
        pixels[y as usize * from.columns + x as usize]
    } else {
        0.0
    }
}

#[inline(always)]
fn bilinear(pixels: &[f32], from: &Images, y: f32, x: f32) -> f32 {
    let ((y0, y1, down), (x0, x1, right)) = (between(y, from.rows), between(x, from.columns));
    let row = |y: usize| {
        let pixels = &pixels[y * from.columns..];
        (1.0 - right) * pixels[x0] + right * pixels[x1]
    };
    (1.0 - down) * row(y0) + down * row(y1)
}

/// The two pixels around a place within `0..size`, and how far it is from the first one.
#[inline(always)]
fn between(at: f32, size: usize) -> (usize, usize, f32) {
    // NaN becomes 0.
    let at = if at > 0.0 { at.min((size - 1) as f32) } else { 0.0 };
    let first = (at as usize).min(size - 1);
    (first, (first + 1).min(size - 1), at - first as f32)
}

/// # Safety
/// Half of the weights fit in both sides of an image.
pub(crate) unsafe fn blur(
    images: &Images,
    workers: &Workers,
    taps: usize,
    (mean, std): (f32, f32),
    (x, weights, out): (Src<f32>, Src<f32>, Dst<f32>),
) {
    let Images { channels, rows, columns, .. } = *images;
    let reach = taps / 2;
    for_range(workers, images.all_rows(), CHUNK, &|range| {
        // A row after the vertical filter, with its reflections on both sides.
        let mut wide = vec![0.0_f32; columns + 2 * reach];
        for row in range {
            let (image, i) = (row / rows, row % rows);
            // SAFETY: `row` counts the rows of all images, so image, weights and row are within the operands by the
            // module's contract; each row is one part's.
            let (pixels, w, out) = unsafe {
                (
                    x.slice(image * images.pixels(), images.pixels()),
                    weights.slice(image / channels * taps, taps),
                    out.slice_mut(row * columns, columns),
                )
            };
            for (tap, &w) in w.iter().enumerate() {
                let from = reflected((i + tap).cast_signed() - reach.cast_signed(), rows) * columns;
                add_line(tap, w, &pixels[from..from + columns], &mut wide[reach..]);
            }
            for k in 1..=reach {
                wide[reach - k] = wide[reach + k];
                wide[reach + columns - 1 + k] = wide[reach + columns - 1 - k];
            }
            for (tap, &w) in w.iter().enumerate() {
                add_line(tap, w, &wide[tap..], out);
            }
            if (mean, std) != (0.0, 1.0) {
                out.iter_mut().for_each(|pixel| *pixel = (*pixel - mean) / std);
            }
        }
    });
}

/// Begins or, behind the first tap, continues the sums of a filter with what a tap sees.
fn add_line(tap: usize, weight: f32, line: &[f32], sums: &mut [f32]) {
    let line = sums.iter_mut().zip(line);
    match tap {
        0 => line.for_each(|(sum, &value)| *sum = weight * value),
        _ => line.for_each(|(sum, &value)| *sum += weight * value),
    }
}

/// The place within `0..size` that one at most `size - 1` outside mirrors.
fn reflected(at: isize, size: usize) -> usize {
    let last = size.cast_signed() - 1;
    (last - (last - at.abs()).abs()).unsigned_abs()
}
