//! Cross-entropy. The kernels are those of softmax, and check the labels.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::softmax::RowArgs;
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
    enqueue(queue, ("cross_entropy", dtype), c, [c.across[0], c.of_rows[0], c.of_rows[1]], &operands)
}

/// On the gradient of the logits; the logits, the gradient of the losses and the logarithms of sums; and labels.
pub(crate) fn cross_entropy_grad(
    queue: &Queue<'_>,
    dtype: DType,
    c: &Classes<2>,
    (out, [logits, g, log_sums], labels): (Address, [Address; 3], Address),
) -> Result<()> {
    let strides = [c.across[0], c.across[1], c.of_rows[0], c.of_rows[1]];
    enqueue(queue, ("cross_entropy_grad", dtype), c, strides, &[out, logits, labels, g, log_sums])
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
    enqueue(queue, ("cross_entropy_both", dtype), c, strides, &operands)
}

/// Enqueues a kernel on `K` matrices of scores, of which the last one holds the logits. `strides` are the steps from row to row of
/// the operands that the kernel walks.
fn enqueue<const K: usize, const N: usize>(
    queue: &Queue<'_>,
    kernel: (&str, DType),
    c: &Classes<K>,
    strides: [isize; N],
    operands: &[Address],
) -> Result<()> {
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides }]);
    let args = RowArgs::of(queue.op(), kernel.1, &kept, (c.classes, &c.along), (operands, K - 1))?;
    // SAFETY: callers pass what the kernel takes; the rows are those of the operands, and labels are checked before they are
    // followed.
    unsafe { args.enqueue(queue, kernel, operands, &[Arg::Fault]) }
}
