//! Launchers of the elementwise kernels.

use device::{DType, Error, Result, Stream, Use};

use crate::cpu;
use crate::cpu::walk::{Walk, flat_steps};
use crate::cuda;
use crate::layout::{Loops, View};
use crate::par::workers;

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum UnaryOp {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// -1, 0 or 1; 0 for NaN.
    Sign,
    /// `x^2`
    Square,
    /// `x + value`
    AddScalar(f64),
    /// `x * value`
    MulScalar(f64),
    /// `min(max(x, min), max)`; NaN stays NaN. Infinite bounds do not bound.
    Clamp {
        /// The lower bound.
        min: f64,
        /// The upper bound; it wins over a larger lower bound.
        max: f64,
    },
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root.
    Sqrt,
    /// `1 / sqrt(x)`
    Rsqrt,
    /// `1 / x`
    Recip,
    /// Sine of an angle in radians.
    Sin,
    /// Cosine of an angle in radians.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// Error function.
    Erf,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x sigmoid(x)`
    Silu,
    /// `x (1 + erf(x / sqrt 2)) / 2`
    GeluErf,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`
    GeluTanh,
    /// `x^exponent`; exponents -1, -0.5, 0.5, 2 and 3 take the simpler function.
    PowScalar(f64),
}

impl UnaryOp {
    /// The op's name in errors and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            UnaryOp::Neg => "neg",
            UnaryOp::Abs => "abs",
            UnaryOp::Sign => "sign",
            UnaryOp::Square => "square",
            UnaryOp::AddScalar(_) => "add_scalar",
            UnaryOp::MulScalar(_) => "mul_scalar",
            UnaryOp::Clamp { .. } => "clamp",
            UnaryOp::Exp => "exp",
            UnaryOp::Log => "log",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::Rsqrt => "rsqrt",
            UnaryOp::Recip => "reciprocal",
            UnaryOp::Sin => "sin",
            UnaryOp::Cos => "cos",
            UnaryOp::Tanh => "tanh",
            UnaryOp::Sigmoid => "sigmoid",
            UnaryOp::Erf => "erf",
            UnaryOp::Relu => "relu",
            UnaryOp::Silu => "silu",
            UnaryOp::GeluErf => "gelu",
            UnaryOp::GeluTanh => "gelu_tanh",
            UnaryOp::PowScalar(_) => "pow_scalar",
        }
    }

    /// Whether the op is defined for elements of this type.
    pub const fn supports(self, dtype: DType) -> bool {
        match dtype {
            DType::F32 | DType::F64 | DType::BF16 | DType::F16 => true,
            DType::I64 | DType::U8 => matches!(
                self,
                UnaryOp::Neg
                    | UnaryOp::Abs
                    | UnaryOp::Sign
                    | UnaryOp::Square
                    | UnaryOp::AddScalar(_)
                    | UnaryOp::MulScalar(_)
                    | UnaryOp::Clamp { .. }
            ),
            _ => false,
        }
    }

    /// About how many additions one element costs.
    const fn cost(self) -> usize {
        match self {
            UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip => 4,
            UnaryOp::Exp | UnaryOp::Log | UnaryOp::Tanh | UnaryOp::Sigmoid | UnaryOp::Silu => 8,
            UnaryOp::Erf | UnaryOp::GeluErf | UnaryOp::GeluTanh => 12,
            UnaryOp::Sin | UnaryOp::Cos | UnaryOp::PowScalar(_) => 30,
            _ => 1,
        }
    }

    /// An integer has no half to add.
    fn check_scalar(self, dtype: DType) -> Result<()> {
        match self {
            UnaryOp::AddScalar(value) | UnaryOp::MulScalar(value)
                if !dtype.is_float() && value.trunc() != value =>
            {
                Err(Error::InvalidArgument {
                    op: self.name(),
                    argument: "value",
                    expected: "an integer for integer elements",
                    value: value.to_string().into(),
                })
            }
            _ => Ok(()),
        }
    }
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BinaryOp {
    /// `lhs + rhs`
    Add,
    /// `lhs - rhs`
    Sub,
    /// `lhs * rhs`
    Mul,
    /// `lhs / rhs`; integers round towards 0, and give 0 where they are divided by 0.
    Div,
    /// `lhs^rhs`; integers round negative powers towards 0.
    Pow,
    /// The larger one; NaN if either is NaN.
    Maximum,
    /// The smaller one; NaN if either is NaN.
    Minimum,
    /// Gradient of [`UnaryOp::Relu`] from its result `y`: `if y > 0 { g } else { 0 }`.
    ReluGrad,
    /// Gradient of [`UnaryOp::Tanh`] from its result `y`: `g (1 - y^2)`.
    TanhGrad,
    /// Gradient of [`UnaryOp::Sigmoid`] from its result `y`: `g y (1 - y)`.
    SigmoidGrad,
    /// Gradient of [`UnaryOp::GeluErf`] from its input `x`: `g (c(x) + x e^(-x^2 / 2) / sqrt(2 pi))`, with the
    /// distribution function `c(x) = (1 + erf(x / sqrt 2)) / 2`.
    GeluErfGrad,
    /// Gradient of [`UnaryOp::GeluTanh`] from its input `x`: `g (s + x s (1 - s) 2 u')`, with
    /// `u = sqrt(2 / pi) (x + 0.044715 x^3)` and `s = sigmoid(2 u)`.
    GeluTanhGrad,
    /// Gradient of [`UnaryOp::Silu`] from its input `x`: `g s (1 + x (1 - s))`, with `s = sigmoid(x)`.
    SiluGrad,
}

impl BinaryOp {
    /// The op's name in errors and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "sub",
            BinaryOp::Mul => "mul",
            BinaryOp::Div => "div",
            BinaryOp::Pow => "pow",
            BinaryOp::Maximum => "maximum",
            BinaryOp::Minimum => "minimum",
            BinaryOp::ReluGrad => "relu_grad",
            BinaryOp::TanhGrad => "tanh_grad",
            BinaryOp::SigmoidGrad => "sigmoid_grad",
            BinaryOp::GeluErfGrad => "gelu_grad",
            BinaryOp::GeluTanhGrad => "gelu_tanh_grad",
            BinaryOp::SiluGrad => "silu_grad",
        }
    }

    /// Whether the op is defined for elements of this type.
    pub const fn supports(self, dtype: DType) -> bool {
        match dtype {
            DType::F32 | DType::F64 | DType::BF16 | DType::F16 => true,
            DType::I64 | DType::U8 => matches!(
                self,
                BinaryOp::Add
                    | BinaryOp::Sub
                    | BinaryOp::Mul
                    | BinaryOp::Div
                    | BinaryOp::Pow
                    | BinaryOp::Maximum
                    | BinaryOp::Minimum
            ),
            _ => false,
        }
    }

    const fn cost(self) -> usize {
        match self {
            BinaryOp::Div => 4,
            BinaryOp::Pow => 30,
            BinaryOp::GeluErfGrad | BinaryOp::GeluTanhGrad | BinaryOp::SiluGrad => 16,
            _ => 1,
        }
    }
}

/// A comparison of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    /// `lhs == rhs`; false with NaN.
    Eq,
    /// `lhs != rhs`; true with NaN.
    Ne,
    /// `lhs < rhs`; false with NaN.
    Lt,
    /// `lhs <= rhs`; false with NaN.
    Le,
    /// `lhs > rhs`; false with NaN.
    Gt,
    /// `lhs >= rhs`; false with NaN.
    Ge,
}

impl CompareOp {
    /// The op's name in errors and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            CompareOp::Eq => "eq",
            CompareOp::Ne => "ne",
            CompareOp::Lt => "lt",
            CompareOp::Le => "le",
            CompareOp::Gt => "gt",
            CompareOp::Ge => "ge",
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
    x.expect_dtype(name, dtype)?;
    x.expect_shape_of(name, &out)?;
    x.expect_no_partial_overlap(name, &out)?;
    let (xs, o) = (x.bytes(name)?, out.bytes_mut(name)?);
    if stream.is_cuda() {
        return cuda::elementwise::unary(stream, op, x, out);
    }
    let elements = out.layout.elements();
    let workers = workers(stream, elements, op.cost());
    let uses = [Use::read(x.buffer), Use::write(out.buffer)];
    if let Some(steps) = flat_steps([out.layout, x.layout]) {
        return stream.launch(name, &uses, move || {
            let walk = Walk::Flat { elements, steps };
            // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
            unsafe { cpu::elementwise::unary(op, dtype, &walk, &workers, o, xs) }
        });
    }
    let loops = Loops::in_memory_order([out.layout, x.layout]);
    stream.launch(name, &uses, move || {
        // SAFETY: as above.
        unsafe { cpu::elementwise::unary(op, dtype, &Walk::Nested(&loops), &workers, o, xs) }
    })
}

/// `out = op(lhs, rhs)`, element by element.
///
/// Shapes: any, all alike; expand the layouts first to broadcast. Asynchronous, ordered by the buffers. `out` may be
/// `lhs` or `rhs`. Gradients take `(x or y, g)`, see [`BinaryOp`].
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
    let (xy, o) = binary_operands(name, &lhs, &rhs, &out)?;
    if stream.is_cuda() {
        return cuda::elementwise::binary(stream, op, lhs, rhs, out);
    }
    let elements = out.layout.elements();
    let workers = workers(stream, elements, op.cost());
    let uses = [Use::read(lhs.buffer), Use::read(rhs.buffer), Use::write(out.buffer)];
    if let Some(steps) = flat_steps([out.layout, lhs.layout, rhs.layout]) {
        return stream.launch(name, &uses, move || {
            let walk = Walk::Flat { elements, steps };
            // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
            unsafe { cpu::elementwise::binary(op, dtype, &walk, &workers, o, xy) }
        });
    }
    let loops = Loops::in_memory_order([out.layout, lhs.layout, rhs.layout]);
    stream.launch(name, &uses, move || {
        // SAFETY: as above.
        unsafe { cpu::elementwise::binary(op, dtype, &Walk::Nested(&loops), &workers, o, xy) }
    })
}

type Inputs2 = (crate::layout::Src<u8>, crate::layout::Src<u8>);

/// Checks shapes, bounds and overlap, and gives the addresses.
#[inline]
fn binary_operands(
    name: &'static str,
    lhs: &View<'_>,
    rhs: &View<'_>,
    out: &View<'_>,
) -> Result<(Inputs2, crate::layout::Dst<u8>)> {
    lhs.expect_shape_of(name, out)?;
    rhs.expect_shape_of(name, out)?;
    lhs.expect_no_partial_overlap(name, out)?;
    rhs.expect_no_partial_overlap(name, out)?;
    Ok(((lhs.bytes(name)?, rhs.bytes(name)?), out.bytes_mut(name)?))
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
    let (xy, o) = binary_operands(name, &lhs, &rhs, &out)?;
    if stream.is_cuda() {
        return cuda::elementwise::compare(stream, op, lhs, rhs, out);
    }
    let elements = out.layout.elements();
    let workers = workers(stream, elements, 1);
    let uses = [Use::read(lhs.buffer), Use::read(rhs.buffer), Use::write(out.buffer)];
    let loops = Loops::in_memory_order([out.layout, lhs.layout, rhs.layout]);
    stream.launch(name, &uses, move || {
        // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
        unsafe { cpu::elementwise::compare(op, dtype, &Walk::Nested(&loops), &workers, o, xy) }
    })
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
    x.expect_shape_of(OP, &out)?;
    x.expect_no_partial_overlap(OP, &out)?;
    let (xs, o) = (x.bytes(OP)?, out.bytes_mut(OP)?);
    if stream.is_cuda() {
        return cuda::copy::logical_not(stream, x, out);
    }
    let workers = workers(stream, out.layout.elements(), 1);
    let loops = Loops::in_memory_order([out.layout, x.layout]);
    stream.launch(OP, &[Use::read(x.buffer), Use::write(out.buffer)], move || {
        // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
        unsafe { cpu::elementwise::logical_not(&Walk::Nested(&loops), &workers, o, xs) }
    })
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
    for input in [&condition, &x, &y] {
        input.expect_shape_of(OP, &out)?;
        input.expect_no_partial_overlap(OP, &out)?;
    }
    let inputs = (condition.bytes(OP)?, x.bytes(OP)?, y.bytes(OP)?);
    let o = out.bytes_mut(OP)?;
    if stream.is_cuda() {
        return cuda::copy::where_cond(stream, condition, x, y, out);
    }
    let size = out.dtype.size_bytes();
    let workers = workers(stream, out.layout.elements(), 1);
    let loops = Loops::in_memory_order([out.layout, condition.layout, x.layout, y.layout]);
    let uses =
        [Use::read(condition.buffer), Use::read(x.buffer), Use::read(y.buffer), Use::write(out.buffer)];
    stream.launch(OP, &uses, move || {
        // SAFETY: types, shapes, bounds and overlap were checked above; the launch orders the accesses.
        unsafe { cpu::elementwise::where_cond(size, &Walk::Nested(&loops), &workers, o, inputs) }
    })
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
