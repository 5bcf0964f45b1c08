//! Launchers of softmax, log_softmax and their gradients.

use device::cuda::{Arg, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::rows::{PACK, RowThreads, Units};
use super::walk::{ByValue, Walk};
use super::{Family, family};
use crate::command::Address;
use crate::layout::Loops;
use crate::loops::Rows;

pub(super) static PROGRAMS: Family = family!("softmax", FLOATS, "rows.cuh", "softmax.cu");

/// Rows as the kernels take them.
pub(super) struct RowArgs<const N: usize> {
    kept: Walk<N>,
    /// `Rows` of the program: length, strides along a row, and whether packs can be loaded.
    rows: [i64; 5],
    threads: RowThreads,
}

impl<const N: usize> RowArgs<N> {
    /// Rows of `len` elements with strides `steps` in the first operands (up to three); operand `x` determines the thread group.
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
            threads: RowThreads::holding(kept.elements, len, steps[x], kept.inner().strides[x], dtype),
        })
    }

    /// Enqueues a kernel on the operands, with further arguments `more`.
    ///
    /// # Safety
    /// As for [`Queue::kernel`].
    pub(super) unsafe fn enqueue(
        &self,
        queue: &Queue<'_>,
        (kernel, dtype): (&str, DType),
        operands: &[Address],
        more: &[Arg<'_>],
    ) -> Result<()> {
        let mut args: SmallVec<[Arg<'_>; 10]> = operands.iter().map(|&at| at.into()).collect();
        args.extend([self.kept.arg(), self.rows.arg(), Arg::U32(self.threads.lanes)]);
        args.extend_from_slice(more);
        let (name, grid) = ([kernel, self.threads.group.name()], self.threads.grid(Units::WHOLE));
        // SAFETY: the caller's promise.
        unsafe { PROGRAMS.kernel(queue, &name, dtype, grid, &args) }
    }
}

/// Softmax, or log_softmax if `log`, on (output, input); or their gradients, on (input gradient, output, output gradient).
pub(crate) fn softmax<const N: usize>(
    queue: &Queue<'_>,
    (log, dtype): (bool, DType),
    rows: &Rows<N>,
    operands: [Address; N],
) -> Result<()> {
    let args = RowArgs::of(queue.op(), dtype, &rows.kept, (rows.len, &rows.steps), (&operands, 1))?;
    let kernel = match (N, log) {
        (2, false) => "softmax",
        (2, true) => "log_softmax",
        (_, false) => "softmax_grad",
        (_, true) => "log_softmax_grad",
    };
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe { args.enqueue(queue, (kernel, dtype), &operands, &[]) }
}
