//! Cross-entropy. The kernels are those of softmax, and check the labels.

use device::cuda::{Arg, Queue};
use device::{DType, Result};
use smallvec::SmallVec;

use super::rows::by_group;
use super::softmax::{RowArgs, program_of};
use crate::command::Address;
use crate::layout::{LoopAxis, Loops};
use crate::loops::Classes;

/// On logits, labels, losses and the logarithms of sums.
pub(crate) fn cross_entropy(
    queue: &Queue<'_>,
    dtype: DType,
    c: &Classes<1>,
    operands: [Address; 4],
) -> Result<()> {
    let strides = [c.across[0], c.of_rows[0], c.of_rows[1]];
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides }]);
    let args = RowArgs::of(queue.op(), dtype, &kept, (c.classes, &c.along), (&operands, 0))?;
    let ([logits, labels, losses, log_sums], [kept, rows, lanes]) = (operands.map(Arg::from), args.args());
    let all = [logits, labels, losses, log_sums, kept, rows, lanes, Arg::Fault];
    let kernel = by_group!(args.threads.group, dtype, "cross_entropy");
    // SAFETY: the kernel takes these arguments, the rows are those of the operands, and labels are checked before they are
    // followed.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}

/// On the gradient of the logits; the logits, the gradient of the losses and the logarithms of sums; and labels.
pub(crate) fn cross_entropy_grad(
    queue: &Queue<'_>,
    dtype: DType,
    c: &Classes<2>,
    (out, [logits, g, log_sums], labels): (Address, [Address; 3], Address),
) -> Result<()> {
    let strides = [c.across[0], c.across[1], c.of_rows[0], c.of_rows[1]];
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides }]);
    let operands = [out, logits, labels, g, log_sums];
    let args = RowArgs::of(queue.op(), dtype, &kept, (c.classes, &c.along), (&operands, 1))?;
    let ([out, logits, labels, g, log_sums], [kept, rows, lanes]) = (operands.map(Arg::from), args.args());
    let all = [out, logits, labels, g, log_sums, kept, rows, lanes, Arg::Fault];
    let kernel = by_group!(args.threads.group, dtype, "cross_entropy_grad");
    // SAFETY: the kernel takes these arguments, the rows are those of the operands, and labels are checked before
    // they are followed.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}

/// Both at once, on the gradient of the logits, the logits, labels, the gradient of the losses, the losses, whose step follows
/// the classes of the gradient, and the logarithms of sums.
pub(crate) fn cross_entropy_both(
    queue: &Queue<'_>,
    dtype: DType,
    (c, loss_step): (&Classes<2>, isize),
    operands: [Address; 6],
) -> Result<()> {
    let strides = [c.across[0], c.across[1], c.of_rows[0], c.of_rows[1], loss_step];
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides }]);
    let args = RowArgs::of(queue.op(), dtype, &kept, (c.classes, &c.along), (&operands, 1))?;
    let all: SmallVec<[Arg<'_>; 10]> =
        operands.map(Arg::from).into_iter().chain(args.args()).chain([Arg::Fault]).collect();
    let kernel = by_group!(args.threads.group, dtype, "cross_entropy_both");
    // SAFETY: the kernel takes these arguments, the rows are those of the operands, and labels are checked before
    // they are followed.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}
