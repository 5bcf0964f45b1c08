//! Launchers of attention and its gradient.

use std::any::Any;

use device::{Error, Result, Stream};
use smallvec::SmallVec;

use crate::command::{Command, for_float, no_part};
use crate::cpu::attention as cpu;
use crate::cuda::attention as cuda;
use crate::distribution::Dropout;
use crate::layout::View;
use crate::scores::{AttentionKind, ScoreBatch, ScoreSizes};

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
/// gives 0. With dropout a weight is multiplied with what [`kept_weights`] gives. The order of all sums is fixed by the sizes. On a CUDA device with tensor cores weights are
/// rounded to the type of the values before they are multiplied, and factors in F32 lose less than 2^-19 of a product, or what TF32
/// does not keep if the [device](device::Device::set_tf32) allows that; a value that is not finite may give NaN also to queries that
/// do not see it.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`, those of [`Stream::launch`].
pub fn attention(
    stream: &Stream,
    kind: AttentionKind,
    input: AttentionInput<'_>,
    result: AttentionResult<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let AttentionInput { q, k, v, mask } = input;
    let AttentionResult { out, log_sums } = result;
    let (sizes, dtype) = (sizes(OP, kind, &input, &result)?, q.dtype);
    let others = [Some(k), Some(v), mask, Some(out), None, None, None, None];
    let problem = ScoreBatch::of(kind, sizes, q, others);
    let cost = (problem.scores(), (sizes.width + sizes.value_width) / 8 + 1);
    for_float!(OP, dtype, T => {
        let read = ([q, k, v].map(View::read::<T>), mask.map(View::read::<T>));
        let written = (out.write::<T>(), log_sums.write::<T>().exact());
        Command::new(OP, (read, written)).cost(cost.0, cost.1).launch(
            stream,
            problem,
            show_key,
            no_part,
            // SAFETY: `problem` was made from the layouts of these operands; see `Command::launch`.
            |problem, workers, operands| unsafe { cpu::forward(problem, workers, operands) },
            move |problem, queue, (read, written)| cuda::attention(queue, dtype, problem, read, written),
        )
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
/// `dk = scale u^T q`, `dv = p^T g`, where dropout multiplies `g v^T` and the weights of `dv`. `products`, contiguous, of the type of
/// `log_sums` and with an element for each query, is written with the sums of `g out`. Operands are finite: on the tensor cores of a CUDA device those that are not may give NaN to any gradient, also where that is
/// finite on a CPU.
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
    const OP: &str = "attention_grad";
    let AttentionInput { q, k, v, mask } = input;
    let AttentionResult { out, log_sums } = result;
    let (sizes, dtype) = (sizes(OP, kind, &input, &result)?, g.dtype);
    for (gradient, of) in [(g, out), (products, log_sums), (to.q, q), (to.k, k), (to.v, v)] {
        gradient.expect_shape_of(OP, &of)?;
    }
    products.expect_contiguous(OP, "products")?;
    let others = [Some(k), Some(v), mask, Some(out), Some(g), Some(to.q), Some(to.k), Some(to.v)];
    let problem = ScoreBatch::of(kind, sizes, q, others);
    let cost = (problem.scores(), (3 * sizes.width + 2 * sizes.value_width) / 8 + 1);
    for_float!(OP, dtype, T => {
        let read = ([g, q, k, v, out].map(View::read::<T>), mask.map(View::read::<T>));
        let rows = (log_sums.read::<T>().exact(), products.write::<T>().exact());
        let grads = [to.q, to.k, to.v].map(View::write::<T>);
        Command::new(OP, (read, rows, grads)).cost(cost.0, cost.1).launch(
            stream,
            problem,
            show_key,
            no_part,
            // SAFETY: `problem` was made from the layouts of these operands; see `Command::launch`.
            |problem, workers, (read, rows, grads)| unsafe {
                cpu::backward(problem, workers, read, rows, grads);
            },
            move |problem, queue, (read, rows, grads)| {
                cuda::gradient(queue, dtype, problem, read, rows, grads)
            },
        )
    })
}

/// What dropout multiplies the weights of attention with, as a matrix `[.., s, t]`: 0 for those that it leaves out; see
/// [`AttentionKind::dropout`].
///
/// # Errors
/// `DTypeUnsupported` unless `out` is floating-point; `ShapeMismatch` unless it is a matrix with leading axes;
/// `InvalidArgument` if `p` is not in `0..=1`; the errors of [`Stream::launch`].
pub fn kept_weights(stream: &Stream, dropout: Dropout, out: View<'_>) -> Result<()> {
    const OP: &str = "kept_weights";
    dropout.check(OP)?;
    let &[.., queries, keys] = out.shape() else {
        return Err(Error::shape_mismatch(OP, "", out.shape(), &[1, 1]));
    };
    let sizes = ScoreSizes { queries, keys, width: 0, value_width: 0 };
    let kind = AttentionKind { causal: false, scale: 1.0, dropout: Some(dropout) };
    let problem = ScoreBatch::of(kind, sizes, out, [None; 8]);
    let (dtype, cost) = (out.dtype, problem.scores());
    for_float!(OP, dtype, T => Command::new(OP, (out.write::<T>(),)).cost(cost, 8).launch(
        stream,
        problem,
        show_key,
        no_part,
        // SAFETY: `problem` was made from the layout of the output; see `Command::launch`.
        |problem, workers, (out,)| unsafe { cpu::kept_weights(problem, workers, out) },
        move |problem, queue, (out,)| cuda::kept_weights(queue, dtype, problem, out),
    ))
}

/// Shows the key of dropout, which may change from step to step.
fn show_key(problem: &mut ScoreBatch, show: &mut dyn FnMut(&mut dyn Any)) {
    if let Some(dropout) = &mut problem.kind.dropout {
        show(&mut dropout.key);
    }
}

/// Checks the shapes and the probability of dropout, and gives the sizes.
fn sizes(
    op: &'static str,
    kind: AttentionKind,
    input: &AttentionInput<'_>,
    result: &AttentionResult<'_>,
) -> Result<ScoreSizes> {
    kind.dropout.map_or(Ok(()), |dropout| dropout.check(op))?;
    let AttentionInput { q, k, v, mask } = *input;
    let (&[ref leading @ .., queries, width], &[.., keys, _], &[.., value_width]) =
        (q.shape(), k.shape(), v.shape())
    else {
        return Err(Error::shape_mismatch(op, "", q.shape(), k.shape()));
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
    Ok(ScoreSizes { queries, keys, width, value_width })
}

#[cfg(test)]
mod tests;
