//! Launchers of the elementwise kernels.

use device::cuda::Queue;
use device::{DType, Error, Result, Stream};

use crate::command::{Address, Command, WriteRead, no_scalars};
use crate::cpu::elementwise as cpu;
use crate::cuda::elementwise as cuda;
use crate::functions::{BinaryGradOp, BinaryOp, CompareOp, Function, Gradient, UnaryOp};
use crate::fuse::Fusible;
use crate::layout::{Dst, View};
use crate::loops::Places;
use crate::par::Workers;

/// A function of elements as a command runs it, on operands of which the first is the result.
pub(crate) trait Elements<const N: usize>: Copy + Send + Sync + 'static {
    /// # Safety
    /// As for [`map`](crate::cpu::walk::map), with elements of the function's types.
    unsafe fn run(self, places: &Places<N>, workers: &Workers, operands: [Dst<u8>; N]);

    fn function(self) -> Function;

    /// Enqueues it on a CUDA device.
    ///
    /// # Errors
    /// As for [`Queue::kernel`].
    fn enqueue(self, queue: &Queue<'_>, places: &Places<N>, operands: [Address; N]) -> Result<()> {
        cuda::run(queue, self.function(), places, operands)
    }
}

/// Launches a function on operands of its types, of which the first is the result.
#[inline(always)]
#[track_caller]
pub(crate) fn launch<F: Elements<N>, const N: usize>(
    stream: &Stream,
    name: &'static str,
    function: F,
    operands: [View<'_>; N],
) -> Result<()> {
    let out = operands[0];
    for input in &operands[1..] {
        input.expect_shape_of(name, &out)?;
    }
    let places = Places::of(operands.each_ref().map(|operand| operand.layout));
    Command::new(name, WriteRead(operands)).cost(out.layout.elements(), function.function().cost()).launch(
        stream,
        (places, function),
        no_scalars,
        |(places, function), operands| Fusible::function(function.function(), places, operands),
        // SAFETY: `places` was made from the layouts of these operands, whose types were checked; see
        // `Command::launch`.
        |(places, function), workers, operands| unsafe { function.run(places, workers, operands) },
        |(places, function), queue, operands| function.enqueue(queue, places, operands),
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
        return Err(Error::dtype_unsupported(name, dtype));
    }
    op.check_scalar(dtype)?;
    let op = op.simplified();
    x.expect_dtype(name, dtype)?;
    launch(stream, name, (op, dtype), [out, x])
}

/// `out = g op'(x)`, element by element, with the derivative from what the op [saves](UnaryOp::saves), for floats.
///
/// Shapes: any, all alike. Asynchronous, ordered by the buffers. `out` may be `saved` or `g`.
///
/// # Errors
/// As for [`unary`]; `InvalidArgument` for an op whose derivative is not known.
pub fn unary_grad(stream: &Stream, op: UnaryOp, saved: View<'_>, g: View<'_>, out: View<'_>) -> Result<()> {
    let (name, dtype) = (op.grad_name(), out.dtype);
    if op.saves().is_none() {
        return Err(Error::invalid(name, "op", "a function whose derivative is known", op.name()));
    }
    if !dtype.is_float() {
        return Err(Error::dtype_unsupported(name, dtype));
    }
    saved.expect_dtype(name, dtype)?;
    g.expect_dtype(name, dtype)?;
    let op = op.simplified();
    launch(stream, name, (Gradient(op), dtype), [out, saved, g])
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
        return Err(Error::dtype_unsupported(name, dtype));
    }
    lhs.expect_dtype(name, dtype)?;
    rhs.expect_dtype(name, dtype)?;
    launch(stream, name, (op, dtype), [out, lhs, rhs])
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
        return Err(Error::dtype_unsupported(name, dtype));
    }
    for input in [&lhs, &rhs, &g] {
        input.expect_dtype(name, dtype)?;
    }
    launch(stream, name, (op, dtype), [out, lhs, rhs, g])
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
    launch(stream, name, (op, dtype), [out, lhs, rhs])
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
    launch(stream, OP, Not, [out, x])
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
    launch(stream, OP, Where(out.dtype), [out, condition, x, y])
}

/// Implements [`Elements`]: the type, its number of operands, the body for a CPU, and the function.
macro_rules! elements {
    ($(
        $This:ty, $count:literal: |$this:ident, $places:ident, $workers:ident, [$($operand:ident),+]| $cpu:expr,
        $function:expr;
    )+) => {$(
        impl Elements<$count> for $This {
            #[inline(always)]
            unsafe fn run(self, $places: &Places<$count>, $workers: &Workers, [$($operand),+]: [Dst<u8>; $count]) {
                let $this = self;
                // SAFETY: the contract is the same.
                unsafe { $cpu }
            }

            #[inline(always)]
            fn function(self) -> Function {
                let $this = self;
                $function
            }
        }
    )+};
}

#[derive(Clone, Copy)]
struct Not;

#[derive(Clone, Copy)]
struct Where(DType);

elements! {
    (UnaryOp, DType), 2: |this, places, workers, [out, x]|
        cpu::run(this.0, this.1, places, workers, [out, x]), Function::Unary(this.0, this.1);
    (Gradient, DType), 3: |this, places, workers, [out, saved, g]|
        cpu::run(this.0, this.1, places, workers, [out, saved, g]), Function::Gradient(this.0.0, this.1);
    (BinaryOp, DType), 3: |this, places, workers, [out, x, y]|
        cpu::run(this.0, this.1, places, workers, [out, x, y]), Function::Binary(this.0, this.1);
    (BinaryGradOp, DType), 4: |this, places, workers, [out, x, y, g]|
        cpu::run(this.0, this.1, places, workers, [out, x, y, g]), Function::BinaryGradient(this.0, this.1);
    (CompareOp, DType), 3: |this, places, workers, [out, x, y]|
        cpu::compare(this.0, this.1, places, workers, [out, x, y]), Function::Compare(this.0, this.1);
    Not, 2: |_this, places, workers, [out, x]| cpu::logical_not(places, workers, [out, x]), Function::Not;
    Where, 4: |this, places, workers, [out, condition, x, y]|
        cpu::where_cond(this.0.size_bytes(), places, workers, [out, condition, x, y]),
        Function::Where(this.0);
}

#[cfg(test)]
mod tests;
