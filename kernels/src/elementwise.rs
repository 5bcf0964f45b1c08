//! Launchers of the elementwise kernels.

use std::array::from_fn;

use device::{DType, Error, Result, Stream};

use crate::command::{Command, WriteRead, no_scalars};
use crate::cpu::elementwise as cpu;
use crate::cuda::elementwise as cuda;
use crate::functions::{BinaryGradOp, BinaryOp, CompareOp, Function, UnaryOp};
use crate::fuse::Fusible;
use crate::layout::View;
use crate::loops::Places;

/// Launches a function on operands of its types, of which the first is the result.
#[inline(always)]
#[track_caller]
pub(crate) fn launch<const N: usize>(
    stream: &Stream,
    name: &'static str,
    function: Function,
    operands: [View<'_>; N],
) -> Result<()>
where
    Function: cpu::Elements<N>,
{
    let out = operands[0];
    for input in &operands[1..] {
        input.expect_shape_of(name, &out)?;
    }
    let places = Places::of(from_fn(|k| operands[k].layout));
    Command::new(name, WriteRead(operands)).cost(out.layout.elements(), function.cost()).launch(
        stream,
        (places, function),
        no_scalars,
        |(places, function), operands| Fusible::function(*function, places, operands),
        // SAFETY: `places` was made from the layouts of these operands, whose types were checked; see
        // `Command::launch`.
        |(places, function), workers, operands| unsafe {
            cpu::Elements::run(*function, places, workers, operands)
        },
        |(places, function), queue, operands| cuda::run(queue, *function, places, operands),
    )
}

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
/// `DTypeUnsupported` if the op is not defined for the type; `DTypeMismatch`,
/// `ShapeMismatch` if `x` and `out` differ; `InvalidArgument` for a scalar that integers cannot hold,
/// or an `out` that is expanded or overlaps `x` otherwise than element for element; the errors of [`Stream::launch`].
#[inline]
pub fn unary(stream: &Stream, op: UnaryOp, x: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), out.dtype);
    if !op.supports(dtype) {
        return Err(Error::dtype_unsupported(name, dtype, op.fits()));
    }
    op.check_scalar(dtype)?;
    let op = op.simplified();
    x.expect_dtype(name, dtype)?;
    launch(stream, name, Function::Unary(op, dtype), [out, x])
}

/// `out = g op'(x)`, element by element, with the derivative from what the op [saves](UnaryOp::saves), for floats.
///
/// Shapes: any, all alike. Asynchronous, ordered by the buffers. `out` may be `saved` or `g`.
///
/// # Errors
/// As for [`unary`]; `InvalidArgument` for an op whose derivative is not known.
pub fn unary_grad(stream: &Stream, op: UnaryOp, saved: View<'_>, g: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.grad_name(), out.dtype);
    Error::require(op.saves().is_some(), name, "op", "a function whose derivative is known", op.name())?;
    if !dtype.is_float() {
        return Err(Error::dtype_unsupported(name, dtype, "floats"));
    }
    saved.expect_dtype(name, dtype)?;
    g.expect_dtype(name, dtype)?;
    let op = op.simplified();
    launch(stream, name, Function::Gradient(op, dtype), [out, saved, g])
}

/// `out = op(lhs, rhs)`, element by element.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers. `out` may be
/// `lhs` or `rhs`.
///
/// # Errors
/// `DTypeUnsupported` if the op is not defined for the type; `DTypeMismatch`,
/// `ShapeMismatch` if the views differ; `InvalidArgument` for an `out` that is expanded or overlaps an
/// input otherwise than element for element; the errors of [`Stream::launch`].
#[inline]
pub fn binary(stream: &Stream, op: BinaryOp, lhs: View<'_>, rhs: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), out.dtype);
    if !op.supports(dtype) {
        return Err(Error::dtype_unsupported(name, dtype, op.fits()));
    }
    lhs.expect_dtype(name, dtype)?;
    rhs.expect_dtype(name, dtype)?;
    launch(stream, name, Function::Binary(op, dtype), [out, lhs, rhs])
}

/// A gradient of a binary op, `out = op(lhs, rhs, g)`, element by element, for floats.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers. `out` may be an
/// input.
///
/// # Errors
/// As for [`binary`]; `DTypeUnsupported` unless the elements are floats.
pub fn binary_grad(
    stream: &Stream,
    op: BinaryGradOp,
    lhs: View<'_>,
    rhs: View<'_>,
    g: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let (name, dtype) = (op.name(), out.dtype);
    if !dtype.is_float() {
        return Err(Error::dtype_unsupported(name, dtype, "floats"));
    }
    for input in [&lhs, &rhs, &g] {
        input.expect_dtype(name, dtype)?;
    }
    launch(stream, name, Function::BinaryGradient(op, dtype), [out, lhs, rhs, g])
}

/// `out = lhs op rhs`, element by element, as truth values.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `DTypeMismatch` if `lhs` and `rhs` differ or `out` is not boolean; `ShapeMismatch`;
/// `InvalidArgument` for an `out` that is expanded or overlaps an input; the errors of [`Stream::launch`].
pub fn compare(stream: &Stream, op: CompareOp, lhs: View<'_>, rhs: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), lhs.dtype);
    rhs.expect_dtype(name, dtype)?;
    out.expect_dtype(name, DType::Bool)?;
    launch(stream, name, Function::Compare(op, dtype), [out, lhs, rhs])
}

/// `out = not x`, on truth values.
///
/// Shapes: any, `x` and `out` alike. Asynchronous, ordered by the buffers. `out` may be `x`.
///
/// # Errors
/// `DTypeMismatch` if a view is not boolean; `ShapeMismatch`; `InvalidArgument` for an `out`
/// that is expanded or overlaps `x` otherwise than element for element; the errors of [`Stream::launch`].
pub fn logical_not(stream: &Stream, x: View<'_>, out: View<'_>) -> Result<()> {
    const OP: &str = "logical_not";
    x.expect_dtype(OP, DType::Bool)?;
    out.expect_dtype(OP, DType::Bool)?;
    launch(stream, OP, Function::Not, [out, x])
}

/// `out = if condition { x } else { y }`, element by element.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers. `out` may be
/// an input.
///
/// # Errors
/// `DTypeMismatch` if `condition` is not boolean or the others differ; `ShapeMismatch`;
/// `InvalidArgument` for an `out` that is expanded or overlaps an input otherwise than element for element;
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
    launch(stream, OP, Function::Where(out.dtype), [out, condition, x, y])
}

#[cfg(test)]
mod tests;
