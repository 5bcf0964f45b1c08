//! Reductions.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::number_programs;
use super::rows::{RowThreads, by_group};
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
    let (along, across) = (axes.reduced.inner().strides[0], axes.kept.inner().strides[0]);
    let threads = RowThreads::of(axes.kept.elements, axes.reduced.elements, along, across);
    let kernel = match how {
        Reduction::Join(ReduceOp::Sum) => by_group!(threads.group, dtype, "sum"),
        Reduction::Join(ReduceOp::Mean) => by_group!(threads.group, dtype, "mean"),
        Reduction::Join(ReduceOp::Prod) => by_group!(threads.group, dtype, "prod"),
        Reduction::Join(ReduceOp::Max) => by_group!(threads.group, dtype, "max"),
        Reduction::Join(ReduceOp::Min) => by_group!(threads.group, dtype, "min"),
        Reduction::Index(Extreme::Largest) => by_group!(threads.group, dtype, "argmax"),
        Reduction::Index(Extreme::Smallest) => by_group!(threads.group, dtype, "argmin"),
        Reduction::Var { .. } => by_group!(threads.group, dtype, "var"),
        Reduction::LogSumExp => by_group!(threads.group, dtype, "logsumexp"),
    };
    let divisor = match how {
        Reduction::Var { correction } => (axes.reduced.elements as f64 - correction).max(0.0),
        _ => 0.0,
    };
    let (kept, reduced) = (Walk::of(queue.op(), &axes.kept)?, Walk::of(queue.op(), &axes.reduced)?);
    let [out, x] = operands.map(Arg::from);
    let args = [out, x, kept.arg(), reduced.arg(), Arg::U32(threads.lanes), Arg::F64(divisor)];
    // SAFETY: the kernel takes these arguments; the walks go over the axes of the input, and the output has room for all kept
    // elements.
    unsafe { queue.kernel(program_of(dtype), kernel, threads.grid(queue, THREADS), &args) }
}
