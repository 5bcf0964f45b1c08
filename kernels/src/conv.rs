//! Launchers of convolutions: three bilinear maps between images, their filters, and what the filters make of them.
//!
//! Each is the gradient of the two others. Operands are contiguous.

use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use crate::cpu::conv as cpu;
use crate::cpu::lanes::Lanes;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{View, shape_mismatch};
use crate::par::old_workers;
use crate::window::{Window, invalid};

/// Images, filters and what the filters make of the images, in numbers. A group of filters sees a group of channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) images: usize,
    pub(crate) groups: usize,
    /// Channels of a group.
    pub(crate) channels: usize,
    /// Filters of a group.
    pub(crate) filters: usize,
    /// Sizes of an image.
    pub(crate) image: [usize; 2],
    /// Places of the window: the sizes of a result.
    pub(crate) places: [usize; 2],
    pub(crate) window: Window,
}

impl Geometry {
    /// Elements of a channel.
    pub(crate) fn pixels(&self) -> usize {
        self.image[0] * self.image[1]
    }

    /// Elements of what one filter makes of an image.
    pub(crate) fn all_places(&self) -> usize {
        self.places[0] * self.places[1]
    }

    /// Elements of one channel that the window sees.
    pub(crate) fn taps(&self) -> usize {
        self.window.kernel[0] * self.window.kernel[1]
    }

    /// Elements of a filter.
    pub(crate) fn filter(&self) -> usize {
        self.channels * self.taps()
    }

    /// Whether filters see one channel each.
    pub(crate) fn is_depthwise(&self) -> bool {
        self.channels == 1 && self.groups > 1
    }

    /// Whether the places are the pixels.
    pub(crate) fn is_pointwise(&self) -> bool {
        let Window { kernel, stride, padding, .. } = self.window;
        kernel == [1; 2] && stride == [1; 2] && padding == [0; 2] && self.image == self.places
    }

    /// Multiply-adds of any of the three maps, in elementary operations.
    fn cost(&self) -> usize {
        self.filter() * self.filters / 8 + 1
    }

    /// From the shapes of images `[n, c, h, w]`, filters `[f, c / groups, kh, kw]` and results `[n, f, oh, ow]`.
    fn of(
        op: &'static str,
        images: View<'_>,
        filters: View<'_>,
        results: View<'_>,
        window: Window,
        groups: usize,
    ) -> Result<Geometry> {
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
        Ok(Geometry {
            images: n,
            groups,
            channels: per_group,
            filters: f / groups,
            image: [h, w],
            places: [oh, ow],
            window,
        })
    }
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
        (true, &[n, _, _, _], &[f, per_group, kh, kw]) => {
            let geometry = Geometry {
                images: n,
                groups: groups.max(1),
                channels: per_group,
                filters: f / groups.max(1),
                image: [0; 2],
                places,
                window: Window::new([kh, kw]),
            };
            cuda::conv::workspace(&geometry)
        }
        _ => 0,
    }
}

/// The operands of a map: images, filters and results, one of which is written; a bias; and memory to work in.
struct Operands<'a> {
    images: View<'a>,
    filters: View<'a>,
    results: View<'a>,
    bias: Option<View<'a>>,
    workspace: Option<View<'a>>,
}

/// Which of the three is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Images,
    Filters,
    Results,
}

/// `out[n, f, y, x] = bias[f] + sum of weight[f, c, i, j] x[n, c, y sh + i dh - ph, x sw + j dw - pw]`, for floats;
/// what lies outside of the image is 0.
///
/// Shapes: `x [n, c, h, w]`, `weight [f, c / groups, kh, kw]`, `bias [f]`, `out [n, f, oh, ow]`, where `oh` and `ow` are
/// [`Window::places`]. All contiguous. `workspace`, of the type that is computed in, has [`conv2d_workspace`] elements, and may be left out if
/// those are none.
///
/// On the CPU sums have the order of [`matmul`](crate::matmul) along `(c, i, j)`, so that threads do not show in the bits.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], [`Error::InvalidArgument`] for
/// operands that are not contiguous or a window that does not fit, those of [`Stream::launch`].
#[allow(clippy::too_many_arguments)]
pub fn conv2d(
    stream: &Stream,
    x: View<'_>,
    weight: View<'_>,
    bias: Option<View<'_>>,
    (window, groups): (Window, usize),
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let operands = Operands { images: x, filters: weight, results: out, bias, workspace };
    launch(stream, "conv2d", operands, (window, groups), Written::Results)
}

/// `out[n, c, h, w] = bias[c] + sum of weight[f, c, i, j] g[n, f, y, x]` over all `f`, `i`, `j`, `y` and `x` that
/// [`conv2d`] takes `[h, w]` for: its gradient with respect to `x`, and the transposed convolution of `g`.
///
/// Shapes: `g [n, f, oh, ow]`, `weight [f, c / groups, kh, kw]`, `bias [c]`, `out [n, c, h, w]`. `oh` and `ow` may be fewer
/// than all places of the window.
///
/// # Errors
/// As for [`conv2d`].
#[allow(clippy::too_many_arguments)]
pub fn conv2d_input_grad(
    stream: &Stream,
    g: View<'_>,
    weight: View<'_>,
    bias: Option<View<'_>>,
    (window, groups): (Window, usize),
    workspace: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let operands = Operands { images: out, filters: weight, results: g, bias, workspace };
    launch(stream, "conv2d_input_grad", operands, (window, groups), Written::Images)
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
    let operands = Operands { images: x, filters: out, results: g, bias: None, workspace };
    launch(stream, "conv2d_weight_grad", operands, (window, groups), Written::Filters)
}

fn launch(
    stream: &Stream,
    op: &'static str,
    operands: Operands<'_>,
    (window, groups): (Window, usize),
    written: Written,
) -> Result<()> {
    let Operands { images, filters, results, bias, workspace } = &operands;
    let geometry = Geometry::of(op, *images, *filters, *results, window, groups)?;
    [images, filters, results].iter().try_for_each(|view| view.expect_contiguous(op, "operands"))?;
    if let Some(workspace) = workspace {
        workspace.expect_contiguous(op, "workspace")?;
        workspace.expect_dtype(op, images.dtype.compute_dtype())?;
    }
    if let Some(bias) = bias {
        let each = if written == Written::Images { images } else { results };
        bias.expect_shape(op, &each.shape()[1..2])?;
        bias.expect_contiguous(op, "bias")?;
    }
    match images.dtype.compute_dtype() {
        DType::F32 => launch_of::<f32>(stream, op, &operands, geometry, written),
        DType::F64 => launch_of::<f64>(stream, op, &operands, geometry, written),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

fn launch_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    operands: &Operands<'_>,
    geometry: Geometry,
    written: Written,
) -> Result<()> {
    let Operands { images, filters, results, bias, workspace } = *operands;
    let write = |view: View<'_>| Operand::<T>::old_mut(op, &view, images.dtype);
    let (x, w, y) = (write(images)?, write(filters)?, write(results)?);
    let b = bias.map(|bias| Operand::<T>::old(op, &bias, images.dtype)).transpose()?;
    let (out, read) = match written {
        Written::Images => (images, [filters, results]),
        Written::Filters => (filters, [images, results]),
        Written::Results => (results, [images, filters]),
    };
    read.iter().chain(&bias).try_for_each(|view| view.expect_apart(op, &out))?;
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let mut uses: SmallVec<[Use<'_>; 5]> =
        SmallVec::from_slice(&[Use::read(read[0].buffer), Use::read(read[1].buffer), Use::write(out.buffer)]);
    uses.extend(bias.iter().map(|bias| Use::read(bias.buffer)));
    if stream.is_cuda() {
        let needed = cuda::conv::workspace(&geometry);
        if workspace.map_or(0, |memory| memory.layout.elements()) < needed {
            let value = format!("fewer than {needed} elements");
            return Err(invalid(op, "workspace", "as large as `conv2d_workspace` says", value));
        }
        if let Some(workspace) = workspace {
            workspace.dst::<T>(op)?;
            uses.push(Use::write(workspace.buffer));
        }
        let memory = cuda::conv::Memory { images, filters, results, bias, workspace };
        return match written {
            Written::Images => cuda::conv::input_grad(stream, op, &uses, &geometry, memory),
            Written::Filters => cuda::conv::weight_grad(stream, op, &uses, &geometry, memory),
            Written::Results => cuda::conv::forward(stream, op, &uses, &geometry, memory),
        };
    }
    let workers = old_workers(stream, results.layout.elements(), geometry.cost());
    // SAFETY: the views and the geometry were checked, and the launch orders this command with others on their buffers.
    stream.launch_host(op, &uses, move || unsafe {
        let stage = Stage::new(&workers);
        let b = b.as_ref().map(|bias| stage.read(bias));
        match written {
            Written::Images => {
                cpu::input_grad(&geometry, &workers, stage.read(&y), stage.read(&w), b, stage.write(&x));
            }
            Written::Filters => {
                cpu::weight_grad(&geometry, &workers, stage.read(&x), stage.read(&y), stage.write(&w));
            }
            Written::Results => {
                cpu::forward(&geometry, &workers, stage.read(&x), stage.read(&w), b, stage.write(&y));
            }
        }
    })
}

#[cfg(test)]
#[path = "conv_tests.rs"]
pub(crate) mod tests;
