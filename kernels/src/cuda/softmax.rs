//! Softmax, its logarithm, and their gradients.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result};

use super::float_programs;
use super::rows::{Teams, by_team};
use super::walk::{ByValue, Walk};
use crate::command::Address;
use crate::layout::Loops;
use crate::loops::Rows;

float_programs!("softmax", "rows.cuh", "softmax.cu");

/// Threads of a block, at most; as in the program.
const THREADS: u32 = 256;

/// `Rows` of the program: length, and steps along a row.
#[repr(C)]
struct RowSteps {
    len: u64,
    steps: [i64; 3],
}

// SAFETY: words of 64 bits.
unsafe impl ByValue for RowSteps {}

/// Rows as the kernels take them.
pub(super) struct RowArgs<const N: usize> {
    kept: Walk<N>,
    rows: RowSteps,
    pub(super) teams: Teams,
}

impl<const N: usize> RowArgs<N> {
    /// Rows of `len` elements at `steps` in up to three operands; `x` is the operand that decides about the team.
    pub(super) fn of(
        op: &'static str,
        kept: &Loops<N>,
        len: usize,
        steps: &[isize],
        x: usize,
    ) -> Result<RowArgs<N>> {
        let mut all = [0; 3];
        for (to, &step) in all.iter_mut().zip(steps) {
            *to = step as i64;
        }
        Ok(RowArgs {
            kept: Walk::of(op, kept)?,
            rows: RowSteps { len: len as u64, steps: all },
            teams: Teams::of(kept.elements, len, steps[x], kept.inner().strides[x]),
        })
    }

    /// The arguments that follow the operands.
    pub(super) fn args(&self) -> [Arg<'_>; 3] {
        [self.kept.arg(), self.rows.arg(), Arg::U32(self.teams.lanes)]
    }

    pub(super) fn grid(&self, queue: &Queue<'_>) -> Grid {
        self.teams.grid(queue, THREADS)
    }
}

pub(crate) fn unary(
    queue: &Queue<'_>,
    (log, dtype): (bool, DType),
    rows: &Rows<2>,
    [out, x]: [Address; 2],
) -> Result<()> {
    let args = RowArgs::of(queue.op(), &rows.kept, rows.len, &rows.steps, 1)?;
    let kernel = match log {
        true => by_team!(args.teams.team, dtype, "log_softmax"),
        false => by_team!(args.teams.team, dtype, "softmax"),
    };
    let [kept, steps, lanes] = args.args();
    // SAFETY: the kernel takes these arguments, and the rows are those of the operands.
    unsafe {
        queue.kernel(program_of(dtype), kernel, args.grid(queue), &[out.into(), x.into(), kept, steps, lanes])
    }
}

pub(crate) fn gradient(
    queue: &Queue<'_>,
    (log, dtype): (bool, DType),
    rows: &Rows<3>,
    [out, y, g]: [Address; 3],
) -> Result<()> {
    let args = RowArgs::of(queue.op(), &rows.kept, rows.len, &rows.steps, 1)?;
    let kernel = match log {
        true => by_team!(args.teams.team, dtype, "log_softmax_grad"),
        false => by_team!(args.teams.team, dtype, "softmax_grad"),
    };
    let [kept, steps, lanes] = args.args();
    let all = [out.into(), y.into(), g.into(), kept, steps, lanes];
    // SAFETY: as in `unary`.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}
