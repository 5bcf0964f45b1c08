//! Launchers of attention and its gradient, with tensor cores if the device has them.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};

use super::walk::{ByValue, Walk, blocks};
use super::{Family, family, kernel_name, type_name};
use crate::command::Address;
use crate::distribution::{MULTIPLIERS, ROUNDS, RandomKey, Weights, round_keys};
use crate::scores::{ScoreBatch, ScoreSizes};

static PROGRAMS: Family =
    family!("attention", FLOATS, "rows.cuh", "philox.cuh", "attention.cuh", "attention.cu");

/// Plain kernels, as in the program: threads of a block, rows of a tile, and output columns per thread block.
const THREADS: u32 = 256;
const TILE: usize = 32;
const WIDE: usize = 64;
/// Rows of `attention_products` per block.
const GRADIENTS: usize = 32;
/// Tensor core kernels: threads per strip of rows, and rows of a strip.
const TILED_THREADS: u32 = 128;
const STRIP: usize = 64;
/// Most rows over all pairs for tensor core kernels, which count them in 31 bits.
const MAX_ROWS: usize = 1 << 30;

/// Tile sizes of the tensor core kernels.
struct Tiling {
    /// Without dropout and with it.
    programs: [Family; 2],
    /// Largest row width.
    width: usize,
    forward: Tiles,
    grad_q: Tiles,
    grad_kv: Tiles,
    /// Columns of the key and value gradients per thread block.
    slice: usize,
    /// Whether warp groups multiply (wgmma), one per strip.
    grouped: bool,
}

impl Tiling {
    /// Columns of outputs and of gradients of queries per thread block; `SLICE_OF` of the programs.
    fn query_slice(&self, dtype: DType) -> usize {
        if self.width * dtype.size_bytes() > 512 { 128 } else { self.width }
    }

    /// The tiles of a pass, and the number of matrices whose own rows are in shared memory.
    fn tiles(&self, pass: Pass) -> (Tiles, usize) {
        match pass {
            Pass::Forward => (self.forward, 1),
            Pass::GradQ => (self.grad_q, 2),
            Pass::GradKv => (self.grad_kv, 2),
        }
    }
}

/// Strips of rows that a thread block owns, and rows of the tiles that it loops over.
#[derive(Clone, Copy)]
struct Tiles {
    strips: usize,
    tile: usize,
}

impl Tiles {
    /// Shared memory for the own rows of `own` matrices, for two double-buffered tiles with numbers for their rows, and for those of a mask.
    const fn shared_bytes(self, own: usize, width: usize, dtype: DType, masked: bool) -> u32 {
        let rows = self.strips * STRIP;
        let mask = if masked { 2 * rows * self.tile } else { 0 };
        let elements = (own * rows + 4 * self.tile) * width + mask;
        (elements * dtype.size_bytes() + 4 * self.tile * size_of::<f32>()) as u32
    }
}

/// The programs of a tiling: name, types, additional files and numbers.
macro_rules! tiled_family {
    ($name:expr, $types:ident, [$($groups:literal)?], [$($drops:literal)?], $numbers:expr) => {
        family!(
            $name, $types, "rows.cuh", "tensor_core.cuh", "philox.cuh", "attention.cuh", $($groups,)?
            "attention_tiles.cuh", $($drops,)? "attention_scores.cuh", "attention_forward.cuh", "attention_backward.cuh",
            "attention_tiles.cu"; $numbers
        )
    };
}

/// A tiling: name, types and width; then strips, tile rows, and thread blocks per multiprocessor of each kernel.
macro_rules! tiling {
    (
        $name:literal, $types:ident, $width:literal,
        $f_strips:literal $f_tile:literal $f_blocks:literal,
        $q_strips:literal $q_tile:literal $q_blocks:literal,
        $kv_strips:literal $kv_tile:literal $kv_blocks:literal, $slice:literal $(, $groups:literal)?
    ) => {{
        const NUMBERS: &str = concat!(
            "TILING(", $width, ", ", $f_strips, ", ", $f_tile, ", ", $f_blocks, ", ",
            $q_strips, ", ", $q_tile, ", ", $q_blocks, ", ",
            $kv_strips, ", ", $kv_tile, ", ", $kv_blocks, ", ", $slice, ")\n"
        );
        Tiling {
            programs: [
                tiled_family!($name, $types, [$($groups)?], [], NUMBERS),
                tiled_family!(concat!($name, "_drops"), $types, [$($groups)?], ["attention_dropout.cuh"], NUMBERS),
            ],
            width: $width,
            forward: Tiles { strips: $f_strips, tile: $f_tile },
            grad_q: Tiles { strips: $q_strips, tile: $q_tile },
            grad_kv: Tiles { strips: $kv_strips, tile: $kv_tile },
            slice: $slice,
            grouped: false $(|| !$groups.is_empty())?,
        }
    }};
}

/// By width, then by number of strips. Tilings of one width have the same tiles in the forward pass, whose F32 sums depend on them.
static HALF: [Tiling; 5] = [
    tiling!("attention_32x1", HALVES, 32, 1 64 3, 1 64 3, 1 64 3, 32),
    tiling!("attention_64x1", HALVES, 64, 1 64 3, 1 64 3, 1 64 2, 64),
    tiling!("attention_64x2", HALVES, 64, 2 64 2, 2 64 2, 2 32 2, 64),
    tiling!("attention_128x1", HALVES, 128, 1 64 2, 1 32 2, 1 32 2, 128),
    tiling!("attention_256x1", HALVES, 256, 1 32 2, 1 32 1, 1 32 1, 128),
];
static FLOAT: [Tiling; 5] = [
    tiling!("attention_32x1", SINGLE, 32, 1 64 2, 1 64 2, 1 64 2, 32),
    tiling!("attention_64x1", SINGLE, 64, 1 32 2, 1 32 2, 1 32 2, 64),
    tiling!("attention_64x2", SINGLE, 64, 2 32 2, 2 32 2, 1 32 2, 64),
    tiling!("attention_128x1", SINGLE, 128, 1 32 2, 1 32 2, 1 32 1, 64),
    tiling!("attention_256x1", SINGLE, 256, 1 16 1, 1 16 1, 1 16 1, 64),
];
/// For warp groups.
static GROUPED: [Tiling; 4] = [
    tiling!("attention_64g1", HALVES, 64, 1 64 3, 1 64 3, 1 64 3, 64, "warp_groups.cuh"),
    tiling!("attention_64g2", HALVES, 64, 2 64 2, 1 64 3, 1 64 3, 64, "warp_groups.cuh"),
    tiling!("attention_128g1", HALVES, 128, 1 64 2, 1 64 2, 1 64 2, 128, "warp_groups.cuh"),
    tiling!("attention_256g1", HALVES, 256, 1 64 1, 1 64 1, 1 64 1, 128, "warp_groups.cuh"),
];
/// Largest dropout threshold of tensor core kernels, which compare thresholds as F16: the bits of infinity.
const MOST_KEPT_FROM: u32 = 0x7c00;

/// `Problem` of the programs. The word before the scales has a bit for each operand whose rows can be loaded in vectors.
fn words(dtype: DType, problem: &ScoreBatch, operands: [Address; 9]) -> [i64; 35] {
    let ScoreSizes { queries, keys, width, value_width } = problem.sizes;
    let (lanes, size) = (16 / dtype.size_bytes(), dtype.size_bytes());
    let in_vectors = |k: usize| {
        let [row, column] = problem.steps[k];
        let mut outer = problem.batch.axes.iter().map(|axis| axis.strides[k]).chain([row]);
        column == 1
            && operands[k].0.addr().is_multiple_of(lanes * size)
            && outer.all(|step| step.unsigned_abs().is_multiple_of(lanes))
    };
    let vectors = (0..operands.len()).fold(0, |bits, k| bits | i64::from(in_vectors(k)) << k);
    let numbers = [queries, keys, width, value_width, usize::from(problem.kind.causal)].map(|n| n as i64);
    let steps = problem.steps.as_flattened().iter().map(|&step| step as i64);
    let scale = problem.kind.scale;
    let dropout = problem.kind.dropout.map(|dropout| Weights::of(&dropout));
    let rounds = problem.kind.dropout.map_or([[0; 2]; ROUNDS], |dropout| rounds(dropout.key));
    let [kept_from, kept_scale] = dropout.map_or([0; 2], |weights| {
        [i64::from(weights.kept_from * 0x0001_0001), weights.scale.to_bits() as i64]
    });
    let mut all = numbers
        .into_iter()
        .chain([scale.to_bits() as i64])
        .chain(steps)
        .chain([vectors, i64::from(factor(problem).to_bits()) | i64::from((scale as f32).to_bits()) << 32])
        .chain(rounds.map(|[even, odd]| i64::from(even) | i64::from(odd) << 32))
        .chain([kept_from, kept_scale]);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

/// Round keys of Philox, see `draw` of the program: the first two include the constant product of the counters' second half.
fn rounds(key: RandomKey) -> [[u32; 2]; ROUNDS] {
    let mut rounds = round_keys(key.seed);
    let product = u64::from(MULTIPLIERS[1]) * u64::from(key.op as u32);
    rounds[0][0] ^= (product >> 32) as u32;
    rounds[0][1] ^= (key.op >> 32) as u32;
    rounds[1][0] ^= product as u32;
    rounds
}

/// Factor from products to exponents of 2.
fn factor(problem: &ScoreBatch) -> f32 {
    (problem.kind.scale * std::f64::consts::LOG2_E) as f32
}

#[derive(Clone, Copy)]
enum Pass {
    Forward,
    GradQ,
    GradKv,
}

const PASSES: [Pass; 3] = [Pass::Forward, Pass::GradQ, Pass::GradKv];

/// A launch of attention.
struct Launch<'a> {
    queue: &'a Queue<'a>,
    dtype: DType,
    problem: &'a ScoreBatch,
    masked: bool,
}

impl Launch<'_> {
    /// Rows and columns of a pass's output.
    fn shape(&self, pass: Pass) -> (usize, usize) {
        let ScoreSizes { queries, keys, width, value_width } = self.problem.sizes;
        match pass {
            Pass::Forward => (queries, value_width),
            Pass::GradQ => (queries, width),
            Pass::GradKv => (keys, width.max(value_width)),
        }
    }

    /// See [`Weights::kept_from`]; 0 without dropout.
    fn kept_from(&self) -> u32 {
        self.problem.kind.dropout.map_or(0, |dropout| Weights::of(&dropout).kept_from)
    }

    /// The tiling of a pass; `None` if tensor core kernels do not support the problem. The number of strips does not affect bits.
    fn tiling(&self, pass: Pass) -> Option<&'static Tiling> {
        let (queue, dtype, problem) = (self.queue, self.dtype, self.problem);
        let ScoreSizes { queries, keys, width, value_width } = problem.sizes;
        // Kernels with several strips have no registers left for masks.
        let direct = !self.masked && factor(problem) > 0.0;
        let grouped = queue.properties().has_warp_groups && width.max(value_width) > 32;
        let kept_from = self.kept_from();
        let tilings = match dtype {
            DType::BF16 | DType::F16 if grouped => &GROUPED[..],
            DType::BF16 | DType::F16 => &HALF,
            DType::F32 => &FLOAT,
            _ => return None,
        };
        let rows = problem.batch.elements.saturating_mul(queries.max(keys));
        if !queue.properties().has_tensor_cores || rows > MAX_ROWS || kept_from > MOST_KEPT_FROM {
            return None;
        }
        let fits = |tiling: &&Tiling| {
            let bytes = |pass| {
                let (tiles, own) = tiling.tiles(pass);
                tiles.shared_bytes(own, tiling.width, dtype, self.masked)
            };
            let have_room = PASSES.into_iter().all(|pass| bytes(pass) <= queue.properties().shared_bytes);
            // With dropout, several strips are faster only with warp groups.
            let pays = kept_from == 0 || tiling.grouped || tiling.forward.strips == 1;
            pays && tiling.width >= width.max(value_width) && have_room
        };
        let mut tilings = tilings.iter().filter(fits);
        let least = tilings.next()?;
        // Several strips load each tile for more rows, but leave fewer thread blocks.
        let wanted =
            if matches!(pass, Pass::Forward) { 4 } else { 1 } * queue.properties().multiprocessors as usize;
        let blocks = problem.batch.elements * self.shape(pass).0.div_ceil(2 * STRIP);
        let strips = |tiling: &Tiling| tiling.tiles(pass).0.strips;
        let several = |tiling: &&Tiling| tiling.width == least.width && strips(tiling) > strips(least);
        Some(tilings.next().filter(|tiling| direct && blocks >= wanted && several(tiling)).unwrap_or(least))
    }

    /// # Safety
    /// As for [`Queue::kernel`].
    unsafe fn enqueue(&self, pass: Pass, args: &[Arg<'_>]) -> Result<()> {
        let (dtype, pairs, (rows, columns)) = (self.dtype, self.problem.batch.elements, self.shape(pass));
        let (program, op, element, grid) = if let Some(tiling) = self.tiling(pass) {
            let element = type_name(dtype, self.queue.tf32());
            let (tiles, own) = tiling.tiles(pass);
            let slice = if matches!(pass, Pass::GradKv) { tiling.slice } else { tiling.query_slice(dtype) };
            let shared_bytes = tiles.shared_bytes(own, tiling.width, dtype, self.masked);
            let blocks = pairs * rows.div_ceil(tiles.strips * STRIP) * columns.div_ceil(slice).max(1);
            let threads = if tiling.grouped { tiles.strips as u32 } else { 1 } * TILED_THREADS;
            let grid = Grid { shared_bytes, ..Grid::linear(blocks as u32, threads) };
            let family = &tiling.programs[usize::from(self.kept_from() > 0)];
            (family.named(element), "attention_tiles", element, grid)
        } else {
            let wanted = pairs * rows.div_ceil(TILE) * columns.div_ceil(WIDE).max(1);
            let grid = blocks(self.queue, wanted as u64, THREADS);
            (PROGRAMS.of(dtype), "attention", type_name(dtype, false), grid)
        };
        let words: &[&str] = match pass {
            Pass::Forward => &[op],
            Pass::GradQ => &[op, "grad_q"],
            Pass::GradKv => &[op, "grad_kv"],
        };
        // SAFETY: the caller keeps the contract of `Queue::kernel` for the kernels of this pass.
        unsafe { self.queue.kernel(program, &kernel_name(words, element), grid, args) }
    }
}

pub(crate) fn attention(
    queue: &Queue<'_>,
    dtype: DType,
    problem: &ScoreBatch,
    ([q, k, v], mask): ([Address; 3], Option<Address>),
    (out, log_sums): (Address, Address),
) -> Result<()> {
    let none = Address::NULL;
    let by_value = words(dtype, problem, [q, k, v, mask.unwrap_or(none), out, none, none, none, none]);
    let batch = Walk::of(queue.op(), &problem.batch)?;
    let launch = Launch { queue, dtype, problem, masked: mask.is_some() };
    let args =
        [q.into(), k.into(), v.into(), mask.into(), out.into(), log_sums.into(), batch.arg(), by_value.arg()];
    // SAFETY: the kernel takes these arguments, and the batch and the steps are those of the operands.
    unsafe { launch.enqueue(Pass::Forward, &args) }
}

pub(crate) fn gradient(
    queue: &Queue<'_>,
    dtype: DType,
    problem: &ScoreBatch,
    ([g, q, k, v, out], mask): ([Address; 5], Option<Address>),
    (log_sums, products): (Address, Address),
    grads: [Address; 3],
) -> Result<()> {
    let [dq, dk, dv] = grads;
    let by_value = words(dtype, problem, [q, k, v, mask.unwrap_or(Address::NULL), out, g, dq, dk, dv]);
    let batch = Walk::of(queue.op(), &problem.batch)?;
    let launch = Launch { queue, dtype, problem, masked: mask.is_some() };
    let [batch, by_value, mask] = [batch.arg(), by_value.arg(), mask.into()];
    let [q, k, v, out, g, log_sums, products] = [q, k, v, out, g, log_sums, products].map(Arg::from);
    let [dq, dk, dv] = grads.map(Arg::from);
    let enqueue = |pass, args: &[Arg<'_>]| {
        // SAFETY: the kernels take these arguments, and the batch and the steps are those of the operands.
        unsafe { launch.enqueue(pass, args) }
    };
    let rows = problem.batch.elements * problem.sizes.queries;
    let grid = super::rows::exactly(rows.div_ceil(GRADIENTS) as u64, THREADS);
    // SAFETY: the kernel takes these arguments, and the batch and the steps are those of the operands.
    unsafe {
        let args = [out, g, products, batch, by_value];
        PROGRAMS.kernel(queue, &["attention_products"], dtype, grid, &args)?;
    }
    queue.beside(
        || enqueue(Pass::GradQ, &[q, k, v, mask, g, log_sums, products, dq, batch, by_value]),
        || enqueue(Pass::GradKv, &[q, k, v, mask, g, log_sums, products, dk, dv, batch, by_value]),
    )
}

pub(crate) fn kept_weights(
    queue: &Queue<'_>,
    dtype: DType,
    problem: &ScoreBatch,
    out: Address,
) -> Result<()> {
    let by_value = words(dtype, problem, [out; 9]);
    let batch = Walk::of(queue.op(), &problem.batch)?;
    let grid = blocks(queue, problem.scores().div_ceil(THREADS as usize) as u64, THREADS);
    // SAFETY: the kernel takes these arguments, and the batch and the steps of the queries are those of the output.
    unsafe {
        let args = [out.into(), batch.arg(), by_value.arg()];
        PROGRAMS.kernel(queue, &["attention_kept"], dtype, grid, &args)
    }
}
