//! Softmax, its logarithm, and their gradients.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};

use super::float_programs;
use super::rows::{RowThreads, by_group};
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
    /// `Rows` of the program: length, and steps along a row.
    rows: [i64; 4],
    pub(super) threads: RowThreads,
}

impl<const N: usize> RowArgs<N> {
    /// Rows of `len` elements at `steps` in up to three operands; `x` is the operand that decides about the group.
    pub(super) fn of(
        op: &'static str,
        kept: &Loops<N>,
        len: usize,
        steps: &[isize],
        x: usize,
    ) -> Result<RowArgs<N>> {
        let mut rows = [len as i64, 0, 0, 0];
        rows[1..].iter_mut().zip(steps).for_each(|(to, &step)| *to = step as i64);
        Ok(RowArgs {
            kept: Walk::of(op, kept)?,
            rows,
            threads: RowThreads::of(kept.elements, len, steps[x], kept.inner().strides[x]),
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

/// Softmax or, with `log`, its logarithm, on output and input.
pub(crate) fn forward(
    queue: &Queue<'_>,
    (log, dtype): (bool, DType),
    rows: &Rows<2>,
    operands: [Address; 2],
) -> Result<()> {
    let args = RowArgs::of(queue.op(), &rows.kept, rows.len, &rows.steps, 1)?;
    let kernel = match log {
        true => by_group!(args.threads.group, dtype, "log_softmax"),
        false => by_group!(args.threads.group, dtype, "softmax"),
    };
    let ([out, x], [kept, steps, lanes]) = (operands.map(Arg::from), args.args());
    let all = [out, x, kept, steps, lanes];
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}

/// Their gradients, on the gradients of the input and the output, and the output between them.
pub(crate) fn gradient(
    queue: &Queue<'_>,
    (log, dtype): (bool, DType),
    rows: &Rows<3>,
    operands: [Address; 3],
) -> Result<()> {
    let args = RowArgs::of(queue.op(), &rows.kept, rows.len, &rows.steps, 1)?;
    let kernel = match log {
        true => by_group!(args.threads.group, dtype, "log_softmax_grad"),
        false => by_group!(args.threads.group, dtype, "softmax_grad"),
    };
    let ([out, y, g], [kept, steps, lanes]) = (operands.map(Arg::from), args.args());
    let all = [out, y, g, kept, steps, lanes];
    // SAFETY: as in `forward`.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}
