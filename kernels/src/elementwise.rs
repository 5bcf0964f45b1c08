//! Launchers of the elementwise kernels.

use device::{DType, Error, Result, Stream};

use crate::command::{Command, Raw};
use crate::cpu::elementwise as cpu;
use crate::cuda::{copy as copy_cuda, elementwise as cuda};
use crate::layout::View;
use crate::loops::Places;
use crate::{binary_functions, comparisons, unary_functions};

/// Makes the enum of the functions of one element from their table.
macro_rules! unary_op {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        unary_op!(@enum $($numbers)* $($floats)*);
        unary_op!(@numbers $($numbers)*);
    };
    (@enum $(
        $(#[$doc:meta])*
        $variant:ident $(($($from:ident $number:ident = $example:literal),+))?, $name:ident,
        $cost:literal, $width:ident, $same:ident, $cpu:expr, $cuda:literal
        $(, $of:ident, $slope:expr, $slope_cuda:literal)?;
    )*) => {
        /// A function of one element.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum UnaryOp {
            $($(#[$doc])* $variant $(($(number!($number)),+))?,)*
        }

        impl UnaryOp {
            /// Every function; those that hold numbers hold an example.
            pub const ALL: &[UnaryOp] = &[$(UnaryOp::$variant $(($($example),+))?),*];

            /// The op's name in errors and profiles.
            pub const fn name(self) -> &'static str {
                match self { $(UnaryOp::$variant { .. } => stringify!($name),)* }
            }

            /// The name of the op's gradient.
            pub const fn grad_name(self) -> &'static str {
                match self { $(UnaryOp::$variant { .. } => concat!(stringify!($name), "_grad"),)* }
            }

            /// About how many additions one element costs.
            const fn cost(self) -> usize {
                match self { $(UnaryOp::$variant { .. } => $cost,)* }
            }

            /// Whether the result has the same bits on every device.
            #[cfg(test)]
            pub(crate) const fn is_exact(self) -> bool {
                match self { $(UnaryOp::$variant { .. } => same::$same,)* }
            }

            /// What [`unary_grad`] is given beside the gradient; `None` if it does not know the op.
            pub const fn saves(self) -> Option<Saves> {
                match self { $(UnaryOp::$variant { .. } => saves!($($of)?),)* }
            }
        }
    };
    (@numbers $($(#[$doc:meta])* $variant:ident $(($($number:tt)*))?, $name:ident, $cost:literal, $width:ident, $same:ident,
        $cpu:expr, $cuda:literal;)*) => {
        impl UnaryOp {
            /// Whether the function is one of integers, too.
            const fn is_of_numbers(self) -> bool {
                matches!(self, $(UnaryOp::$variant { .. })|*)
            }
        }
    };
}

macro_rules! number {
    ($number:ident) => {
        f64
    };
}

macro_rules! saves {
    () => {
        None
    };
    (of_argument) => {
        Some(Saves::Argument)
    };
    (of_result) => {
        Some(Saves::Result)
    };
}

/// Whether devices agree bit for bit, by the words of the table.
#[cfg(test)]
#[allow(non_upper_case_globals)]
mod same {
    pub(super) const exact: bool = true;
    pub(super) const close: bool = false;
}

/// What a derivative is a function of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// The function's argument.
    Argument,
    /// The function's result.
    Result,
}

unary_functions!(unary_op);

impl UnaryOp {
    /// Whether the op is defined for elements of this type.
    pub const fn supports(self, dtype: DType) -> bool {
        supports(self.is_of_numbers(), dtype)
    }

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

const fn supports(of_numbers: bool, dtype: DType) -> bool {
    match dtype {
        DType::F32 | DType::F64 | DType::BF16 | DType::F16 => true,
        DType::I64 | DType::U8 => of_numbers,
        _ => false,
    }
}

/// Makes the enum of the functions of two elements from their table.
macro_rules! binary_op {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        binary_op!(@enum $($numbers)* $($floats)*);
        binary_op!(@numbers $($numbers)*);
    };
    (@enum $($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        /// A function of two elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum BinaryOp {
            $($(#[$doc])* $variant,)*
        }

        impl BinaryOp {
            /// Every function.
            pub const ALL: &[BinaryOp] = &[$(BinaryOp::$variant),*];

            /// The op's name in errors and profiles.
            pub const fn name(self) -> &'static str {
                match self { $(BinaryOp::$variant => stringify!($name),)* }
            }

            const fn cost(self) -> usize {
                match self { $(BinaryOp::$variant => $cost,)* }
            }
        }
    };
    (@numbers $($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        impl BinaryOp {
            /// Whether the op is defined for elements of this type.
            pub const fn supports(self, dtype: DType) -> bool {
                supports(matches!(self, $(BinaryOp::$variant)|*), dtype)
            }
        }
    };
}

binary_functions!(binary_op);

/// Makes the enum of the comparisons from their table.
macro_rules! compare_op {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cpu:expr, $cuda:literal;)*) => {
        /// A comparison of two elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CompareOp {
            $($(#[$doc])* $variant,)*
        }

        impl CompareOp {
            /// Every comparison.
            pub const ALL: &[CompareOp] = &[$(CompareOp::$variant),*];

            /// The op's name in errors and profiles.
            pub const fn name(self) -> &'static str {
                match self { $(CompareOp::$variant => stringify!($name),)* }
            }
        }
    };
}

comparisons!(compare_op);

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
        move |places, queue, (x, out)| cuda::unary(queue, op, dtype, places, [out, x]),
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
        return Err(Error::InvalidArgument {
            op: name,
            argument: "op",
            expected: "a function whose derivative is known",
            value: op.name().into(),
        });
    }
    if !dtype.is_float() {
        return Err(Error::DTypeUnsupported { op: name, dtype });
    }
    saved.expect_dtype(name, dtype)?;
    g.expect_dtype(name, dtype)?;
    same_places(name, [&saved, &g], &out)?;
    Command::new(name, (saved.read::<Raw>(), g.read::<Raw>(), out.write::<Raw>()))
        .cost(out.layout.elements(), 2 * op.cost())
        .run(
            stream,
            Places::of([out.layout, saved.layout, g.layout]),
            // SAFETY: the places are those of the operands, whose types were checked.
            move |places, workers, (saved, g, out)| unsafe {
                cpu::unary_grad(op, dtype, places, workers, out, (saved, g));
            },
            move |places, queue, (saved, g, out)| cuda::unary_grad(queue, op, dtype, places, [out, saved, g]),
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
            move |places, queue, (x, y, out)| cuda::binary(queue, op, dtype, places, [out, x, y]),
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
