//! Convolutions whose windows lie side by side and cover the image: products of all images at once. What each place sees is a
//! row of a matrix, and so is what is made of it, one element a filter.

use std::array;

use device::cuda::{Arg, Grid};
use device::{DType, Result};

use super::{Convolution, WORKSPACE, row_major};
use crate::command::Address;
use crate::cuda::copy::enqueue_copy;
use crate::cuda::libraries::ConvPass;
use crate::cuda::matmul::{Onto, Product};
use crate::cuda::walk::{MAX_Y, THREADS};
use crate::geometry::ConvGeometry;
use crate::loops::{LoopAxis, Loops};
use crate::matrices::{MatrixBatch, MatrixLayout};

/// Rows of pixels of the kernels' tiles, and their columns; as in the program.
const TILE_LINES: usize = 32;
const TILE_WIDTH: usize = 64;
/// Elements that parts of a workspace are a multiple of, so that the library finds them aligned.
const ALIGNED: usize = 64;

/// What the products of a convolution need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiled {
    /// Images of a turn.
    together: usize,
    /// Places of the images, the rows of the matrices, in a part of a filters' gradient.
    chunk: usize,
    /// Elements of the rows' matrix, of that of the results, and of what is kept from turn to turn.
    sizes: [usize; 3],
}

impl Tiled {
    /// Tiles of the products of a turn that occupy a device, and their sides.
    const ENOUGH: usize = 512;
    const SIDE: usize = 64;
    /// Rows that make a part worth the sum with the others.
    const LEAST_CHUNK: usize = 256;

    /// `None` where windows do not lie side by side, or there is nothing to multiply.
    pub(super) fn of(g: &ConvGeometry, pass: ConvPass) -> Option<Tiled> {
        let (places, k, filters) = (g.all_places(), g.filter(), g.filters);
        if !g.is_tiled() || g.window.kernel[1] > TILE_WIDTH || g.images.min(places).min(k).min(filters) == 0 {
            return None;
        }
        // A place for each image: the images are the rows of the matrices themselves.
        let [of_rows, of_results] = if places == 1 { [0; 2] } else { [places * k, places * filters] };
        let together = (WORKSPACE / (of_rows + of_results).max(1)).clamp(1, g.images);
        let tiles = filters.div_ceil(Tiled::SIDE) * k.div_ceil(Tiled::SIDE);
        let all = g.images.saturating_mul(places);
        let chunk = (together * places).div_ceil((Tiled::ENOUGH / tiles).max(1)).max(Tiled::LEAST_CHUNK);
        let kept = match pass {
            ConvPass::Forward => 0,
            ConvPass::InputGrad => k,
            ConvPass::WeightGrad if chunk >= all && together == g.images => 0,
            ConvPass::WeightGrad => (together * places).div_ceil(chunk) * filters * k,
        };
        let sizes =
            [together * of_rows, together * of_results, kept].map(|size| size.next_multiple_of(ALIGNED));
        Some(Tiled { together, chunk, sizes })
    }

    /// Elements of the workspace.
    pub(super) fn workspace(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn turns(&self, images: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let together = self.together;
        (0..images).step_by(together).map(move |first| (first, together.min(images - first)))
    }
}

/// Which way elements are copied between images and the rows of a matrix.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    ToRows,
    ToImages,
}

/// `results`, `images` and `filters` are the operands of the convolution, whichever of them is written.
impl Convolution<'_> {
    pub(super) fn tiled_forward(
        &self,
        tiled: &Tiled,
        results: Address,
        [images, filters]: [Address; 2],
        bias: Option<Address>,
    ) -> Result<()> {
        let (g, [rows, matrix, _]) = (self.geometry, self.memory(tiled));
        let onto = bias.map_or(Onto::Nothing, |bias| Onto::Row(bias, 1));
        for (first, count) in tiled.turns(g.images) {
            let seen = self.rows_of(self.image(images, first), count, rows)?;
            let out = self.results(results, first).at;
            let made = if is_one(g) { out } else { matrix };
            let shapes = [made_by(g, count), seen_by(g, count), filters_of(g).transposed()];
            self.product(shapes, [made, seen, filters], &[], (self.dtype, onto))?;
            self.copy_results(Way::ToImages, [out, made], count)?;
        }
        Ok(())
    }

    pub(super) fn tiled_input_grad(
        &self,
        tiled: &Tiled,
        images: Address,
        [results, filters]: [Address; 2],
        bias: Option<Address>,
    ) -> Result<()> {
        let (g, [rows, matrix, row]) = (self.geometry, self.memory(tiled));
        let onto = match bias {
            Some(bias) => self.bias_of_taps(row, bias)?,
            None => Onto::Nothing,
        };
        for (first, count) in tiled.turns(g.images) {
            let slopes = self.matrix_of(self.results(results, first).at, count, matrix)?;
            let out = self.image(images, first);
            let made = if is_one(g) { out } else { rows };
            let shapes = [seen_by(g, count), made_by(g, count), filters_of(g)];
            self.product(shapes, [made, slopes, filters], &[], (self.dtype, onto))?;
            self.copy_tiles(Way::ToImages, [out, made], count)?;
        }
        Ok(())
    }

    /// Sums of chunks of rows, all of them at once, and then the sum of these.
    pub(super) fn tiled_weight_grad(
        &self,
        tiled: &Tiled,
        filters: Address,
        [images, results]: [Address; 2],
    ) -> Result<()> {
        let (g, [rows, matrix, parts]) = (self.geometry, self.memory(tiled));
        let is_whole = tiled.sizes[2] == 0;
        let (to, dtype) = if is_whole { (filters, self.dtype) } else { (parts, self.dtype.compute_dtype()) };
        let shapes = |height: usize| {
            let (slopes, seen) = (row_major(height, g.filters), row_major(height, g.filter()));
            [filters_of(g), slopes.transposed(), seen]
        };
        let steps =
            [g.filters * g.filter(), tiled.chunk * g.filters, tiled.chunk * g.filter()].map(|n| n as isize);
        let sizes = [dtype, self.dtype, self.dtype].map(DType::size_bytes);
        for (first, count) in tiled.turns(g.images) {
            let seen = self.rows_of(self.image(images, first), count, rows)?;
            let slopes = self.matrix_of(self.results(results, first).at, count, matrix)?;
            let how = (dtype, if first > 0 { Onto::Held } else { Onto::Nothing });
            let (chunks, rest) = (count * g.all_places() / tiled.chunk, count * g.all_places() % tiled.chunk);
            let at = [to, slopes, seen];
            if chunks > 0 {
                self.product(shapes(tiled.chunk), at, &[LoopAxis { size: chunks, strides: steps }], how)?;
            }
            if rest > 0 {
                let at = array::from_fn(|i| at[i].offset(chunks as isize * steps[i], sizes[i]));
                self.product(shapes(rest), at, &[], how)?;
            }
        }
        let count = (tiled.together * g.all_places()).div_ceil(tiled.chunk);
        if is_whole { Ok(()) } else { self.add_parts((filters, self.dtype), parts, count) }
    }

    /// The parts of the workspace: for the rows, for what is made of them, and for what is kept from turn to turn.
    fn memory(&self, tiled: &Tiled) -> [Address; 3] {
        let ([rows, matrix, _], size) =
            (tiled.sizes.map(|n| n as isize), self.dtype.compute_dtype().size_bytes());
        [self.columns, self.columns.offset(rows, size), self.columns.offset(rows + matrix, size)]
    }

    /// What the places of `count` images see, a row each.
    fn rows_of(&self, images: Address, count: usize, rows: Address) -> Result<Address> {
        self.copy_tiles(Way::ToRows, [rows, images], count)?;
        Ok(if is_one(self.geometry) { images } else { rows })
    }

    /// The results of `count` images, a row for each place.
    fn matrix_of(&self, results: Address, count: usize, matrix: Address) -> Result<Address> {
        self.copy_results(Way::ToRows, [matrix, results], count)?;
        Ok(if is_one(self.geometry) { results } else { matrix })
    }

    /// Enqueues a copy between images and rows, if they are not the same.
    fn copy_tiles(&self, way: Way, [to, from]: [Address; 2], count: usize) -> Result<()> {
        let g = self.geometry;
        if is_one(g) {
            return Ok(());
        }
        let kernel = match way {
            Way::ToRows => "rows_of_tiles",
            Way::ToImages => "tiles_of_rows",
        };
        let [places, wide] = [g.places[1], g.window.kernel[1]];
        let across = places.div_ceil(TILE_WIDTH / wide);
        let lines = (g.channels * g.window.kernel[0]).div_ceil(TILE_LINES);
        let planes = count * g.places[0];
        let grid = Grid {
            blocks: [(across * lines) as u32, planes.min(MAX_Y) as u32, 1],
            ..Grid::linear(1, THREADS)
        };
        self.kernel(kernel, grid, [to.into(), from.into(), Arg::U32(g.channels as u32)], planes)
    }

    /// Enqueues a copy between results, `[n, f, places]`, and rows, `[n, places, f]`, if they are not the same.
    fn copy_results(&self, way: Way, at: [Address; 2], count: usize) -> Result<()> {
        let (places, filters) = (self.geometry.all_places(), self.geometry.filters);
        if is_one(self.geometry) {
            return Ok(());
        }
        let each = (places * filters) as isize;
        let image = LoopAxis { size: count, strides: [each; 2] };
        let place = |strides| LoopAxis { size: places, strides };
        let filter = |strides| LoopAxis { size: filters, strides };
        // What is written follows the innermost axis.
        let loops = Loops::from_axes(match way {
            Way::ToImages => [image, filter([places as isize, 1]), place([1, filters as isize])],
            Way::ToRows => [image, place([filters as isize, 1]), filter([1, places as isize])],
        });
        // SAFETY: both sides have a place and a filter for each element of the loops.
        unsafe { enqueue_copy(self.queue, self.dtype.size_bytes(), &loops, at) }
    }

    /// Enqueues the bias of each channel for all that a window sees of it: the row that products are added to.
    fn bias_of_taps(&self, row: Address, bias: Address) -> Result<Onto> {
        let (channels, taps) = (self.geometry.channels, self.geometry.taps());
        let loops = Loops::from_axes([
            LoopAxis { size: channels, strides: [taps as isize, 1] },
            LoopAxis { size: taps, strides: [1, 0] },
        ]);
        // SAFETY: the row has an element for each that a window sees, and the bias one for each channel.
        unsafe { enqueue_copy(self.queue, self.dtype.size_bytes(), &loops, [row, bias])? };
        Ok(Onto::Row(row, 1))
    }

    /// Enqueues `c = a b` of these matrices, or `c` plus what it is put onto, for each index of an axis.
    fn product(
        &self,
        [c, a, b]: [MatrixLayout; 3],
        at: [Address; 3],
        axes: &[LoopAxis<3>],
        (c_dtype, onto): (DType, Onto),
    ) -> Result<()> {
        let batch = MatrixBatch { c, a, b, axes: axes.iter().copied().collect() };
        let (dtype, tf32, workspace) = (self.dtype, self.tf32, self.products);
        let product = Product { batch: &batch, dtype, c_dtype, onto, relu: false, tf32, workspace };
        // SAFETY: the matrices are parts of the operands and of the workspace, which has room for a turn.
        unsafe { product.enqueue(self.queue, at) }
    }
}

/// Whether each image has one place: images and results are rows then.
fn is_one(g: &ConvGeometry) -> bool {
    g.all_places() == 1
}

/// What is seen by the places of `count` images.
fn seen_by(g: &ConvGeometry, count: usize) -> MatrixLayout {
    row_major(count * g.all_places(), g.filter())
}

/// What is made of that.
fn made_by(g: &ConvGeometry, count: usize) -> MatrixLayout {
    row_major(count * g.all_places(), g.filters)
}

fn filters_of(g: &ConvGeometry) -> MatrixLayout {
    row_major(g.filters, g.filter())
}
