//! Convolutions: patches in the workspace and products by BLAS, or direct kernels for filters of one channel. A workspace
//! holds the patches of some images, which are gone through in as many turns as it takes.

use device::cuda::{Arg, Grid, Program, Queue};
use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use super::by_dtype;
use super::copy::{enqueue_copy, enqueue_zeros};
use super::matmul::{Matrix, Product};
use super::walk::{ByValue, THREADS, address, blocks};
use crate::conv::Geometry;
use crate::layout::{LoopAxis, Loops, View};

pub(super) static F32: Program = Program::new(
    "conv_f32",
    concat!(
        include_str!("prelude.cuh"),
        include_str!("rows.cuh"),
        "#define DTYPE f32\n",
        include_str!("conv.cu")
    ),
);
static F64: Program = Program::new(
    "conv_f64",
    concat!(
        include_str!("prelude.cuh"),
        include_str!("rows.cuh"),
        "#define DTYPE f64\n",
        include_str!("conv.cu")
    ),
);

/// Elements of a workspace, where one image does not need more.
const WORKSPACE: usize = 1 << 24;
/// Blocks along y that every device has.
const MAX_Y: usize = 65_535;

fn program_of(dtype: DType) -> &'static Program {
    if dtype == DType::F64 { &F64 } else { &F32 }
}

/// What a turn of one image needs: its patches, and its part of the filters' gradient.
fn of_one_image(geometry: &Geometry) -> usize {
    if geometry.is_depthwise() {
        return 0;
    }
    let filters = geometry.groups * geometry.filters * geometry.filter();
    let patches = geometry.groups * geometry.filter() * geometry.all_places();
    filters.saturating_add(patches)
}

/// Images in a turn.
fn together(geometry: &Geometry) -> usize {
    (WORKSPACE / of_one_image(geometry).max(1)).clamp(1, geometry.images.max(1))
}

/// Elements of the workspace.
pub(crate) fn workspace(geometry: &Geometry) -> usize {
    of_one_image(geometry).saturating_mul(together(geometry))
}

/// Operands that the launcher has checked.
pub(crate) struct Memory<'a> {
    pub(crate) images: View<'a>,
    pub(crate) filters: View<'a>,
    pub(crate) results: View<'a>,
    pub(crate) bias: Option<View<'a>>,
    /// None where none is needed.
    pub(crate) workspace: Option<View<'a>>,
}

/// `Conv` of the program.
#[repr(C)]
struct Numbers {
    sizes: [u32; 6],
    window: [u32; 6],
    each: u32,
    pad: u32,
    planes: u64,
}

// SAFETY: fourteen words of 32 bits, and one of 64.
unsafe impl ByValue for Numbers {}

/// A convolution as the kernels take it.
struct Kernels<'a> {
    op: &'static str,
    geometry: &'a Geometry,
    dtype: DType,
    numbers: [u32; 12],
}

impl<'a> Kernels<'a> {
    /// # Errors
    /// [`Error::InvalidArgument`] if the patches of a channel cannot be counted in 31 bits.
    fn new(op: &'static str, geometry: &'a Geometry, dtype: DType) -> Result<Kernels<'a>> {
        let window = geometry.window;
        let pairs =
            [geometry.image, geometry.places, window.kernel, window.stride, window.padding, window.dilation];
        let patches = geometry.taps().saturating_mul(geometry.all_places()).max(geometry.pixels());
        let mut numbers = [0; 12];
        let fits = numbers.iter_mut().zip(pairs.iter().flatten()).all(|(to, &from)| {
            *to = from as u32;
            from < 1 << 31
        });
        if !fits || patches >= 1 << 31 || geometry.groups * geometry.channels >= 1 << 31 {
            return Err(Error::InvalidArgument {
                op,
                argument: "window",
                expected: "of fewer than 2^31 patches' elements in a channel",
                value: format!("{patches}").into(),
            });
        }
        Ok(Kernels { op, geometry, dtype, numbers })
    }

    fn numbers(&self, planes: usize) -> Numbers {
        let (mut sizes, mut window) = ([0; 6], [0; 6]);
        sizes.copy_from_slice(&self.numbers[..6]);
        window.copy_from_slice(&self.numbers[6..]);
        Numbers { sizes, window, each: self.geometry.filters as u32, pad: 0, planes: planes as u64 }
    }

    /// Blocks for `planes` planes of `size` elements.
    fn grid(&self, queue: &Queue<'_>, size: usize, planes: usize) -> Grid {
        let mut grid = blocks(queue, (size as u64).div_ceil(u64::from(THREADS)), THREADS);
        grid.blocks[1] = planes.clamp(1, MAX_Y) as u32;
        grid
    }

    fn at(&self, base: *mut u8, elements: usize) -> *mut u8 {
        base.wrapping_add(elements * self.dtype.size_bytes())
    }

    /// Enqueues the patches of `count` images.
    ///
    /// # Safety
    /// The images are there, and room for their patches.
    unsafe fn patches(
        &self,
        queue: &Queue<'_>,
        images: *mut u8,
        count: usize,
        columns: *mut u8,
    ) -> Result<()> {
        let g = self.geometry;
        let planes = count * g.groups * g.channels;
        let numbers = self.numbers(planes);
        let grid = self.grid(queue, g.taps() * g.all_places(), planes);
        let args = [Arg::Ptr(columns), Arg::Ptr(images), numbers.arg()];
        // SAFETY: the caller's promise.
        unsafe { queue.kernel(program_of(self.dtype), by_dtype!(self.dtype, "patches"), grid, &args) }
    }

    /// The product of matrices that lie one after the other, for each image and each group.
    ///
    /// # Safety
    /// The matrices of `count` images are within buffers that the command writes and reads.
    unsafe fn products(
        &self,
        queue: &Queue<'_>,
        count: usize,
        matrices: [(*mut u8, Matrix, bool); 3],
        accumulate: bool,
    ) -> Result<()> {
        let groups = self.geometry.groups;
        let size = |matrix: &Matrix| (matrix.rows * matrix.columns) as isize;
        let [c, a, b] = matrices;
        // Filters are the same for all images.
        let step = |(_, matrix, of_image): &(*mut u8, Matrix, bool)| {
            if *of_image { size(matrix) * groups as isize } else { 0 }
        };
        let batch: SmallVec<[LoopAxis<3>; 4]> = Loops::from_axes([
            LoopAxis { size: count, strides: [&c, &a, &b].map(step) },
            LoopAxis { size: groups, strides: [size(&c.1), size(&a.1), size(&b.1)] },
        ])
        .axes;
        let product = Product { dtype: self.dtype, c: c.1, a: a.1, b: b.1, batch, accumulate };
        // SAFETY: the caller's promise.
        unsafe { product.enqueue(queue, self.op, [c.0, a.0, b.0]) }
    }

    /// Enqueues the bias of each plane as its elements, or zeros.
    ///
    /// # Safety
    /// `out` is written by the command, a bias is read.
    unsafe fn start(&self, queue: &Queue<'_>, out: &View<'_>, bias: Option<&View<'_>>) -> Result<()> {
        let size = self.dtype.size_bytes();
        let Some(bias) = bias else {
            // SAFETY: the caller's promise.
            return unsafe {
                enqueue_zeros(queue, size, &Loops::in_memory_order([out.layout]), address(out))
            };
        };
        let loops = Loops::from_axes((0..4).map(|axis| LoopAxis {
            size: out.shape()[axis],
            strides: [out.layout.strides()[axis], isize::from(axis == 1)],
        }));
        // SAFETY: the caller's promise.
        unsafe { enqueue_copy(queue, self.op, size, &loops, (address(out), address(bias))) }
    }
}

fn start_of(view: Option<&View<'_>>) -> *mut u8 {
    view.map_or(std::ptr::null_mut(), address)
}

fn optional(view: Option<&View<'_>>) -> Arg<'static> {
    Arg::Ptr(start_of(view))
}

/// A row-major matrix, or the transpose of one.
fn matrix(rows: usize, columns: usize) -> Matrix {
    Matrix { rows, columns, row: columns as isize, column: 1 }
}

pub(crate) fn forward(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    geometry: &Geometry,
    memory: Memory<'_>,
) -> Result<()> {
    let Memory { images, filters, results, bias, workspace } = memory;
    let kernels = Kernels::new(op, geometry, results.dtype)?;
    let g = *geometry;
    stream.submit(op, uses, |queue| {
        let (x, w, y, columns) =
            (address(&images), address(&filters), address(&results), start_of(workspace.as_ref()));
        if g.is_depthwise() {
            let planes = g.images * g.groups * g.filters;
            let numbers = kernels.numbers(planes);
            let grid = kernels.grid(queue, g.all_places(), planes);
            let channels = Arg::U32(g.groups as u32);
            let args =
                [Arg::Ptr(y), Arg::Ptr(x), Arg::Ptr(w), optional(bias.as_ref()), channels, numbers.arg()];
            let name = by_dtype!(results.dtype, "depthwise");
            // SAFETY: sizes are those of the operands, which were checked, and the uses name their buffers.
            return unsafe { queue.kernel(program_of(results.dtype), name, grid, &args) };
        }
        let (k, places) = (g.filter(), g.all_places());
        if bias.is_some() || k == 0 {
            // SAFETY: as above.
            unsafe { kernels.start(queue, &results, bias.as_ref())? };
        }
        if k == 0 {
            return Ok(());
        }
        let together = together(geometry);
        for first in (0..g.images).step_by(together) {
            let count = together.min(g.images - first);
            let from = kernels.at(x, first * g.groups * g.channels * g.pixels());
            let to = kernels.at(y, first * g.groups * g.filters * places);
            // SAFETY: as above; the workspace has room for the patches of these images.
            unsafe {
                let patches = if g.is_pointwise() { from } else { columns };
                if !g.is_pointwise() {
                    kernels.patches(queue, from, count, columns)?;
                }
                let matrices = [
                    (to, matrix(g.filters, places), true),
                    (w, matrix(g.filters, k), false),
                    (patches, matrix(k, places), true),
                ];
                kernels.products(queue, count, matrices, bias.is_some())?;
            }
        }
        Ok(())
    })
}

pub(crate) fn input_grad(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    geometry: &Geometry,
    memory: Memory<'_>,
) -> Result<()> {
    let Memory { images, filters, results, bias, workspace } = memory;
    let kernels = Kernels::new(op, geometry, images.dtype)?;
    let g = *geometry;
    stream.submit(op, uses, |queue| {
        let (x, w, y, columns) =
            (address(&images), address(&filters), address(&results), start_of(workspace.as_ref()));
        let channels = g.groups * g.channels;
        let (k, places) = (g.filter(), g.all_places());
        if g.is_depthwise() {
            let planes = g.images * channels;
            let numbers = kernels.numbers(planes);
            let grid = kernels.grid(queue, g.pixels(), planes);
            let bias = optional(bias.as_ref());
            let args =
                [Arg::Ptr(x), Arg::Ptr(y), Arg::Ptr(w), bias, Arg::U32(channels as u32), numbers.arg()];
            let name = by_dtype!(images.dtype, "depthwise_input_grad");
            // SAFETY: sizes are those of the operands, which were checked, and the uses name their buffers.
            return unsafe { queue.kernel(program_of(images.dtype), name, grid, &args) };
        }
        if g.filters == 0 || places == 0 {
            // SAFETY: as above.
            return unsafe { kernels.start(queue, &images, bias.as_ref()) };
        }
        let together = together(geometry);
        for first in (0..g.images).step_by(together) {
            let count = together.min(g.images - first);
            let from = kernels.at(y, first * g.groups * g.filters * places);
            let to = kernels.at(x, first * channels * g.pixels());
            // SAFETY: as above; the workspace has room for the patches of these images.
            unsafe {
                let matrices = [
                    (columns, matrix(k, places), true),
                    (w, matrix(g.filters, k).transposed(), false),
                    (from, matrix(g.filters, places), true),
                ];
                kernels.products(queue, count, matrices, false)?;
                let planes = count * channels;
                let numbers = kernels.numbers(planes);
                let grid = kernels.grid(queue, g.pixels(), planes);
                let args = [
                    Arg::Ptr(to),
                    Arg::Ptr(columns),
                    optional(bias.as_ref()),
                    Arg::U32(channels as u32),
                    Arg::U64((first * channels) as u64),
                    numbers.arg(),
                ];
                let name = by_dtype!(images.dtype, "add_patches");
                queue.kernel(program_of(images.dtype), name, grid, &args)?;
            }
        }
        Ok(())
    })
}

pub(crate) fn weight_grad(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    geometry: &Geometry,
    memory: Memory<'_>,
) -> Result<()> {
    let Memory { images, filters, results, workspace, .. } = memory;
    let kernels = Kernels::new(op, geometry, filters.dtype)?;
    let g = *geometry;
    stream.submit(op, uses, |queue| {
        let (x, w, y, columns) =
            (address(&images), address(&filters), address(&results), start_of(workspace.as_ref()));
        let (k, places) = (g.filter(), g.all_places());
        if g.images == 0 || places == 0 {
            // SAFETY: the operands were checked, and the uses name their buffers.
            return unsafe { kernels.start(queue, &filters, None) };
        }
        if g.is_depthwise() {
            let numbers = kernels.numbers(0);
            let rows = g.groups * g.filters * g.taps();
            let grid = blocks(queue, rows as u64, THREADS);
            let counts = [Arg::U32(g.groups as u32), Arg::U32(g.images as u32)];
            let args = [Arg::Ptr(w), Arg::Ptr(x), Arg::Ptr(y), counts[0], counts[1], numbers.arg()];
            let name = by_dtype!(filters.dtype, "depthwise_weight_grad");
            // SAFETY: as above.
            return unsafe { queue.kernel(program_of(filters.dtype), name, grid, &args) };
        }
        let size = g.groups * g.filters * k;
        let together = together(geometry);
        let parts = kernels.at(columns, together * g.groups * k * places);
        for first in (0..g.images).step_by(together) {
            let count = together.min(g.images - first);
            let from = kernels.at(x, first * g.groups * g.channels * g.pixels());
            let from_y = kernels.at(y, first * g.groups * g.filters * places);
            // SAFETY: as above; the workspace has room for the patches and the parts of these images.
            unsafe {
                let patches = if g.is_pointwise() { from } else { columns };
                if !g.is_pointwise() {
                    kernels.patches(queue, from, count, columns)?;
                }
                let matrices = [
                    (parts, matrix(g.filters, k), true),
                    (from_y, matrix(g.filters, places), true),
                    (patches, matrix(k, places).transposed(), true),
                ];
                kernels.products(queue, count, matrices, false)?;
                let args = [
                    Arg::Ptr(w),
                    Arg::Ptr(parts),
                    Arg::U64(count as u64),
                    Arg::U64(size as u64),
                    Arg::U32(u32::from(first > 0)),
                ];
                let grid = blocks(queue, (size as u64).div_ceil(u64::from(THREADS)), THREADS);
                let name = by_dtype!(filters.dtype, "add_parts");
                queue.kernel(program_of(filters.dtype), name, grid, &args)?;
            }
        }
        Ok(())
    })
}
