//! Reductions.

use device::cuda::Arg;
use device::{DType, Result, Stream, Use};

use super::number_programs;
use super::rows::{Team, Teams, by_team};
use super::walk::{ByValue, Walk, address};
use crate::cpu::fold::Axes;
use crate::layout::View;
use crate::reduce::{Best, ReduceOp};

number_programs!("reduce", "rows.cuh", "reduce.cu");

/// Threads of a block, at most; as in the program.
const THREADS: u32 = 1024;

pub(crate) fn reduce(stream: &Stream, op: ReduceOp, x: View<'_>, axes: &Axes, out: View<'_>) -> Result<()> {
    let kernel: fn(Team, DType) -> &'static str = match op {
        ReduceOp::Sum => |team, dtype| by_team!(team, dtype, "sum"),
        ReduceOp::Mean => |team, dtype| by_team!(team, dtype, "mean"),
        ReduceOp::Prod => |team, dtype| by_team!(team, dtype, "prod"),
        ReduceOp::Max => |team, dtype| by_team!(team, dtype, "max"),
        ReduceOp::Min => |team, dtype| by_team!(team, dtype, "min"),
    };
    launch(stream, op.name(), kernel, 0.0, x, axes, out)
}

pub(crate) fn var(stream: &Stream, x: View<'_>, axes: &Axes, correction: f64, out: View<'_>) -> Result<()> {
    let divisor = (axes.reduced.elements as f64 - correction).max(0.0);
    launch(stream, "var", |team, dtype| by_team!(team, dtype, "var"), divisor, x, axes, out)
}

pub(crate) fn logsumexp(stream: &Stream, x: View<'_>, axes: &Axes, out: View<'_>) -> Result<()> {
    launch(stream, "logsumexp", |team, dtype| by_team!(team, dtype, "logsumexp"), 0.0, x, axes, out)
}

pub(crate) fn first_best(stream: &Stream, best: Best, x: View<'_>, axes: &Axes, out: View<'_>) -> Result<()> {
    let kernel: fn(Team, DType) -> &'static str = match best {
        Best::Largest => |team, dtype| by_team!(team, dtype, "argmax"),
        Best::Smallest => |team, dtype| by_team!(team, dtype, "argmin"),
    };
    launch(stream, best.op(), kernel, 0.0, x, axes, out)
}

fn launch(
    stream: &Stream,
    op: &'static str,
    kernel: fn(Team, DType) -> &'static str,
    divisor: f64,
    x: View<'_>,
    Axes { kept, reduced }: &Axes,
    out: View<'_>,
) -> Result<()> {
    if kept.elements == 0 {
        return Ok(());
    }
    let (along, across) = (reduced.inner().strides[0], kept.inner().strides[0]);
    let teams = Teams::of(kept.elements, reduced.elements, along, across);
    let (kept, reduced) = (Walk::of(op, kept)?, Walk::of(op, reduced)?);
    let dtype = x.dtype;
    stream.submit(op, &[Use::write(out.buffer), Use::read(x.buffer)], |queue| {
        let args = [
            Arg::Ptr(address(&out)),
            Arg::Ptr(address(&x)),
            kept.arg(),
            reduced.arg(),
            Arg::U32(teams.lanes),
            Arg::F64(divisor),
        ];
        // SAFETY: the walks go over the axes of `x`, `out` has room for all kept elements, both layouts were checked,
        // and the uses name the buffers.
        unsafe {
            queue.kernel(program_of(dtype), kernel(teams.team, dtype), teams.grid(queue, THREADS), &args)
        }
    })
}
