//! Launchers of the elementwise kernels.

use device::cuda::Queue;
use device::{DType, Error, Result, Stream};

use crate::command::{Address, Command, Raw};
use crate::cpu::elementwise as cpu;
use crate::cuda::{copy as copy_cuda, elementwise as cuda};
use crate::functions::{BinaryOp, CompareOp, Gradient, UnaryOp};
use crate::layout::{Dst, View};
use crate::loops::Places;
use crate::par::Workers;

impl UnaryOp {
    /// The powers that models use take no power function.
    fn simplified(self) -> UnaryOp {
        match self {
            UnaryOp::PowScalar(2.0) => UnaryOp::Square,
            UnaryOp::PowScalar(3.0) => UnaryOp::Cube,
            UnaryOp::PowScalar(0.5) => UnaryOp::Sqrt,
            UnaryOp::PowScalar(-0.5) => UnaryOp::Rsqrt,
            UnaryOp::PowScalar(-1.0) => UnaryOp::Reciprocal,
            op => op,
        }
    }

    /// An integer has no half to add.
    fn check_scalar(self, dtype: DType) -> Result<()> {
        match self {
            UnaryOp::AddScalar(value) | UnaryOp::MulScalar(value)
                if !dtype.is_float() && value.trunc() != value =>
            {
                Err(Error::invalid(self.name(), "value", "an integer for integer elements", value))
            }
            _ => Ok(()),
        }
    }
}

/// `out = op(x)`, element by element.
///
/// Shapes: any, `x` and `out` alike. Asynchronous, ordered by the buffers. `out` may be `x`.
///
/// # Errors
/// [`Error::DTypeUnsupported`] if the op is not defined for the type; [`Error::DTypeMismatch`],
/// [`Error::ShapeMismatch`] if `x` and `out` differ; [`Error::InvalidArgument`] for a scalar that integers cannot hold,
/// or an `out` that is expanded or overlaps `x` otherwise than element for element; the errors of [`Stream::launch`].
#[inline]
pub fn unary(stream: &Stream, op: UnaryOp, x: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), out.dtype);
    if !op.supports(dtype) {
        return Err(Error::DTypeUnsupported { op: name, dtype });
    }
    op.check_scalar(dtype)?;
    let op = op.simplified();
    function(stream, (name, op.cost()), op, [x], out)
}

/// `out = g op'(x)`, element by element, with the derivative from what the op [saves](UnaryOp::saves), for floats.
///
/// Shapes: any, all alike. Asynchronous, ordered by the buffers. `out` may be `saved` or `g`.
///
/// # Errors
/// As for [`unary`]; [`Error::InvalidArgument`] for an op whose derivative is not known.
pub fn unary_grad(stream: &Stream, op: UnaryOp, saved: View<'_>, g: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.grad_name(), out.dtype);
    if op.saves().is_none() {
        return Err(Error::invalid(name, "op", "a function whose derivative is known", op.name()));
    }
    if !dtype.is_float() {
        return Err(Error::DTypeUnsupported { op: name, dtype });
    }
    function(stream, (name, op.grad_cost()), Gradient(op), [saved, g], out)
}

/// `out = op(lhs, rhs)`, element by element.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers. `out` may be
/// `lhs` or `rhs`.
///
/// # Errors
/// [`Error::DTypeUnsupported`] if the op is not defined for the type; [`Error::DTypeMismatch`],
/// [`Error::ShapeMismatch`] if the views differ; [`Error::InvalidArgument`] for an `out` that is expanded or overlaps an
/// input otherwise than element for element; the errors of [`Stream::launch`].
#[inline]
pub fn binary(stream: &Stream, op: BinaryOp, lhs: View<'_>, rhs: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), out.dtype);
    if !op.supports(dtype) {
        return Err(Error::DTypeUnsupported { op: name, dtype });
    }
    function(stream, (name, op.cost()), op, [lhs, rhs], out)
}

/// Launches a function on operands of one type, which it is defined for.
#[inline(always)]
#[track_caller]
fn function<F, const N: usize, const M: usize>(
    stream: &Stream,
    what: (&'static str, usize),
    function: F,
    inputs: [View<'_>; N],
    out: View<'_>,
) -> Result<()>
where
    F: cpu::Function<M> + cuda::Function<M> + Send + Sync + 'static,
{
    let dtype = out.dtype;
    for input in &inputs {
        input.expect_dtype(what.0, dtype)?;
    }
    elementwise(
        stream,
        what,
        inputs,
        out,
        // SAFETY: the places are those of the operands, whose types were checked.
        move |places, workers, operands| unsafe { cpu::run(function, dtype, places, workers, operands) },
        move |places, queue, operands| cuda::run(queue, function, dtype, places, operands),
    )
}

/// `out = lhs op rhs`, element by element, as truth values.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `lhs` and `rhs` differ or `out` is not boolean; [`Error::ShapeMismatch`];
/// [`Error::InvalidArgument`] for an `out` that is expanded or overlaps an input; the errors of [`Stream::launch`].
pub fn compare(stream: &Stream, op: CompareOp, lhs: View<'_>, rhs: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), lhs.dtype);
    rhs.expect_dtype(name, dtype)?;
    out.expect_dtype(name, DType::Bool)?;
    elementwise(
        stream,
        (name, 1),
        [lhs, rhs],
        out,
        // SAFETY: the places are those of the operands, whose types were checked.
        move |places, workers, operands| unsafe { cpu::compare(op, dtype, places, workers, operands) },
        move |places, queue, operands| cuda::compare(queue, op, dtype, places, operands),
    )
}

/// `out = not x`, on truth values.
///
/// Shapes: any, `x` and `out` alike. Asynchronous, ordered by the buffers. `out` may be `x`.
///
/// # Errors
/// [`Error::DTypeMismatch`] if a view is not boolean; [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for an `out`
/// that is expanded or overlaps `x` otherwise than element for element; the errors of [`Stream::launch`].
pub fn logical_not(stream: &Stream, x: View<'_>, out: View<'_>) -> Result<()> {
    const OP: &str = "logical_not";
    x.expect_dtype(OP, DType::Bool)?;
    out.expect_dtype(OP, DType::Bool)?;
    elementwise(
        stream,
        (OP, 1),
        [x],
        out,
        // SAFETY: the places are those of the operands, whose types were checked.
        |places, workers, operands| unsafe { cpu::logical_not(places, workers, operands) },
        |places, queue, operands| copy_cuda::logical_not(queue, places, operands),
    )
}

/// `out = if condition { x } else { y }`, element by element.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers. `out` may be
/// an input.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `condition` is not boolean or the others differ; [`Error::ShapeMismatch`];
/// [`Error::InvalidArgument`] for an `out` that is expanded or overlaps an input otherwise than element for element;
/// the errors of [`Stream::launch`].
pub fn where_cond(
    stream: &Stream,
    condition: View<'_>,
    x: View<'_>,
    y: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "where_cond";
    condition.expect_dtype(OP, DType::Bool)?;
    for input in [&x, &y] {
        input.expect_dtype(OP, out.dtype)?;
    }
    let size = out.dtype.size_bytes();
    elementwise(
        stream,
        (OP, 1),
        [condition, x, y],
        out,
        // SAFETY: the places are those of the operands, whose types were checked.
        move |places, workers, operands| unsafe { cpu::where_cond(size, places, workers, operands) },
        move |places, queue, operands| copy_cuda::where_cond(queue, size, places, operands),
    )
}

/// Launches what is done element by element, on operands that have the shape of the output and share memory with it only
/// element for element. Its bodies get the `M` operands with the output first.
#[inline(always)]
#[track_caller]
pub(crate) fn elementwise<const N: usize, const M: usize>(
    stream: &Stream,
    (name, cost): (&'static str, usize),
    inputs: [View<'_>; N],
    out: View<'_>,
    cpu: impl Fn(&Places<M>, &Workers, [Dst<u8>; M]) + Send + Sync + 'static,
    cuda: impl Fn(&Places<M>, &Queue<'_>, [Address; M]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    const { assert!(M == N + 1, "inputs and an output") };
    for input in &inputs {
        input.expect_shape_of(name, &out)?;
        input.expect_no_partial_overlap(name, &out)?;
    }
    let layouts = std::array::from_fn(|k| if k == 0 { out.layout } else { inputs[k - 1].layout });
    Command::new(name, (inputs.map(View::read::<Raw>), out.write::<Raw>()))
        .cost(out.layout.elements(), cost)
        .run(
            stream,
            Places::of(layouts),
            move |places, workers, (inputs, out)| {
                let at = |k: usize| if k == 0 { out } else { Dst(inputs[k - 1].0.cast_mut()) };
                cpu(places, workers, std::array::from_fn(at));
            },
            move |places, queue, (inputs, out)| {
                cuda(places, queue, std::array::from_fn(|k| if k == 0 { out } else { inputs[k - 1] }))
            },
        )
}

#[cfg(test)]
mod tests;
