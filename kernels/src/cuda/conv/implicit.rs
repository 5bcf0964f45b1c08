//! Implicit GEMM convolutions on tensor cores.

use device::cuda::Grid;
use device::{DType, Result};

use super::{Convolution, IMPLICIT, Parts};
use crate::command::Address;
use crate::cuda::libraries::ConvPass;
use crate::cuda::type_name;
use crate::cuda::walk::{ByValue, MAX_Y};
use crate::geometry::ConvGeometry;

/// Rows and columns of a tile, and threads of a block; as in the program.
const TILE: [usize; 2] = [64, 128];
const TILE_THREADS: u32 = 256;
/// Bytes of the operands' rows per step.
const STEP_BYTES: usize = 64;
/// Rows of a tile that are stored together, as in the program.
const BAND: usize = 32;
/// Exclusive bound of sizes along an axis, and of positions including padding.
pub(super) const MOST: usize = 1 << 29;
/// Most elements of a window that may reach into the padding.
const MOST_TAPS: usize = 64;

/// Parameters of an implicit GEMM. A thread block computes a tile and, for filter gradients, a part of its sum.
#[derive(Clone, Debug)]
pub(crate) struct Implicit {
    product: Product,
    /// Type of the operands, and whether F32 is rounded to TF32.
    element: (DType, bool),
    /// Tiles across and down.
    tiles: [usize; 2],
    pub(super) parts: Parts,
}

/// Pass of the convolution. If windows do not overlap, the input gradient has a column per output position and a row per pixel of its window.
#[derive(Clone, Copy, Debug)]
enum Product {
    Forward,
    InputGrad,
    TilesGrad,
    WeightGrad,
}

/// `Sizes` of the program.
#[repr(C)]
struct Sizes {
    images: u32,
    groups: u32,
    channels: u32,
    filters: u32,
    each: u32,
    relu: u32,
}

// SAFETY: all fields are words of 32 bits, so `repr(C)` adds no padding.
unsafe impl ByValue for Sizes {}

impl Implicit {
    /// Least rows, columns and terms of a sum; fewer leave tiles mostly empty.
    const LEAST: [usize; 3] = [16, 32, 32];
    /// Thread blocks that fill a device. Their number determines the order of additions.
    const ENOUGH: usize = 256;
    /// Thread blocks from which on this is faster than cuDNN.
    const BUSY: usize = 96;
    /// Least steps per part of a sum.
    const LEAST_STEPS: usize = 8;

    /// `None` if unsupported, or if another algorithm is faster.
    pub(super) fn of(g: &ConvGeometry, pass: ConvPass, (dtype, exact): (DType, bool)) -> Option<Implicit> {
        let points = |size: usize| g.images.saturating_mul(size);
        let product = match pass {
            ConvPass::Forward => Product::Forward,
            ConvPass::InputGrad if g.is_tiled() && BAND.is_multiple_of(g.window.kernel[1]) => {
                Product::TilesGrad
            }
            ConvPass::InputGrad => Product::InputGrad,
            ConvPass::WeightGrad => Product::WeightGrad,
        };
        let [rows, columns, depth] = match product {
            Product::Forward => [g.filters, points(g.all_places()), g.filter()],
            Product::InputGrad => [g.channels, points(g.pixels()), g.filters * g.taps()],
            Product::TilesGrad => [g.filter(), points(g.all_places()), g.filters],
            Product::WeightGrad => [g.filters, g.filter(), points(g.all_places())],
        };
        let sizes = [rows, columns, depth];
        let tiles = [columns.div_ceil(TILE[1]), rows.div_ceil(TILE[0])];
        let planes = [g.channels.saturating_mul(g.pixels()), g.filters.saturating_mul(g.all_places())];
        let reach = [0, 1].map(|axis| g.window.extent(axis).saturating_add(g.window.padding[axis]));
        let fill_tiles = sizes.iter().zip(Implicit::LEAST).all(|(&size, least)| size >= least);
        // Distance of window elements in a plane.
        let apart = reach[0].saturating_mul(g.image[1].max(g.places[1]));
        let counted = sizes
            .into_iter()
            .chain(planes)
            .chain(reach)
            .chain(g.image)
            .chain([apart])
            .all(|size| size < MOST);
        // Windows that lie within the image need no mask.
        let sees_all = g.is_tiled() && !matches!(product, Product::InputGrad);
        let is_other =
            dtype == DType::F64 || g.is_pointwise() || g.is_depthwise() || g.taps() > MOST_TAPS && !sees_all;
        if is_other || !fill_tiles || !counted || tiles[1].max(g.groups) > MAX_Y {
            return None;
        }
        let parts = match pass {
            ConvPass::WeightGrad => {
                let steps = depth.div_ceil(STEP_BYTES / dtype.size_bytes());
                let parts = Implicit::ENOUGH / (tiles[0] * tiles[1] * g.groups);
                Parts::of(steps, parts, Implicit::LEAST_STEPS, dtype)
            }
            _ => Parts::NONE,
        };
        Some(Implicit { product, element: (dtype, !exact), tiles, parts })
    }

    /// Whether there are enough tiles to fill a device. False for strided input gradients, most of whose terms are masked.
    pub(super) fn is_full(&self, g: &ConvGeometry) -> bool {
        let blocks = self.tiles[0] * self.tiles[1] * self.parts.all.max(1) * g.groups;
        let is_exact = self.element == (DType::F32, false);
        match self.product {
            Product::InputGrad if g.window.stride != [1; 2] => false,
            Product::Forward | Product::InputGrad if is_exact => blocks >= Implicit::BUSY,
            // cuDNN is slower there.
            _ => blocks >= Implicit::BUSY / 2,
        }
    }
}

impl Convolution<'_> {
    /// Enqueues the forward pass, the input gradient, or the parts of a filter gradient, from two operands.
    pub(super) fn implicit(
        &self,
        implicit: &Implicit,
        out: Address,
        [left, right]: [Address; 2],
        bias: Option<Address>,
    ) -> Result<()> {
        let (g, (dtype, tf32)) = (self.geometry, implicit.element);
        let element = type_name(dtype, tf32);
        let kernel = match implicit.product {
            Product::Forward => "implicit",
            Product::InputGrad => "implicit_input_grad",
            Product::TilesGrad => "implicit_tiles_grad",
            Product::WeightGrad => "implicit_weight_grad",
        };
        let [images, groups, channels, filters, each] =
            [g.images, g.groups, g.channels, g.filters, implicit.parts.each].map(|count| count as u32);
        let sizes = Sizes { images, groups, channels, filters, each, relu: u32::from(self.relu) };
        let [across, down] = implicit.tiles;
        let blocks = [(across * implicit.parts.all.max(1)) as u32, down as u32, groups];
        let grid = Grid { blocks, ..Grid::linear(1, TILE_THREADS) };
        let args = [out.into(), left.into(), right.into(), bias.into(), sizes.arg()];
        self.kernel_of(&IMPLICIT, &[kernel], element, grid, args, 0)
    }
}
