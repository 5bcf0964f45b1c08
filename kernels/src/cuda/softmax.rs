//! Softmax, its logarithm, and their gradients.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::float_programs;
use super::rows::{PACK, RowThreads, by_group};
use super::walk::{ByValue, Walk};
use crate::command::Address;
use crate::layout::Loops;
use crate::loops::Rows;

float_programs!("softmax", "rows.cuh", "softmax.cu");

/// Threads of a block, at most; as in the program.
const THREADS: u32 = 256;

/// Rows as the kernels take them.
pub(super) struct RowArgs<const N: usize> {
    kept: Walk<N>,
    /// `Rows` of the program: length, steps along a row, and whether it can be taken in packs.
    rows: [i64; 5],
    pub(super) threads: RowThreads,
}

impl<const N: usize> RowArgs<N> {
    /// Rows of `len` elements at `steps` in up to three operands, the first ones; `x` is the one that decides about the group.
    pub(super) fn of(
        op: &'static str,
        dtype: DType,
        kept: &Loops<N>,
        (len, steps): (usize, &[isize]),
        (operands, x): (&[Address], usize),
    ) -> Result<RowArgs<N>> {
        let aligned = |at: &Address| at.0.addr().is_multiple_of(PACK * dtype.size_bytes());
        let packed = steps.iter().all(|&step| step == 1)
            && operands[..steps.len()].iter().all(aligned)
            && kept
                .axes
                .iter()
                .all(|axis| axis.strides[..steps.len()].iter().all(|step| step % PACK as isize == 0));
        let mut rows = [len as i64, 0, 0, 0, i64::from(packed)];
        rows[1..4].iter_mut().zip(steps).for_each(|(to, &step)| *to = step as i64);
        Ok(RowArgs {
            kept: Walk::of(op, kept)?,
            rows,
            threads: RowThreads::holding(kept.elements, len, steps[x], kept.inner().strides[x], THREADS),
        })
    }

    /// The arguments that follow the operands.
    pub(super) fn args(&self) -> [Arg<'_>; 3] {
        [self.kept.arg(), self.rows.arg(), Arg::U32(self.threads.lanes)]
    }

    pub(super) fn grid(&self, queue: &Queue<'_>) -> Grid {
        self.threads.grid(queue, THREADS)
    }
}

/// Softmax or, with `log`, its logarithm, on output and input; or their gradients, on the gradients of the input and the
/// output, and the output between them.
pub(crate) fn softmax<const N: usize>(
    queue: &Queue<'_>,
    (log, dtype): (bool, DType),
    rows: &Rows<N>,
    operands: [Address; N],
) -> Result<()> {
    let args = RowArgs::of(queue.op(), dtype, &rows.kept, (rows.len, &rows.steps), (&operands, 1))?;
    let group = args.threads.group;
    let kernel = match (N, log) {
        (2, false) => by_group!(group, dtype, "softmax"),
        (2, true) => by_group!(group, dtype, "log_softmax"),
        (_, false) => by_group!(group, dtype, "softmax_grad"),
        (_, true) => by_group!(group, dtype, "log_softmax_grad"),
    };
    let all: SmallVec<[Arg<'_>; 6]> = operands.map(Arg::from).into_iter().chain(args.args()).collect();
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}
