//! Cross-entropy. The kernels are those of softmax, and check the labels.

use device::cuda::{Arg, Queue};
use device::{DType, Result};

use super::by_dtype;
use super::rows::by_group;
use super::softmax::{RowArgs, program_of};
use super::walk::{ByValue, Walk};
use crate::command::Address;
use crate::layout::{LoopAxis, Loops};
use crate::loops::Classes;

/// On logits, logarithms of probabilities, labels and losses.
pub(crate) fn cross_entropy(
    queue: &Queue<'_>,
    dtype: DType,
    c: &Classes,
    operands: [Address; 4],
) -> Result<()> {
    let kept = Loops::from_axes([LoopAxis { size: c.rows, strides: c.across }]);
    let args = RowArgs::of(queue.op(), &kept, c.classes, &c.along, 1)?;
    let ([logits, log_probs, labels, losses], [kept, steps, lanes]) = (operands.map(Arg::from), args.args());
    let all = [log_probs, logits, labels, losses, kept, steps, lanes, Arg::Fault];
    let kernel = by_group!(args.threads.group, dtype, "cross_entropy");
    // SAFETY: the kernel takes these arguments, the rows are those of the operands, and labels are checked before they are
    // followed.
    unsafe { queue.kernel(program_of(dtype), kernel, args.grid(queue), &all) }
}

/// On the gradient of the logits, logarithms of probabilities, labels and the gradient of the losses.
pub(crate) fn cross_entropy_grad(
    queue: &Queue<'_>,
    dtype: DType,
    c: &Classes,
    operands: [Address; 4],
) -> Result<()> {
    let [out_step, log_probs_step, label_step, g_step] = c.across;
    // The fourth operand is the number of the class.
    let loops = Loops::from_axes([
        LoopAxis { size: c.rows, strides: [out_step, log_probs_step, g_step, 0, label_step] },
        LoopAxis { size: c.classes, strides: [c.along[0], c.along[1], 0, 1, 0] },
    ]);
    let walk = Walk::of(queue.op(), &loops)?;
    let [out, log_probs, labels, g] = operands.map(Arg::from);
    let args = [out, log_probs, g, labels, walk.arg(), Arg::I64(c.classes as i64), Arg::Fault];
    let kernel = by_dtype!(dtype, "cross_entropy_grad");
    // SAFETY: as in `cross_entropy`.
    unsafe { queue.kernel(program_of(dtype), kernel, walk.grid(queue, 1), &args) }
}
