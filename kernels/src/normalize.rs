//! Launchers of normalization by rows: layer norm, RMS norm, group norm, and their gradients.

use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use crate::cpu::lanes::Lanes;
use crate::cpu::normalize as cpu;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::View;
use crate::par::old_workers;

/// How a contiguous tensor is cut into rows that are normalized: as `[n, groups, channels, inner]`, with a row for each
/// `(n, group)` and a weight and a bias for each `(group, channel)`.
///
/// Layer norm has one group and no inner elements, group norm has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormRows {
    /// Rows that follow each other with weights of their own.
    pub groups: usize,
    /// Weights of a row.
    pub channels: usize,
    /// Elements next to each other that share a weight.
    pub inner: usize,
}

impl NormRows {
    /// Elements of a row.
    pub fn row(&self) -> usize {
        self.channels * self.inner
    }

    /// Weights of all rows.
    pub fn weights(&self) -> usize {
        self.groups * self.channels
    }
}

/// What a normalization reads: `x` in rows, and its optional weight and bias.
#[derive(Clone, Copy, Debug)]
pub struct NormInput<'a> {
    /// The elements.
    pub x: View<'a>,
    /// What a normalized element is multiplied with; 1 if there is none.
    pub weight: Option<View<'a>>,
    /// What is then added; 0 if there is none.
    pub bias: Option<View<'a>>,
}

/// Where the gradients of a normalization go; each may be left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct NormGrads<'a> {
    /// The gradient of the elements.
    pub x: Option<View<'a>>,
    /// The gradient of the weight.
    pub weight: Option<View<'a>>,
    /// The gradient of the bias.
    pub bias: Option<View<'a>>,
}

/// `out = (x - mean) rstd weight + bias` with `rstd = 1 / sqrt(mean((x - mean)^2) + eps)` of each row, for floats.
/// Without a place for the mean it is 0: `rstd = 1 / sqrt(mean(x^2) + eps)`.
///
/// All operands are contiguous. Shapes: `x` and `out` in rows as `rows` says, `mean` and `rstd`, of the type that is computed in, with an element for each
/// row, `weight` and `bias` with `groups * channels` elements. Sums have one order, whatever the number of threads.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::InvalidArgument`] for operands that are not contiguous, [`Error::DTypeMismatch`],
/// [`Error::DTypeUnsupported`], those of [`Stream::launch`].
pub fn normalize(
    stream: &Stream,
    op: &'static str,
    rows: NormRows,
    input: NormInput<'_>,
    eps: f64,
    out: View<'_>,
    (mean, rstd): (Option<View<'_>>, View<'_>),
) -> Result<()> {
    match out.dtype.compute_dtype() {
        DType::F32 => normalize_of::<f32>(stream, op, rows, input, eps, out, (mean, rstd)),
        DType::F64 => normalize_of::<f64>(stream, op, rows, input, eps, out, (mean, rstd)),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

fn normalize_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    rows: NormRows,
    NormInput { x, weight, bias }: NormInput<'_>,
    eps: f64,
    out: View<'_>,
    (mean, rstd): (Option<View<'_>>, View<'_>),
) -> Result<()> {
    let count = count_rows(op, rows, &x)?;
    let (elements, weights) = (count * rows.row(), rows.weights());
    let dtype = out.dtype;
    let x_from = read::<T>(op, &x, elements, dtype)?;
    let weight_from = weight.map(|view| read::<T>(op, &view, weights, dtype)).transpose()?;
    let bias_from = bias.map(|view| read::<T>(op, &view, weights, dtype)).transpose()?;
    let to = write::<T>(op, &out, elements, dtype)?;
    let mean_to = mean.map(|view| statistic(op, &view, count)?.dst::<T>(op)).transpose()?;
    let rstd_to = statistic(op, &rstd, count)?.dst::<T>(op)?;
    if elements == 0 {
        return Ok(());
    }
    if stream.is_cuda() {
        let input = NormInput { x, weight, bias };
        return cuda::normalize::normalize(stream, op, (rows, count), input, eps, out, (mean, rstd));
    }
    let workers = old_workers(stream, elements, 4);
    let mut uses: Uses<'_> = SmallVec::new();
    uses.extend([Use::read(x.buffer), Use::write(out.buffer), Use::write(rstd.buffer)]);
    uses.extend(weight.iter().chain(&bias).map(|view| Use::read(view.buffer)));
    uses.extend(mean.iter().map(|view| Use::write(view.buffer)));
    stream.launch_host(op, &uses, move || {
        // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
        unsafe {
            let stage = Stage::new(&workers);
            let x = stage.read(&x_from);
            let weight = weight_from.as_ref().map(|weight| stage.read(weight));
            let bias = bias_from.as_ref().map(|bias| stage.read(bias));
            let norm = cpu::Norm { rows, count, x, weight, eps };
            cpu::forward(&norm, &workers, bias, stage.write(&to), (mean_to, rstd_to));
        }
    })
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
    match g.dtype.compute_dtype() {
        DType::F32 => gradient_of::<f32>(stream, op, rows, g, (x, weight), (mean, rstd), to),
        DType::F64 => gradient_of::<f64>(stream, op, rows, g, (x, weight), (mean, rstd), to),
        dtype => Err(Error::DTypeUnsupported { op, dtype }),
    }
}

fn gradient_of<T: Lanes>(
    stream: &Stream,
    op: &'static str,
    rows: NormRows,
    g: View<'_>,
    (x, weight): (View<'_>, Option<View<'_>>),
    (mean, rstd): (Option<View<'_>>, View<'_>),
    to: NormGrads<'_>,
) -> Result<()> {
    let count = count_rows(op, rows, &x)?;
    let (elements, weights) = (count * rows.row(), rows.weights());
    let dtype = g.dtype;
    let x_from = read::<T>(op, &x, elements, dtype)?;
    let weight_from = weight.map(|view| read::<T>(op, &view, weights, dtype)).transpose()?;
    let g_from = read::<T>(op, &g, elements, dtype)?;
    let mean_from = mean.map(|view| statistic(op, &view, count)?.src::<T>(op)).transpose()?;
    let rstd_from = statistic(op, &rstd, count)?.src::<T>(op)?;
    let x_to = to.x.map(|view| write::<T>(op, &view, elements, dtype)).transpose()?;
    let weight_to = to.weight.map(|view| write::<T>(op, &view, weights, dtype)).transpose()?;
    let bias_to = to.bias.map(|view| write::<T>(op, &view, weights, dtype)).transpose()?;
    if stream.is_cuda() {
        return cuda::normalize::gradient(stream, op, (rows, count), g, (x, weight), (mean, rstd), to);
    }
    let workers = old_workers(stream, elements, 8);
    let mut uses: Uses<'_> = SmallVec::new();
    uses.extend([Use::read(g.buffer), Use::read(x.buffer), Use::read(rstd.buffer)]);
    uses.extend(weight.iter().chain(&mean).map(|view| Use::read(view.buffer)));
    uses.extend([to.x, to.weight, to.bias].iter().flatten().map(|view| Use::write(view.buffer)));
    stream.launch_host(op, &uses, move || {
        // SAFETY: as in `normalize_of`.
        unsafe {
            let stage = Stage::new(&workers);
            let (x, g) = (stage.read(&x_from), stage.read(&g_from));
            let weight = weight_from.as_ref().map(|weight| stage.read(weight));
            let norm = cpu::Norm { rows, count, x, weight, eps: 0.0 };
            let [x, weight, bias] =
                [&x_to, &weight_to, &bias_to].map(|to| to.as_ref().map(|to| stage.write(to)));
            cpu::backward(&norm, &workers, g, (mean_from, rstd_from), &cpu::Targets { x, weight, bias });
        }
    })
}

/// All operands of one launch.
pub(crate) type Uses<'a> = SmallVec<[Use<'a>; 8]>;

/// The number of rows of `x`.
fn count_rows(op: &'static str, rows: NormRows, x: &View<'_>) -> Result<usize> {
    let (elements, together) = (x.layout.elements(), rows.weights().saturating_mul(rows.inner));
    match elements.checked_div(together) {
        Some(n) if n.saturating_mul(together) == elements => Ok(n * rows.groups),
        // Rows without elements: nothing can be said of their number, and nothing is done with them.
        None if elements == 0 => Ok(0),
        _ => Err(Error::InvalidArgument {
            op,
            argument: "rows",
            expected: "a tensor of whole rows",
            value: format!("{:?} of {rows:?}", x.shape()).into(),
        }),
    }
}

fn expect_elements(op: &'static str, view: &View<'_>, elements: usize) -> Result<()> {
    view.expect_contiguous(op, "operands")?;
    if view.layout.elements() == elements {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        op,
        argument: "operands",
        expected: "an element for each row or weight",
        value: format!("{:?} instead of {elements} elements", view.shape()).into(),
    })
}

fn read<T: Lanes>(op: &'static str, view: &View<'_>, elements: usize, dtype: DType) -> Result<Operand<T>> {
    expect_elements(op, view, elements)?;
    Operand::old(op, view, dtype)
}

fn write<T: Lanes>(op: &'static str, view: &View<'_>, elements: usize, dtype: DType) -> Result<Operand<T>> {
    expect_elements(op, view, elements)?;
    Operand::old_mut(op, view, dtype)
}

fn statistic<'v, 'a>(op: &'static str, view: &'v View<'a>, rows: usize) -> Result<&'v View<'a>> {
    expect_elements(op, view, rows)?;
    Ok(view)
}

#[cfg(test)]
#[path = "normalize_tests.rs"]
mod tests;
