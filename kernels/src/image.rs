//! Launchers of image kernels, a sample of a batch each with parameters of its own. They have no gradient.

use device::{Error, Result, Stream};

use crate::command::Command;
use crate::cpu::image as cpu;
use crate::cuda::image as cuda;
use crate::geometry::{Images, Sampling};
use crate::layout::View;

/// The sizes of images that lie one after another in row-major order.
fn images(op: &'static str, view: &View<'_>) -> Result<Images> {
    let &[samples, channels, rows, columns] = view.shape() else {
        return Err(Error::shape_mismatch(op, "", &[0; 4], view.shape()));
    };
    view.expect_contiguous(op, "operands")?;
    let is_counted = view.layout.elements() <= i32::MAX as usize;
    Error::require(is_counted, op, "images", "fewer than 2^31 pixels", format_args!("{:?}", view.shape()))?;
    Ok(Images { samples, channels, rows, columns })
}

/// Samples each image at an affine map of the output's pixels: `out[n, c, i, j] = x[n, c, y, x]` with
/// `(y, x) = matrices[n] (i, j, 1)`, in pixels, the centre of the first one at 0. Crops, resizes and rotations are warps.
///
/// Shapes: `x [n, c, h, w]`, `matrices [n, 2, 3]`, `out [n, c, i, j]`; F32, contiguous. Asynchronous, ordered by the
/// buffers. The result has the same bits on every device. A coordinate that is NaN is outside, and row or column 0 for
/// [`Sampling::Bilinear`].
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`; `InvalidArgument` for operands that are not contiguous, an
/// `out` that shares memory with `x`, 2^31 pixels, and images without pixels; those of [`Stream::launch`].
pub fn warp(
    stream: &Stream,
    x: View<'_>,
    matrices: View<'_>,
    sampling: Sampling,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "warp";
    let (from, to) = (images(OP, &x)?, images(OP, &out)?);
    out.expect_shape(OP, &[from.samples, from.channels, to.rows, to.columns])?;
    matrices.expect_shape(OP, &[from.samples, 2, 3])?;
    matrices.expect_contiguous(OP, "operands")?;
    let is_valid = from.pixels() > 0 || out.layout.elements() == 0;
    Error::require(is_valid, OP, "images", "at least one pixel", format_args!("shape {:?}", x.shape()))?;
    Command::new(OP, (x.read::<f32>().exact(), matrices.read::<f32>().exact(), out.write::<f32>().exact()))
        .cost(out.layout.elements(), 8)
        .run(
            stream,
            [from, to],
            // SAFETY: `sizes` was made from the shapes of these contiguous operands, and the images have pixels; see
            // `Command::launch`.
            move |sizes, workers, operands| unsafe { cpu::warp(sampling, sizes, workers, operands) },
            move |sizes, queue, operands| cuda::warp(queue, sampling, sizes, operands.into()),
        )
}

/// Blurs each image with a separable filter of its own, and normalises it: `out = (y - mean) / std` with
/// `y[n, c, i, j] = sum_b w[n, b] sum_a w[n, a] x[n, c, i + a - r, j + b - r]` and `r = (k - 1) / 2`; beyond an edge the
/// image is reflected, the edge not repeated.
///
/// Shapes: `x [n, c, h, w]`, `weights [n, k]` with odd `k`, `out` like `x`; F32, contiguous. Asynchronous, ordered by the
/// buffers. The result has the same bits on every device.
///
/// # Errors
/// As for [`warp`]; `InvalidArgument` also if `k` is even, or `r` not below height and width, and on CUDA for a `k` above
/// 12225.
pub fn blur(
    stream: &Stream,
    x: View<'_>,
    weights: View<'_>,
    (mean, std): (f32, f32),
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "blur";
    let sizes = images(OP, &x)?;
    out.expect_shape(OP, x.shape())?;
    out.expect_contiguous(OP, "operands")?;
    let &[_, taps] = weights.shape() else {
        return Err(Error::shape_mismatch(OP, "", &[sizes.samples, 0], weights.shape()));
    };
    weights.expect_shape(OP, &[sizes.samples, taps])?;
    weights.expect_contiguous(OP, "operands")?;
    let fits = taps % 2 == 1 && taps / 2 < sizes.rows.min(sizes.columns);
    let value = format_args!("{taps} for images of {} by {}", sizes.rows, sizes.columns);
    let expected = "odd in number, and at most twice the image's side less one";
    Error::require(fits || out.layout.elements() == 0, OP, "weights", expected, value)?;
    Command::new(OP, (x.read::<f32>().exact(), weights.read::<f32>().exact(), out.write::<f32>().exact()))
        .cost(out.layout.elements(), 2 * taps)
        .run(
            stream,
            sizes,
            // SAFETY: `sizes` was made from the shapes of these contiguous operands, and half of the weights was
            // checked to fit in both sides; see `Command::launch`.
            move |sizes, workers, operands| unsafe {
                cpu::blur(sizes, workers, taps, (mean, std), operands);
            },
            move |sizes, queue, operands| cuda::blur(queue, sizes, taps, (mean, std), operands.into()),
        )
}

#[cfg(test)]
mod tests;
