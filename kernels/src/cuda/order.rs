//! Sorts along an axis: of all elements by value, and of the result by row.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::indexed::Sorter;
use super::walk::{ByValue, THREADS, WARP, Walk, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::loops::Rows;

pub(super) static PROGRAMS: Family = family!("order", NUMBERS, "order.cu");

/// Stands for the row of an element in place of a part of its key, as in the program.
const ROW: u32 = 64;

/// Most elements of a row that one thread block sorts, as in the program.
const SHORT: usize = 2048;

/// Bytes of the workspace for so many elements, in rows of `len`.
pub(crate) fn workspace(elements: usize, len: usize) -> usize {
    if len <= SHORT { 0 } else { Sorter::workspace(elements) }
}

pub(crate) fn argsort(
    queue: &Queue<'_>,
    dtype: DType,
    &Rows { ref kept, len, steps: [out_step, x_step] }: &Rows<2>,
    (count, descending): (usize, bool),
    [out, x]: [Address; 2],
    workspace: Option<Address>,
) -> Result<()> {
    let (walk, elements) = (Walk::of(queue.op(), kept)?, kept.elements * len);
    if len <= SHORT {
        let size = len.next_power_of_two();
        let grid = blocks(queue, kept.elements as u64, (size as u32 / 2).clamp(WARP, SHORT as u32 / 4));
        let [len, size, count, flip] =
            [len, size, count, usize::from(descending)].map(|n| Arg::U32(n as u32));
        let steps = [out_step, x_step].map(|step| Arg::I64(step as i64));
        let args = [out.into(), x.into(), walk.arg(), len, size, count, steps[0], steps[1], flip];
        // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
        return unsafe { PROGRAMS.kernel(queue, &["sort_rows"], dtype, grid, &args) };
    }
    let sorter = Sorter::new(elements, workspace.unwrap_or(Address::NULL));
    // The parts of a key that are sorted by, from the lowest on: the first bit, and their number. A half's low bits are 0.
    let parts: &[(u32, u32)] = match dtype {
        DType::U8 => &[(0, 8)],
        DType::BF16 => &[(16, 16)],
        DType::F16 => &[(13, 19)],
        DType::F32 => &[(0, 32)],
        _ => &[(0, 32), (32, 32)],
    };
    let row = (ROW, usize::BITS - kept.elements.saturating_sub(1).leading_zeros());
    let mut order = Address::NULL;
    let grid = blocks(queue, (elements as u64).div_ceil(u64::from(THREADS)), THREADS);
    for &(shift, bits) in parts.iter().chain((kept.elements > 1).then_some(&row)) {
        let keys = sorter.keys_beside(order);
        let [first, from, x, flip] =
            [Arg::from(keys), order.into(), x.into(), Arg::U32(u32::from(descending))];
        let args = [
            first,
            from,
            x,
            walk.arg(),
            Arg::U64(len as u64),
            Arg::I64(x_step as i64),
            flip,
            Arg::U32(shift),
        ];
        // SAFETY: the kernel takes these arguments, the rows are those of the operands, and the workspace has room for a key of each
        // element.
        unsafe { PROGRAMS.kernel(queue, &["sort_keys"], dtype, grid, &args)? };
        order = sorter.sort_keys(queue, bits, [order, keys])?;
    }
    let [len, count] = [len, count].map(|n| Arg::U64(n as u64));
    let args = [out.into(), order.into(), walk.arg(), len, count, Arg::I64(out_step as i64)];
    // SAFETY: the kernel takes these arguments, and the order is one of all elements.
    unsafe { PROGRAMS.kernel(queue, &["sorted_indices"], dtype, grid, &args) }
}
