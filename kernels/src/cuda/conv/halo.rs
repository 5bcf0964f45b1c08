//! Channels-last convolutions on tensor cores; a tile of output positions shares its input pixels in shared memory.

use device::cuda::Grid;
use device::{DType, Result};

use super::implicit::{Implicit, MOST};
use super::{Convolution, HALO, Parts};
use crate::command::Address;
use crate::cuda::libraries::ConvPass;
use crate::cuda::walk::{ByValue, MAX_Y};
use crate::cuda::{kernel_name, type_name};
use crate::geometry::ConvGeometry;
use crate::window::Window;

/// Filters per tile, as in the program.
const FILTERS: usize = 64;
/// Output positions per tile (one per thread), and bytes of a row of channels.
const PLACES: usize = 256;
const ROW_BYTES: usize = 80;
/// The same for filter gradients, window elements of a row per thread block, and elements of a row.
const GRAD_PLACES: usize = 128;
const GRAD_CHANNELS: usize = 64;
const WIDE_ROW: usize = 72;
const TAPS: usize = 3;
/// Shared memory for reordering a tile's outputs.
const BAND_BYTES: usize = PLACES * (FILTERS + 4) * 4;

/// Forward pass, input gradient or filter gradient of a channels-last convolution, by tiles of output positions.
#[derive(Clone, Debug)]
pub(crate) struct Halo {
    slide: Slide,
    pub(super) parts: Parts,
    /// Grid size along y: tiles of filters, times groups of window elements for filter gradients.
    down: usize,
    bytes: usize,
}

/// `Slide` of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Slide {
    images: u32,
    channels: u32,
    filters: u32,
    image: [u32; 2],
    places: [u32; 2],
    kernel: [u32; 2],
    stride: [u32; 2],
    dilation: [u32; 2],
    first: [i32; 2],
    tile_log: u32,
    tiles: [u32; 2],
    seen: [u32; 2],
    each: u32,
    relu: u32,
}

// SAFETY: all fields are words of 32 bits, so `repr(C)` adds no padding.
unsafe impl ByValue for Slide {}

/// Tiling of output planes.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    /// log2 of a tile's columns.
    log: u32,
    /// Tiles across a plane and down.
    tiles: [usize; 2],
    /// Rows and columns of a tile's input pixels.
    seen: [usize; 2],
    /// Shared memory of a block.
    bytes: usize,
}

impl Tiling {
    /// Most shared memory per block, so that two blocks fit on a multiprocessor.
    const MOST_BYTES: usize = 99 << 10;

    /// The tiling with the fewest tiles and input pixels; `None` if none fits, or if more than a third of the positions would be empty.
    fn of(places: [usize; 2], window: &Window, pass: ConvPass, dtype: DType) -> Option<Tiling> {
        let is_grad = pass == ConvPass::WeightGrad;
        let size = if is_grad { GRAD_PLACES } else { PLACES };
        let of = |log: u32| {
            let tile = [size >> log, 1 << log];
            let rows = if is_grad { 1 } else { window.extent(0) };
            let seen = [
                (tile[0] - 1) * window.stride[0] + rows,
                (tile[1] - 1) * window.stride[1] + window.extent(1),
            ];
            let pixels = seen[0].saturating_mul(seen[1]);
            let taps = window.kernel[0] * window.kernel[1];
            let memory = match is_grad {
                true => pixels.saturating_add(size).saturating_mul(WIDE_ROW * dtype.size_bytes()),
                false => pixels
                    .saturating_mul(ROW_BYTES)
                    .saturating_add(taps * FILTERS * ROW_BYTES)
                    .max(BAND_BYTES),
            };
            let bytes = memory.saturating_add(pixels.saturating_mul(4));
            Tiling { log, tiles: [places[1].div_ceil(tile[1]), places[0].div_ceil(tile[0])], seen, bytes }
        };
        (3..=size.ilog2())
            .map(of)
            .filter(|tiling| tiling.bytes <= Tiling::MOST_BYTES)
            .min_by_key(|tiling| (tiling.all(), tiling.seen[0] * tiling.seen[1]))
            .filter(|tiling| tiling.all() * size * 2 <= places[0] * places[1] * 3)
    }

    fn all(&self) -> usize {
        self.tiles[0] * self.tiles[1]
    }
}

impl Halo {
    /// Least channels and filters; fewer leave tensor core operands mostly empty.
    pub(super) const LEAST: usize = 16;
    /// Thread blocks of a filter gradient that fill a device. Their number determines the order of additions.
    const ENOUGH: usize = 396;

    /// `None` if unsupported, or if another algorithm is faster. F32 is rounded to TF32.
    pub(super) fn of(g: &ConvGeometry, pass: ConvPass, dtype: DType) -> Option<Halo> {
        let is_reverse = pass == ConvPass::InputGrad;
        // The program's numbers must stay below 2^29.
        let counted = g.groups == 1 && Implicit::of(g, pass, (dtype, false)).is_some();
        // Vectors of 16 bytes.
        let lanes = 16 / dtype.size_bytes();
        let many =
            [g.channels, g.filters].iter().all(|&size| size >= Halo::LEAST && size.is_multiple_of(lanes));
        let planes = [g.pixels(), g.all_places()].map(|size| g.images.saturating_mul(size));
        let counted = counted && planes.iter().all(|size| (1..MOST).contains(size));
        if !counted || !many || is_reverse && g.window.stride != [1; 2] {
            return None;
        }
        let (mut seen, mut made) = ((g.image, g.channels), (g.places, g.filters));
        let mut first = g.window.padding.map(|padding| -(padding as i32));
        if is_reverse {
            // Input gradient: windows slide over the output gradient and begin before its first position.
            (seen, made) = (made, seen);
            first = [0, 1].map(|axis| 1 - g.window.extent(axis) as i32 - first[axis]);
        }
        let tiling = Tiling::of(made.0, &g.window, pass, dtype)?;
        let mut down = made.1.div_ceil(FILTERS);
        let mut parts = Parts::NONE;
        if pass == ConvPass::WeightGrad {
            down *= g.window.kernel[0] * g.window.kernel[1].div_ceil(TAPS);
            let beside = down * seen.1.div_ceil(GRAD_CHANNELS);
            parts = Parts::of(g.images * tiling.all(), Halo::ENOUGH / beside, 1, dtype);
        }
        let words = |pair: [usize; 2]| pair.map(|size| size as u32);
        let slide = Slide {
            images: g.images as u32,
            channels: seen.1 as u32,
            filters: made.1 as u32,
            image: words(seen.0),
            places: words(made.0),
            kernel: words(g.window.kernel),
            stride: words(g.window.stride),
            dilation: words(g.window.dilation),
            first,
            tile_log: tiling.log,
            tiles: words(tiling.tiles),
            seen: words(tiling.seen),
            each: parts.each as u32,
            relu: 0,
        };
        (down <= MAX_Y).then_some(Halo { slide, parts, down, bytes: tiling.bytes })
    }
}

impl Convolution<'_> {
    /// Enqueues the forward pass or input gradient, or the parts of a filter gradient.
    pub(super) fn halo(
        &self,
        halo: &Halo,
        pass: ConvPass,
        out: Address,
        [left, right]: [Address; 2],
        bias: Option<Address>,
    ) -> Result<()> {
        let Halo { slide, parts, down, bytes } = halo;
        let element = type_name(self.dtype, true);
        let [images, across, tiles] = [slide.images, slide.tiles[0], slide.tiles[1]];
        let all = images * across * tiles;
        let (kernel, across, threads) = match pass {
            ConvPass::Forward => ("halo", all, PLACES),
            ConvPass::InputGrad => ("halo_input_grad", all, PLACES),
            ConvPass::WeightGrad => {
                let wide = slide.channels.div_ceil(GRAD_CHANNELS as u32);
                ("halo_weight_grad", parts.all as u32 * wide, GRAD_PLACES)
            }
        };
        let slide = Slide { relu: u32::from(self.relu), ..*slide };
        let blocks = [across, *down as u32, 1];
        let grid = Grid { blocks, shared_bytes: *bytes as u32, ..Grid::linear(1, threads as u32) };
        let args = [out.into(), left.into(), right.into(), bias.into(), slide.arg()];
        // SAFETY: the kernel takes these arguments, operands of the geometry and a workspace with room for the parts.
        unsafe { self.queue.kernel(HALO.named(element), &kernel_name(&[kernel], element), grid, &args) }
    }
}
