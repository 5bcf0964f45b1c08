//! Launchers of the elementwise kernels.

use device::cuda::Queue;
use device::{DType, Error, Result, Stream};

use crate::command::{Address, Command, WriteRead};
use crate::cpu::elementwise as cpu;
use crate::cuda::{copy as copy_cuda, elementwise as cuda};
use crate::functions::{BinaryGradOp, BinaryOp, CompareOp, Function, Gradient, UnaryOp};
use crate::fuse::Part;
use crate::layout::{Dst, View};
use crate::loops::Places;
use crate::par::Workers;

/// A function of elements as a command runs it, on operands of which the first is the result.
pub(crate) trait Elements<const N: usize>: Copy + Send + Sync + 'static {
    /// # Safety
    /// As for [`map1`](crate::cpu::walk::map1), with elements of the function's types.
    unsafe fn run(self, places: &Places<N>, workers: &Workers, operands: [Dst<u8>; N]);

    fn enqueue(self, queue: &Queue<'_>, places: &Places<N>, operands: [Address; N]) -> Result<()>;

    fn function(self) -> Function;
}

/// Launches a function on operands of its types, of which the first is the result.
#[inline(always)]
#[track_caller]
pub(crate) fn launch<F: Elements<N>, const N: usize>(
    stream: &Stream,
    name: &'static str,
    (function, cost): (F, usize),
    operands: [View<'_>; N],
) -> Result<()> {
    let out = operands[0];
    for input in &operands[1..] {
        input.expect_shape_of(name, &out)?;
    }
    let places = Places::of(operands.each_ref().map(|operand| operand.layout));
    Command::new(name, WriteRead(operands)).cost(out.layout.elements(), cost).run_part(
        stream,
        (places, function),
        |(places, function), operands| Part::function(function.function(), places, operands),
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
    launch(stream, name, ((op, dtype), op.cost()), [out, x])
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
    launch(stream, name, ((Gradient(op), dtype), op.grad_cost()), [out, saved, g])
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
    launch(stream, name, ((op, dtype), op.cost()), [out, lhs, rhs])
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
    launch(stream, name, ((op, dtype), op.cost()), [out, lhs, rhs, g])
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
    launch(stream, name, ((op, dtype), 1), [out, lhs, rhs])
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
    launch(stream, OP, (Not, 1), [out, x])
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
    launch(stream, OP, (Where(out.dtype), 1), [out, condition, x, y])
}

impl Elements<2> for (UnaryOp, DType) {
    #[inline(always)]
    unsafe fn run(self, places: &Places<2>, workers: &Workers, [out, x]: [Dst<u8>; 2]) {
        // SAFETY: the contract of `Elements::run` is that of `cpu::unary` for elements of this type.
        unsafe { cpu::unary(self.0, self.1, places, workers, out, x.src()) }
    }

    fn enqueue(self, queue: &Queue<'_>, places: &Places<2>, operands: [Address; 2]) -> Result<()> {
        cuda::run(queue, self.0, self.1, places, operands)
    }

    fn function(self) -> Function {
        Function::Unary(self.0, self.1)
    }
}

impl Elements<3> for (Gradient, DType) {
    #[inline(always)]
    unsafe fn run(self, places: &Places<3>, workers: &Workers, [out, saved, g]: [Dst<u8>; 3]) {
        // SAFETY: the contract of `Elements::run` is that of `cpu::unary_grad` for elements of this type.
        unsafe { cpu::unary_grad(self.0.0, self.1, places, workers, out, (saved.src(), g.src())) }
    }

    fn enqueue(self, queue: &Queue<'_>, places: &Places<3>, operands: [Address; 3]) -> Result<()> {
        cuda::run(queue, self.0, self.1, places, operands)
    }

    fn function(self) -> Function {
        Function::Gradient(self.0.0, self.1)
    }
}

impl Elements<3> for (BinaryOp, DType) {
    #[inline(always)]
    unsafe fn run(self, places: &Places<3>, workers: &Workers, [out, x, y]: [Dst<u8>; 3]) {
        // SAFETY: the contract of `Elements::run` is that of `cpu::binary` for elements of this type.
        unsafe { cpu::binary(self.0, self.1, places, workers, out, (x.src(), y.src())) }
    }

    fn enqueue(self, queue: &Queue<'_>, places: &Places<3>, operands: [Address; 3]) -> Result<()> {
        cuda::run(queue, self.0, self.1, places, operands)
    }

    fn function(self) -> Function {
        Function::Binary(self.0, self.1)
    }
}

impl Elements<4> for (BinaryGradOp, DType) {
    #[inline(always)]
    unsafe fn run(self, places: &Places<4>, workers: &Workers, [out, x, y, g]: [Dst<u8>; 4]) {
        let inputs = (x.src(), y.src(), g.src());
        // SAFETY: the contract of `Elements::run` is that of `cpu::binary_grad` for elements of this type.
        unsafe { cpu::binary_grad(self.0, self.1, places, workers, out, inputs) }
    }

    fn enqueue(self, queue: &Queue<'_>, places: &Places<4>, operands: [Address; 4]) -> Result<()> {
        cuda::run(queue, self.0, self.1, places, operands)
    }

    fn function(self) -> Function {
        Function::BinaryGradient(self.0, self.1)
    }
}

impl Elements<3> for (CompareOp, DType) {
    #[inline(always)]
    unsafe fn run(self, places: &Places<3>, workers: &Workers, [out, x, y]: [Dst<u8>; 3]) {
        // SAFETY: the contract of `Elements::run` is that of `cpu::compare` for elements of this type.
        unsafe { cpu::compare(self.0, self.1, places, workers, out, (x.src(), y.src())) }
    }

    fn enqueue(self, queue: &Queue<'_>, places: &Places<3>, operands: [Address; 3]) -> Result<()> {
        cuda::compare(queue, self.0, self.1, places, operands)
    }

    fn function(self) -> Function {
        Function::Compare(self.0, self.1)
    }
}

#[derive(Clone, Copy)]
struct Not;

impl Elements<2> for Not {
    #[inline(always)]
    unsafe fn run(self, places: &Places<2>, workers: &Workers, [out, x]: [Dst<u8>; 2]) {
        // SAFETY: the contract of `Elements::run` is that of `cpu::logical_not` for bools.
        unsafe { cpu::logical_not(places, workers, out, x.src()) }
    }

    fn enqueue(self, queue: &Queue<'_>, places: &Places<2>, operands: [Address; 2]) -> Result<()> {
        copy_cuda::logical_not(queue, places, operands)
    }

    fn function(self) -> Function {
        Function::Not
    }
}

/// Of elements of a type.
#[derive(Clone, Copy)]
struct Where(DType);

impl Elements<4> for Where {
    #[inline(always)]
    unsafe fn run(self, places: &Places<4>, workers: &Workers, [out, condition, x, y]: [Dst<u8>; 4]) {
        let inputs = (condition.src(), x.src(), y.src());
        // SAFETY: the contract of `Elements::run` is that of `cpu::where_cond` for elements of this size.
        unsafe { cpu::where_cond(self.0.size_bytes(), places, workers, out, inputs) }
    }

    fn enqueue(self, queue: &Queue<'_>, places: &Places<4>, operands: [Address; 4]) -> Result<()> {
        copy_cuda::where_cond(queue, self.0.size_bytes(), places, operands)
    }

    fn function(self) -> Function {
        Function::Where(self.0)
    }
}

#[cfg(test)]
mod tests;
