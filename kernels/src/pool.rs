//! Launchers of pooling: the largest element, or the mean, of each place of a window. Operands are contiguous and seen as
//! planes `[h, w]`, of which all leading axes are counted as one.

use device::{DType, Error, Result, Stream};

use crate::command::{Command, Raw, for_float};
use crate::cpu::pool as cpu;
use crate::cuda::pool as cuda;
use crate::geometry::{Means, Planes};
use crate::layout::View;
use crate::window::Window;

/// The planes of contiguous images, and of what is made of them.
fn planes(op: &'static str, image: &View<'_>, pooled: &View<'_>) -> Result<Planes> {
    [image, pooled].iter().try_for_each(|view| view.expect_contiguous(op, "operands"))?;
    let (shape, made) = (image.shape(), pooled.shape());
    match (shape, made) {
        (&[ref leading @ .., h, w], &[ref made_leading @ .., oh, ow]) if leading == made_leading => {
            Ok(Planes { count: leading.iter().product(), image: [h, w], places: [oh, ow] })
        }
        _ => Err(Error::shape_mismatch(op, "", shape, made)),
    }
}

/// As [`planes`], where an index names the element of the window that each place takes.
fn indexed_planes(
    op: &'static str,
    image: &View<'_>,
    pooled: &View<'_>,
    index: &View<'_>,
    window: &Window,
) -> Result<Planes> {
    index.expect_contiguous(op, "operands")?;
    index.expect_shape(op, pooled.shape())?;
    index.expect_dtype(op, max_pool2d_index_dtype(window))?;
    let planes = planes(op, image, pooled)?;
    fits(op, window, &planes)?;
    Ok(planes)
}

/// Refuses places that begin behind the padded plane, in whole or in part.
fn fits(op: &'static str, window: &Window, planes: &Planes) -> Result<()> {
    window.check(op)?;
    for axis in 0..2 {
        let (size, places) = (planes.image[axis], planes.places[axis]);
        let last = places.saturating_sub(1).saturating_mul(window.stride[axis]);
        let extent = window.extent(axis);
        let inside = last < size + window.padding[axis] && extent > window.padding[axis];
        let value = format_args!("{places} places of {window:?} along {size} elements");
        Error::require(places == 0 || inside, op, "window", "of places that see the image", value)?;
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
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for a place
/// that sees nothing or operands that are not contiguous, those of [`Stream::launch`].
pub fn max_pool2d(
    stream: &Stream,
    x: View<'_>,
    window: Window,
    out: View<'_>,
    index: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool2d";
    let planes = indexed_planes(OP, &x, &out, &index, &window)?;
    let (dtype, index_dtype) = (x.dtype, index.dtype);
    for_float!(OP, dtype, T => Command::new(OP, (x.read::<T>(), out.write::<T>(), index.write::<Raw>()))
    .cost(out.layout.elements(), window.kernel[0] * window.kernel[1])
    .run(
        stream,
        (planes, window),
        // SAFETY: `planes` was made from the shapes of these contiguous operands, and each arm casts the index to its
        // type; see `Command::launch`.
        move |how, workers, (x, out, index)| unsafe {
            match index_dtype {
                DType::U8 => cpu::max::<T, u8>(how, workers, (x, out, index)),
                _ => cpu::max::<T, i64>(how, workers, (x, out, index.cast())),
            }
        },
        move |how, queue, (x, out, index)| {
            cuda::maxima(queue, "max_pool", [dtype, index_dtype], how, [out, index, x])
        },
    ))
}

/// Gradient of [`max_pool2d`]: `g` added where `index` says that its element came from.
///
/// Shapes: `g` and `index` `[.., oh, ow]`, `out [.., h, w]`.
///
/// # Errors
/// As for [`max_pool2d`]. An index that leads out of the image is `Async` at the next synchronising call on the
/// CPU, and is left out on CUDA.
pub fn max_pool2d_grad(
    stream: &Stream,
    g: View<'_>,
    index: View<'_>,
    window: Window,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool2d_grad";
    let planes = indexed_planes(OP, &out, &g, &index, &window)?;
    by_index(stream, OP, true, (planes, window), [g, index, out])
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
    let planes = indexed_planes(OP, &x, &out, &index, &window)?;
    by_index(stream, OP, false, (planes, window), [x, index, out])
}

fn by_index(
    stream: &Stream,
    op: &'static str,
    gradient: bool,
    how: (Planes, Window),
    [from, index, out]: [View<'_>; 3],
) -> Result<()> {
    let types = [out.dtype, index.dtype];
    let kernel = if gradient { "max_pool_grad" } else { "max_pool_pick" };
    let cost = out.layout.elements().max(from.layout.elements());
    for_float!(op, out.dtype, T => Command::new(op, (out.write::<T>(), from.read::<T>(), index.read::<Raw>()))
    .cost(cost, 1)
    .may_fail()
    .run(
        stream,
        how,
        // SAFETY: `how` was made from the shapes of these contiguous operands, and each arm casts the index to its
        // type; see `Command::launch`.
        move |how, workers, (out, from, index)| unsafe {
            match (gradient, types[1]) {
                (true, DType::U8) => cpu::max_grad::<T, u8>(how, workers, (out, from, index)),
                (true, _) => cpu::max_grad::<T, i64>(how, workers, (out, from, index.cast())),
                (false, DType::U8) => cpu::pick::<T, u8>(how, workers, (out, from, index)),
                (false, _) => cpu::pick::<T, i64>(how, workers, (out, from, index.cast())),
            }
        },
        move |how, queue, operands| cuda::maxima(queue, kernel, types, how, operands.into()),
    ))
}

/// `out` = the weighted sum of the elements that each place sees over its divisor, for floats: of the rows, then of their columns.
///
/// Shapes: `x [.., h, w]`, `out [.., oh, ow]`. All contiguous.
///
/// # Errors
/// As for [`max_pool2d`]; `InvalidArgument` for a divisor of 0.
pub fn avg_pool2d(stream: &Stream, x: View<'_>, means: Means, out: View<'_>) -> Result<()> {
    const OP: &str = "avg_pool2d";
    let planes = mean_planes(OP, &x, &out, &means)?;
    mean(stream, OP, false, (planes, means), x, out)
}

/// Gradient of [`avg_pool2d`]: each element of `g` over its divisor, weighted and added to all that its place saw.
///
/// Shapes: `g [.., oh, ow]`, `out [.., h, w]`.
///
/// # Errors
/// As for [`avg_pool2d`].
pub fn avg_pool2d_grad(stream: &Stream, g: View<'_>, means: Means, out: View<'_>) -> Result<()> {
    const OP: &str = "avg_pool2d_grad";
    let planes = mean_planes(OP, &out, &g, &means)?;
    mean(stream, OP, true, (planes, means), g, out)
}

fn mean(
    stream: &Stream,
    op: &'static str,
    gradient: bool,
    planes: (Planes, Means),
    from: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let (dtype, cost) = (out.dtype, from.layout.elements().max(out.layout.elements()));
    for_float!(op, dtype, T => Command::new(op, (out.write::<T>(), from.read::<T>())).cost(cost, 2).run(
        stream,
        planes,
        // SAFETY: `planes` was made from the shapes of these contiguous operands; see `Command::launch`.
        move |how, workers, operands| unsafe {
            match gradient {
                true => cpu::mean_grad(how, workers, operands),
                false => cpu::mean(how, workers, operands),
            }
        },
        move |how, queue, (out, from)| cuda::mean(queue, (gradient, dtype), how, [out, from]),
    ))
}

/// As [`planes`], of whose elements means can be taken.
fn mean_planes(op: &'static str, image: &View<'_>, pooled: &View<'_>, means: &Means) -> Result<Planes> {
    let planes = planes(op, image, pooled)?;
    match means {
        Means::Adaptive => {}
        Means::Nearest | Means::Bilinear { .. } => {
            let has_pixels = planes.pixels() > 0 || pooled.layout.elements() == 0;
            let shape = format_args!("shape {:?}", image.shape());
            Error::require(has_pixels, op, "images", "at least one pixel", shape)?;
        }
        Means::Sliding { divisor: Some(0), .. } => return Err(Error::invalid(op, "divisor", "not 0", "0")),
        Means::Sliding { window, .. } => fits(op, window, &planes)?,
    }
    Ok(planes)
}

#[cfg(test)]
pub(crate) mod tests;
