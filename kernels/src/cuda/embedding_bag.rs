//! Sums and means over bags of rows, which the kernels check.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::sums::Owned;
use super::walk::{ByValue, THREADS, blocks};
use super::{by_dtype, float_programs};
use crate::command::Address;
use crate::indexed::BagSizes;

float_programs!("embedding_bag", "rows.cuh", "sums.cuh", "embedding_bag.cu");

/// Threads that take an index together.
const WARP: u32 = 32;

/// Indices, offsets and weights.
type BagMemory = (Address, Option<Address>, Option<Address>);

/// `BagSizes` of the program, in its order.
fn words(sizes: &BagSizes) -> [i64; 9] {
    let [len, count, rows, width] =
        [sizes.len, sizes.count, sizes.rows, sizes.width].map(|count| count as i64);
    let [index, offset] = steps([sizes.index_step, sizes.offset_step]);
    let [weight, member] = steps([sizes.weight_step, sizes.member_step]);
    [len, count, rows, width, sizes.padding, index, offset, weight, member]
}

/// `Steps` of the program.
fn steps(steps: [isize; 2]) -> [i64; 2] {
    steps.map(|step| step as i64)
}

/// On sums and a table.
pub(crate) fn sum(
    queue: &Queue<'_>,
    dtype: DType,
    sizes: &BagSizes,
    (indices, offsets, weights): BagMemory,
    [out, table]: [Address; 2],
    members: Option<Address>,
) -> Result<()> {
    // Whether rows can be read and written in accesses of 16 bytes.
    let lanes = 16 / dtype.size_bytes();
    let in_vectors = |at: Address, [row, column]: [isize; 2]| {
        column == 1 && (row as usize).is_multiple_of(lanes) && at.0.addr().is_multiple_of(16)
    };
    let vectors = sizes.width.is_multiple_of(lanes)
        && in_vectors(table, sizes.table_steps)
        && in_vectors(out, sizes.sum_steps);
    let (kernel, lanes) = match vectors {
        true => (by_dtype!(dtype, "embedding_bag_vector"), lanes),
        false => (by_dtype!(dtype, "embedding_bag"), 1),
    };
    let (words, to, from) = (words(sizes), steps(sizes.sum_steps), steps(sizes.table_steps));
    let args = [
        out.into(),
        members.into(),
        table.into(),
        indices.into(),
        offsets.into(),
        weights.into(),
        words.arg(),
        to.arg(),
        from.arg(),
        Arg::Fault,
    ];
    let items = (sizes.count * sizes.width / lanes) as u64;
    let grid = blocks(queue, items.div_ceil(u64::from(THREADS)), THREADS);
    // SAFETY: the kernel takes these arguments, sizes and steps are those of the operands, and an index is checked before it
    // is followed.
    unsafe { queue.kernel(program_of(dtype), kernel, grid, &args) }
}

/// On the gradients of a table and of sums.
pub(crate) fn grad(
    queue: &Queue<'_>,
    dtype: DType,
    sizes: &BagSizes,
    (indices, offsets, weights): BagMemory,
    [out, g]: [Address; 2],
    members: Option<Address>,
) -> Result<()> {
    let Owned { rows, width, grid } = Owned::of(queue, dtype, [sizes.rows, sizes.width]);
    let (words, to, from) = (words(sizes), steps(sizes.table_steps), steps(sizes.sum_steps));
    let args = [
        out.into(),
        g.into(),
        members.into(),
        indices.into(),
        offsets.into(),
        weights.into(),
        words.arg(),
        Arg::U64(rows as u64),
        Arg::U32(width as u32),
        to.arg(),
        from.arg(),
        Arg::Fault,
    ];
    // SAFETY: as in `sum`.
    unsafe { queue.kernel(program_of(dtype), by_dtype!(dtype, "embedding_bag_grad"), grid, &args) }
}

/// On the gradients of weights, with their step, and of sums, and a table.
pub(crate) fn weights_grad(
    queue: &Queue<'_>,
    dtype: DType,
    sizes: &BagSizes,
    (indices, offsets, _): BagMemory,
    (out, out_step): (Address, isize),
    [g, table]: [Address; 2],
) -> Result<()> {
    let (words, own, from) = (words(sizes), steps(sizes.sum_steps), steps(sizes.table_steps));
    let args = [
        out.into(),
        g.into(),
        table.into(),
        indices.into(),
        offsets.into(),
        words.arg(),
        Arg::I64(out_step as i64),
        own.arg(),
        from.arg(),
        Arg::Fault,
    ];
    let grid = blocks(queue, (sizes.len as u64).div_ceil(u64::from(THREADS / WARP)), THREADS);
    // SAFETY: as in `sum`.
    unsafe { queue.kernel(program_of(dtype), by_dtype!(dtype, "embedding_bag_weights_grad"), grid, &args) }
}
