//! Attention and its gradient.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};

use super::walk::{ByValue, Walk, blocks};
use super::{by_dtype, float_programs};
use crate::command::Address;
use crate::scores::{ScoreBatch, ScoreSizes};

float_programs!("attention", "rows.cuh", "attention.cu");

/// Threads of a block, rows of a tile, and columns of the output that a block owns; as in the program.
const THREADS: u32 = 256;
const TILE: usize = 32;
const WIDE: usize = 64;

/// `Problem` of the program.
fn words(problem: &ScoreBatch) -> [i64; 24] {
    let ScoreSizes { queries, keys, width, value_width } = problem.sizes;
    let numbers = [queries, keys, width, value_width, usize::from(problem.kind.causal)].map(|n| n as i64);
    let steps = problem.steps.as_flattened().iter().map(|&step| step as i64);
    let mut all = numbers.into_iter().chain([problem.kind.scale.to_bits() as i64]).chain(steps);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

/// A block for each tile of `rows` rows and `columns` columns of each pair.
fn tiles(queue: &Queue<'_>, pairs: usize, rows: usize, columns: usize) -> Grid {
    blocks(queue, (pairs * rows.div_ceil(TILE) * columns.div_ceil(WIDE).max(1)) as u64, THREADS)
}

pub(crate) fn attention(
    queue: &Queue<'_>,
    dtype: DType,
    problem: &ScoreBatch,
    ([q, k, v], mask): ([Address; 3], Option<Address>),
    (out, log_sums): (Address, Address),
) -> Result<()> {
    let (batch, by_value) = (Walk::of(queue.op(), &problem.batch)?, words(problem));
    let args =
        [q.into(), k.into(), v.into(), mask.into(), out.into(), log_sums.into(), batch.arg(), by_value.arg()];
    let grid = tiles(queue, problem.batch.elements, problem.sizes.queries, problem.sizes.value_width);
    // SAFETY: the kernel takes these arguments, and the batch and the steps are those of the operands.
    unsafe { queue.kernel(program_of(dtype), by_dtype!(dtype, "attention"), grid, &args) }
}

pub(crate) fn gradient(
    queue: &Queue<'_>,
    dtype: DType,
    problem: &ScoreBatch,
    ([g, q, k, v, out], mask): ([Address; 5], Option<Address>),
    (log_sums, products): (Address, Address),
    grads: [Address; 3],
) -> Result<()> {
    let (batch, by_value) = (Walk::of(queue.op(), &problem.batch)?, words(problem));
    let (sizes, pairs, program) = (problem.sizes, problem.batch.elements, program_of(dtype));
    let [batch, by_value, mask] = [batch.arg(), by_value.arg(), mask.into()];
    let [q, k, v, out, g, log_sums, products] = [q, k, v, out, g, log_sums, products].map(Arg::from);
    let [dq, dk, dv] = grads.map(Arg::from);
    let enqueue = |kernel, grid, args: &[Arg<'_>]| {
        // SAFETY: the kernels take these arguments, and the batch and the steps are those of the operands.
        unsafe { queue.kernel(program, kernel, grid, args) }
    };
    let grid = blocks(queue, (pairs * sizes.queries).div_ceil(8) as u64, THREADS);
    enqueue(by_dtype!(dtype, "attention_products"), grid, &[out, g, products, batch, by_value])?;
    let of_queries = || {
        let grid = tiles(queue, pairs, sizes.queries, sizes.width);
        let args = [q, k, v, mask, g, log_sums, products, dq, batch, by_value];
        enqueue(by_dtype!(dtype, "attention_grad_q"), grid, &args)
    };
    let of_keys = || {
        let grid = tiles(queue, pairs, sizes.keys, sizes.width.max(sizes.value_width));
        let args = [q, k, v, mask, g, log_sums, products, dk, dv, batch, by_value];
        enqueue(by_dtype!(dtype, "attention_grad_kv"), grid, &args)
    };
    queue.beside(of_queries, of_keys)
}
