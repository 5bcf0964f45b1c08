//! Cross-entropy. The kernels are those of softmax, and check the labels.

use device::cuda::Arg;
use device::{Result, Stream, Use};

use super::rows::by_team;
use super::softmax::{RowArgs, program_of};
use super::walk::{ByValue, Walk, address};
use crate::layout::{LoopAxis, Loops, View};

pub(crate) fn cross_entropy(
    stream: &Stream,
    logits: View<'_>,
    labels: View<'_>,
    losses: View<'_>,
    log_probs: View<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    let operands = [log_probs, logits, labels, losses];
    let (size, classes) = (logits.shape()[0], logits.shape()[1]);
    let kept = Loops::from_axes([LoopAxis { size, strides: operands.map(|view| view.layout.strides()[0]) }]);
    let steps = [log_probs.layout.strides()[1], logits.layout.strides()[1]];
    let args = RowArgs::of(OP, &kept, classes, &steps, 1)?;
    let uses = [
        Use::write(log_probs.buffer),
        Use::read(logits.buffer),
        Use::read(labels.buffer),
        Use::write(losses.buffer),
    ];
    stream.submit(OP, &uses, |queue| {
        let [kept, steps, lanes] = args.args();
        let [a, b, c, d] = operands.map(|view| Arg::Ptr(address(&view)));
        let all = [a, b, c, d, kept, steps, lanes, Arg::Fault];
        let kernel = by_team!(args.teams.team, logits.dtype, "cross_entropy");
        // SAFETY: the rows are those of the operands, whose layouts were checked; labels are checked before they are
        // followed, and the uses name all buffers.
        unsafe { queue.kernel(program_of(logits.dtype), kernel, args.grid(queue), &all) }
    })
}

pub(crate) fn cross_entropy_grad(
    stream: &Stream,
    log_probs: View<'_>,
    labels: View<'_>,
    g: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_grad";
    let (rows, classes) = (out.shape()[0], out.shape()[1]);
    if out.layout.elements() == 0 {
        return Ok(());
    }
    let step = |view: &View<'_>, axis: usize| view.layout.strides()[axis];
    // The fourth operand is the number of the class.
    let loops = Loops::from_axes([
        LoopAxis {
            size: rows,
            strides: [step(&out, 0), step(&log_probs, 0), step(&g, 0), 0, step(&labels, 0)],
        },
        LoopAxis { size: classes, strides: [step(&out, 1), step(&log_probs, 1), 0, 1, 0] },
    ]);
    let walk = Walk::of(OP, &loops)?;
    let uses =
        [Use::write(out.buffer), Use::read(log_probs.buffer), Use::read(g.buffer), Use::read(labels.buffer)];
    stream.submit(OP, &uses, |queue| {
        let [a, b, c, d] = [&out, &log_probs, &g, &labels].map(|view| Arg::Ptr(address(view)));
        let all = [a, b, c, d, walk.arg(), Arg::I64(classes as i64), Arg::Fault];
        let kernel = super::by_dtype!(out.dtype, "cross_entropy_grad");
        // SAFETY: the walk is that of the operands, whose layouts were checked, and the uses name their buffers.
        unsafe { queue.kernel(program_of(out.dtype), kernel, walk.grid(queue, 1), &all) }
    })
}
