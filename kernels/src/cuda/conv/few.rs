//! Direct convolutions for few channels and filters, stride 1 and dilation 1; operands of a tile are in shared memory.

use device::Result;
use device::cuda::{Arg, Grid};

use super::Convolution;
use super::{DIRECT, FEW};
use crate::command::Address;
use crate::cuda::libraries::ConvPass;
use crate::cuda::rows::{BLOCK, RowThreads, Units};
use crate::cuda::type_name;
use crate::cuda::walk::{ByValue, MAX_Y};
use crate::geometry::ConvGeometry;

/// Whether there is one group, and stride and dilation are 1.
fn is_dense(g: &ConvGeometry) -> bool {
    g.groups == 1 && g.window.stride == [1; 2] && g.window.dilation == [1; 2]
}

/// Direct forward pass or input gradient: a thread block computes a tile of an image for a group of filters.
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    /// Filters per group, and number of groups.
    filters: usize,
    groups: usize,
}

/// Rows and columns of a tile, and threads of a block; as in the program.
const TILE: [usize; 2] = [8, 64];
const TILE_THREADS: u32 = 128;

impl Direct {
    /// Most channels and filters.
    const FEW: usize = 32;
    /// Most filters per group.
    const WIDEST: usize = 16;
    /// Least outputs per filter; smaller ones leave tiles mostly empty.
    const LARGE: usize = 64 * 64;

    /// `None` if unsupported, or if another algorithm is faster.
    pub(super) fn of(g: &ConvGeometry, pass: ConvPass) -> Option<Direct> {
        let (made, size) = match pass {
            ConvPass::Forward => (g.filters, g.all_places()),
            ConvPass::InputGrad => (g.channels, g.pixels()),
            ConvPass::WeightGrad => return None,
        };
        let [kh, kw] = g.window.kernel;
        let few = (1..Direct::FEW).contains(&g.channels) && (1..Direct::FEW).contains(&g.filters);
        if !is_dense(g)
            || !few
            || size < Direct::LARGE
            || !matches!(kw, 1 | 3 | 5)
            || kh > kw
            || g.images == 0
        {
            return None;
        }
        let groups = made.div_ceil(Direct::WIDEST);
        Some(Direct { filters: made.div_ceil(groups).next_multiple_of(4), groups })
    }
}

/// Filter gradient for few channels and filters: a thread computes a row of one filter and channel; see the program.
#[derive(Clone, Debug)]
pub(crate) struct Few {
    /// Parts of the sum, one per thread block. Their number determines the order of additions.
    pub(super) parts: usize,
    /// Threads of a block: one per filter row, or a multiple, which splits the rows of output positions.
    threads: u32,
    /// Elements in shared memory.
    elements: u32,
    cut: Cut,
}

/// `Cut` of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Cut {
    rows: u32,
    columns: u32,
    each: u32,
    splits: u32,
}

// SAFETY: all fields are words of 32 bits, so `repr(C)` adds no padding.
unsafe impl ByValue for Cut {}

impl Few {
    const BLOCKS: usize = 256;
    /// Most parts if images are split: as many as one warp combines.
    const MORE_BLOCKS: usize = BLOCK;
    const THREADS: usize = 512;
    /// Most elements of a filter row.
    const WIDEST: usize = 8;
    /// Threads of a block with fewer filter rows.
    const ENOUGH: usize = 256;
    /// Elements of any type that fit into shared memory.
    const SHARED: usize = (48 << 10) / 8;

    /// `None` if there are too many, or none.
    pub(super) fn of(g: &ConvGeometry) -> Option<Few> {
        let ConvGeometry { images, channels, filters, places, window, .. } = *g;
        let [kh, kw] = window.kernel;
        let pairs = filters.saturating_mul(channels).saturating_mul(kh);
        if !is_dense(g)
            || pairs > Few::THREADS
            || kw > Few::WIDEST
            || images.min(pairs).min(g.all_places()) == 0
        {
            return None;
        }
        let elements = |[rows, columns]: [usize; 2]| {
            let image = channels.saturating_mul(rows + kh).saturating_mul(columns + kw);
            image.saturating_add(filters.saturating_mul(rows).saturating_mul(columns + 1)) + Few::WIDEST
        };
        // Halve the longer side until a tile fits.
        let mut tile = places;
        while elements(tile) > Few::SHARED {
            let longer = usize::from(tile[1] > tile[0]);
            if tile[longer] == 1 {
                return None;
            }
            tile[longer] = tile[longer].div_ceil(2);
        }
        let splits = (Few::ENOUGH / pairs).clamp(1, tile[0]);
        let elements = elements(tile).max(pairs * splits * kw);
        let tiles = images.saturating_mul(places[0].div_ceil(tile[0]) * places[1].div_ceil(tile[1]));
        let each = tiles.div_ceil(if tile == places { Few::BLOCKS } else { Few::MORE_BLOCKS });
        (elements <= Few::SHARED && tiles < 1 << 31).then(|| Few {
            parts: tiles.div_ceil(each),
            threads: (pairs * splits) as u32,
            elements: elements as u32,
            cut: Cut {
                rows: tile[0] as u32,
                columns: tile[1] as u32,
                each: each as u32,
                splits: splits as u32,
            },
        })
    }
}

impl Convolution<'_> {
    /// Enqueues the forward pass or the input gradient on (output, input, filters).
    pub(super) fn direct(
        &self,
        direct: &Direct,
        out: Address,
        [read, weights]: [Address; 2],
        bias: Option<Address>,
        pass: ConvPass,
    ) -> Result<()> {
        let (g, is_grad) = (self.geometry, pass == ConvPass::InputGrad);
        let (sizes, numbers) = match is_grad {
            true => (g.image, [g.filters, g.channels]),
            false => (g.places, [g.channels, g.filters]),
        };
        let (width, filters) = (g.window.kernel[1].to_string(), direct.filters.to_string());
        let planes = g.images * direct.groups;
        let tiles = sizes[0].div_ceil(TILE[0]) * sizes[1].div_ceil(TILE[1]);
        let grid =
            Grid { blocks: [tiles as u32, planes.min(MAX_Y) as u32, 1], ..Grid::linear(1, TILE_THREADS) };
        let [from, to] = numbers.map(|count| Arg::U32(count as u32));
        let [is_grad, relu] = [is_grad, self.relu].map(|yes| Arg::U32(u32::from(yes)));
        let groups = Arg::U32(direct.groups as u32);
        let args = [out.into(), read.into(), weights.into(), bias.into(), from, to, groups, is_grad, relu];
        let (name, element) = (["direct", &width, &filters], type_name(self.dtype, false));
        self.kernel_of(&DIRECT, &name, element, grid, args, planes)
    }

    pub(super) fn few_weight_grad(&self, few: &Few, w: Address, [x, y]: [Address; 2]) -> Result<()> {
        let (g, dtype, parts) = (self.geometry, self.dtype, self.columns);
        let kernel = match g.window.kernel[1] {
            0..=3 => "few_weight_grad_3",
            4..=5 => "few_weight_grad_5",
            _ => "few_weight_grad_8",
        };
        let shared_bytes = few.elements * dtype.compute_dtype().size_bytes() as u32;
        let grid = Grid { shared_bytes, ..Grid::linear(few.parts as u32, few.threads) };
        let [images, channels] = [g.images, g.channels].map(|count| Arg::U32(count as u32));
        let args = [parts.into(), x.into(), y.into(), images, channels, few.cut.arg()];
        self.kernel_of(&FEW, &[kernel], type_name(dtype, false), grid, args, 0)?;
        let (count, size) = (few.parts, g.filters * g.filter());
        let threads = RowThreads::of(size, count, 1, count as isize);
        let args =
            [w.into(), parts.into(), Arg::U64(count as u64), Arg::U64(size as u64), Arg::U32(threads.lanes)];
        let grid = threads.grid(Units::WHOLE);
        // SAFETY: the kernel takes these arguments, and there are as many parts.
        unsafe { FEW.kernel(self.queue, &["few_weight_grad_join"], dtype, grid, &args) }
    }
}
