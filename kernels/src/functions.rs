//! The functions of elements: one table, from which their enums, kernels, tensor methods and lists of tests are made.
//!
//! A row is the function's formula, its variant, its name, its cost in additions, the widest vectors that it gains from on a CPU,
//! whether both devices give the same bits, its body on a CPU as a function of [`Number`](crate::cpu::number::Number)s or
//! [`Real`](crate::cpu::number::Real)s `T`, and its body on CUDA as a function of `T`s, with the names of `elementwise.cu`.
//! Functions of one element may hold numbers, each with the conversion to `T` and a value to test it with, and have a
//! derivative (for floats): whether it is one of the function's argument or of its result, and the gradient `g` times it, in both bodies.

use device::DType;
use smallvec::{SmallVec, smallvec};

/// Calls `$then!` with the functions of one element.
#[doc(hidden)]
#[macro_export]
macro_rules! unary_functions {
    ($then:ident) => { $then! {
        numbers {
            /// `-x`.
            Neg, neg, 1, Narrow, exact, |x| x.neg(), "negate(x)";
            /// `|x|`.
            Abs, abs, 1, Narrow, exact, |x| x.abs(), "abs_of(x)";
            /// -1, 0 or 1 by the sign of `x`; 0 for NaN.
            Sign, sign, 1, Narrow, exact, |x| x.sign(), "(T)((x > 0) - is_negative(x))";
            /// `x^2`.
            Square, square, 1, Narrow, exact, |x| x.mul(x), "mul(x, x)",
                of_argument, |x, g| g.mul(x).add(g.mul(x)), "2 * mul(g, x)";
            /// `x + value`; the number takes the type of `x`.
            AddScalar(wrap_f64 value = 3.0), add_scalar, 1, Narrow, exact, |x| x.add(value), "add(x, a)";
            /// `x * value`; the number takes the type of `x`.
            MulScalar(wrap_f64 value = -7.0), mul_scalar, 1, Narrow, exact, |x| x.mul(value), "mul(x, a)";
            /// `min(max(x, min), max)`; NaN stays NaN, and a NaN bound makes every float NaN. Infinite bounds do not bound.
            Clamp(from_f64 min = -2.0, from_f64 max = 3.0), clamp, 1, Narrow, exact,
                |x| x.clamp(min, max), "clamp_of(x, a, b)";
        }
        floats {
            /// `e^x`.
            Exp, exp, 8, Wide, close, |x| x.exp(), "exp_of(x)",
                of_result, |y, g| g.mul(y), "g * y";
            /// The natural logarithm; NaN below 0.
            Log, log, 8, Wide, close, |x| x.log(), "log_of(x)",
                of_argument, |x, g| g.div(x), "g / x";
            /// The square root; NaN below 0.
            Sqrt, sqrt, 4, Narrow, exact, |x| x.sqrt(), "sqrt_of(x)",
                of_argument, |x, g| g.mul(T::HALF).div(x.sqrt()), "g * (T)0.5 / sqrt_of(x)";
            /// `1 / sqrt(x)`.
            Rsqrt, rsqrt, 4, Narrow, close, |x| x.rsqrt(), "1 / sqrt_of(x)",
                of_argument, |x, g| g.mul(T::HALF.neg()).div(x).div(x.sqrt()), "g * (T)-0.5 / x / sqrt_of(x)";
            /// `1 / x`.
            Reciprocal, reciprocal, 4, Narrow, exact, |x| x.recip(), "1 / x",
                of_argument, |x, g| g.neg().div(x).div(x), "-g / x / x";
            /// The logarithm to the base 2; NaN below 0.
            Log2, log2, 16, Narrow, close, |x| x.log2(), "log2_of(x)",
                of_argument, |x, g| g.div(x).mul(T::LOG2_E), "g / x * (T)1.44269504088896341";
            /// `ln(1 + x)`, without cancellation near 0; NaN below -1.
            Log1p, log1p, 8, Wide, close, |x| x.log1p(), "log1p_of(x)",
                of_argument, |x, g| g.div(T::ONE.add(x)), "g / (1 + x)";
            /// `e^x - 1`, without cancellation near 0.
            Expm1, expm1, 8, Wide, close, |x| if x > T::from_f64(40.0) { x.exp() } else { x.expm1() }, "expm1_of(x)",
                of_argument, |x, g| g.mul(x.exp()), "g * exp_of(x)";
            /// `x^3`.
            Cube, cube, 1, Narrow, close, |x| x.mul(x).mul(x), "x * x * x",
                of_argument, |x, g| g.mul(x).mul(x).mul(T::from_f64(3.0)), "g * x * x * 3";
            /// The sine of an angle in radians.
            Sin, sin, 30, Narrow, close, |x| x.sin(), "sin_of(x)",
                of_argument, |x, g| g.mul(x.cos()), "g * cos_of(x)";
            /// The cosine of an angle in radians.
            Cos, cos, 30, Narrow, close, |x| x.cos(), "cos_of(x)",
                of_argument, |x, g| g.neg().mul(x.sin()), "-g * sin_of(x)";
            /// The tangent of an angle in radians.
            Tan, tan, 30, Narrow, close, |x| x.tan(), "tan_of(x)",
                of_argument, |x, g| g.div(x.cos()).div(x.cos()), "g / cos_of(x) / cos_of(x)";
            /// The largest integer that is at most `x`.
            Floor, floor, 1, Narrow, exact, |x| x.floor(), "floor(x)", of_result, |_y, _g| T::ZERO, "(T)0";
            /// The smallest integer that is at least `x`.
            Ceil, ceil, 1, Narrow, exact, |x| x.ceil(), "ceil(x)", of_result, |_y, _g| T::ZERO, "(T)0";
            /// The nearest integer, of two the even one.
            Round, round, 1, Narrow, exact, |x| x.nearest(), "rint(x)", of_result, |_y, _g| T::ZERO, "(T)0";
            /// The integer part.
            Trunc, trunc, 1, Narrow, exact, |x| x.trunc(), "trunc(x)", of_result, |_y, _g| T::ZERO, "(T)0";
            /// The hyperbolic tangent.
            Tanh, tanh, 8, Wide, close, |x| x.tanh(), "tanh_of(x)",
                of_argument, |x, g| g.mul(T::from_f64(4.0).mul(x.add(x).sigmoid_slope())),
                "g * (4 * sigmoid_slope(x + x))";
            /// `1 / (1 + e^-x)`.
            Sigmoid, sigmoid, 8, Wide, close, |x| x.sigmoid(), "sigmoid_of(x)",
                of_argument, |x, g| g.mul(x.sigmoid_slope()), "g * sigmoid_slope(x)";
            /// The error function.
            Erf, erf, 12, Wide, close, |x| x.erf(), "erf_of(x)",
                of_argument, |x, g| g.mul(x.erf_slope()), "g * erf_slope(x)";
            /// `max(x, 0)`; NaN stays NaN.
            Relu, relu, 1, Narrow, exact, |x| x.relu(), "x <= 0 ? (T)0 : x",
                of_result, |y, g| if y <= T::ZERO { T::ZERO } else { g }, "y <= 0 ? (T)0 : g";
            /// `x / (1 + e^-x)`.
            Silu, silu, 8, Wide, close, |x| x.silu(), "silu_of(x)",
                of_argument, |x, g| g.mul(x.silu_slope()), "g * silu_slope(x)";
            /// `x (1 + erf(x / sqrt 2)) / 2`.
            GeluErf, gelu_erf, 12, Wide, close, |x| x.mul(x.normal_cdf()), "x * normal_cdf(x)",
                of_argument, |x, g| g.mul(x.gelu_erf_slope()), "g * gelu_erf_slope(x)";
            /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
            GeluTanh, gelu_tanh, 12, Wide, close, |x| x.gelu_tanh(), "gelu_tanh_of(x)",
                of_argument, |x, g| g.mul(x.gelu_tanh_slope()), "g * gelu_tanh_slope(x)";
            /// `x^exponent`.
            PowScalar(in_parts exponent = 1.7), pow_scalar, 30, Narrow, close,
                |x| x.pow_parts(exponent), "power_parts(x, a, b)",
                of_argument, |x, g| x.pow_slope(exponent, g), "power_slope(x, a, b, g)";
            /// `x / (1 + |x|)`.
            Softsign, softsign, 4, Narrow, exact, |x| x.div(T::ONE.add(x.abs())), "x / (1 + abs_of(x))",
                of_argument, |x, g| g.mul(x.softsign_slope()), "g * softsign_slope(x)";
            /// `ln(1 + e^(beta x)) / beta`, and `x` where `beta x` is above `threshold`.
            Softplus(from_f64 beta = 1.3, from_f64 threshold = 20.0), softplus, 16, Wide, close,
                |x| x.softplus(beta, threshold), "softplus_of(x, a, b)",
                of_argument, |x, g| g.mul(x.softplus_slope(beta, threshold)), "g * softplus_slope(x, a, b)";
            /// `x` where it is positive, `alpha (e^x - 1)` elsewhere.
            Elu(from_f64 alpha = 0.7), elu, 8, Wide, close,
                |x| if x > T::ZERO { x } else { alpha.mul(x.expm1()) }, "x > 0 ? x : a * expm1_of(x)",
                of_argument, |x, g| if x > T::ZERO { g } else { g.mul(alpha.mul(x.exp())) },
                "x > 0 ? g : g * (a * exp_of(x))";
            /// `min(max(x / 6 + 1 / 2, 0), 1)`.
            HardSigmoid, hard_sigmoid, 4, Narrow, close, |x| x.hard_sigmoid(), "hard_sigmoid_of(x)",
                of_argument, |x, g| if x.is_bent() { g.div(T::from_f64(6.0)) } else { T::ZERO },
                "x > -3 && x < 3 ? g / 6 : (T)0";
            /// `x hard_sigmoid(x)`.
            HardSwish, hard_swish, 4, Narrow, close, |x| x.mul(x.hard_sigmoid()), "x * hard_sigmoid_of(x)",
                of_argument, |x, g| {
                    let slope = x.div(T::from_f64(3.0)).add(T::HALF);
                    let risen = if x >= T::from_f64(3.0) { g } else { g.mul(slope) };
                    if x <= T::from_f64(-3.0) { T::ZERO } else { risen }
                }, "x <= -3 ? (T)0 : x >= 3 ? g : g * (x / 3 + (T)0.5)";
            /// `x tanh(log(1 + e^x))`.
            Mish, mish, 12, Wide, close, |x| x.mish(), "mish_of(x)",
                of_argument, |x, g| g.mul(x.mish_slope()), "g * mish_slope(x)";
        }
    } };
}

/// Calls `$then!` with the functions of two elements.
#[doc(hidden)]
#[macro_export]
macro_rules! binary_functions {
    ($then:ident) => {
        $then! {
            numbers {
                /// `x + y`.
                Add, add, 1, |x, y| x.add(y), "add(x, y)";
                /// `x - y`.
                Sub, sub, 1, |x, y| x.sub(y), "sub(x, y)";
                /// `x * y`.
                Mul, mul, 1, |x, y| x.mul(y), "mul(x, y)";
                /// `x / y`; integers round towards 0, and give 0 where they are divided by 0.
                Div, div, 4, |x, y| x.div(y), "divide(x, y)";
                /// The remainder `x - trunc(x / y) y`, exactly, with the sign of `x`; for `y = 0` NaN, of integers `x`.
                Fmod, fmod, 16, |x, y| x.fmod(y), "remainder_of(x, y)";
                /// `x^y`; integers round negative powers towards 0.
                Pow, pow, 30, |x, y| x.pow(y), "power(x, y)";
                /// The larger one; NaN if either is NaN.
                Maximum, maximum, 1, |x, y| x.maximum(y), "maximum(x, y)";
                /// The smaller one; NaN if either is NaN.
                Minimum, minimum, 1, |x, y| x.minimum(y), "minimum(x, y)";
            }
            floats {
                /// The angle of the point `(y, x)` in `-pi..=pi`: the arc tangent of `x / y` in the quadrant of both signs.
                Atan2, atan2, 30, |x, y| x.atan2(y), "angle_of(x, y)";
            }
        }
    };
}

/// Calls `$then!` with the gradients of functions of two elements `x` and `y`, for the gradient `g` of their result. They are
/// functions of floats.
#[doc(hidden)]
#[macro_export]
macro_rules! binary_gradients {
    ($then:ident) => {
        $then! {
            /// The gradient `-g x / y^2` of the divisor of `x / y`.
            DivDivisor, div_divisor_grad, 12, |x, y, g| x.div_slope(y, g), "div_slope(x, y, g)";
            /// The gradient `-g trunc(x / y)` of the divisor of `fmod(x, y)`.
            FmodDivisor, fmod_divisor_grad, 24, |x, y, g| g.neg().mul(x.sub(x.fmod(y)).div(y).nearest()),
                "-g * rint((x - remainder_of(x, y)) / y)";
            /// The gradient `g y / (x^2 + y^2)` of the first operand of `atan2(x, y)`.
            Atan2First, atan2_first_grad, 12, |x, y, g| x.atan2_slope(y, g), "angle_slope(x, y, g)";
            /// The gradient `g y x^(y - 1)` of the base of `x^y`; 0 where `y = 0`.
            PowBase, pow_base_grad, 60, |x, y, g| x.pow_slope([y, T::ZERO], g), "power_slope(x, y, (T)0, g)";
            /// The gradient `g x^y ln x` of the exponent of `x^y`; 0 where `x = 0` and `y >= 0`.
            PowExponent, pow_exponent_grad, 60, |x, y, g| x.pow_exponent_slope(y, g), "pow_exponent_slope(x, y, g)";
            /// The gradient `g (sigmoid(x) - y)` of the logit `x` in the binary cross-entropy with the target `y`.
            BceLogit, bce_logit_grad, 12, |x, y, g| g.mul(x.sigmoid_less(y)), "g * sigmoid_less(x, y)";
        }
    };
}

/// Calls `$then!` with the comparisons of two elements; all are false with NaN but `Ne`.
#[doc(hidden)]
#[macro_export]
macro_rules! comparisons {
    ($then:ident) => {
        $then! {
            /// `x == y`.
            Eq, eq, |x, y| x == y, "==";
            /// `x != y`; true with NaN.
            Ne, ne, |x, y| x != y, "!=";
            /// `x < y`.
            Lt, lt, |x, y| x < y, "<";
            /// `x <= y`.
            Le, le, |x, y| x <= y, "<=";
            /// `x > y`.
            Gt, gt, |x, y| x > y, ">";
            /// `x >= y`.
            Ge, ge, |x, y| x >= y, ">=";
        }
    };
}

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
            pub(crate) const fn cost(self) -> usize {
                match self { $(UnaryOp::$variant { .. } => $cost,)* }
            }

            /// Whether the result has the same bits on every device.
            #[cfg(test)]
            pub(crate) const fn is_exact(self) -> bool {
                match self { $(UnaryOp::$variant { .. } => same::$same,)* }
            }

            /// What [`unary_grad`](crate::unary_grad) is given beside the gradient; `None` if it does not know the op.
            pub const fn saves(self) -> Option<Saves> {
                match self { $(UnaryOp::$variant { .. } => saves!($($of)?),)* }
            }
        }
    };
    (@numbers $($(#[$doc:meta])* $variant:ident $(($($number:tt)*))?, $name:ident, $cost:literal, $width:ident, $same:ident,
        $cpu:expr, $cuda:literal $(, $of:ident, $slope:expr, $slope_cuda:literal)?;)*) => {
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

/// The types that an op is defined for, in errors.
macro_rules! fits {
    ($($op:ident),+) => {
        $(impl $op {
            pub(crate) const fn fits(self) -> &'static str {
                if self.supports(DType::I64) { "numbers" } else { "floats" }
            }
        })+
    };
}

fits!(UnaryOp, BinaryOp);

impl UnaryOp {
    /// Whether the op is defined for elements of this type.
    pub const fn supports(self, dtype: DType) -> bool {
        match dtype {
            DType::F32 | DType::F64 | DType::BF16 | DType::F16 => true,
            DType::I64 | DType::U8 => self.is_of_numbers(),
            _ => false,
        }
    }

    /// About how many additions the gradient of one element costs: a derivative of the argument takes the function once more.
    pub(crate) const fn grad_cost(self) -> usize {
        match self.saves() {
            Some(Saves::Argument) => 2 * self.cost(),
            _ => 1,
        }
    }
}

/// Makes the enum of the functions of two elements from their table.
macro_rules! binary_op {
    (numbers { $($numbers:tt)* } floats { $($floats:tt)* }) => {
        binary_op!(@enum $($numbers)* $($floats)*);
        binary_op!(@floats $($floats)*);
    };
    (@floats $($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        impl BinaryOp {
            /// Whether the op is defined for elements of this type.
            pub const fn supports(self, dtype: DType) -> bool {
                dtype.is_float() || !matches!(dtype, DType::Bool) && !matches!(self, $(BinaryOp::$variant)|*)
            }
        }
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

            pub(crate) const fn cost(self) -> usize {
                match self { $(BinaryOp::$variant => $cost,)* }
            }
        }
    };
}

binary_functions!(binary_op);

/// Defines the enum of the gradients of binary functions from their table.
macro_rules! binary_grad_op {
    ($($(#[$doc:meta])* $variant:ident, $name:ident, $cost:literal, $cpu:expr, $cuda:literal;)*) => {
        /// A gradient of a function of two elements: a function of both and of the result's gradient.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum BinaryGradOp {
            $($(#[$doc])* $variant,)*
        }

        impl BinaryGradOp {
            /// Every gradient.
            pub const ALL: &[BinaryGradOp] = &[$(BinaryGradOp::$variant),*];

            /// The op's name in errors and profiles.
            pub const fn name(self) -> &'static str {
                match self { $(BinaryGradOp::$variant => stringify!($name),)* }
            }

            pub(crate) const fn cost(self) -> usize {
                match self { $(BinaryGradOp::$variant => $cost,)* }
            }
        }
    };
}

binary_gradients!(binary_grad_op);

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

/// A function of elements and the types that it is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Unary(UnaryOp, DType),
    Gradient(UnaryOp, DType),
    Binary(BinaryOp, DType),
    BinaryGradient(BinaryGradOp, DType),
    Compare(CompareOp, DType),
    Not,
    /// Of a truth value and two elements of the type.
    Where(DType),
    /// A conversion, or a copy of one type.
    Copy {
        to: DType,
        from: DType,
    },
}

impl Function {
    /// The op's name, which kernels have, too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Function::Unary(op, _) => op.name(),
            Function::Gradient(op, _) => op.grad_name(),
            Function::Binary(op, _) => op.name(),
            Function::BinaryGradient(op, _) => op.name(),
            Function::Compare(op, _) => op.name(),
            Function::Not => "logical_not",
            Function::Where(_) => "where_cond",
            Function::Copy { .. } => "cast",
        }
    }

    /// The type of the result.
    pub(crate) fn result(self) -> DType {
        match self {
            Function::Unary(_, dtype)
            | Function::Gradient(_, dtype)
            | Function::Binary(_, dtype)
            | Function::BinaryGradient(_, dtype)
            | Function::Where(dtype)
            | Function::Copy { to: dtype, .. } => dtype,
            Function::Compare(..) | Function::Not => DType::Bool,
        }
    }

    /// The types of the arguments.
    pub(crate) fn arguments(self) -> SmallVec<[DType; 3]> {
        match self {
            Function::Unary(_, dtype) | Function::Copy { from: dtype, .. } => smallvec![dtype],
            Function::Gradient(_, dtype) | Function::Binary(_, dtype) | Function::Compare(_, dtype) => {
                smallvec![dtype; 2]
            }
            Function::BinaryGradient(_, dtype) => smallvec![dtype; 3],
            Function::Not => smallvec![DType::Bool],
            Function::Where(dtype) => smallvec![DType::Bool, dtype, dtype],
        }
    }

    /// About how many additions one element costs.
    pub(crate) fn cost(self) -> usize {
        match self {
            Function::Unary(op, _) => op.cost(),
            Function::Gradient(op, _) => op.grad_cost(),
            Function::Binary(op, _) => op.cost(),
            Function::BinaryGradient(op, _) => op.cost(),
            _ => 1,
        }
    }
}
