//! Launchers of image kernels, a sample of a batch each with parameters of its own. They have no gradient.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu;
use crate::cuda;
use crate::layout::{View, shape_mismatch};
use crate::par::old_workers;

/// How [`warp`] reads between and outside pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// The nearest pixel, halves to the even one; 0 outside.
    Nearest,
    /// A weighted mean of the four pixels around; outside, the edge goes on.
    Bilinear,
}

/// Sizes of a batch of images: samples, channels, rows and columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Images {
    pub(crate) samples: usize,
    pub(crate) channels: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Images {
    /// Checks that the images lie one after another in row-major order.
    fn of(op: &'static str, view: &View<'_>) -> Result<Images> {
        let &[samples, channels, rows, columns] = view.shape() else {
            return Err(shape_mismatch(op, &[0; 4], view.shape()));
        };
        expect_dense_f32(op, view)?;
        if view.layout.elements() > i32::MAX as usize {
            let value = format!("{:?}", view.shape()).into();
            return Err(Error::InvalidArgument {
                op,
                argument: "images",
                expected: "fewer than 2^31 pixels",
                value,
            });
        }
        Ok(Images { samples, channels, rows, columns })
    }

    /// Rows of all channels of all samples.
    pub(crate) fn all_rows(&self) -> usize {
        self.samples * self.channels * self.rows
    }
}

fn expect_dense_f32(op: &'static str, view: &View<'_>) -> Result<()> {
    view.expect_dtype(op, DType::F32)?;
    view.expect_contiguous(op, "operands")
}

/// Samples each image at an affine map of the output's pixels: `out[n, c, i, j] = x[n, c, y, x]` with
/// `(y, x) = matrices[n] (i, j, 1)`, in pixels, the centre of the first one at 0. Crops, resizes and rotations are warps.
///
/// Shapes: `x [n, c, h, w]`, `matrices [n, 2, 3]`, `out [n, c, i, j]`; F32, contiguous. Asynchronous, ordered by the
/// buffers. The result has the same bits on every device. A coordinate that is NaN is outside, and row or column 0 for
/// [`Sampling::Bilinear`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for operands that are not contiguous, an
/// `out` that shares memory with `x`, 2^31 pixels, and images without pixels; those of [`Stream::launch`].
pub fn warp(
    stream: &Stream,
    x: View<'_>,
    matrices: View<'_>,
    sampling: Sampling,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "warp";
    let (from, to) = (Images::of(OP, &x)?, Images::of(OP, &out)?);
    out.expect_shape(OP, &[from.samples, from.channels, to.rows, to.columns])?;
    matrices.expect_shape(OP, &[from.samples, 2, 3])?;
    expect_dense_f32(OP, &matrices)?;
    x.expect_apart(OP, &out)?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    if from.rows == 0 || from.columns == 0 {
        return Err(no_pixels(OP, &x));
    }
    let (x_at, m_at, out_at) = (x.src::<f32>(OP)?, matrices.src::<f32>(OP)?, out.dst::<f32>(OP)?);
    let uses = [Use::read(x.buffer), Use::read(matrices.buffer), Use::write(out.buffer)];
    if stream.is_cuda() {
        return cuda::image::warp(stream, &uses, [x, matrices, out], sampling, from, to);
    }
    let workers = old_workers(stream, out.layout.elements(), 8);
    stream.launch_host(OP, &uses, move || {
        // SAFETY: shapes and bounds were checked above; the launch orders the accesses.
        unsafe { cpu::image::warp(&workers, sampling, (x_at, from), m_at, (out_at, to)) }
    })
}

/// Blurs each image with a separable filter of its own, and normalises it: `out = (y - mean) / std` with
/// `y[n, c, i, j] = sum_b w[n, b] sum_a w[n, a] x[n, c, i + a - r, j + b - r]` and `r = (k - 1) / 2`; beyond an edge the
/// image is reflected, the edge not repeated.
///
/// Shapes: `x [n, c, h, w]`, `weights [n, k]` with odd `k`, `out` like `x`; F32, contiguous. Asynchronous, ordered by the
/// buffers. The result has the same bits on every device.
///
/// # Errors
/// As for [`warp`]; [`Error::InvalidArgument`] also if `k` is even, or `r` not below height and width.
pub fn blur(
    stream: &Stream,
    x: View<'_>,
    weights: View<'_>,
    (mean, std): (f32, f32),
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "blur";
    let images = Images::of(OP, &x)?;
    Images::of(OP, &out)?;
    out.expect_shape(OP, x.shape())?;
    let &[_, taps] = weights.shape() else {
        return Err(shape_mismatch(OP, &[images.samples, 0], weights.shape()));
    };
    weights.expect_shape(OP, &[images.samples, taps])?;
    expect_dense_f32(OP, &weights)?;
    x.expect_apart(OP, &out)?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    if taps % 2 == 0 || taps / 2 >= images.rows.min(images.columns) {
        return Err(Error::InvalidArgument {
            op: OP,
            argument: "weights",
            expected: "odd in number, and at most twice the image's side less one",
            value: format!("{taps} for images of {} by {}", images.rows, images.columns).into(),
        });
    }
    let (x_at, w_at, out_at) = (x.src::<f32>(OP)?, weights.src::<f32>(OP)?, out.dst::<f32>(OP)?);
    let uses = [Use::read(x.buffer), Use::read(weights.buffer), Use::write(out.buffer)];
    if stream.is_cuda() {
        return cuda::image::blur(stream, &uses, [x, weights, out], images, taps, (mean, std));
    }
    let workers = old_workers(stream, out.layout.elements(), 2 * taps);
    stream.launch_host(OP, &uses, move || {
        // SAFETY: shapes and bounds were checked above; the launch orders the accesses.
        unsafe { cpu::image::blur(&workers, images, x_at, (w_at, taps), (mean, std), out_at) }
    })
}

#[cold]
fn no_pixels(op: &'static str, x: &View<'_>) -> Error {
    let value = format!("shape {:?}", x.shape()).into();
    Error::InvalidArgument { op, argument: "images", expected: "at least one pixel", value }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
