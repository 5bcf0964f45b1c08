//! Reductions.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::number_programs;
use super::rows::{Teams, by_team};
use super::walk::{ByValue, Walk};
use crate::command::Address;
use crate::reduction::{Axes, Extreme, ReduceOp, Reduction};

number_programs!("reduce", "rows.cuh", "reduce.cu");

/// Threads of a block, at most; as in the program.
const THREADS: u32 = 1024;

/// On `(output, input)`.
pub(crate) fn reduce(
    queue: &Queue<'_>,
    dtype: DType,
    how: Reduction,
    axes: &Axes,
    operands: [Address; 2],
) -> Result<()> {
    let (count, teams) = (axes.reduced.elements as f64, teams(axes));
    let (kernel, divisor) = match how {
        Reduction::Join(ReduceOp::Sum) => (by_team!(teams.team, dtype, "sum"), 0.0),
        Reduction::Join(ReduceOp::Mean) => (by_team!(teams.team, dtype, "mean"), 0.0),
        Reduction::Join(ReduceOp::Prod) => (by_team!(teams.team, dtype, "prod"), 0.0),
        Reduction::Join(ReduceOp::Max) => (by_team!(teams.team, dtype, "max"), 0.0),
        Reduction::Join(ReduceOp::Min) => (by_team!(teams.team, dtype, "min"), 0.0),
        Reduction::Var { correction } => (by_team!(teams.team, dtype, "var"), (count - correction).max(0.0)),
        Reduction::LogSumExp => (by_team!(teams.team, dtype, "logsumexp"), 0.0),
    };
    enqueue(queue, dtype, (kernel, teams), divisor, axes, operands)
}

/// On `(output, input)`.
pub(crate) fn extreme(
    queue: &Queue<'_>,
    dtype: DType,
    which: Extreme,
    axes: &Axes,
    operands: [Address; 2],
) -> Result<()> {
    let teams = teams(axes);
    let kernel = match which {
        Extreme::Largest => by_team!(teams.team, dtype, "argmax"),
        Extreme::Smallest => by_team!(teams.team, dtype, "argmin"),
    };
    enqueue(queue, dtype, (kernel, teams), 0.0, axes, operands)
}

fn teams(Axes { kept, reduced }: &Axes) -> Teams {
    let (along, across) = (reduced.inner().strides[0], kept.inner().strides[0]);
    Teams::of(kept.elements, reduced.elements, along, across)
}

fn enqueue(
    queue: &Queue<'_>,
    dtype: DType,
    (kernel, teams): (&'static str, Teams),
    divisor: f64,
    axes: &Axes,
    operands: [Address; 2],
) -> Result<()> {
    let (kept, reduced) = (Walk::of(queue.op(), &axes.kept)?, Walk::of(queue.op(), &axes.reduced)?);
    let [out, x] = operands.map(Arg::from);
    let args = [out, x, kept.arg(), reduced.arg(), Arg::U32(teams.lanes), Arg::F64(divisor)];
    // SAFETY: the kernel takes these arguments; the walks go over the axes of the input, and the output has room for all kept
    // elements.
    unsafe { queue.kernel(program_of(dtype), kernel, teams.grid(queue, THREADS), &args) }
}
