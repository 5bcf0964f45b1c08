//! embedding_bag; kernels check indices and offsets.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::walk::{ByValue, THREADS, WARP, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::indexed::BagSizes;
use crate::loops::Places;

pub(super) static PROGRAMS: Family =
    family!("embedding_bag", FLOATS, "rows.cuh", "sort.cuh", "indexed.cuh", "embedding_bag.cu");

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

/// Enqueues the sums on (output, table, bags, member counts).
pub(crate) fn sum(
    queue: &Queue<'_>,
    dtype: DType,
    sizes: &BagSizes,
    (out, table, (indices, offsets, weights), members): (Address, Address, BagMemory, Option<Address>),
) -> Result<()> {
    // Whether rows allow 16-byte accesses.
    let lanes = 16 / dtype.size_bytes();
    let in_vectors = |at: Address, [row, column]: [isize; 2]| {
        column == 1 && (row as usize).is_multiple_of(lanes) && at.0.addr().is_multiple_of(16)
    };
    let vectors = sizes.width.is_multiple_of(lanes)
        && in_vectors(table, sizes.table_steps)
        && in_vectors(out, sizes.sum_steps);
    let (kernel, lanes) = if vectors { ("embedding_bag_vector", lanes) } else { ("embedding_bag", 1) };
    let [out, table, indices] = [out, table, indices].map(Arg::from);
    let [members, offsets, weights] = [members, offsets, weights].map(Arg::from);
    let (words, to, from) = (words(sizes), steps(sizes.sum_steps), steps(sizes.table_steps));
    let (sizes_arg, to, from) = (words.arg(), to.arg(), from.arg());
    let args = [out, members, table, indices, offsets, weights, sizes_arg, to, from, Arg::Fault];
    let items = (sizes.count * sizes.width / lanes) as u64;
    let grid = blocks(queue, items.div_ceil(u64::from(THREADS)), THREADS);
    // SAFETY: the kernel takes these arguments, sizes and steps are those of the operands, and an index is checked before it
    // is followed.
    unsafe { PROGRAMS.kernel(queue, &[kernel], dtype, grid, &args) }
}

/// Enqueues the table gradient on (table gradient, output gradient, bags, member counts).
pub(crate) fn grad(
    queue: &Queue<'_>,
    dtype: DType,
    (sizes, places): &(BagSizes, Places<2>),
    (out, g, (indices, offsets, weights), members): (Address, Address, BagMemory, Option<Address>),
    workspace: Option<Address>,
) -> Result<()> {
    let [members, offsets, weights] = [members, offsets, weights].map(Arg::from);
    let words = words(sizes);
    let step = Arg::I64(sizes.sum_steps[0] as i64);
    let more = [members, offsets, weights, words.arg(), step, Arg::Fault];
    let what = (&PROGRAMS, "embedding_bag_grad", dtype);
    sizes.entries().add(queue, what, (out, None, places), [g, indices], &more, workspace)
}

/// Enqueues the gradient of weights on (weight gradient and its stride, output gradient, table, bags).
pub(crate) fn weights_grad(
    queue: &Queue<'_>,
    dtype: DType,
    &(ref sizes, out_step): &(BagSizes, isize),
    (out, g, table, (indices, offsets, _)): (Address, Address, Address, BagMemory),
) -> Result<()> {
    let [out, g, table, indices] = [out, g, table, indices].map(Arg::from);
    let (words, own, from) = (words(sizes), steps(sizes.sum_steps), steps(sizes.table_steps));
    let (numbers, out_step) = (words.arg(), Arg::I64(out_step as i64));
    let (own, from, offsets) = (own.arg(), from.arg(), offsets.into());
    let args = [out, g, table, indices, offsets, numbers, out_step, own, from, Arg::Fault];
    let grid = blocks(queue, (sizes.len as u64).div_ceil(u64::from(THREADS / WARP)), THREADS);
    // SAFETY: the kernel takes these arguments, sizes and steps are those of the operands, and an index is checked
    // before it is followed.
    unsafe { PROGRAMS.kernel(queue, &["embedding_bag_weights_grad"], dtype, grid, &args) }
}
