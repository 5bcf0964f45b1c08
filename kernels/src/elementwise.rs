//! Launchers of the elementwise kernels.

use device::{DType, Error, Result, Stream};

use crate::command::{Command, Raw};
use crate::cpu::elementwise as cpu;
use crate::cuda::{copy as copy_cuda, elementwise as cuda};
use crate::functions::{BinaryOp, CompareOp, Gradient, UnaryOp};
use crate::layout::View;
use crate::loops::Places;

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
    x.expect_dtype(name, dtype)?;
    same_places(name, [&x], &out)?;
    Command::new(name, (x.read::<Raw>(), out.write::<Raw>())).cost(out.layout.elements(), op.cost()).run(
        stream,
        Places::of([out.layout, x.layout]),
        // SAFETY: the places are those of the operands, whose types were checked.
        move |places, workers, (x, out)| unsafe { cpu::unary(op, dtype, places, workers, out, x) },
        move |places, queue, (x, out)| cuda::run(queue, op, dtype, places, [out, x]),
    )
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
    saved.expect_dtype(name, dtype)?;
    g.expect_dtype(name, dtype)?;
    same_places(name, [&saved, &g], &out)?;
    Command::new(name, (saved.read::<Raw>(), g.read::<Raw>(), out.write::<Raw>()))
        .cost(out.layout.elements(), op.grad_cost())
        .run(
            stream,
            Places::of([out.layout, saved.layout, g.layout]),
            // SAFETY: the places are those of the operands, whose types were checked.
            move |places, workers, (saved, g, out)| unsafe {
                cpu::unary_grad(op, dtype, places, workers, out, (saved, g));
            },
            move |places, queue, (saved, g, out)| {
                cuda::run(queue, Gradient(op), dtype, places, [out, saved, g])
            },
        )
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
    lhs.expect_dtype(name, dtype)?;
    rhs.expect_dtype(name, dtype)?;
    same_places(name, [&lhs, &rhs], &out)?;
    Command::new(name, (lhs.read::<Raw>(), rhs.read::<Raw>(), out.write::<Raw>()))
        .cost(out.layout.elements(), op.cost())
        .run(
            stream,
            Places::of([out.layout, lhs.layout, rhs.layout]),
            // SAFETY: the places are those of the operands, whose types were checked.
            move |places, workers, (x, y, out)| unsafe {
                cpu::binary(op, dtype, places, workers, out, (x, y));
            },
            move |places, queue, (x, y, out)| cuda::run(queue, op, dtype, places, [out, x, y]),
        )
}

/// That operands have the shape of the output, and share memory with it only element for element.
#[inline(always)]
fn same_places<const N: usize>(name: &'static str, inputs: [&View<'_>; N], out: &View<'_>) -> Result<()> {
    for input in inputs {
        input.expect_shape_of(name, out)?;
        input.expect_no_partial_overlap(name, out)?;
    }
    Ok(())
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
    same_places(name, [&lhs, &rhs], &out)?;
    Command::new(name, (lhs.read::<Raw>(), rhs.read::<Raw>(), out.write::<Raw>()))
        .cost(out.layout.elements(), 1)
        .run(
            stream,
            Places::of([out.layout, lhs.layout, rhs.layout]),
            // SAFETY: the places are those of the operands, whose types were checked.
            move |places, workers, (x, y, out)| unsafe {
                cpu::compare(op, dtype, places, workers, out, (x, y));
            },
            move |places, queue, (x, y, out)| cuda::compare(queue, op, dtype, places, [out, x, y]),
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
    same_places(OP, [&x], &out)?;
    Command::new(OP, (x.read::<Raw>(), out.write::<Raw>())).cost(out.layout.elements(), 1).run(
        stream,
        Places::of([out.layout, x.layout]),
        // SAFETY: the places are those of the operands, whose types were checked.
        |places, workers, (x, out)| unsafe { cpu::logical_not(places, workers, out, x) },
        |places, queue, (x, out)| copy_cuda::logical_not(queue, places, [out, x]),
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
    same_places(OP, [&condition, &x, &y], &out)?;
    let size = out.dtype.size_bytes();
    let operands = (condition.read::<Raw>(), x.read::<Raw>(), y.read::<Raw>(), out.write::<Raw>());
    Command::new(OP, operands).cost(out.layout.elements(), 1).run(
        stream,
        Places::of([out.layout, condition.layout, x.layout, y.layout]),
        // SAFETY: the places are those of the operands, whose types were checked.
        move |places, workers, (condition, x, y, out)| unsafe {
            cpu::where_cond(size, places, workers, out, (condition, x, y));
        },
        move |places, queue, (condition, x, y, out)| {
            copy_cuda::where_cond(queue, size, places, [out, condition, x, y])
        },
    )
}

#[cfg(test)]
mod tests;
