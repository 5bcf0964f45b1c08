//! Launchers of losses.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu::lanes::Lanes;
use crate::cpu::loss::{Grad, cross_entropy as cross_entropy_cpu, cross_entropy_grad as grad_cpu};
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{View, shape_mismatch};
use crate::par::workers;
use crate::softmax::rows;

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
    match logits.dtype.compute_dtype() {
        DType::F32 => cross_entropy_of::<f32>(stream, logits, labels, losses, log_probs),
        DType::F64 => cross_entropy_of::<f64>(stream, logits, labels, losses, log_probs),
        dtype => Err(Error::DTypeUnsupported { op: "cross_entropy", dtype }),
    }
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
    match out.dtype.compute_dtype() {
        DType::F32 => grad_of::<f32>(stream, log_probs, labels, g, out),
        DType::F64 => grad_of::<f64>(stream, log_probs, labels, g, out),
        dtype => Err(Error::DTypeUnsupported { op: "cross_entropy_grad", dtype }),
    }
}

fn cross_entropy_of<T: Lanes>(
    stream: &Stream,
    logits: View<'_>,
    labels: View<'_>,
    losses: View<'_>,
    log_probs: View<'_>,
) -> Result<()> {
    let op = "cross_entropy";
    let &[n, c] = logits.shape() else {
        return Err(shape_mismatch(op, &[0, 0], logits.shape()));
    };
    labels.expect_shape(op, &[n])?;
    losses.expect_shape(op, &[n])?;
    let rows = rows(op, [&log_probs, &logits], 1)?;
    let from = Operand::<T>::of(op, &logits, logits.dtype)?;
    let labels_from = labels.src::<i64>(op)?;
    let to = Operand::<T>::of_mut(op, &losses, logits.dtype)?;
    let log_probs_to = Operand::<T>::of_mut(op, &log_probs, logits.dtype)?;
    if n == 0 {
        return Ok(());
    }
    if stream.is_cuda() {
        return cuda::loss::cross_entropy(stream, logits, labels, losses, log_probs);
    }
    let (label_step, loss_step) = (labels.layout.strides()[0], losses.layout.strides()[0]);
    let log_probs_steps = [log_probs.layout.strides()[0], log_probs.layout.strides()[1]];
    let workers = workers(stream, n * c, 8);
    let uses = [
        Use::read(logits.buffer),
        Use::read(labels.buffer),
        Use::write(losses.buffer),
        Use::write(log_probs.buffer),
    ];
    stream.launch(op, &uses, move || {
        // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
        unsafe {
            let stage = Stage::new(&workers);
            cross_entropy_cpu(
                &rows,
                &workers,
                stage.read(&from),
                (labels_from, label_step),
                (stage.write(&to), loss_step),
                (stage.write(&log_probs_to), log_probs_steps),
            );
        }
    })
}

fn grad_of<T: Lanes>(
    stream: &Stream,
    log_probs: View<'_>,
    labels: View<'_>,
    g: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let op = "cross_entropy_grad";
    let &[n, c] = log_probs.shape() else {
        return Err(shape_mismatch(op, &[0, 0], log_probs.shape()));
    };
    out.expect_shape(op, &[n, c])?;
    labels.expect_shape(op, &[n])?;
    g.expect_shape(op, &[n])?;
    let log_probs_from = Operand::<T>::of(op, &log_probs, out.dtype)?;
    let labels_from = labels.src::<i64>(op)?;
    let g_from = Operand::<T>::of(op, &g, out.dtype)?;
    let to = Operand::<T>::of_mut(op, &out, out.dtype)?;
    if n == 0 {
        return Ok(());
    }
    if stream.is_cuda() {
        return cuda::loss::cross_entropy_grad(stream, log_probs, labels, g, out);
    }
    let workers = workers(stream, n * c, 8);
    let uses =
        [Use::read(log_probs.buffer), Use::read(labels.buffer), Use::read(g.buffer), Use::write(out.buffer)];
    let [log_probs_steps, out_steps] = [&log_probs, &out].map(|view| {
        let strides = view.layout.strides();
        [strides[0], strides[1]]
    });
    let (label_step, g_step) = (labels.layout.strides()[0], g.layout.strides()[0]);
    // SAFETY: as in `cross_entropy_of`.
    stream.launch(op, &uses, move || unsafe {
        let stage = Stage::new(&workers);
        let grad = Grad {
            classes: c,
            log_probs: stage.read(&log_probs_from),
            log_probs_steps,
            labels: labels_from,
            label_step,
            g: stage.read(&g_from),
            g_step,
            out: stage.write(&to),
            out_steps,
        };
        grad_cpu(n, &grad, &workers);
    })
}

#[cfg(test)]
#[path = "loss_tests.rs"]
mod tests;
