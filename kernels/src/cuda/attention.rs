//! Attention and its gradient.

use device::cuda::{Grid, Queue};
use device::{Result, Stream, Use};

use super::walk::{ByValue, Walk, blocks, operand};
use super::{by_dtype, float_programs};
use crate::attention::{AttentionGrads, AttentionInput, AttentionResult};
use crate::cpu::attention as cpu;
use crate::layout::View;

float_programs!("attention", "rows.cuh", "attention.cu");

/// Threads of a block, rows of a tile, and columns of the output that a block owns; as in the program.
const THREADS: u32 = 256;
const TILE: usize = 32;
const WIDE: usize = 64;

/// `Problem` of the program.
#[repr(C)]
struct Problem {
    sizes: [u64; 4],
    causal: u64,
    scale: f64,
    steps: [[i64; 2]; 9],
}

// SAFETY: words of 64 bits.
unsafe impl ByValue for Problem {}

impl Problem {
    fn of(problem: &cpu::Problem) -> Problem {
        let cpu::Sizes { queries, keys, width, value_width } = problem.sizes;
        Problem {
            sizes: [queries, keys, width, value_width].map(|size| size as u64),
            causal: u64::from(problem.causal),
            scale: problem.scale,
            steps: problem.steps.map(|steps| steps.map(|step| step as i64)),
        }
    }
}

/// A block for each tile of `rows` rows and `columns` columns of each pair.
fn tiles(queue: &Queue<'_>, pairs: usize, rows: usize, columns: usize) -> Grid {
    blocks(queue, (pairs * rows.div_ceil(TILE) * columns.div_ceil(WIDE).max(1)) as u64, THREADS)
}

pub(crate) fn attention(
    stream: &Stream,
    problem: &cpu::Problem,
    uses: &[Use<'_>],
    AttentionInput { q, k, v, mask }: AttentionInput<'_>,
    AttentionResult { out, log_sums }: AttentionResult<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let (batch, by_value) = (Walk::of(OP, &problem.batch)?, Problem::of(problem));
    let sizes = problem.sizes;
    stream.submit(OP, uses, |queue| {
        let [q, k, v, out_at, log_sums] = [&q, &k, &v, &out, &log_sums].map(operand);
        let args = [q, k, v, operand(mask.as_ref()), out_at, log_sums, batch.arg(), by_value.arg()];
        let grid = tiles(queue, problem.batch.elements, sizes.queries, sizes.value_width);
        // SAFETY: the batch and the steps are those of the operands, whose layouts were checked, and the uses name their
        // buffers.
        unsafe { queue.kernel(program_of(out.dtype), by_dtype!(out.dtype, "attention"), grid, &args) }
    })
}

pub(crate) fn gradient(
    stream: &Stream,
    problem: &cpu::Problem,
    uses: &[Use<'_>],
    (input, result): (AttentionInput<'_>, AttentionResult<'_>),
    (g, products): (View<'_>, View<'_>),
    to: AttentionGrads<'_>,
) -> Result<()> {
    const OP: &str = "attention_grad";
    let (batch, by_value) = (Walk::of(OP, &problem.batch)?, Problem::of(problem));
    let (sizes, pairs, dtype) = (problem.sizes, problem.batch.elements, g.dtype);
    let AttentionInput { q, k, v, mask } = input;
    let AttentionResult { out, log_sums } = result;
    stream.submit(OP, uses, |queue| {
        let program = program_of(dtype);
        let [batch, by_value, mask] = [batch.arg(), by_value.arg(), operand(mask.as_ref())];
        let [q, k, v, out, g, log_sums, products] = [&q, &k, &v, &out, &g, &log_sums, &products].map(operand);
        let [dq, dk, dv] = [&to.q, &to.k, &to.v].map(operand);
        // SAFETY: as in `attention`; all three, one after the other.
        unsafe {
            if pairs * sizes.queries > 0 {
                let grid = blocks(queue, (pairs * sizes.queries).div_ceil(8) as u64, THREADS);
                let args = [out, g, products, batch, by_value];
                queue.kernel(program, by_dtype!(dtype, "attention_products"), grid, &args)?;
                let grid = tiles(queue, pairs, sizes.queries, sizes.width);
                let args = [q, k, v, mask, g, log_sums, products, dq, batch, by_value];
                queue.kernel(program, by_dtype!(dtype, "attention_grad_q"), grid, &args)?;
            }
            if pairs * sizes.keys > 0 {
                let grid = tiles(queue, pairs, sizes.keys, sizes.width.max(sizes.value_width));
                let args = [q, k, v, mask, g, log_sums, products, dk, dv, batch, by_value];
                queue.kernel(program, by_dtype!(dtype, "attention_grad_kv"), grid, &args)?;
            }
        }
        Ok(())
    })
}
