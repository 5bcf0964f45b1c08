//! Launchers of convolutions: three bilinear maps between images, their filters, and what the filters make of them.
//!
//! Each is the gradient of the two others. Operands are contiguous.

use device::{Error, Result, Stream};

use crate::command::{Command, for_float};
use crate::cpu::{conv as cpu, depthwise};
use crate::cuda::conv as cuda;
use crate::geometry::ConvGeometry;
use crate::layout::{View, shape_mismatch};
use crate::window::Window;

/// From the shapes of images `[n, c, h, w]`, filters `[f, c / groups, kh, kw]` and results `[n, f, oh, ow]`.
fn geometry(
    op: &'static str,
    [images, filters, results]: [&View<'_>; 3],
    (window, groups): (Window, usize),
) -> Result<ConvGeometry> {
    let (&[n, c, h, w], &[f, per_group, kh, kw]) = (images.shape(), filters.shape()) else {
        return Err(shape_mismatch(op, images.shape(), filters.shape()));
    };
    let &[results_n, results_f, oh, ow] = results.shape() else {
        return Err(shape_mismatch(op, images.shape(), results.shape()));
    };
    if groups == 0
        || c % groups != 0
        || f % groups != 0
        || c / groups != per_group
        || window.kernel != [kh, kw]
    {
        return Err(shape_mismatch(op, images.shape(), filters.shape()));
    }
    let all = window.places(op, [h, w])?;
    if results_n != n || results_f != f || oh > all[0] || ow > all[1] {
        return Err(shape_mismatch(op, &[n, f, all[0], all[1]], results.shape()));
    }
    Ok(ConvGeometry {
        images: n,
        groups,
        channels: per_group,
        filters: f / groups,
        image: [h, w],
        places: [oh, ow],
        window,
    })
}

/// Elements of the workspace that a convolution of these shapes needs on `stream`'s device; the same for all three maps.
///
/// Shapes: as for [`conv2d`].
pub fn conv2d_workspace(
    stream: &Stream,
    images: &[usize],
    filters: &[usize],
    places: [usize; 2],
    groups: usize,
) -> usize {
    match (stream.is_cuda(), images, filters) {
        (true, &[n, _, _, _], &[f, per_group, kh, kw]) => cuda::workspace(&ConvGeometry {
            images: n,
            groups: groups.max(1),
            channels: per_group,
            filters: f / groups.max(1),
            image: [0; 2],
            places,
            window: Window::new([kh, kw]),
        }),
        _ => 0,
    }
}

/// Which of images, filters and results is written.
#[derive(Clone, Copy)]
enum Written {
    Images,
    Filters,
    Results,
}

/// `out[n, f, y, x] = bias[f] + sum of weight[f, c, i, j] x[n, c, y sh + i dh - ph, x sw + j dw - pw]`, for floats;
/// what lies outside of the image is 0.
///
/// Shapes: `x [n, c, h, w]`, `weight [f, c / groups, kh, kw]`, `bias [f]`, `out [n, f, oh, ow]`, where `oh` and `ow` are
/// [`Window::places`]. All contiguous. `workspace`, of the type that is computed in, has [`conv2d_workspace`] elements, and
/// may be left out if those are none.
///
/// On the CPU sums have the order of [`matmul`](crate::matmul) along `(c, i, j)`, so that threads do not show in the bits.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], [`Error::InvalidArgument`] for
/// operands that are not contiguous or a window that does not fit, those of [`Stream::launch`].
pub fn conv2d(
    stream: &Stream,
    x: View<'_>,
    weight: View<'_>,
    bias: Option<View<'_>>,
    (window, groups): (Window, usize),
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    launch(stream, "conv2d", Written::Results, [x, weight, out], bias, (window, groups), workspace)
}

/// `out[n, c, h, w] = bias[c] + sum of weight[f, c, i, j] g[n, f, y, x]` over all `f`, `i`, `j`, `y` and `x` that
/// [`conv2d`] takes `[h, w]` for: its gradient with respect to `x`, and the transposed convolution of `g`.
///
/// Shapes: `g [n, f, oh, ow]`, `weight [f, c / groups, kh, kw]`, `bias [c]`, `out [n, c, h, w]`. `oh` and `ow` may be fewer
/// than all places of the window.
///
/// # Errors
/// As for [`conv2d`].
pub fn conv2d_input_grad(
    stream: &Stream,
    g: View<'_>,
    weight: View<'_>,
    bias: Option<View<'_>>,
    (window, groups): (Window, usize),
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    launch(stream, "conv2d_input_grad", Written::Images, [out, weight, g], bias, (window, groups), workspace)
}

/// `out[f, c, i, j] = sum of g[n, f, y, x] x[n, c, y sh + i dh - ph, x sw + j dw - pw]`: the gradient of [`conv2d`] with
/// respect to the weight.
///
/// Shapes: `x [n, c, h, w]`, `g [n, f, oh, ow]`, `out [f, c / groups, kh, kw]`. `oh` and `ow` may be fewer than all places
/// of the window.
///
/// # Errors
/// As for [`conv2d`].
pub fn conv2d_weight_grad(
    stream: &Stream,
    x: View<'_>,
    g: View<'_>,
    (window, groups): (Window, usize),
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    launch(stream, "conv2d_weight_grad", Written::Filters, [x, out, g], None, (window, groups), workspace)
}

fn launch(
    stream: &Stream,
    op: &'static str,
    written: Written,
    [images, filters, results]: [View<'_>; 3],
    bias: Option<View<'_>>,
    how: (Window, usize),
    workspace: Option<View<'_>>,
) -> Result<()> {
    let geometry = geometry(op, [&images, &filters, &results], how)?;
    let (out, read) = match written {
        Written::Images => (images, [results, filters]),
        Written::Filters => (filters, [images, results]),
        Written::Results => (results, [images, filters]),
    };
    [images, filters, results].iter().try_for_each(|view| view.expect_contiguous(op, "operands"))?;
    if let Some(bias) = bias {
        bias.expect_shape(op, &out.shape()[1..2])?;
        bias.expect_contiguous(op, "bias")?;
    }
    read.iter().chain(&bias).try_for_each(|view| view.expect_apart(op, &out))?;
    let needed = match out.layout.elements() {
        0 => 0,
        _ => conv2d_workspace(stream, images.shape(), filters.shape(), geometry.places, geometry.groups),
    };
    let workspace = workspace.filter(|_| needed > 0);
    workspace.map_or(Ok(()), |memory| memory.expect_contiguous(op, "workspace"))?;
    if workspace.map_or(0, |memory| memory.layout.elements()) < needed {
        let value = format!("fewer than {needed} elements");
        return Err(Error::invalid(op, "workspace", "as large as `conv2d_workspace` says", value));
    }
    // A multiply-add is a fraction of an elementary operation.
    let each = geometry.filter() * geometry.filters / 8 + 1;
    let dtype = out.dtype;
    for_float!(op, dtype, T => {
        let workspace = workspace.map(|memory| memory.write::<T>().exact());
        Command::new(op, (out.write::<T>(), read.map(View::read::<T>), bias.map(View::read::<T>), workspace))
            .cost(results.layout.elements(), each)
            .run(
                stream,
                geometry,
                // SAFETY: the geometry is that of the operands, which are contiguous and apart from the output.
                move |geometry, workers, (out, read, bias, _)| unsafe {
                    match (written, geometry.is_depthwise()) {
                        (Written::Images, false) => cpu::input_grad(geometry, workers, (out, read, bias)),
                        (Written::Images, true) => depthwise::input_grad(geometry, workers, (out, read, bias)),
                        (Written::Filters, false) => cpu::weight_grad(geometry, workers, (out, read)),
                        (Written::Filters, true) => depthwise::weight_grad(geometry, workers, (out, read)),
                        (Written::Results, false) => cpu::forward(geometry, workers, (out, read, bias)),
                        (Written::Results, true) => depthwise::forward(geometry, workers, (out, read, bias)),
                    }
                },
                move |geometry, queue, (out, read, bias, workspace)| {
                    let conv = cuda::Convolution::of(queue, geometry, dtype, workspace)?;
                    match written {
                        Written::Images => conv.input_grad(out, read, bias),
                        Written::Filters => conv.weight_grad(out, read),
                        Written::Results => conv.forward(out, read, bias),
                    }
                },
            )
    })
}

#[cfg(test)]
pub(crate) mod tests;
