//! Sorts along an axis: of all elements by value, and of the result by row.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::indexed::Sorter;
use super::walk::{ByValue, THREADS, WARP, Walk, blocks};
use super::{Family, family};
use crate::command::Address;
use crate::loops::Rows;

pub(super) static PROGRAMS: Family = family!("order", NUMBERS, "sort.cuh", "order.cu");

/// Stands for the row of an element in place of a part of its key, as in the program.
const ROW: u32 = 64;

/// Most elements of a row that one thread block sorts, and elements of a thread, as in the program.
const SHORT: usize = 2048;
const ITEMS: usize = 8;
/// Elements of the parts of longer rows that are chosen from, as in the program, their threads, and most that are chosen of each.
const PART: usize = 4096;
const PART_THREADS: u32 = 256;
const CHOSEN: usize = PART / 4;

/// Bytes of the workspace for the first `count` of so many elements, in rows of `len`.
pub(crate) fn workspace(elements: usize, len: usize, count: usize) -> usize {
    match len {
        ..=SHORT => 0,
        _ if count <= CHOSEN => {
            let first = chosen(len, count);
            (elements / len).saturating_mul(first + chosen(first, count)).saturating_mul(size_of::<u32>())
        }
        _ => Sorter::workspace(elements),
    }
}

/// How many elements of a row are chosen: the first `count` of each part.
fn chosen(len: usize, count: usize) -> usize {
    let whole = len.saturating_sub(1) / PART;
    whole * count + count.min(len - whole * PART)
}

pub(crate) fn argsort(
    queue: &Queue<'_>,
    dtype: DType,
    rows: &Rows<2>,
    (count, descending): (usize, bool),
    [out, x]: [Address; 2],
    workspace: Option<Address>,
) -> Result<()> {
    let &Rows { ref kept, len, steps: [out_step, x_step] } = rows;
    let (walk, elements) = (Walk::of(queue.op(), kept)?, kept.elements * len);
    let workspace = workspace.unwrap_or(Address::NULL);
    if len <= SHORT || count <= CHOSEN {
        let flip = Arg::U32(u32::from(descending));
        let x_step = Arg::I64(x_step as i64);
        let lists =
            [workspace, workspace.offset((kept.elements * chosen(len, count)) as isize, size_of::<u32>())];
        let (mut list, mut len) = (Address::NULL, len);
        while len > SHORT {
            let (parts, chosen_len) = (len.div_ceil(PART), chosen(len, count));
            let to = lists[usize::from(list.0 == lists[0].0)];
            let grid = blocks(queue, (kept.elements * parts) as u64, PART_THREADS);
            let [own, parts, count, row] = [len, parts, count, chosen_len].map(|n| Arg::U32(n as u32));
            let args = [to.into(), x.into(), list.into(), walk.arg(), own, parts, count, row, x_step, flip];
            // SAFETY: the kernel takes these arguments, the rows are those of the operands, and the workspace has room for the first two
            // lists, of which every other one is longer than those behind it.
            unsafe { PROGRAMS.kernel(queue, &["select_parts"], dtype, grid, &args)? };
            (list, len) = (to, chosen_len);
        }
        let size = len.next_power_of_two().max(ITEMS);
        let threads = ((size / ITEMS).max(kept.elements.saturating_mul(size) / ITEMS).min(SHORT / ITEMS)
            as u32)
            .next_multiple_of(WARP);
        let rows = threads as usize * ITEMS / size;
        let grid = blocks(queue, kept.elements.div_ceil(rows) as u64, threads);
        let [own, size, count] = [len, size, count].map(|n| Arg::U32(n as u32));
        let args = [
            out.into(),
            x.into(),
            list.into(),
            walk.arg(),
            own,
            size,
            count,
            Arg::I64(out_step as i64),
            x_step,
            flip,
        ];
        // SAFETY: the kernel takes these arguments, and the rows, and the list's places, are those of the operands.
        return unsafe { PROGRAMS.kernel(queue, &["sort_rows"], dtype, grid, &args) };
    }
    let sorter = Sorter::new(elements, workspace);
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
