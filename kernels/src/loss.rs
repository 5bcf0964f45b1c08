//! Launchers of losses.

use device::{Error, Result, Stream};

use crate::command::{Command, for_float, no_scalars};
use crate::cpu::loss as cpu;
use crate::cuda::loss as cuda;
use crate::fuse::{Fusible, LossSlopes, Losses};
use crate::layout::View;
use crate::loops::Classes;

/// Cross-entropy of class scores, `losses[i] = log_sums[i] - logits[i, labels[i]]` with
/// `log_sums = logsumexp(logits, axis 1)`, for floats.
///
/// Shapes: `[n, c], [n] -> [n], [n]`; labels are I64, `losses` and `log_sums` of the type that is computed in, and `log_sums` is
/// contiguous. A label outside `0..c` is a failure of the command, which becomes `Async`.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, `InvalidArgument` for `log_sums`
/// that are not contiguous, those of [`Stream::launch`].
pub fn cross_entropy(
    stream: &Stream,
    logits: View<'_>,
    labels: View<'_>,
    losses: View<'_>,
    log_sums: View<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    let classes = classes(OP, [&logits], [&labels, &losses], &log_sums)?;
    let dtype = logits.dtype;
    for_float!(OP, dtype, T => Command::new(
        OP,
        (logits.read::<T>(), labels.read::<i64>().exact(), losses.write::<T>().exact(), log_sums.write::<T>().exact()),
    )
    .cost(logits.layout.elements(), 8)
    .may_fail()
    .launch(
        stream,
        classes,
        no_scalars,
        move |classes, operands| Fusible::of(Losses { dtype, classes: classes.clone(), operands }),
        // SAFETY: `classes` was made from the layouts of these operands; see `Command::launch`.
        |classes, workers, operands| unsafe { cpu::cross_entropy(classes, workers, operands) },
        move |classes, queue, operands| cuda::cross_entropy(queue, dtype, classes, operands.into()),
    ))
}

/// Gradient of [`cross_entropy`] for the logits,
/// `out[i, j] = (exp(logits[i, j] - log_sums[i]) - (j == labels[i])) g[i]`.
///
/// Shapes: `[n, c], [n], [n], [n] -> [n, c]`. Labels, `log_sums` and `g`, as losses, as for [`cross_entropy`]; `out` may be
/// `logits`.
///
/// # Errors
/// As for [`cross_entropy`].
pub fn cross_entropy_grad(
    stream: &Stream,
    logits: View<'_>,
    log_sums: View<'_>,
    labels: View<'_>,
    g: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_grad";
    let classes = classes(OP, [&out, &logits], [&labels, &g], &log_sums)?;
    let dtype = out.dtype;
    for_float!(OP, dtype, T => Command::new(
        OP,
        (
            out.write::<T>(),
            [logits.read::<T>().in_place(), g.read::<T>().exact(), log_sums.read::<T>().exact()],
            labels.read::<i64>().exact(),
        ),
    )
    .cost(out.layout.elements(), 8)
    .may_fail()
    .launch(
        stream,
        classes,
        no_scalars,
        move |classes, operands| Fusible::of(LossSlopes { dtype, classes: classes.clone(), operands }),
        // SAFETY: `classes` was made from the layouts of these operands; see `Command::launch`.
        |classes, workers, operands| unsafe { cpu::cross_entropy_grad(classes, workers, operands) },
        move |classes, queue, operands| cuda::cross_entropy_grad(queue, dtype, classes, operands),
    ))
}

/// The rows of operands `[n, c]`, and of others with an element `[n]` for each; those of the last one lie next to each other.
fn classes<const N: usize>(
    op: &'static str,
    scores: [&View<'_>; N],
    of_rows: [&View<'_>; 2],
    log_sums: &View<'_>,
) -> Result<Classes<N>> {
    let &[rows, classes] = scores[0].shape() else {
        return Err(Error::shape_mismatch(op, "", &[0, 0], scores[0].shape()));
    };
    scores.iter().try_for_each(|view| view.expect_shape(op, &[rows, classes]))?;
    of_rows.iter().chain([&log_sums]).try_for_each(|view| view.expect_shape(op, &[rows]))?;
    log_sums.expect_contiguous(op, "log_sums")?;
    let step = |view: &View<'_>, axis: usize| view.layout.strides()[axis];
    Ok(Classes {
        rows,
        classes,
        across: scores.map(|view| step(view, 0)),
        along: scores.map(|view| step(view, 1)),
        of_rows: of_rows.map(|view| step(view, 0)),
    })
}

#[cfg(test)]
mod tests;
