//! Launchers of losses.

#[cfg(doc)]
use device::Error;
use device::{Result, Stream};

use crate::command::{Command, for_float};
use crate::cpu::loss as cpu;
use crate::cuda::loss as cuda;
use crate::layout::{View, shape_mismatch};
use crate::loops::Classes;

/// Cross-entropy of class scores, `losses[i] = -log_probs[i, labels[i]]` with
/// `log_probs = log_softmax(logits, axis 1)`, for floats.
///
/// Shapes: `[n, c], [n] -> [n], [n, c]`; labels are I64. A label outside `0..c` is a failure of the command, which
/// becomes [`Error::Async`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], those of [`Stream::launch`].
pub fn cross_entropy(
    stream: &Stream,
    logits: View<'_>,
    labels: View<'_>,
    losses: View<'_>,
    log_probs: View<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    let classes = classes(OP, [&log_probs, &logits], [&labels, &losses])?;
    let dtype = logits.dtype;
    for_float!(OP, dtype, T => Command::new(
        OP,
        (logits.read::<T>(), log_probs.write::<T>(), labels.read::<i64>().exact(), losses.write::<T>()),
    )
    .cost(logits.layout.elements(), 8)
    .may_fail()
    .run(
        stream,
        classes,
        // SAFETY: the classes are those of the operands.
        |classes, workers, operands| unsafe { cpu::cross_entropy(classes, workers, operands) },
        move |classes, queue, operands| cuda::cross_entropy(queue, dtype, classes, operands.into()),
    ))
}

/// Gradient of [`cross_entropy`] for the logits, `out[i, j] = (exp(log_probs[i, j]) - (j == labels[i])) g[i]`.
///
/// Shapes: `[n, c], [n], [n] -> [n, c]`. Labels as for [`cross_entropy`].
///
/// # Errors
/// As for [`cross_entropy`].
pub fn cross_entropy_grad(
    stream: &Stream,
    log_probs: View<'_>,
    labels: View<'_>,
    g: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_grad";
    let classes = classes(OP, [&out, &log_probs], [&labels, &g])?;
    let dtype = out.dtype;
    for_float!(OP, dtype, T => Command::new(
        OP,
        (out.write::<T>(), log_probs.read::<T>(), labels.read::<i64>().exact(), g.read::<T>()),
    )
    .cost(out.layout.elements(), 8)
    .may_fail()
    .run(
        stream,
        classes,
        // SAFETY: the classes are those of the operands.
        |classes, workers, operands| unsafe { cpu::cross_entropy_grad(classes, workers, operands) },
        move |classes, queue, operands| cuda::cross_entropy_grad(queue, dtype, classes, operands.into()),
    ))
}

/// The rows of operands `[n, c]`, and of others with an element `[n]` for each.
fn classes(op: &'static str, scores: [&View<'_>; 2], of_rows: [&View<'_>; 2]) -> Result<Classes> {
    let &[rows, classes] = scores[0].shape() else {
        return Err(shape_mismatch(op, &[0, 0], scores[0].shape()));
    };
    scores[1].expect_shape(op, &[rows, classes])?;
    of_rows.iter().try_for_each(|view| view.expect_shape(op, &[rows]))?;
    let step = |view: &View<'_>, axis: usize| view.layout.strides()[axis];
    Ok(Classes {
        rows,
        classes,
        across: [step(scores[0], 0), step(scores[1], 0), step(of_rows[0], 0), step(of_rows[1], 0)],
        along: scores.map(|view| step(view, 1)),
    })
}

#[cfg(test)]
mod tests;
