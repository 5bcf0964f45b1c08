//! Reductions.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::rows::{PACK, RowGroup, RowThreads, Units, by_group};
use super::walk::{ByValue, Walk};
use super::{by_dtype, number_programs};
use crate::command::Address;
use crate::reduction::{Axes, Extreme, ReduceOp, Reduction};

number_programs!("reduce", "rows.cuh", "reduce.cu");

/// Threads of a block, at most; as in the program.
fn most_threads(dtype: DType, group: RowGroup) -> u32 {
    if dtype == DType::F64 || group != RowGroup::Column { 256 } else { 512 }
}

/// Threads and units for the axes of a reduction.
fn threads(axes: &Axes) -> (RowThreads, Units) {
    let (along, across) = (axes.reduced.inner().strides[0], axes.kept.inner().strides[0]);
    let threads = RowThreads::of(axes.kept.elements, axes.reduced.elements, along, across);
    (threads, threads.cut())
}

/// Bytes of the workspace.
pub(crate) fn workspace(axes: &Axes) -> usize {
    threads(axes).1.workspace(axes.kept.elements)
}

/// On `(output, input)`.
pub(crate) fn reduce(
    queue: &Queue<'_>,
    dtype: DType,
    how: Reduction,
    axes: &Axes,
    operands: [Address; 2],
    workspace: Option<Address>,
) -> Result<()> {
    let (threads, cut) = threads(axes);
    macro_rules! kernels {
        ($op:literal) => {
            (by_group!(threads.group, dtype, $op), by_dtype!(dtype, concat!($op, "_join")))
        };
    }
    let (kernel, join) = match how {
        Reduction::Join(ReduceOp::Sum) => kernels!("sum"),
        Reduction::Join(ReduceOp::Mean) => kernels!("mean"),
        Reduction::Join(ReduceOp::Prod) => kernels!("prod"),
        Reduction::Join(ReduceOp::Max) => kernels!("max"),
        Reduction::Join(ReduceOp::Min) => kernels!("min"),
        Reduction::Index(Extreme::Largest) => kernels!("argmax"),
        Reduction::Index(Extreme::Smallest) => kernels!("argmin"),
        Reduction::Var { .. } => kernels!("var"),
        Reduction::LogSumExp => kernels!("logsumexp"),
    };
    let divisor = match how {
        Reduction::Var { correction } => (axes.reduced.elements as f64 - correction).max(0.0),
        _ => 0.0,
    };
    let packed = axes.kept.axes.iter().all(|axis| axis.strides[0] % PACK as isize == 0);
    let lanes = if packed { PACK } else { 1 };
    let reduced = Walk::of(queue.op(), &axes.reduced)?;
    let reduced = reduced.vectors(lanes, [(operands[1].0.cast_const(), dtype.size_bytes())]);
    let kept = Walk::of(queue.op(), &axes.kept)?;
    let ([out, x], states) = (operands.map(Arg::from), Arg::from(workspace));
    let (program, divisor) = (program_of(dtype), Arg::F64(divisor));
    let args = [out, x, states, kept.arg(), reduced.arg(), cut.arg(), Arg::U32(threads.lanes), divisor];
    // SAFETY: the kernels take these arguments; the walks go over the axes of the input, the output has room for all kept
    // elements, and the workspace for the states of all units.
    unsafe {
        queue.kernel(
            program,
            kernel,
            threads.grid_of(queue, most_threads(dtype, threads.group), cut),
            &args,
        )?;
        if cut.are_joined() {
            let (grid, lanes) = cut.join(queue, axes.kept.elements);
            let (rows, all) = (axes.kept.elements as i64, axes.reduced.elements as i64);
            let args = [out, states, Arg::I64(rows), Arg::I64(all), cut.arg(), Arg::U32(lanes), divisor];
            queue.kernel(program, join, grid, &args)?;
        }
    }
    Ok(())
}
