//! Launchers of the elementwise kernels.

use device::{DType, Error, Result, Stream};

use crate::command::{Command, Raw};
use crate::cpu::elementwise as cpu;
use crate::cuda::{copy as copy_cuda, elementwise as cuda};
use crate::layout::View;
use crate::loops::Places;

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum UnaryOp {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// -1, 0 or 1; NaN stays NaN.
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
    same_places(name, [&x], &out)?;
    Command::new(name, (out.write::<Raw>(), x.read::<Raw>())).cost(out.layout.elements(), op.cost()).run(
        stream,
        Places::of([out.layout, x.layout]),
        // SAFETY: the places are those of the operands, whose types were checked.
        move |places, workers, (out, x)| unsafe { cpu::unary(op, dtype, places, workers, out, x) },
        move |places, queue, (out, x)| cuda::unary(queue, op, dtype, places, [out, x]),
    )
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
    same_places(name, [&lhs, &rhs], &out)?;
    Command::new(name, (out.write::<Raw>(), lhs.read::<Raw>(), rhs.read::<Raw>()))
        .cost(out.layout.elements(), op.cost())
        .run(
            stream,
            Places::of([out.layout, lhs.layout, rhs.layout]),
            // SAFETY: the places are those of the operands, whose types were checked.
            move |places, workers, (out, x, y)| unsafe {
                cpu::binary(op, dtype, places, workers, out, (x, y));
            },
            move |places, queue, (out, x, y)| cuda::binary(queue, op, dtype, places, [out, x, y]),
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
    Command::new(name, (out.write::<Raw>(), lhs.read::<Raw>(), rhs.read::<Raw>()))
        .cost(out.layout.elements(), 1)
        .run(
            stream,
            Places::of([out.layout, lhs.layout, rhs.layout]),
            // SAFETY: the places are those of the operands, whose types were checked.
            move |places, workers, (out, x, y)| unsafe {
                cpu::compare(op, dtype, places, workers, out, (x, y));
            },
            move |places, queue, (out, x, y)| cuda::compare(queue, op, dtype, places, [out, x, y]),
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
    Command::new(OP, (out.write::<Raw>(), x.read::<Raw>())).cost(out.layout.elements(), 1).run(
        stream,
        Places::of([out.layout, x.layout]),
        // SAFETY: the places are those of the operands, whose types were checked.
        |places, workers, (out, x)| unsafe { cpu::logical_not(places, workers, out, x) },
        |places, queue, (out, x)| copy_cuda::logical_not(queue, places, [out, x]),
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
    let operands = (out.write::<Raw>(), condition.read::<Raw>(), x.read::<Raw>(), y.read::<Raw>());
    Command::new(OP, operands).cost(out.layout.elements(), 1).run(
        stream,
        Places::of([out.layout, condition.layout, x.layout, y.layout]),
        // SAFETY: the places are those of the operands, whose types were checked.
        move |places, workers, (out, condition, x, y)| unsafe {
            cpu::where_cond(size, places, workers, out, (condition, x, y));
        },
        move |places, queue, (out, condition, x, y)| {
            copy_cuda::where_cond(queue, size, places, [out, condition, x, y])
        },
    )
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
