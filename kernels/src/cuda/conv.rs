//! Convolutions: patches in the workspace and products by BLAS, or direct kernels for filters of one channel. A workspace
//! holds the patches of some images, which are gone through in as many turns as it takes.

use std::ops::Range;

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Error, Result, Stream, Use};

use super::copy::{enqueue_copy, enqueue_zeros};
use super::matmul::Product;
use super::walk::{ByValue, THREADS, address, blocks, operand};
use super::{by_dtype, float_programs};
use crate::command::Address;
use crate::conv::Geometry;
use crate::layout::{LoopAxis, Loops, View};
use crate::matrices::{MatrixBatch, MatrixLayout as Matrix};

float_programs!("conv", "rows.cuh", "conv.cu");

/// Elements of a workspace, where one image does not need more.
const WORKSPACE: usize = 1 << 24;
/// Blocks along y that every device has.
const MAX_Y: usize = 65_535;

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

/// Matrices that lie one after the other, for each image and each group, or for each group only.
#[derive(Clone, Copy)]
struct Matrices {
    at: *mut u8,
    dtype: DType,
    each: Matrix,
    of_image: bool,
}

impl Matrices {
    fn of_images(at: *mut u8, dtype: DType, each: Matrix) -> Matrices {
        Matrices { at, dtype, each, of_image: true }
    }

    /// Elements from one group to the next.
    fn size(&self) -> isize {
        (self.each.rows * self.each.columns) as isize
    }
}

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

    /// What sums that are not whole are stored as.
    fn computed(&self) -> DType {
        self.dtype.compute_dtype()
    }

    /// Channels of an image, of all groups.
    fn channels(&self) -> usize {
        self.geometry.groups * self.geometry.channels
    }

    /// The images that a workspace takes at a time: the first of them, and their number.
    fn turns(&self) -> impl Iterator<Item = (usize, usize)> {
        let (all, together) = (self.geometry.images, together(self.geometry));
        (0..all).step_by(together).map(move |first| (first, together.min(all - first)))
    }

    /// Image `first` of those at `base`.
    fn image(&self, base: *mut u8, first: usize) -> *mut u8 {
        base.wrapping_add(first * self.channels() * self.geometry.pixels() * self.dtype.size_bytes())
    }

    /// The results of image `first` of those at `base`.
    fn result(&self, base: *mut u8, first: usize) -> *mut u8 {
        let filters = self.geometry.groups * self.geometry.filters;
        base.wrapping_add(first * filters * self.geometry.all_places() * self.dtype.size_bytes())
    }

    /// Enqueues a kernel of the program.
    ///
    /// # Safety
    /// As for [`Queue::kernel`].
    unsafe fn kernel(&self, queue: &Queue<'_>, name: &str, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { queue.kernel(program_of(self.dtype), name, grid, args) }
    }

    /// Blocks for `planes` planes of `size` elements.
    fn grid(&self, queue: &Queue<'_>, size: usize, planes: usize) -> Grid {
        let mut grid = blocks(queue, (size as u64).div_ceil(u64::from(THREADS)), THREADS);
        grid.blocks[1] = planes.clamp(1, MAX_Y) as u32;
        grid
    }

    /// The patches of images: themselves, or `columns`, which are enqueued.
    ///
    /// # Safety
    /// The images are there, and room for their patches.
    unsafe fn patches(
        &self,
        queue: &Queue<'_>,
        images: *mut u8,
        count: usize,
        columns: *mut u8,
    ) -> Result<*mut u8> {
        let g = self.geometry;
        if g.is_pointwise() {
            return Ok(images);
        }
        let planes = count * self.channels();
        let numbers = self.numbers(planes);
        let grid = self.grid(queue, g.taps() * g.all_places(), planes);
        let args = [Arg::Ptr(columns), Arg::Ptr(images), numbers.arg()];
        // SAFETY: the caller's promise.
        unsafe { self.kernel(queue, by_dtype!(self.dtype, "patches"), grid, &args)? };
        Ok(columns)
    }

    /// Enqueues `c = a b`, or `c + a b`, for each of these images and each group.
    ///
    /// # Safety
    /// The matrices are within buffers that the command writes and reads.
    unsafe fn products(
        &self,
        queue: &Queue<'_>,
        images: Range<usize>,
        operands: [Matrices; 3],
        accumulate: bool,
    ) -> Result<()> {
        if images.is_empty() {
            return Ok(());
        }
        let groups = self.geometry.groups;
        let steps = operands.map(|m| if m.of_image { m.size() * groups as isize } else { 0 });
        let batch = Loops::from_axes([
            LoopAxis { size: images.len(), strides: steps },
            LoopAxis { size: groups, strides: operands.map(|m| m.size()) },
        ]);
        let at = std::array::from_fn(|i| {
            let elements = steps[i] * images.start as isize;
            operands[i].at.wrapping_offset(elements * operands[i].dtype.size_bytes() as isize)
        });
        let [c, a, b] = operands;
        let batch = MatrixBatch { c: c.each, a: a.each, b: b.each, axes: batch.axes };
        let product = Product { batch: &batch, dtype: a.dtype, c_dtype: c.dtype, accumulate };
        // SAFETY: the caller's promise.
        unsafe { product.enqueue(queue, at.map(Address)) }
    }

    /// Enqueues the kernel `name` of filters of one channel: it makes `planes` planes of `size` elements, with a bias for
    /// each of `channels`.
    ///
    /// # Safety
    /// As for [`Queue::kernel`].
    unsafe fn depthwise(
        &self,
        queue: &Queue<'_>,
        name: &str,
        [out, from, filters]: [*mut u8; 3],
        (bias, channels): (Option<&View<'_>>, usize),
        size: usize,
        planes: usize,
    ) -> Result<()> {
        let numbers = self.numbers(planes);
        let [out, from, filters] = [out, from, filters].map(|ptr| Arg::Ptr(ptr));
        let args = [out, from, filters, operand(bias), Arg::U32(channels as u32), numbers.arg()];
        // SAFETY: the caller's promise.
        unsafe { self.kernel(queue, name, self.grid(queue, size, planes), &args) }
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
                enqueue_zeros(queue, size, &Loops::in_memory_order([out.layout]), Address(address(out)))
            };
        };
        let loops = Loops::from_axes((0..4).map(|axis| LoopAxis {
            size: out.shape()[axis],
            strides: [out.layout.strides()[axis], isize::from(axis == 1)],
        }));
        // SAFETY: the caller's promise.
        unsafe { enqueue_copy(queue, size, &loops, [Address(address(out)), Address(address(bias))]) }
    }
}

/// A row-major matrix, or the transpose of one.
fn matrix(rows: usize, columns: usize) -> Matrix {
    Matrix { rows, columns, row: columns as isize, column: 1 }
}

impl Memory<'_> {
    /// Images, filters, results, and the workspace.
    fn addresses(&self) -> [*mut u8; 4] {
        let [x, w, y] = [&self.images, &self.filters, &self.results].map(address);
        [x, w, y, self.workspace.as_ref().map_or(std::ptr::null_mut(), address)]
    }
}

pub(crate) fn forward(
    stream: &Stream,
    op: &'static str,
    uses: &[Use<'_>],
    geometry: &Geometry,
    memory: Memory<'_>,
) -> Result<()> {
    let dtype = memory.results.dtype;
    let kernels = Kernels::new(op, geometry, dtype)?;
    let g = *geometry;
    stream.submit(op, uses, |queue| {
        let [x, w, y, columns] = memory.addresses();
        let (k, places, bias) = (g.filter(), g.all_places(), memory.bias.as_ref());
        if g.is_depthwise() {
            let (name, planes) = (by_dtype!(dtype, "depthwise"), g.images * g.groups * g.filters);
            // SAFETY: sizes are those of the operands, which were checked, and the uses name their buffers.
            return unsafe { kernels.depthwise(queue, name, [y, x, w], (bias, g.groups), places, planes) };
        }
        if bias.is_some() || k == 0 {
            // SAFETY: as above.
            unsafe { kernels.start(queue, &memory.results, bias)? };
        }
        if k == 0 {
            return Ok(());
        }
        for (first, count) in kernels.turns() {
            // SAFETY: as above; the workspace has room for the patches of these images.
            unsafe {
                let patches = kernels.patches(queue, kernels.image(x, first), count, columns)?;
                let operands = [
                    Matrices::of_images(kernels.result(y, first), dtype, matrix(g.filters, places)),
                    Matrices { at: w, dtype, each: matrix(g.filters, k), of_image: false },
                    Matrices::of_images(patches, dtype, matrix(k, places)),
                ];
                kernels.products(queue, 0..count, operands, bias.is_some())?;
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
    let dtype = memory.images.dtype;
    let kernels = Kernels::new(op, geometry, dtype)?;
    let g = *geometry;
    stream.submit(op, uses, |queue| {
        let [x, w, y, columns] = memory.addresses();
        let (k, places, bias) = (g.filter(), g.all_places(), memory.bias.as_ref());
        let (channels, pixels) = (kernels.channels(), g.pixels());
        if g.is_depthwise() {
            let (name, planes) = (by_dtype!(dtype, "depthwise_input_grad"), g.images * channels);
            // SAFETY: sizes are those of the operands, which were checked, and the uses name their buffers.
            return unsafe { kernels.depthwise(queue, name, [x, y, w], (bias, channels), pixels, planes) };
        }
        if g.filters == 0 || places == 0 {
            // SAFETY: as above.
            return unsafe { kernels.start(queue, &memory.images, bias) };
        }
        for (first, count) in kernels.turns() {
            let planes = count * channels;
            let numbers = kernels.numbers(planes);
            let args = [
                Arg::Ptr(kernels.image(x, first)),
                Arg::Ptr(columns),
                operand(bias),
                Arg::U32(channels as u32),
                Arg::U64((first * channels) as u64),
                numbers.arg(),
            ];
            // SAFETY: as above; the workspace has room for the patches of these images.
            unsafe {
                let operands = [
                    Matrices::of_images(columns, kernels.computed(), matrix(k, places)),
                    Matrices { at: w, dtype, each: matrix(g.filters, k).transposed(), of_image: false },
                    Matrices::of_images(kernels.result(y, first), dtype, matrix(g.filters, places)),
                ];
                kernels.products(queue, 0..count, operands, false)?;
                let grid = kernels.grid(queue, pixels, planes);
                kernels.kernel(queue, by_dtype!(dtype, "add_patches"), grid, &args)?;
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
    let dtype = memory.filters.dtype;
    let kernels = Kernels::new(op, geometry, dtype)?;
    let g = *geometry;
    stream.submit(op, uses, |queue| {
        let [x, w, y, columns] = memory.addresses();
        let (k, places) = (g.filter(), g.all_places());
        if g.images == 0 || places == 0 {
            // SAFETY: the operands were checked, and the uses name their buffers.
            return unsafe { kernels.start(queue, &memory.filters, None) };
        }
        if g.is_depthwise() {
            let numbers = kernels.numbers(0);
            let rows = g.groups * g.filters * g.taps();
            let grid = blocks(queue, rows as u64, THREADS);
            let counts = [Arg::U32(g.groups as u32), Arg::U32(g.images as u32)];
            let args = [Arg::Ptr(w), Arg::Ptr(x), Arg::Ptr(y), counts[0], counts[1], numbers.arg()];
            // SAFETY: as above.
            return unsafe { kernels.kernel(queue, by_dtype!(dtype, "depthwise_weight_grad"), grid, &args) };
        }
        let size = g.groups * g.filters * k;
        let computed = kernels.computed();
        let parts = columns.wrapping_add(together(&g) * g.groups * k * places * computed.size_bytes());
        for (first, count) in kernels.turns() {
            // SAFETY: as above; the workspace has room for the patches and the parts of these images.
            unsafe {
                let patches = kernels.patches(queue, kernels.image(x, first), count, columns)?;
                let operands = [
                    Matrices::of_images(parts, computed, matrix(g.filters, k)),
                    Matrices::of_images(kernels.result(y, first), dtype, matrix(g.filters, places)),
                    Matrices::of_images(patches, dtype, matrix(k, places).transposed()),
                ];
                // The first part of a later turn starts with the sum of those before.
                let continued = usize::from(first > 0);
                kernels.products(queue, 0..continued, operands, true)?;
                kernels.products(queue, continued..count, operands, false)?;
                let last = first + count == g.images;
                let (to, stored) = if last { (w, dtype) } else { (parts, computed) };
                let args = [Arg::Ptr(to), Arg::Ptr(parts), Arg::U64(count as u64), Arg::U64(size as u64)];
                let grid = blocks(queue, (size as u64).div_ceil(u64::from(THREADS)), THREADS);
                kernels.kernel(queue, by_dtype!(stored, "add_parts"), grid, &args)?;
            }
        }
        Ok(())
    })
}
