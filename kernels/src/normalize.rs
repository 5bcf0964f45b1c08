//! Launchers of normalization by rows: layer norm, RMS norm, group norm, and their gradients.

use device::{Error, Result, Stream};

use crate::command::{Command, for_float};
use crate::cpu::normalize as cpu;
use crate::cuda::needs;
use crate::cuda::normalize as cuda;
use crate::layout::View;
use crate::norms::NormRows;

/// What a normalization reads: `x` in rows, and its optional weight and bias.
#[derive(Clone, Copy, Debug)]
pub struct NormInput<'a> {
    /// The elements.
    pub x: View<'a>,
    /// What a normalized element is multiplied with, of the type of the elements or of that which is computed in; 1 if there is none.
    pub weight: Option<View<'a>>,
    /// What is then added, of the weight's type; 0 if there is none.
    pub bias: Option<View<'a>>,
}

/// Where the gradients of a normalization go; each may be left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct NormGrads<'a> {
    /// The gradient of the elements.
    pub x: Option<View<'a>>,
    /// The gradient of the weight, of the weight's type, or without a weight of one that it might have.
    pub weight: Option<View<'a>>,
    /// The gradient of the bias, of the same type.
    pub bias: Option<View<'a>>,
    /// What the sums of the last two are made in: of type U8, contiguous, of [`normalize_workspace`] elements. It may be left
    /// out if those are none, or neither is wanted.
    pub workspace: Option<View<'a>>,
}

/// `out = (x - mean) rstd weight + bias` with `rstd = 1 / sqrt(mean((x - mean)^2) + eps)` of each row, for floats.
/// Without a place for the mean it is 0: `rstd = 1 / sqrt(mean(x^2) + eps)`.
///
/// All operands are contiguous. Shapes: `x` and `out` in rows as `rows` says, `mean` and `rstd`, of the type that is computed in, with an element for each
/// row, `weight` and `bias` with `groups * channels` elements. Sums have one order, whatever the number of threads.
///
/// # Errors
/// `ShapeMismatch`, `InvalidArgument` for operands that are not contiguous and, on CUDA, for rows of 2^31 elements, several of which share
/// a weight, `DTypeMismatch`, `DTypeUnsupported`, those of [`Stream::launch`].
pub fn normalize(
    stream: &Stream,
    op: &'static str,
    rows: NormRows,
    input: NormInput<'_>,
    eps: f64,
    out: View<'_>,
    (mean, rstd): (Option<View<'_>>, View<'_>),
) -> Result<()> {
    let NormInput { x, weight, bias } = input;
    let (count, dtype) = (count_rows(op, rows, &x)?, out.dtype);
    let elements = count.saturating_mul(rows.row());
    expect_elements(op, [Some(x), Some(out)], elements)?;
    expect_elements(op, [weight, bias], rows.weights())?;
    expect_elements(op, [mean, Some(rstd)], count)?;
    for_float!(op, dtype, T => {
        let weights = weight.or(bias).map_or(dtype, |view| view.dtype);
        let affine = [weight, bias].map(|view| view.map(|view| view.read::<T>().exact_if(weights != dtype)));
        let statistics = (mean.map(|view| view.write::<T>().exact()), rstd.write::<T>().exact());
        Command::new(op, (out.write::<T>(), x.read::<T>(), affine, statistics)).cost(elements, 4).run(
            stream,
            (rows, count),
            // SAFETY: `rows` was made from the shapes of these contiguous operands; see `Command::run`.
            move |rows, workers, (out, x, affine, statistics)| unsafe {
                cpu::forward(rows, workers, eps, (out, x), affine, statistics);
            },
            move |rows, queue, (out, x, affine, statistics)| {
                cuda::normalize(queue, [dtype, weights], rows, eps, [out, x], affine, statistics)
            },
        )
    })
}

/// Bytes of the workspace that [`normalize_grad`] needs on `stream`'s device for the gradients of weight and bias, where `x` has
/// so many elements.
pub fn normalize_workspace(stream: &Stream, rows: NormRows, elements: usize) -> usize {
    let count = elements.checked_div(rows.row());
    count.and_then(|count| needs(stream, || cuda::workspace(&(rows, count)))).unwrap_or(0)
}

/// The gradients of [`normalize`], whose `mean` and `rstd` are given; `mean` only if it had one.
///
/// With `h = (x - mean) rstd` and `d = g weight` they are, of each row,
/// `dx = rstd (d - mean(d) - h mean(d h))`, without the first mean if there is no `mean`; and, summed over the rows and the
/// inner elements, `dweight = sum(g h)` and `dbias = sum(g)`.
///
/// # Errors
/// As for [`normalize`].
pub fn normalize_grad(
    stream: &Stream,
    op: &'static str,
    rows: NormRows,
    g: View<'_>,
    (x, weight): (View<'_>, Option<View<'_>>),
    (mean, rstd): (Option<View<'_>>, View<'_>),
    to: NormGrads<'_>,
) -> Result<()> {
    let weights = weight.or(to.weight).or(to.bias).map_or(g.dtype, |view| view.dtype);
    [to.weight, to.bias].into_iter().flatten().try_for_each(|view| view.expect_dtype(op, weights))?;
    if to.x.is_some() && (to.weight.is_some() || to.bias.is_some()) && stream.prefers_parts() {
        // What comes next waits for the elements' gradient only.
        let elements = NormGrads { x: to.x, ..NormGrads::default() };
        normalize_grad(stream, op, rows, g, (x, weight), (mean, rstd), elements)?;
        let weights = NormGrads { x: None, ..to };
        return normalize_grad(stream, op, rows, g, (x, None), (mean, rstd), weights);
    }
    let (count, dtype) = (count_rows(op, rows, &x)?, g.dtype);
    let elements = count.saturating_mul(rows.row());
    expect_elements(op, [Some(x), Some(g), to.x], elements)?;
    expect_elements(op, [weight, to.weight, to.bias], rows.weights())?;
    expect_elements(op, [mean, Some(rstd)], count)?;
    let is_summed = to.weight.is_some() || to.bias.is_some();
    let needed = if is_summed { normalize_workspace(stream, rows, elements) } else { 0 };
    let workspace = View::workspace::<u8>(op, to.workspace, needed)?;
    for_float!(op, dtype, T => {
        let statistics = (mean.map(|view| view.read::<T>().exact()), rstd.read::<T>().exact());
        let is_exact = weights != dtype;
        let sums = [to.weight, to.bias].map(|view| view.map(|view| view.write::<T>().exact_if(is_exact)));
        let grads = (to.x.map(View::write::<T>), sums);
        let read = ([g, x].map(View::read::<T>), weight.map(|view| view.read::<T>().exact_if(is_exact)));
        Command::new(op, (read, statistics, grads, workspace)).cost(elements, 8).run(
            stream,
            (rows, count),
            // SAFETY: `rows` was made from the shapes of these contiguous operands; see `Command::run`.
            |rows, workers, (read, statistics, grads, _)| unsafe {
                cpu::backward(rows, workers, read, statistics, grads);
            },
            move |rows, queue, (read, statistics, (dx, sums), workspace)| {
                cuda::gradient(queue, [dtype, weights], rows, read, statistics, (dx, sums), workspace)
            },
        )
    })
}

/// The number of rows of `x`.
fn count_rows(op: &'static str, rows: NormRows, x: &View<'_>) -> Result<usize> {
    let (elements, together) = (x.layout.elements(), rows.weights().saturating_mul(rows.inner));
    match elements.checked_div(together) {
        Some(n) if n.saturating_mul(together) == elements => Ok(n * rows.groups),
        // Rows without elements: nothing can be said of their number, and nothing is done with them.
        None if elements == 0 => Ok(0),
        _ => {
            let value = format_args!("{:?} of {rows:?}", x.shape());
            Err(Error::invalid(op, "rows", "a tensor of whole rows", value))
        }
    }
}

/// That the operands that there are have so many elements, next to each other.
fn expect_elements<const N: usize>(
    op: &'static str,
    views: [Option<View<'_>>; N],
    elements: usize,
) -> Result<()> {
    for view in views.iter().flatten() {
        view.expect_contiguous(op, "operands")?;
        let value = format_args!("{:?} instead of {elements} elements", view.shape());
        let is_valid = view.layout.elements() == elements;
        Error::require(is_valid, op, "operands", "an element for each row or weight", value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
