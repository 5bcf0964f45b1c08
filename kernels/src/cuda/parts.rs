//! Reduction of tensors of one shape, in order.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::walk::blocks;
use super::{Family, family};
use crate::reduction::ReduceOp;

pub(super) static PROGRAMS: Family = family!("parts", NUMBERS, "parts.cu");

/// Threads of a block; as in the program.
const THREADS: u32 = 256;

/// Enqueues `out = ((part 0 + part 1) + part 2) + ..`, or another reduction `how`, of `count` contiguous parts of `elements` elements each. 16-bit
/// types are reduced in F32 and rounded once. The bits equal the CPU's in this order. For commands of other crates that enqueue several things.
///
/// # Safety
/// The command reads `count * elements` elements of this type at `parts` and writes `elements` at `out`, which may be part 0.
///
/// # Errors
/// As for [`Queue::kernel`].
pub unsafe fn join_parts(
    queue: &Queue<'_>,
    how: ReduceOp,
    dtype: DType,
    parts: *const u8,
    count: usize,
    elements: usize,
    out: *mut u8,
) -> Result<()> {
    if elements == 0 || count == 0 {
        return Ok(());
    }
    let grid = blocks(queue, (elements as u64).div_ceil(u64::from(THREADS)), THREADS);
    let args = [Arg::Ptr(parts), Arg::U32(count as u32), Arg::U64(elements as u64), Arg::Ptr(out)];
    // SAFETY: the kernel takes these arguments, and the caller promises that the command reads `count * elements`
    // elements at `parts` and writes `elements` at `out`.
    unsafe { PROGRAMS.kernel(queue, &[how.name(), "parts"], dtype, grid, &args) }
}
