//! Launchers of pooling: the largest element, or the mean, of each place of a window. Operands are contiguous and seen as
//! planes `[h, w]`, of which all leading axes are counted as one.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu::lanes::Lanes;
use crate::cpu::pool as cpu;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{View, shape_mismatch};
use crate::par::old_workers;
use crate::window::{Window, invalid};

/// Planes, and the places of a window in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    pub(crate) count: usize,
    /// Sizes of a plane.
    pub(crate) image: [usize; 2],
    /// Sizes of what is made of one.
    pub(crate) places: [usize; 2],
}

impl Planes {
    pub(crate) fn pixels(&self) -> usize {
        self.image[0] * self.image[1]
    }

    pub(crate) fn all_places(&self) -> usize {
        self.places[0] * self.places[1]
    }

    /// From the shapes of planes and of what is made of them.
    fn of(op: &'static str, image: View<'_>, pooled: View<'_>) -> Result<Planes> {
        let (shape, made) = (image.shape(), pooled.shape());
        let (&[ref leading @ .., h, w], &[ref made_leading @ .., oh, ow]) = (shape, made) else {
            return Err(shape_mismatch(op, shape, made));
        };
        if leading != made_leading {
            return Err(shape_mismatch(op, shape, made));
        }
        Ok(Planes { count: leading.iter().product(), image: [h, w], places: [oh, ow] })
    }
}

/// Which elements a mean is of, and what their sum is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Of the places of a window, whose dilation is 1.
    Sliding {
        /// The window.
        window: Window,
        /// Whether elements of the padding count in the divisor.
        count_include_pad: bool,
        /// The divisor, if it is not the number of elements.
        divisor: Option<u32>,
    },
    /// Of as many ranges along each axis as the result has places, `floor(i size / places)..ceil((i + 1) size / places)`.
    Adaptive,
}

/// The elements along an axis that a place sees, and how many count in the divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) counted: usize,
}

impl Means {
    /// What place `at` of `places` sees along an axis of `size` elements.
    pub(crate) fn seen(&self, axis: usize, at: usize, size: usize, places: usize) -> Seen {
        match self {
            Means::Adaptive => {
                let (start, end) = (at * size / places, ((at + 1) * size).div_ceil(places));
                Seen { start, end, counted: end - start }
            }
            Means::Sliding { window, count_include_pad, .. } => {
                let padding = window.padding[axis];
                // In the padded axis.
                let first = at * window.stride[axis];
                let last = (first + window.kernel[axis]).min(size + 2 * padding);
                let start = first.saturating_sub(padding).min(size);
                let end = last.saturating_sub(padding).clamp(start, size);
                let counted = if *count_include_pad { last.saturating_sub(first) } else { end - start };
                Seen { start, end, counted }
            }
        }
    }

    /// The divisor of a place.
    pub(crate) fn divisor(&self, down: Seen, across: Seen) -> f64 {
        match self {
            Means::Sliding { divisor: Some(divisor), .. } => f64::from(*divisor),
            _ => (down.counted * across.counted) as f64,
        }
    }

    fn check(&self, op: &'static str, planes: &Planes) -> Result<()> {
        match self {
            Means::Adaptive => Ok(()),
            Means::Sliding { divisor: Some(0), .. } => Err(invalid(op, "divisor", "not 0", "0".into())),
            Means::Sliding { window, .. } => fits(op, window, planes),
        }
    }
}

/// Refuses places that begin behind the padded plane, in whole or in part.
fn fits(op: &'static str, window: &Window, planes: &Planes) -> Result<()> {
    window.check(op)?;
    for axis in 0..2 {
        let (size, places) = (planes.image[axis], planes.places[axis]);
        let last = places.saturating_sub(1).saturating_mul(window.stride[axis]);
        let extent = window.extent(axis);
        let inside = last < size + window.padding[axis] && extent > window.padding[axis];
        if places > 0 && !inside {
            let value = format!("{places} places of {window:?} along {size} elements");
            return Err(invalid(op, "window", "of places that see the image", value));
        }
    }
    Ok(())
}

/// The type of the indices of [`max_pool2d`]: U8 where it can count the window's elements, else I64.
pub fn max_pool2d_index_dtype(window: &Window) -> DType {
    let elements = window.kernel[0].saturating_mul(window.kernel[1]);
    if elements <= 1 << u8::BITS { DType::U8 } else { DType::I64 }
}

/// `out` = the largest element that each place of the window sees, for floats, and `index` = which element of the
/// window it was, `i kw + j`. The first of equal ones is taken, the last of several NaN; padding is never taken.
///
/// Shapes: `x [.., h, w]`, `out [.., oh, ow]`, `index` like `out`, of [`max_pool2d_index_dtype`]. All contiguous.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], [`Error::InvalidArgument`] for a place
/// that sees nothing or operands that are not contiguous, those of [`Stream::launch`].
pub fn max_pool2d(
    stream: &Stream,
    x: View<'_>,
    window: Window,
    out: View<'_>,
    index: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool2d";
    let planes = max_planes(OP, x, out, index, &window)?;
    out.expect_dtype(OP, x.dtype)?;
    x.expect_apart(OP, &out)?;
    x.expect_apart(OP, &index)?;
    match x.dtype.compute_dtype() {
        DType::F32 => max_of::<f32>(stream, &planes, &window, [x, out, index]),
        DType::F64 => max_of::<f64>(stream, &planes, &window, [x, out, index]),
        dtype => Err(Error::DTypeUnsupported { op: OP, dtype }),
    }
}

fn max_planes(
    op: &'static str,
    image: View<'_>,
    pooled: View<'_>,
    index: View<'_>,
    window: &Window,
) -> Result<Planes> {
    [image, pooled, index].iter().try_for_each(|view| view.expect_contiguous(op, "operands"))?;
    index.expect_shape(op, pooled.shape())?;
    index.expect_dtype(op, max_pool2d_index_dtype(window))?;
    let planes = Planes::of(op, image, pooled)?;
    fits(op, window, &planes)?;
    Ok(planes)
}

fn max_of<T: Lanes>(
    stream: &Stream,
    planes: &Planes,
    window: &Window,
    [x, out, index]: [View<'_>; 3],
) -> Result<()> {
    const OP: &str = "max_pool2d";
    let from = Operand::<T>::old(OP, &x, x.dtype)?;
    let (to, taps) = (Operand::<T>::old_mut(OP, &out, x.dtype)?, index.bytes_mut(OP)?);
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let uses = [Use::read(x.buffer), Use::write(out.buffer), Use::write(index.buffer)];
    if stream.is_cuda() {
        return cuda::pool::max(stream, &uses, planes, window, [x, out, index]);
    }
    let workers = old_workers(stream, out.layout.elements(), window.kernel[0] * window.kernel[1]);
    let (planes, window, small) = (*planes, *window, index.dtype == DType::U8);
    // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
    stream.launch_host(OP, &uses, move || unsafe {
        let stage = Stage::new(&workers);
        let (from, to) = (stage.read(&from), stage.write(&to));
        if small {
            cpu::max::<T, u8>(&planes, &window, &workers, from, to, taps);
        } else {
            cpu::max::<T, i64>(&planes, &window, &workers, from, to, taps.cast());
        }
    })
}

/// Gradient of [`max_pool2d`]: `g` added where `index` says that its element came from.
///
/// Shapes: `g` and `index` `[.., oh, ow]`, `out [.., h, w]`.
///
/// # Errors
/// As for [`max_pool2d`]. An index that leads out of the image is [`Error::Async`] at the next synchronising call on the
/// CPU, and is left out on CUDA.
pub fn max_pool2d_grad(
    stream: &Stream,
    g: View<'_>,
    index: View<'_>,
    window: Window,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool2d_grad";
    let planes = max_planes(OP, out, g, index, &window)?;
    indexed(stream, OP, planes, window, [out, g, index], true)
}

/// Gradient of [`max_pool2d_grad`] with respect to `g`: the elements of `x` that `index` names.
///
/// Shapes: `x [.., h, w]`, `index` and `out` `[.., oh, ow]`.
///
/// # Errors
/// As for [`max_pool2d_grad`].
pub fn max_pool2d_pick(
    stream: &Stream,
    x: View<'_>,
    index: View<'_>,
    window: Window,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool2d_pick";
    let planes = max_planes(OP, x, out, index, &window)?;
    indexed(stream, OP, planes, window, [x, out, index], false)
}

/// Adds to, or reads, the elements of `image` that `index` names; the other of `image` and `pooled` is written.
fn indexed(
    stream: &Stream,
    op: &'static str,
    planes: Planes,
    window: Window,
    views: [View<'_>; 3],
    back: bool,
) -> Result<()> {
    let [image, pooled, index] = views;
    pooled.expect_dtype(op, image.dtype)?;
    image.expect_apart(op, &pooled)?;
    let (out, read) = if back { (image, pooled) } else { (pooled, image) };
    index.expect_apart(op, &out)?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let uses = [Use::read(read.buffer), Use::read(index.buffer), Use::write(out.buffer)];
    if stream.is_cuda() {
        return cuda::pool::indexed(stream, op, &uses, &planes, &window, views, back);
    }
    match image.dtype.compute_dtype() {
        DType::F32 => indexed_of::<f32>(stream, op, &uses, planes, window, views, back),
        DType::F64 => indexed_of::<f64>(stream, op, &uses, planes, window, views, back),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

fn indexed_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    planes: Planes,
    window: Window,
    [image, pooled, index]: [View<'_>; 3],
    back: bool,
) -> Result<()> {
    let write = |view: View<'_>| Operand::<T>::old_mut(op, &view, image.dtype);
    let (image_at, pooled_at, taps) = (write(image)?, write(pooled)?, index.bytes(op)?);
    let workers = old_workers(stream, image.layout.elements(), 1);
    let small = index.dtype == DType::U8;
    // SAFETY: as in `max_of`.
    stream.launch_host(op, uses, move || unsafe {
        let stage = Stage::new(&workers);
        if back {
            let (g, to) = (stage.read(&pooled_at), stage.write(&image_at));
            if small {
                cpu::add_at::<T, u8>(&planes, &window, &workers, g, taps, to);
            } else {
                cpu::add_at::<T, i64>(&planes, &window, &workers, g, taps.cast(), to);
            }
        } else {
            let (x, to) = (stage.read(&image_at), stage.write(&pooled_at));
            if small {
                cpu::pick::<T, u8>(&planes, &window, &workers, x, taps, to);
            } else {
                cpu::pick::<T, i64>(&planes, &window, &workers, x, taps.cast(), to);
            }
        }
    })
}

/// `out` = the sum of the elements that each place sees, row by row, over its divisor, for floats.
///
/// Shapes: `x [.., h, w]`, `out [.., oh, ow]`. All contiguous.
///
/// # Errors
/// As for [`max_pool2d`]; [`Error::InvalidArgument`] for a divisor of 0.
pub fn avg_pool2d(stream: &Stream, x: View<'_>, means: Means, out: View<'_>) -> Result<()> {
    average(stream, "avg_pool2d", means, [x, out], false)
}

/// Gradient of [`avg_pool2d`]: each element of `g` over its divisor, added to all that its place saw.
///
/// Shapes: `g [.., oh, ow]`, `out [.., h, w]`.
///
/// # Errors
/// As for [`avg_pool2d`].
pub fn avg_pool2d_grad(stream: &Stream, g: View<'_>, means: Means, out: View<'_>) -> Result<()> {
    average(stream, "avg_pool2d_grad", means, [out, g], true)
}

fn average(stream: &Stream, op: &'static str, means: Means, views: [View<'_>; 2], back: bool) -> Result<()> {
    let [image, pooled] = views;
    views.iter().try_for_each(|view| view.expect_contiguous(op, "operands"))?;
    let planes = Planes::of(op, image, pooled)?;
    means.check(op, &planes)?;
    pooled.expect_dtype(op, image.dtype)?;
    image.expect_apart(op, &pooled)?;
    let (out, read) = if back { (image, pooled) } else { (pooled, image) };
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let uses = [Use::read(read.buffer), Use::write(out.buffer)];
    if stream.is_cuda() {
        return cuda::pool::average(stream, op, &uses, &planes, &means, views, back);
    }
    match image.dtype.compute_dtype() {
        DType::F32 => average_of::<f32>(stream, op, &uses, planes, means, views, back),
        DType::F64 => average_of::<f64>(stream, op, &uses, planes, means, views, back),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

fn average_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    planes: Planes,
    means: Means,
    [image, pooled]: [View<'_>; 2],
    back: bool,
) -> Result<()> {
    let write = |view: View<'_>| Operand::<T>::old_mut(op, &view, image.dtype);
    let (image_at, pooled_at) = (write(image)?, write(pooled)?);
    let workers = old_workers(stream, image.layout.elements(), 2);
    // SAFETY: as in `max_of`.
    stream.launch_host(op, uses, move || unsafe {
        let stage = Stage::new(&workers);
        if back {
            cpu::mean_grad(&planes, &means, &workers, stage.read(&pooled_at), stage.write(&image_at));
        } else {
            cpu::mean(&planes, &means, &workers, stage.read(&image_at), stage.write(&pooled_at));
        }
    })
}

#[cfg(test)]
#[path = "pool_tests.rs"]
pub(crate) mod tests;
