//! Launchers of attention and its gradient.

use device::{DType, Error, Result, Stream, Use};
use smallvec::SmallVec;

use crate::cpu::attention as cpu;
use crate::cpu::lanes::Lanes;
use crate::cpu::stage::{Operand, Stage};
use crate::cuda;
use crate::layout::{LoopAxis, Loops, View, shape_mismatch};
use crate::normalize::Uses;
use crate::par::old_workers;

/// Which keys a query attends to, and how.
#[derive(Clone, Copy, Debug)]
pub struct AttentionKind {
    /// Whether query `i` sees the keys `0..=i` only.
    pub causal: bool,
    /// What products of queries and keys are multiplied with.
    pub scale: f64,
}

/// The operands of attention: queries `[.., s, d]`, keys `[.., t, d]`, values `[.., t, e]`, and a mask `[.., s, t]` that is
/// added to the scaled products.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// The queries.
    pub q: View<'a>,
    /// The keys.
    pub k: View<'a>,
    /// The values.
    pub v: View<'a>,
    /// The mask, of the type of the others.
    pub mask: Option<View<'a>>,
}

/// What the forward pass gives to its gradient, besides its operands.
#[derive(Clone, Copy, Debug)]
pub struct AttentionResult<'a> {
    /// The weighted means of the values, `[.., s, e]`.
    pub out: View<'a>,
    /// The logarithm of the sum of the exponentials of each query's scores, `[.., s]`, contiguous, of the type that is
    /// computed in; infinite for a query
    /// that sees no key.
    pub log_sums: View<'a>,
}

/// `out = softmax(scale q k^T + mask) v`, for floats. No matrix of scores is kept: rows of it are made by tiles.
///
/// The leading axes are equal, expanded ones may have stride 0; any strides are read in place. A query that sees no key
/// gives 0. The order of all sums is fixed by the sizes.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::DTypeUnsupported`], those of [`Stream::launch`].
pub fn attention(
    stream: &Stream,
    kind: AttentionKind,
    input: AttentionInput<'_>,
    result: AttentionResult<'_>,
) -> Result<()> {
    match input.q.dtype.compute_dtype() {
        DType::F32 => attention_of::<f32>(stream, kind, input, result),
        DType::F64 => attention_of::<f64>(stream, kind, input, result),
        dtype => Err(Error::DTypeUnsupported { op: "attention", dtype }),
    }
}

fn attention_of<T: Lanes>(
    stream: &Stream,
    kind: AttentionKind,
    input: AttentionInput<'_>,
    result: AttentionResult<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let AttentionInput { q, k, v, mask } = input;
    let AttentionResult { out, log_sums } = result;
    let sizes = sizes(OP, &input, &result)?;
    let problem = problem(kind, sizes, [Some(q), Some(k), Some(v), mask, Some(out), None, None, None, None]);
    let read = |view: View<'_>| Operand::<T>::old(OP, &view, q.dtype);
    let (from, mask_from) = ([read(q)?, read(k)?, read(v)?], mask.map(read).transpose()?);
    let (to, log_sums_to) = (Operand::<T>::old_mut(OP, &out, q.dtype)?, log_sums.dst::<T>(OP)?);
    if log_sums.layout.elements() == 0 {
        return Ok(());
    }
    let mut uses: Uses<'_> = SmallVec::new();
    uses.extend([Use::read(q.buffer), Use::read(k.buffer), Use::read(v.buffer)]);
    uses.extend(mask.iter().map(|mask| Use::read(mask.buffer)));
    uses.extend([Use::write(out.buffer), Use::write(log_sums.buffer)]);
    if stream.is_cuda() {
        return cuda::attention::attention(stream, &problem, &uses, input, result);
    }
    let workers = old_workers(stream, problem.scores(), (sizes.width + sizes.value_width) / 8 + 1);
    // SAFETY: the views were checked, and the launch orders this command with others on their buffers.
    stream.launch_host(OP, &uses, move || unsafe {
        let stage = Stage::new(&workers);
        let mask = mask_from.as_ref().map(|mask| stage.read(mask));
        let read = from.each_ref().map(|from| stage.read(from));
        cpu::forward(&problem, &workers, (read, mask), stage.write(&to), log_sums_to);
    })
}

/// The gradients of [`attention`] for queries, keys and values, each of the operand's shape.
#[derive(Clone, Copy, Debug)]
pub struct AttentionGrads<'a> {
    /// The gradient of the queries.
    pub q: View<'a>,
    /// The gradient of the keys.
    pub k: View<'a>,
    /// The gradient of the values.
    pub v: View<'a>,
}

/// Gradient of [`attention`] from its operands, its results and the gradient `g` of its `out`.
///
/// With `p = exp(scale q k^T + mask - log_sums)` and `u = p (g v^T - sum(g out))` of each row it is `dq = scale u k`,
/// `dk = scale u^T q`, `dv = p^T g`. `products`, contiguous, of the type of `log_sums` and with an element for each query, is written with the sums of
/// `g out`.
///
/// # Errors
/// As for [`attention`].
pub fn attention_grad(
    stream: &Stream,
    kind: AttentionKind,
    input: AttentionInput<'_>,
    result: AttentionResult<'_>,
    (g, products): (View<'_>, View<'_>),
    to: AttentionGrads<'_>,
) -> Result<()> {
    match g.dtype.compute_dtype() {
        DType::F32 => grad_of::<f32>(stream, kind, input, result, (g, products), to),
        DType::F64 => grad_of::<f64>(stream, kind, input, result, (g, products), to),
        dtype => Err(Error::DTypeUnsupported { op: "attention_grad", dtype }),
    }
}

fn grad_of<T: Lanes>(
    stream: &Stream,
    kind: AttentionKind,
    input: AttentionInput<'_>,
    result: AttentionResult<'_>,
    (g, products): (View<'_>, View<'_>),
    to: AttentionGrads<'_>,
) -> Result<()> {
    const OP: &str = "attention_grad";
    let AttentionInput { q, k, v, mask } = input;
    let AttentionResult { out, log_sums } = result;
    let sizes = sizes(OP, &input, &result)?;
    for (gradient, of) in [(g, out), (products, log_sums), (to.q, q), (to.k, k), (to.v, v)] {
        gradient.expect_shape_of(OP, &of)?;
    }
    let operands = [Some(q), Some(k), Some(v), mask, Some(out), Some(g), Some(to.q), Some(to.k), Some(to.v)];
    let problem = problem(kind, sizes, operands);
    products.expect_contiguous(OP, "products")?;
    let read = |view: View<'_>| Operand::<T>::old(OP, &view, g.dtype);
    let write = |view: View<'_>| Operand::<T>::old_mut(OP, &view, g.dtype);
    let from = [read(q)?, read(k)?, read(v)?, read(out)?, read(g)?];
    let mask_from = mask.map(read).transpose()?;
    let targets = [write(to.q)?, write(to.k)?, write(to.v)?];
    let (log_sums_from, products_to) = (log_sums.src::<T>(OP)?, products.dst::<T>(OP)?);
    if to.q.layout.elements() + to.k.layout.elements() + to.v.layout.elements() == 0 {
        return Ok(());
    }
    let mut uses: Uses<'_> = SmallVec::new();
    uses.extend([q, k, v, out, log_sums, g].iter().chain(&mask).map(|view| Use::read(view.buffer)));
    uses.extend([products, to.q, to.k, to.v].iter().map(|view| Use::write(view.buffer)));
    if stream.is_cuda() {
        return cuda::attention::gradient(stream, &problem, &uses, (input, result), (g, products), to);
    }
    let cost = (3 * sizes.width + 2 * sizes.value_width) / 8 + 1;
    let workers = old_workers(stream, problem.scores(), cost);
    // SAFETY: as in `attention_of`.
    stream.launch_host(OP, &uses, move || unsafe {
        let stage = Stage::new(&workers);
        let mask = mask_from.as_ref().map(|mask| stage.read(mask));
        let [q, k, v, out, g] = from.each_ref().map(|from| stage.read(from));
        let from = cpu::Saved { q, k, v, mask, out, log_sums: log_sums_from, g };
        cpu::backward(&problem, &workers, &from, targets.each_ref().map(|to| stage.write(to)), products_to);
    })
}

fn problem(kind: AttentionKind, sizes: cpu::Sizes, operands: [Option<View<'_>>; 9]) -> cpu::Problem {
    let leading = operands[0].map_or(0, |q| q.layout.rank() - 2);
    let strides = operands.map(|view| view.map(|view| view.layout.strides()));
    let batch = Loops::from_axes((0..leading).map(|axis| LoopAxis {
        size: operands[0].map_or(1, |q| q.shape()[axis]),
        strides: strides.map(|strides| strides.map_or(0, |strides| strides[axis])),
    }));
    let steps = strides.map(|strides| strides.map_or([0; 2], |s| [s[leading], s[leading + 1]]));
    cpu::Problem { batch, sizes, causal: kind.causal, scale: kind.scale, steps }
}

/// Checks the shapes and gives the sizes.
fn sizes(op: &'static str, input: &AttentionInput<'_>, result: &AttentionResult<'_>) -> Result<cpu::Sizes> {
    let AttentionInput { q, k, v, mask } = *input;
    let (&[ref leading @ .., queries, width], &[.., keys, _], &[.., value_width]) =
        (q.shape(), k.shape(), v.shape())
    else {
        return Err(shape_mismatch(op, q.shape(), k.shape()));
    };
    let expect = |view: &View<'_>, last: &[usize]| {
        let shape: SmallVec<[usize; 6]> = leading.iter().chain(last).copied().collect();
        view.expect_shape(op, &shape)
    };
    expect(&k, &[keys, width])?;
    expect(&v, &[keys, value_width])?;
    expect(&result.out, &[queries, value_width])?;
    expect(&result.log_sums, &[queries])?;
    result.log_sums.expect_contiguous(op, "log_sums")?;
    if let Some(mask) = mask {
        expect(&mask, &[queries, keys])?;
    }
    Ok(cpu::Sizes { queries, keys, width, value_width })
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
