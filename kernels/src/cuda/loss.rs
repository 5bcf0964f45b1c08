//! Launchers of cross-entropy, whose kernels are in `softmax.cu` and check labels.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::softmax::RowArgs;
use crate::command::Address;
use crate::layout::{LoopAxis, Loops};
use crate::loops::Classes;

/// Enqueues the losses on (logits, labels, losses, log-sums).
pub(crate) fn cross_entropy(
    queue: &Queue<'_>,
    dtype: DType,
    c: &Classes<1>,
    [logits, labels, losses, log_sums]: [Address; 4],
) -> Result<()> {
    let Classes { rows, classes, across: [across], along: [along], of_rows: [of_labels, of_losses] } = *c;
    let c = Classes { rows, classes, across: [across; 2], along: [along; 2], of_rows: [of_labels, 0] };
    let operands = [Address::NULL, logits, labels, Address::NULL, losses, log_sums];
    cross_entropy_both(queue, dtype, (&c, of_losses), operands)
}

/// Enqueues the gradient on (logit gradient; logits, loss gradient, log-sums; labels).
pub(crate) fn cross_entropy_grad(
    queue: &Queue<'_>,
    dtype: DType,
    c: &Classes<2>,
    (out, [logits, g, log_sums], labels): (Address, [Address; 3], Address),
) -> Result<()> {
    cross_entropy_both(queue, dtype, (c, 0), [out, logits, labels, g, Address::NULL, log_sums])
}

/// Enqueues both in one kernel, on logit gradient, logits, labels, loss gradient, losses and log-sums. The gradient or the losses are not computed if
/// their address is null.
pub(crate) fn cross_entropy_both(
    queue: &Queue<'_>,
    dtype: DType,
    (c, loss_step): (&Classes<2>, isize),
    operands: [Address; 6],
) -> Result<()> {
    let strides = [c.across[0], c.across[1], c.of_rows[0], c.of_rows[1], loss_step];
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides }]);
    let [out, logits, ..] = operands;
    let checked = [if out.0.is_null() { logits } else { out }, logits];
    let args = RowArgs::of(queue.op(), dtype, &kept, (c.classes, &c.along), (&checked, 1))?;
    // SAFETY: the kernel takes these arguments and leaves out what is null; the rows are those of the operands, and labels are checked
    // before they are followed.
    unsafe { args.enqueue(queue, ("cross_entropy", dtype), &operands, &[Arg::Fault]) }
}
