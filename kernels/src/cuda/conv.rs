//! Convolutions: implicit GEMM on tensor cores, direct kernels for depthwise convolutions and for few channels, or im2col with GEMMs by BLAS. The
//! workspace holds the patches of some images at a time; images are processed in several turns.

mod few;
mod halo;
mod implicit;

use std::ops::Range;

use device::cuda::{Arg, Grid, Queue, Workspace};
use device::{DType, Error, Result, Stream};
use smallvec::SmallVec;

use super::copy::{enqueue_copy, fill};
pub(crate) use super::elementwise::relu;
use super::libraries::{ConvAlgorithm, ConvPass};
use super::matmul::{Onto, Product};
use super::rows::{PACK, exactly};
use super::walk::{ByValue, THREADS, blocks, plane_blocks};
use super::{Family, family, kernel_name, type_name};
use crate::command::Address;
use crate::geometry::ConvGeometry;
use crate::loops::{LoopAxis, Loops, Places};
use crate::matrices::{MatrixBatch, MatrixLayout};
use crate::window::words;

use few::{Direct, Few};
use halo::Halo;
use implicit::Implicit;

static DIRECT: Family = family!("direct", FLOATS, "rows.cuh", "window.cuh", "conv.cuh", "direct.cu");
static FEW: Family = family!("few", FLOATS, "rows.cuh", "window.cuh", "conv.cuh", "few.cu");
static HALO: Family = family!("halo", ROUNDED, "rows.cuh", "tensor_core.cuh", "halo.cu");
static IMPLICIT: Family =
    family!("implicit", FACTORS, "rows.cuh", "tensor_core.cuh", "window.cuh", "conv.cuh", "implicit.cu");
static PROGRAMS: Family = family!("conv", FLOATS, "rows.cuh", "window.cuh", "conv.cuh", "conv.cu");

/// Properties of a convolution that select its algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvSpec {
    pub(crate) pass: ConvPass,
    pub(crate) geometry: ConvGeometry,
    pub(crate) dtype: DType,
    /// Whether operands are F32 and TF32 is not allowed.
    pub(crate) exact: bool,
    pub(crate) bias: bool,
}

impl ConvSpec {
    /// Whether channels and filters fill multiples of 16 bytes, as cuDNN's tensor core kernels require.
    pub(crate) fn has_vectors(&self) -> bool {
        let (g, lanes) = (&self.geometry, 16 / self.dtype.size_bytes());
        g.all_channels().is_multiple_of(lanes) && g.all_filters().is_multiple_of(lanes)
    }

    /// Whether GEMMs by cuBLASLt, on stored patches or on images that a single window covers, are faster than tensor core kernels and cuDNN, whose
    /// tiles would be mostly empty.
    fn suits_patches(&self) -> bool {
        let ConvSpec { pass, geometry: ref g, dtype, exact, .. } = *self;
        let most_points = match pass {
            ConvPass::InputGrad if exact => 4096,
            _ if dtype.is_half() => 64,
            _ => 256,
        };
        let few_points = g.images <= 4 && g.images * g.pixels() <= most_points;
        let most_places = if g.channels == 1 { 1 << 14 } else { 1 << 10 };
        let large_tiles = g.is_tiled() && g.taps() > 64 && !exact;
        let matches_pass = || match pass {
            ConvPass::Forward => few_points || large_tiles,
            ConvPass::InputGrad => few_points || !g.is_tiled() && g.channels < 4 && (exact || g.taps() <= 25),
            ConvPass::WeightGrad => large_tiles || g.filter() < 64 && g.all_places() <= most_places,
        };
        g.groups == 1 && (is_one_place(g) || matches_pass())
    }
}

/// Whether a single window covers each image, and no size is 0.
fn is_one_place(g: &ConvGeometry) -> bool {
    g.is_tiled() && g.all_places() == 1 && g.images.min(g.filter()).min(g.filters) > 0
}

/// Algorithm of a convolution without cuDNN.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Direct kernels for depthwise convolutions.
    Depthwise,
    Direct(Direct),
    Few(Few),
    Halo(Halo),
    Implicit(Implicit),
    /// im2col and GEMMs.
    Patches,
}

impl Way {
    /// The algorithm for contiguous or channels-last operands, if there is one.
    pub(crate) fn of(stream: &Stream, spec: &ConvSpec, channels_last: bool) -> Option<Way> {
        let ConvSpec { ref geometry, pass, dtype, exact, .. } = *spec;
        let tensor_cores = stream.has_tensor_cores();
        if channels_last {
            return Halo::of(geometry, pass, dtype).filter(|_| tensor_cores && !exact).map(Way::Halo);
        }
        let depthwise = geometry.is_depthwise().then_some(Way::Depthwise);
        let direct = || Direct::of(geometry, pass).map(Way::Direct);
        let few = || Few::of(geometry).filter(|_| pass == ConvPass::WeightGrad).map(Way::Few);
        let fits = |_: &Implicit| tensor_cores && !spec.suits_patches();
        let implicit = || Implicit::of(geometry, pass, (dtype, exact)).filter(fits).map(Way::Implicit);
        depthwise.or_else(direct).or_else(few).or_else(implicit).or(Some(Way::Patches))
    }

    /// Whether this algorithm is faster than cuDNN (9.14 and 9.19, measured on an H100 and an H200 with 54 layers of common networks). In F32 without
    /// TF32, cuDNN computes filter gradients at a sixth of the device's speed; otherwise it copies operands whose channels are not multiples of a
    /// vector.
    pub(crate) fn is_faster_than_library(&self, spec: &ConvSpec) -> bool {
        let ConvSpec { geometry: ref g, pass, exact, bias, .. } = *spec;
        let widest = if g.groups == 1 { g.channels.max(g.filters) } else { usize::MAX };
        match self {
            Way::Depthwise => g.images > 2,
            Way::Direct(_) => exact || !spec.has_vectors() || g.channels.min(g.filters) < Halo::LEAST,
            Way::Few(_) => true,
            Way::Halo(_) => widest <= 32 && (pass != ConvPass::WeightGrad || g.channels.min(g.filters) > 16),
            Way::Implicit(implicit) if exact => {
                implicit.is_full(g) || widest < 32 && pass != ConvPass::Forward
            }
            Way::Implicit(_) if widest < 32 && pass == ConvPass::InputGrad => true,
            Way::Implicit(implicit) => {
                let is_strided = g.taps() == 1 && pass == ConvPass::Forward;
                // With long sums, copying operands costs little.
                let is_copied = !spec.has_vectors()
                    && g.filter() <= 512
                    && (pass != ConvPass::WeightGrad || spec.dtype.is_half());
                implicit.is_full(g) && (is_strided || is_copied)
            }
            Way::Patches => match pass {
                _ if spec.suits_patches() => true,
                ConvPass::Forward => !exact && bias && g.is_pointwise(),
                ConvPass::InputGrad => widest < 32,
                ConvPass::WeightGrad if g.is_pointwise() => exact && g.all_places() >= 256,
                ConvPass::WeightGrad => widest < 32 && (exact || g.channels == 1),
            },
        }
    }

    /// Whether this algorithm applies the ReLU itself; for others [`relu`] does.
    pub(crate) fn takes_relu(&self) -> bool {
        matches!(self, Way::Direct(_) | Way::Halo(_) | Way::Implicit(_))
    }

    /// Whether it uses cuBLASLt, which may need a workspace of its own behind this algorithm's.
    pub(crate) fn has_products(&self) -> bool {
        matches!(self, Way::Patches)
    }

    /// Elements of the workspace, in the compute type, without that of GEMMs.
    pub(crate) fn workspace(&self, g: &ConvGeometry) -> usize {
        let filters = g.all_filters() * g.filter();
        match self {
            Way::Few(few) => few.parts * filters,
            Way::Halo(halo) => halo.parts.stored() * filters,
            Way::Implicit(implicit) => implicit.parts.stored() * filters,
            Way::Depthwise | Way::Direct(_) => 0,
            Way::Patches if is_one_place(g) => 0,
            Way::Patches => of_one_image(g).saturating_mul(together(g)),
        }
    }
}

/// Split of a filter gradient's sum into parts, which are added in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    all: usize,
    each: usize,
    is_whole: bool,
}

impl Parts {
    /// For other passes.
    const NONE: Parts = Parts { all: 0, each: 0, is_whole: true };

    /// Splits `steps` steps into about `parts` parts of at least `least` steps. A single part is written directly to the output if that has the
    /// compute type.
    fn of(steps: usize, parts: usize, least: usize, dtype: DType) -> Parts {
        let each = steps.div_ceil(parts.max(1)).max(least);
        let all = steps.div_ceil(each);
        Parts { all, each, is_whole: all == 1 && dtype == dtype.compute_dtype() }
    }

    /// Number of parts in the workspace, each of the gradient's size and of the compute type.
    fn stored(self) -> usize {
        if self.is_whole { 0 } else { self.all }
    }
}

/// Enqueues a convolution by an algorithm of cuDNN.
///
/// # Safety
/// The operands and the bias are of the form that the algorithm was found for, and the workspace is as large as it says.
pub(crate) unsafe fn by_library(
    queue: &Queue<'_>,
    (algorithm, pass): (&ConvAlgorithm, ConvPass),
    (out, read): (Address, [Address; 2]),
    bias: Option<Address>,
    workspace: Option<Address>,
) -> Result<()> {
    let operands = match (pass, read) {
        (ConvPass::InputGrad, [results, filters]) => [out, filters, results],
        (ConvPass::WeightGrad, [images, results]) => [images, out, results],
        (ConvPass::Forward, [images, filters]) => [images, filters, out],
    };
    let workspace = workspace.unwrap_or(Address::NULL);
    // SAFETY: the caller promises operands of the form that the algorithm was found for and a workspace of its size,
    // all of which the command uses.
    unsafe { algorithm.enqueue(queue, operands.map(|at| at.0), bias.map(|at| at.0), workspace.0) }
}

/// Images that a thread of depthwise kernels processes together; as in the program.
const TOGETHER: usize = 4;

/// Elements of the workspace, unless one image needs more.
const WORKSPACE: usize = 1 << 24;

/// Workspace elements per image: its patches and its part of the filter gradient.
fn of_one_image(geometry: &ConvGeometry) -> usize {
    let filters = geometry.all_filters() * geometry.filter();
    let patches = geometry.groups * geometry.filter() * geometry.all_places();
    filters.saturating_add(patches)
}

/// Images per turn.
fn together(geometry: &ConvGeometry) -> usize {
    (WORKSPACE / of_one_image(geometry).max(1)).clamp(1, geometry.images.max(1))
}

/// `Conv` of the program.
#[repr(C)]
struct Conv {
    /// See [`words`].
    pairs: [u32; 12],
    each: u32,
    pad: u32,
    planes: u64,
}

// SAFETY: fourteen words of 32 bits and one of 64, which begins at a multiple of 8 bytes, so `repr(C)` adds no
// padding.
unsafe impl ByValue for Conv {}

/// Contiguous matrices, one per image and group, or one per group.
#[derive(Clone, Copy)]
struct MatrixStack {
    at: Address,
    dtype: DType,
    each: MatrixLayout,
    of_image: bool,
}

impl MatrixStack {
    fn transposed(self) -> MatrixStack {
        MatrixStack { each: self.each.transposed(), ..self }
    }

    /// Elements from one group to the next.
    fn step(&self) -> isize {
        (self.each.rows * self.each.columns) as isize
    }
}

/// A convolution to enqueue. Its methods take contiguous operands of its geometry.
pub(crate) struct Convolution<'a> {
    queue: &'a Queue<'a>,
    geometry: &'a ConvGeometry,
    dtype: DType,
    way: &'a Way,
    /// Whether a ReLU follows, which some algorithms [apply themselves](Way::takes_relu).
    relu: bool,
    pairs: [u32; 12],
    /// Address of the patches.
    columns: Address,
    /// Whether factors in F32 are rounded to TF32.
    tf32: bool,
    /// Workspace of GEMMs.
    products: Workspace,
}

/// Algorithm and options of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'a> {
    pub(crate) way: &'a Way,
    /// Whether a ReLU follows, which some algorithms [apply themselves](Way::takes_relu).
    pub(crate) relu: bool,
    /// Whether factors in F32 are rounded to TF32.
    pub(crate) tf32: bool,
    /// Workspace bytes of GEMMs.
    pub(crate) products: usize,
}

impl How<'_> {
    /// Bytes of the workspace before that of GEMMs, which must be aligned.
    fn own_bytes(&self, g: &ConvGeometry, dtype: DType) -> usize {
        let bytes = self.way.workspace(g).saturating_mul(dtype.compute_dtype().size_bytes());
        if self.products > 0 { bytes.next_multiple_of(256) } else { bytes }
    }

    /// Elements of the workspace, in the compute type.
    pub(crate) fn workspace(&self, g: &ConvGeometry, dtype: DType) -> usize {
        let bytes = self.own_bytes(g, dtype).saturating_add(self.products);
        bytes.div_ceil(dtype.compute_dtype().size_bytes())
    }
}

impl<'a> Convolution<'a> {
    /// With a workspace of [`How::workspace`] elements of the compute type, if that is not 0.
    ///
    /// # Errors
    /// `InvalidArgument` if the patches of a channel cannot be counted in 31 bits.
    pub(crate) fn of(
        queue: &'a Queue<'a>,
        geometry: &'a ConvGeometry,
        (dtype, how): (DType, How<'a>),
        workspace: Option<Address>,
    ) -> Result<Convolution<'a>> {
        let How { way, relu, tf32, products: bytes } = how;
        let ConvGeometry { image, places, window, .. } = *geometry;
        let patches = geometry.taps().saturating_mul(geometry.all_places()).max(geometry.pixels());
        let fits = patches < 1 << 31 && geometry.all_channels() < 1 << 31;
        let Some(pairs) = words(image, places, &window).filter(|_| fits) else {
            let expected = "of fewer than 2^31 patches' elements in a channel";
            return Err(Error::invalid(queue.op(), "window", expected, patches));
        };
        let columns = workspace.unwrap_or(Address::NULL);
        let own = how.own_bytes(geometry, dtype);
        let products = match bytes {
            0 => Workspace::NONE,
            _ => Workspace { at: columns.0.wrapping_add(own), bytes },
        };
        Ok(Convolution { queue, geometry, dtype, way, relu, pairs, columns, tf32, products })
    }

    /// Enqueues the convolution: output, inputs in the order of [`Conv2d`](crate::Conv2d), and bias.
    pub(crate) fn enqueue(
        &self,
        pass: ConvPass,
        out: Address,
        read: [Address; 2],
        bias: Option<Address>,
    ) -> Result<()> {
        match pass {
            _ if matches!(self.way, Way::Patches) && is_one_place(self.geometry) => {
                self.one_product(pass, out, read, bias)
            }
            ConvPass::InputGrad => self.input_grad(out, read, bias),
            ConvPass::WeightGrad => self.weight_grad(out, read),
            ConvPass::Forward => self.forward(out, read, bias),
        }
    }

    /// Enqueues a convolution whose window covers each image, as one GEMM with images and outputs as rows.
    fn one_product(
        &self,
        pass: ConvPass,
        out: Address,
        [a, b]: [Address; 2],
        bias: Option<Address>,
    ) -> Result<()> {
        let g = self.geometry;
        let [images, filters, results] =
            [[g.images, g.filter()], [g.filters, g.filter()], [g.images, g.filters]]
                .map(|[rows, columns]| row_major(rows, columns));
        let (channels, size, [c, left, right]) = match pass {
            ConvPass::Forward => (g.filters, 1, [results, images, filters.transposed()]),
            ConvPass::InputGrad => (g.channels, g.taps(), [images, results, filters]),
            ConvPass::WeightGrad => (0, 0, [filters, results.transposed(), images]),
        };
        if bias.is_some() {
            self.start(out, [g.images, channels, size], bias)?;
        }
        let stack = |at, each| MatrixStack { at, dtype: self.dtype, each, of_image: false };
        // Operands of the filter gradient, in this order: output gradient, images.
        let [a, b] = if pass == ConvPass::WeightGrad { [b, a] } else { [a, b] };
        self.products(0..1, [stack(out, c), stack(a, left), stack(b, right)], bias.is_some())
    }

    fn forward(&self, y: Address, [x, w]: [Address; 2], bias: Option<Address>) -> Result<()> {
        let g = self.geometry;
        let (k, places) = (g.filter(), g.all_places());
        match self.way {
            Way::Depthwise => {
                return self.depthwise("depthwise", [y, x, w], bias, [g.all_filters(), places]);
            }
            Way::Direct(direct) => return self.direct(direct, y, [x, w], bias, ConvPass::Forward),
            Way::Halo(halo) => return self.halo(halo, ConvPass::Forward, y, [w, x], bias),
            Way::Implicit(implicit) => return self.implicit(implicit, y, [w, x], bias),
            Way::Few(_) | Way::Patches => {}
        }
        if bias.is_some() || k == 0 {
            self.start(y, [g.images, g.all_filters(), places], bias)?;
        }
        if k == 0 {
            return Ok(());
        }
        for (first, count) in self.turns() {
            let operands = [self.results(y, first), self.filters(w), self.patches(x, first, count)?];
            self.products(0..count, operands, bias.is_some())?;
        }
        Ok(())
    }

    fn input_grad(&self, x: Address, [y, w]: [Address; 2], bias: Option<Address>) -> Result<()> {
        let g = self.geometry;
        let (channels, pixels) = (g.all_channels(), g.pixels());
        if g.filters == 0 || g.all_places() == 0 {
            self.start(x, [g.images, channels, pixels], bias)?;
            let elements = g.images * channels * pixels;
            return if self.relu { relu(self.queue, self.dtype, x, elements) } else { Ok(()) };
        }
        match self.way {
            Way::Depthwise => {
                return self.depthwise("depthwise_input_grad", [x, y, w], bias, [channels, pixels]);
            }
            Way::Direct(direct) => return self.direct(direct, x, [y, w], bias, ConvPass::InputGrad),
            Way::Halo(halo) => return self.halo(halo, ConvPass::InputGrad, x, [w, y], bias),
            Way::Implicit(implicit) => return self.implicit(implicit, x, [w, y], bias),
            Way::Few(_) | Way::Patches => {}
        }
        for (first, count) in self.turns() {
            let columns = self.columns_of(self.columns, self.dtype.compute_dtype());
            let operands = [columns, self.filters(w).transposed(), self.results(y, first)];
            self.products(0..count, operands, false)?;
            let planes = count * channels;
            let args = [
                self.image(x, first).into(),
                self.columns.into(),
                bias.into(),
                Arg::U32(channels as u32),
                Arg::U64((first * channels) as u64),
            ];
            let grid = plane_blocks(self.queue, pixels, planes);
            self.kernel("add_patches", grid, args, planes)?;
        }
        Ok(())
    }

    fn weight_grad(&self, w: Address, [x, y]: [Address; 2]) -> Result<()> {
        let g = self.geometry;
        let (dtype, computed) = (self.dtype, self.dtype.compute_dtype());
        let size = g.all_filters() * g.filter();
        if g.images == 0 || g.all_places() == 0 {
            return self.start(w, [1, 1, size], None);
        }
        match self.way {
            Way::Depthwise => {
                let [groups, images] = [g.groups, g.images].map(|count| Arg::U32(count as u32));
                let strips = size / g.window.kernel[1] * g.window.kernel[1].div_ceil(PACK);
                let grid = exactly(strips as u64, 2 * THREADS);
                let args = [w.into(), x.into(), y.into(), groups, images];
                return self.kernel("depthwise_weight_grad", grid, args, 0);
            }
            Way::Few(few) => return self.few_weight_grad(few, w, [x, y]),
            Way::Halo(halo) => {
                return self
                    .in_parts(w, halo.parts, |to| self.halo(halo, ConvPass::WeightGrad, to, [y, x], None));
            }
            Way::Implicit(implicit) => {
                return self.in_parts(w, implicit.parts, |to| self.implicit(implicit, to, [y, x], None));
            }
            Way::Direct(_) | Way::Patches => {}
        }
        // The parts follow the patches in the workspace.
        let patches = together(g) * g.groups * g.filter() * g.all_places();
        let parts = MatrixStack {
            at: self.columns.offset(patches as isize, computed.size_bytes()),
            dtype: computed,
            of_image: true,
            ..self.filters(w)
        };
        for (first, count) in self.turns() {
            let patches = self.patches(x, first, count)?.transposed();
            let operands = [parts, self.results(y, first), patches];
            // From the second turn on, the first part holds the sum of earlier turns.
            let continued = usize::from(first > 0);
            self.products(0..continued, operands, true)?;
            self.products(continued..count, operands, false)?;
            let last = first + count == g.images;
            let (to, stored) = if last { (w, dtype) } else { (parts.at, computed) };
            self.add_parts((to, stored), parts.at, count)?;
        }
        Ok(())
    }

    /// Enqueues a filter gradient: `make` enqueues its parts, which are then added.
    fn in_parts(&self, w: Address, parts: Parts, make: impl Fn(Address) -> Result<()>) -> Result<()> {
        match parts.stored() {
            0 => make(w),
            stored => {
                make(self.columns)?;
                self.add_parts((w, self.dtype), self.columns, stored)
            }
        }
    }

    /// Enqueues the sum of `count` parts of the filter gradient, which have the compute type.
    fn add_parts(&self, (to, stored): (Address, DType), parts: Address, count: usize) -> Result<()> {
        let (dtype, size) = (self.dtype, self.geometry.all_filters() * self.geometry.filter());
        let args = [to.into(), parts.into(), Arg::U64(count as u64), Arg::U64(size as u64)];
        let grid = blocks(self.queue, (size as u64).div_ceil(u64::from(THREADS)), THREADS);
        // SAFETY: the kernel takes these arguments, and there are as many parts.
        unsafe {
            let kernel = kernel_name(&["add_parts"], type_name(stored, false));
            self.queue.kernel(PROGRAMS.of(dtype), &kernel, grid, &args)
        }
    }

    /// The turns: first image and number of images of each.
    fn turns(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (all, together) = (self.geometry.images, together(self.geometry));
        (0..all).step_by(together).map(move |first| (first, together.min(all - first)))
    }

    /// Image `first` of those at `x`.
    fn image(&self, x: Address, first: usize) -> Address {
        let elements = first * self.geometry.all_channels() * self.geometry.pixels();
        x.offset(elements as isize, self.dtype.size_bytes())
    }

    /// The outputs from image `first` on.
    fn results(&self, y: Address, first: usize) -> MatrixStack {
        let g = self.geometry;
        let elements = first * g.all_filters() * g.all_places();
        let at = y.offset(elements as isize, self.dtype.size_bytes());
        MatrixStack { at, dtype: self.dtype, each: row_major(g.filters, g.all_places()), of_image: true }
    }

    fn filters(&self, w: Address) -> MatrixStack {
        let g = self.geometry;
        MatrixStack { at: w, dtype: self.dtype, each: row_major(g.filters, g.filter()), of_image: false }
    }

    /// Patches, stored as `dtype`.
    fn columns_of(&self, at: Address, dtype: DType) -> MatrixStack {
        let g = self.geometry;
        MatrixStack { at, dtype, each: row_major(g.filter(), g.all_places()), of_image: true }
    }

    /// The patches of `count` images from `first` on: the images themselves, or columns from an enqueued im2col.
    fn patches(&self, x: Address, first: usize, count: usize) -> Result<MatrixStack> {
        let (g, images, columns) = (self.geometry, self.image(x, first), self.columns);
        if g.is_pointwise() {
            return Ok(self.columns_of(images, self.dtype));
        }
        let planes = count * g.all_channels();
        let grid = plane_blocks(self.queue, g.taps() * g.all_places(), planes);
        self.kernel("patches", grid, [columns.into(), images.into()], planes)?;
        Ok(self.columns_of(columns, self.dtype))
    }

    /// Enqueues `c = a b`, or `c + a b`, for each of these images and each group.
    fn products(&self, images: Range<usize>, operands: [MatrixStack; 3], accumulate: bool) -> Result<()> {
        if images.is_empty() {
            return Ok(());
        }
        let groups = self.geometry.groups;
        let steps = operands.map(|m| if m.of_image { m.step() * groups as isize } else { 0 });
        let axes = Loops::from_axes([
            LoopAxis { size: images.len(), strides: steps },
            LoopAxis { size: groups, strides: operands.map(|m| m.step()) },
        ]);
        let at = std::array::from_fn(|i| {
            operands[i].at.offset(steps[i] * images.start as isize, operands[i].dtype.size_bytes())
        });
        let [c, a, b] = operands;
        let batch = MatrixBatch { c: c.each, a: a.each, b: b.each, axes: axes.axes.into_iter().collect() };
        let onto = if accumulate { Onto::Held } else { Onto::Nothing };
        let (tf32, workspace) = (self.tf32, self.products);
        let (dtype, c_dtype) = (a.dtype, c.dtype);
        let product = Product { batch: &batch, dtype, c_dtype, onto, relu: false, tf32, workspace };
        // SAFETY: the matrices are parts of the operands and of the workspace, which has room for a turn.
        unsafe { product.enqueue(self.queue, at) }
    }

    /// Enqueues a depthwise kernel with outputs [images, channels, size] and an optional bias per channel.
    fn depthwise(
        &self,
        kernel: &str,
        operands: [Address; 3],
        bias: Option<Address>,
        [channels, size]: [usize; 2],
    ) -> Result<()> {
        let [out, from, filters] = operands.map(Arg::from);
        let images = self.geometry.images;
        let args = [out, from, filters, bias.into(), Arg::U32(images as u32), Arg::U32(channels as u32)];
        let grid = plane_blocks(self.queue, size, images.div_ceil(TOGETHER) * channels);
        self.kernel(kernel, grid, args, 0)
    }

    /// Enqueues a kernel of [`PROGRAMS`]; the convolution's parameters are appended to the arguments.
    fn kernel<const N: usize>(
        &self,
        name: &str,
        grid: Grid,
        args: [Arg<'_>; N],
        planes: usize,
    ) -> Result<()> {
        self.kernel_of(&PROGRAMS, &[name], type_name(self.dtype, false), grid, args, planes)
    }

    /// The same for another family and type.
    fn kernel_of<const N: usize>(
        &self,
        family: &'static Family,
        name: &[&str],
        element: &str,
        grid: Grid,
        args: [Arg<'_>; N],
        planes: usize,
    ) -> Result<()> {
        let numbers =
            Conv { pairs: self.pairs, each: self.geometry.filters as u32, pad: 0, planes: planes as u64 };
        let args: SmallVec<[Arg<'_>; 12]> = args.into_iter().chain([numbers.arg()]).collect();
        // SAFETY: the kernel takes these arguments, operands of the geometry and a workspace with room for a turn.
        unsafe { self.queue.kernel(family.named(element), &kernel_name(name, element), grid, &args) }
    }

    /// Enqueues a fill of `[images, channels, elements]` with the bias of each channel, or with zeros.
    fn start(&self, out: Address, [images, channels, size]: [usize; 3], bias: Option<Address>) -> Result<()> {
        let bytes = self.dtype.size_bytes();
        let Some(bias) = bias else {
            let places = Places::Run { elements: images * channels * size, steps: [1] };
            return fill(self.queue, bytes, 0, &places, out);
        };
        let loops = Loops::from_axes([
            LoopAxis { size: images, strides: [(channels * size) as isize, 0] },
            LoopAxis { size: channels, strides: [size as isize, 1] },
            LoopAxis { size, strides: [1, 0] },
        ]);
        // SAFETY: the loops go over all of the output and repeat the bias, which has an element for each channel.
        unsafe { enqueue_copy(self.queue, bytes, &loops, [out, bias]) }
    }
}

fn row_major(rows: usize, columns: usize) -> MatrixLayout {
    MatrixLayout { rows, columns, row: columns as isize, column: 1 }
}
