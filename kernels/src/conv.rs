//! Launchers of convolutions: three bilinear maps between images, their filters, and what the filters make of them.
//!
//! Each is the gradient of the two others. Operands are contiguous, or lie with their channels last, all three of them.

pub use crate::cuda::libraries::ConvPass;
use crate::cuda::libraries::{ConvAlgorithm, ConvForm};
use crate::cuda::needs;
use device::{DType, Error, Result, Stream};

use crate::activation::Activation;
use crate::command::{Command, for_float};
use crate::cpu::{conv as cpu, depthwise, matmul::positive_parts};
use crate::cuda::conv::{self as cuda, ConvSpec};
use crate::geometry::ConvGeometry;
use crate::layout::{Dst, View};
use crate::window::Window;

/// How the shapes of images and filters fit.
const FIT: &str = "input [n, c, h, w] takes weight [f, c / groups, kh, kw]";

/// From the shapes of images `[n, c, h, w]`, filters `[f, c / groups, kh, kw]` and results `[n, f, oh, ow]`.
fn geometry(
    op: &'static str,
    [images, filters, results]: [&[usize]; 3],
    (window, groups): (Window, usize),
) -> Result<ConvGeometry> {
    let (&[n, c, h, w], &[f, per_group, kh, kw]) = (images, filters) else {
        return Err(Error::shape_mismatch(op, FIT, images, filters));
    };
    let &[results_n, results_f, oh, ow] = results else {
        return Err(Error::shape_mismatch(op, "", images, results));
    };
    if groups == 0
        || c % groups != 0
        || f % groups != 0
        || c / groups != per_group
        || window.kernel != [kh, kw]
    {
        return Err(Error::shape_mismatch(op, FIT, images, filters));
    }
    let all = window.places(op, [h, w])?;
    if results_n != n || results_f != f || oh > all[0] || ow > all[1] {
        return Err(Error::shape_mismatch(op, "", &[n, f, all[0], all[1]], results));
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

/// Whether a convolution of floats `dtype` is made quicker of operands with their [channels last](crate::Layout::is_channels_last): by
/// kernels for tensor cores, cuDNN's, which would copy contiguous ones into that order, or those here. `shapes` are those of images,
/// filters and results.
///
/// # Errors
/// As for [`conv2d`].
pub fn conv2d_wants_channels_last(
    stream: &Stream,
    (op, pass): (&'static str, ConvPass),
    dtype: DType,
    shapes: [[usize; 4]; 3],
    (how, bias): ((Window, usize), bool),
) -> Result<bool> {
    let exact = dtype == DType::F32 && !stream.device().tf32();
    if exact || dtype == DType::F64 || !stream.is_cuda() {
        return Ok(false);
    }
    let geometry = geometry(op, shapes.each_ref().map(|shape| &shape[..]), how)?;
    let spec = ConvSpec { pass, geometry, dtype, exact, bias };
    let is_faster = |way: &cuda::Way| way.is_faster_than_library(&spec);
    Ok(spec.has_vectors()
        && !geometry.is_depthwise()
        && (cuda::Way::of(stream, &spec, true).as_ref().is_some_and(is_faster)
            || !cuda::Way::of(stream, &spec, false).as_ref().is_some_and(is_faster)
                && spec.made(op, stream, true, true)?.is_some()))
}

impl ConvSpec {
    /// How it is made of contiguous operands, or of such with their channels last, if all are `aligned`: by kernels here where they are
    /// faster, by cuDNN where that is found and has an algorithm, or by kernels here. `None` if none takes channels that lie last.
    fn made(
        &self,
        op: &'static str,
        stream: &Stream,
        channels_last: bool,
        aligned: bool,
    ) -> Result<Option<Made>> {
        let way = cuda::Way::of(stream, self, channels_last).filter(|_| aligned || !channels_last);
        if way.as_ref().is_some_and(|way| way.is_faster_than_library(self)) {
            return Ok(way.map(Made::Here));
        }
        let library = if aligned { self.find(op, stream, channels_last)? } else { None };
        Ok(library.map(Made::Library).or(way.map(Made::Here)))
    }

    /// The algorithm of cuDNN for contiguous operands, or for such with their channels last.
    fn find(&self, op: &'static str, stream: &Stream, channels_last: bool) -> Result<Option<ConvAlgorithm>> {
        let ConvSpec { pass, geometry: ref g, dtype, bias, .. } = *self;
        let all_places = g.places == g.window.places(op, g.image)?;
        let [kh, kw] = g.window.kernel;
        let shapes = [
            [g.images, g.all_channels(), g.image[0], g.image[1]],
            [g.all_filters(), g.channels, kh, kw],
            [g.images, g.all_filters(), g.places[0], g.places[1]],
        ];
        if !all_places || shapes.as_flattened().contains(&0) {
            return Ok(None);
        }
        let strides = shapes.map(|[_, b, c, d]| match channels_last {
            true => [b * c * d, 1, b * d, b],
            false => [b * c * d, c * d, d, 1],
        });
        let Window { padding, stride, dilation, .. } = g.window;
        let form = ConvForm { pass, bias, dtype, shapes, strides, padding, stride, dilation };
        ConvAlgorithm::of(stream, op, &form)
    }
}

/// A convolution whose operands were checked, and how the device of its stream makes it.
#[must_use = "it is not launched yet"]
#[derive(Debug)]
pub struct Conv2d<'a> {
    stream: &'a Stream,
    op: &'static str,
    pass: ConvPass,
    /// Images, filters and results.
    operands: [View<'a>; 3],
    bias: Option<View<'a>>,
    geometry: ConvGeometry,
    /// Whether a ReLU follows.
    relu: bool,
    made: Made,
    /// Whether factors in F32 are rounded to TF32.
    tf32: bool,
    /// Bytes that the products of cuBLASLt need of which it is made.
    products: usize,
}

/// How a device makes a convolution.
#[derive(Clone, Debug)]
enum Made {
    /// With kernels here.
    Here(cuda::Way),
    /// By cuDNN.
    Library(ConvAlgorithm),
}

/// `out[n, f, y, x] = bias[f] + sum of weight[f, c, i, j] x[n, c, y sh + i dh - ph, x sw + j dw - pw]`, for floats;
/// what lies outside of the image is 0.
///
/// Shapes: `x [n, c, h, w]`, `weight [f, c / groups, kh, kw]`, `bias [f]`, `out [n, f, oh, ow]`, where `oh` and `ow` are
/// [`Window::places`]. All contiguous, or all but the bias with their channels last where
/// [that is wanted](conv2d_wants_channels_last) and all, the bias too, lie at multiples of 16 bytes.
///
/// On the CPU sums have the order of [`matmul`](crate::matmul) along `(c, i, j)`, so that threads do not show in the bits. On
/// CUDA, cuDNN makes it where that is found, has an algorithm that always gives the same bits, and no kernel here is faster. In F32 where
/// [TF32 is allowed](device::Device::set_tf32) that may be one by transforms: its errors are relative to the largest element, and
/// an infinity or NaN spreads over elements whose sums do not have it. Where tensor cores make it here, factors of F32 are rounded to
/// TF32 if that is allowed; else they are sums of two of TF32: a product is off by less than 2^-19 of itself, and an infinity times
/// anything is NaN. Images' gradients, and all three of operands with their channels last, multiply with zeros for what lies outside of
/// an image or behind the last place, so that infinite factors spread NaN there.
///
/// # Errors
/// `ShapeMismatch`, `InvalidArgument` for operands that are not contiguous or a window that does not fit,
/// `StreamHeld`, `OutOfMemory`, `Driver`.
pub fn conv2d<'a>(
    stream: &'a Stream,
    x: View<'a>,
    weight: View<'a>,
    bias: Option<View<'a>>,
    how: (Window, usize),
    out: View<'a>,
) -> Result<Conv2d<'a>> {
    Conv2d::new(stream, ("conv2d", ConvPass::Forward), [x, weight, out], bias, how)
}

/// `out[n, c, h, w] = bias[c] + sum of weight[f, c, i, j] g[n, f, y, x]` over all `f`, `i`, `j`, `y` and `x` that
/// [`conv2d`] takes `[h, w]` for: its gradient with respect to `x`, and the transposed convolution of `g`.
///
/// Shapes: `g [n, f, oh, ow]`, `weight [f, c / groups, kh, kw]`, `bias [c]`, `out [n, c, h, w]`. `oh` and `ow` may be fewer
/// than all places of the window.
///
/// # Errors
/// As for [`conv2d`].
pub fn conv2d_input_grad<'a>(
    stream: &'a Stream,
    g: View<'a>,
    weight: View<'a>,
    bias: Option<View<'a>>,
    how: (Window, usize),
    out: View<'a>,
) -> Result<Conv2d<'a>> {
    Conv2d::new(stream, ("conv2d_input_grad", ConvPass::InputGrad), [out, weight, g], bias, how)
}

/// `out[f, c, i, j] = sum of g[n, f, y, x] x[n, c, y sh + i dh - ph, x sw + j dw - pw]`: the gradient of [`conv2d`] with
/// respect to the weight.
///
/// Shapes: `x [n, c, h, w]`, `g [n, f, oh, ow]`, `out [f, c / groups, kh, kw]`. `oh` and `ow` may be fewer than all places
/// of the window.
///
/// # Errors
/// As for [`conv2d`].
pub fn conv2d_weight_grad<'a>(
    stream: &'a Stream,
    x: View<'a>,
    g: View<'a>,
    how: (Window, usize),
    out: View<'a>,
) -> Result<Conv2d<'a>> {
    Conv2d::new(stream, ("conv2d_weight_grad", ConvPass::WeightGrad), [x, out, g], None, how)
}

impl<'a> Conv2d<'a> {
    fn new(
        stream: &'a Stream,
        (op, pass): (&'static str, ConvPass),
        operands: [View<'a>; 3],
        bias: Option<View<'a>>,
        how: (Window, usize),
    ) -> Result<Conv2d<'a>> {
        let geometry = geometry(op, operands.each_ref().map(View::shape), how)?;
        let contiguous = operands.iter().all(|view| view.layout.is_contiguous());
        let channels_last = !contiguous && operands.iter().all(|view| view.layout.is_channels_last());
        if !channels_last {
            operands.iter().try_for_each(|view| view.expect_contiguous(op, "operands"))?;
        }
        let dtype = operands[0].dtype;
        let tf32 = stream.device().tf32();
        let exact = dtype == DType::F32 && !tf32;
        let made = Made::Here(cuda::Way::Patches);
        let mut conv =
            Conv2d { stream, op, pass, operands, bias, geometry, relu: false, made, tf32, products: 0 };
        let (out, _) = conv.parts();
        if let Some(bias) = bias {
            bias.expect_shape(op, &out.shape()[1..2])?;
            bias.expect_contiguous(op, "bias")?;
        }
        let fits = |view: &View<'_>| view.layout.elements() > 0 && ConvAlgorithm::fits(view.first().0);
        let refused = || Error::invalid(op, "operands", "contiguous", "such with their channels last");
        if stream.is_cuda() {
            let spec = ConvSpec { pass, geometry, dtype, exact, bias: bias.is_some() };
            let aligned = conv.operands.iter().chain(&conv.bias).all(fits);
            conv.made = spec.made(op, stream, channels_last, aligned)?.ok_or_else(refused)?;
            conv.products = conv.measure()?;
        } else if channels_last {
            return Err(refused());
        }
        Ok(conv)
    }

    /// What is written, and the two operands that are read.
    fn parts(&self) -> (View<'a>, [View<'a>; 2]) {
        let [images, filters, results] = self.operands;
        match self.pass {
            ConvPass::InputGrad => (images, [results, filters]),
            ConvPass::WeightGrad => (filters, [images, results]),
            ConvPass::Forward => (results, [images, filters]),
        }
    }

    /// Elements of the workspace, of the type that is computed in.
    pub fn workspace(&self) -> usize {
        let (out, _) = self.parts();
        match &self.made {
            Made::Library(algorithm) => {
                algorithm.workspace().div_ceil(out.dtype.compute_dtype().size_bytes())
            }
            Made::Here(_) if out.layout.elements() == 0 => 0,
            Made::Here(way) => {
                needs(self.stream, || self.how(way).workspace(&self.geometry, out.dtype)).unwrap_or(0)
            }
        }
    }

    fn how<'w>(&self, way: &'w cuda::Way) -> cuda::How<'w> {
        cuda::How { way, relu: self.relu, tf32: self.tf32, products: self.products }
    }

    /// What the algorithms of cuBLASLt work in for operands at these addresses, and a workspace as aligned as all memory is.
    fn measure(&self) -> Result<usize> {
        let (out, read) = self.parts();
        let dtype = out.dtype;
        let alike = read.iter().chain(&self.bias).all(|view| view.dtype == dtype);
        let Made::Here(way) = &self.made else { return Ok(0) };
        if !way.has_products() || !alike || !dtype.is_float() || out.layout.elements() == 0 {
            return Ok(0);
        }
        let (to, from, bias) =
            (out.first(), read.map(|view| view.first()), self.bias.map(|view| view.first()));
        let anywhere = Dst(std::ptr::without_provenance_mut(1 << 12));
        let workspace = (way.workspace(&self.geometry) > 0).then_some(anywhere);
        let measured = self.stream.dry_run(self.op, |queue| {
            let conv = cuda::Convolution::of(queue, &self.geometry, (dtype, self.how(way)), workspace)?;
            conv.enqueue(self.pass, to, from, bias)
        })?;
        Ok(measured.map_or(0, |((), measured)| measured.workspace))
    }

    /// Applies an activation to the results.
    ///
    /// # Errors
    /// `InvalidArgument` for a ReLU of filters' gradients.
    pub fn activated(mut self, activation: Activation) -> Result<Self> {
        self.relu = activation.is_relu();
        if !self.relu {
            return Ok(self);
        }
        self.op = match self.pass {
            ConvPass::Forward => "conv2d_relu",
            ConvPass::InputGrad => "conv_transpose2d_relu",
            ConvPass::WeightGrad => {
                let expected = "one that makes images, for a ReLU";
                return Err(Error::invalid(self.op, "pass", expected, format_args!("{:?}", self.pass)));
            }
        };
        Ok(self)
    }

    /// Launches it. `workspace`, of the type that is computed in, has [`workspace`](Self::workspace) elements, and may be left
    /// out if those are none.
    ///
    /// # Errors
    /// `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for a workspace that is smaller,
    /// those of [`Stream::launch`].
    pub fn launch(self, workspace: Option<View<'_>>) -> Result<()> {
        let needed = self.workspace();
        let (out, read) = self.parts();
        let Conv2d { stream, op, pass, operands, bias, geometry, relu, made, tf32, products } = self;
        // A multiply-add is a fraction of an elementary operation.
        let each = geometry.filter() * geometry.filters / 8 + 1;
        let (dtype, elements) = (out.dtype, out.layout.elements());
        for_float!(op, dtype, T => {
            let workspace = View::workspace::<T>(op, workspace, needed)?;
            Command::new(op, (out.write::<T>(), read.map(View::read::<T>), bias.map(View::read::<T>), workspace))
                .cost(operands[2].layout.elements(), each)
                .run(
                    stream,
                    (geometry, made),
                    // SAFETY: `geometry` was made from the shapes of these operands, which are contiguous on a CPU;
                    // see `Command::launch`.
                    move |(geometry, _), workers, (out, read, bias, _)| unsafe {
                        match (pass, geometry.is_depthwise()) {
                            (ConvPass::InputGrad, false) => cpu::input_grad(geometry, workers, (out, read, bias)),
                            (ConvPass::InputGrad, true) => depthwise::input_grad(geometry, workers, (out, read, bias)),
                            (ConvPass::WeightGrad, false) => cpu::weight_grad(geometry, workers, (out, read)),
                            (ConvPass::WeightGrad, true) => depthwise::weight_grad(geometry, workers, (out, read)),
                            (ConvPass::Forward, false) => cpu::forward(geometry, workers, (out, read, bias)),
                            (ConvPass::Forward, true) => depthwise::forward(geometry, workers, (out, read, bias)),
                        }
                        if relu {
                            positive_parts(workers, elements, out);
                        }
                    },
                    move |(geometry, made), queue, (out, read, bias, workspace)| {
                        match made {
                            // SAFETY: the algorithm was found for the types and layouts of these operands, and the
                            // workspace was checked to be as large as it asks for.
                            Made::Library(algorithm) => unsafe {
                                cuda::by_library(queue, (algorithm, pass), (out, read), bias, workspace)?;
                            },
                            Made::Here(way) => {
                                let how = cuda::How { way, relu, tf32, products };
                                let conv = cuda::Convolution::of(queue, geometry, (dtype, how), workspace)?;
                                conv.enqueue(pass, out, read, bias)?;
                                if way.takes_relu() {
                                    return Ok(());
                                }
                            }
                        }
                        if relu { cuda::relu(queue, dtype, out, elements) } else { Ok(()) }
                    },
                )
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
