//! Softmax, its logarithm, and their gradients.

use device::cuda::{Arg, Grid, Queue};
use device::{DType, Result, Stream, Use};

use super::float_programs;
use super::rows::{Team, Teams, by_team};
use super::walk::{ByValue, Walk, address};
use crate::cpu::softmax::Rows;
use crate::layout::{Loops, View};

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
    stream: &Stream,
    (op, log): (&'static str, bool),
    rows: &Rows<2>,
    [out, x]: [View<'_>; 2],
) -> Result<()> {
    let args = RowArgs::of(op, &rows.kept, rows.len, &rows.steps, 1)?;
    let name: fn(Team, DType) -> &'static str = match log {
        true => |team, dtype| by_team!(team, dtype, "log_softmax"),
        false => |team, dtype| by_team!(team, dtype, "softmax"),
    };
    stream.submit(op, &[Use::write(out.buffer), Use::read(x.buffer)], |queue| {
        let [kept, steps, lanes] = args.args();
        let all = [Arg::Ptr(address(&out)), Arg::Ptr(address(&x)), kept, steps, lanes];
        // SAFETY: the rows are those of the operands, whose layouts were checked, and the uses name their buffers.
        unsafe {
            queue.kernel(program_of(out.dtype), name(args.teams.team, out.dtype), args.grid(queue), &all)
        }
    })
}

pub(crate) fn gradient(
    stream: &Stream,
    (op, log): (&'static str, bool),
    rows: &Rows<3>,
    [out, y, g]: [View<'_>; 3],
) -> Result<()> {
    let args = RowArgs::of(op, &rows.kept, rows.len, &rows.steps, 1)?;
    let name: fn(Team, DType) -> &'static str = match log {
        true => |team, dtype| by_team!(team, dtype, "log_softmax_grad"),
        false => |team, dtype| by_team!(team, dtype, "softmax_grad"),
    };
    stream.submit(op, &[Use::write(out.buffer), Use::read(y.buffer), Use::read(g.buffer)], |queue| {
        let [kept, steps, lanes] = args.args();
        let operands = [&out, &y, &g].map(|view| Arg::Ptr(address(view)));
        let all = [operands[0], operands[1], operands[2], kept, steps, lanes];
        // SAFETY: as in `unary`.
        unsafe {
            queue.kernel(program_of(out.dtype), name(args.teams.team, out.dtype), args.grid(queue), &all)
        }
    })
}
