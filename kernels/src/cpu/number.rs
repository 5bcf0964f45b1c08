//! What kernels need to know about elements: arithmetic on all of them, functions on the floating-point ones.

use device::Element;

/// An element that can be computed with. Integers wrap around on overflow.
pub(crate) trait Number: Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Rounds towards 0 for integers, and gives 0 where an integer is divided by 0.
    fn div(self, other: Self) -> Self;
    /// The exact remainder of a quotient rounded towards 0, which has the sign of `self`; `self` where an integer is divided by 0.
    fn fmod(self, divisor: Self) -> Self;
    /// For integers, a negative power is that of the exact result rounded towards 0.
    fn pow(self, exponent: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// -1, 0 or 1 with the sign of the value; 0 for NaN.
    fn sign(self) -> Self;
    fn is_nan(self) -> bool;
    /// Rounds towards 0 and saturates for integers.
    fn from_f64(value: f64) -> Self;
    fn from_i64(value: i64) -> Self;
    /// Wraps around for integers.
    fn wrap_f64(value: f64) -> Self;

    #[inline(always)]
    fn maximum(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }

    #[inline(always)]
    fn minimum(self, other: Self) -> Self {
        if self < other || self.is_nan() { self } else { other }
    }

    /// `min(max(self, low), high)`; NaN if any of the three is.
    #[inline(always)]
    fn clamp(self, low: Self, high: Self) -> Self {
        let raised = if self < low || low.is_nan() { low } else { self };
        if raised > high || high.is_nan() { high } else { raised }
    }
}

/// A number as the sum of two, of which the second is below the last digit of the first.
#[derive(Clone, Copy)]
pub(crate) struct Pair<T>(pub(crate) T, pub(crate) T);

/// A floating-point element.
pub(crate) trait Real: Number {
    const HALF: Self;
    const LOG2_E: Self;
    /// A quarter of the largest number.
    const LARGE: Self;
    /// A number so far above the smallest normal one that products of few are normal.
    const SMALL: Self;
    /// A power of two that makes the squares of the largest numbers normal.
    const SHRINK: Self;

    fn exp(self) -> Self;
    /// `e^(self + low)`, where `low` is below the last digit of a finite `self`.
    fn exp_pair(self, low: Self) -> Pair<Self>;
    /// `e^self - 1` for numbers up to 40.
    fn expm1(self) -> Self;
    fn log(self) -> Self;
    fn log2(self) -> Self;
    fn log1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn atan2(self, x: Self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    /// The nearest integer, of two the even one.
    fn nearest(self) -> Self;
    fn trunc(self) -> Self;
    /// The distribution function of the normal distribution, `erfc(-x / sqrt 2) / 2`.
    fn normal_cdf(self) -> Self;
    /// The derivative of `x normal_cdf(x)`.
    fn gelu_erf_slope(self) -> Self;
    /// `self * factor + term`, rounded once.
    fn fma(self, factor: Self, term: Self) -> Self;
    /// A power of two that brings numbers whose squares are beyond the type, below `SMALL` or above `LARGE`, to where sums of
    /// squares are normal: for the sum of the squares, 1 where it needs none.
    #[inline(always)]
    fn scale_of_squares(squares: Self) -> Self {
        if squares > Self::LARGE {
            return Self::SHRINK;
        }
        if squares < Self::SMALL { Self::SHRINK.recip() } else { Self::ONE }
    }
    /// `-g self / y^2`, without overflow or underflow of a part of it.
    fn div_slope(self, y: Self, g: Self) -> Self;
    /// `g y / (self^2 + y^2)`, likewise.
    fn atan2_slope(self, y: Self, g: Self) -> Self;

    /// A number as the nearest one of this type, and the rest.
    fn in_parts(value: f64) -> [Self; 2];

    /// `self^(exponent + rest)`, where the rest is below the last digit of the exponent.
    #[inline(always)]
    fn pow_parts(self, [exponent, rest]: [Self; 2]) -> Self {
        let power = self.pow(exponent);
        if rest == Self::ZERO {
            return power;
        }
        // x^rest is 1 + rest ln x.
        let whole = rest.mul(self.abs().log()).mul(power).add(power);
        if whole.is_nan() { power } else { whole }
    }

    /// `factor self^exponent`, without overflow or underflow of the power.
    #[inline(always)]
    fn times_pow(self, exponent: Self, factor: Self) -> Self {
        let power = self.pow(exponent);
        if power.is_nan() || power.abs() >= Self::SMALL && power.abs() <= Self::LARGE {
            return factor.mul(power);
        }
        let root = self.abs().pow(exponent.mul(Self::HALF));
        let product = factor.mul(root).mul(root);
        let negative = power < Self::ZERO || power.recip() < Self::ZERO;
        if negative { product.neg() } else { product }
    }

    /// `g` times the derivative of `self^(exponent + rest)`; 0 where the exponent is 0.
    #[inline(always)]
    fn pow_slope(self, [exponent, rest]: [Self; 2], g: Self) -> Self {
        if exponent == Self::ZERO {
            return Self::ZERO;
        }
        let less = exponent.sub(Self::ONE);
        // What `less` lacks, whichever of the terms is the larger one.
        let one = exponent.sub(less);
        let low = rest.add(exponent.sub(less.add(one)).add(one.sub(Self::ONE)));
        let slope = self.times_pow(less, g.mul(exponent));
        if low == Self::ZERO && rest == Self::ZERO {
            return slope;
        }
        // x^low is 1 + low ln x.
        let whole = slope.fma(low.mul(self.abs().log()).add(rest.div(exponent)), slope);
        if whole.is_nan() { slope } else { whole }
    }

    /// `g` times the derivative of `self^exponent` for the exponent; 0 where the base is 0 and the exponent not negative.
    #[inline(always)]
    fn pow_exponent_slope(self, exponent: Self, g: Self) -> Self {
        let slope = self.times_pow(exponent, g.mul(self.log()));
        if self == Self::ZERO && exponent >= Self::ZERO { Self::ZERO } else { slope }
    }

    #[inline(always)]
    fn recip(self) -> Self {
        Self::ONE.div(self)
    }

    #[inline(always)]
    fn rsqrt(self) -> Self {
        self.sqrt().recip()
    }

    /// `max(self, 0)`; NaN stays NaN, and -0 is 0, as what is less than the smallest number of 16 bits has to be before it is rounded.
    #[inline(always)]
    fn relu(self) -> Self {
        if self <= Self::ZERO { Self::ZERO } else { self }
    }
}

/// Functions that are always inlined, each as an expression.
macro_rules! functions {
    ($(fn $name:ident($($arguments:tt)*) -> $result:ty = $value:expr;)+) => {$(
        #[inline(always)]
        fn $name($($arguments)*) -> $result {
            $value
        }
    )+};
}

pub(super) use functions;

/// Parts of `Number` that are written alike for `f32` and `f64`, operators and all.
macro_rules! float_arithmetic {
    ($float:ty) => {
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;

        functions! {
            fn add(self, other: Self) -> Self = self + other;
            fn sub(self, other: Self) -> Self = self - other;
            fn mul(self, other: Self) -> Self = self * other;
            fn div(self, other: Self) -> Self = self / other;
            fn fmod(self, divisor: Self) -> Self = self % divisor;
            fn pow(self, exponent: Self) -> Self = self.powf(exponent);
            fn neg(self) -> Self = -self;
            fn abs(self) -> Self = <$float>::abs(self);
            fn sign(self) -> Self = {
                let up = if self > 0.0 { 1.0 } else { 0.0 };
                if self < 0.0 { -1.0 } else { up }
            };
            fn is_nan(self) -> bool = <$float>::is_nan(self);
            fn from_f64(value: f64) -> Self = value as Self;
            fn from_i64(value: i64) -> Self = value as Self;
            fn wrap_f64(value: f64) -> Self = value as Self;
        }
    };
}

impl Number for f32 {
    float_arithmetic!(f32);
}

impl Number for f64 {
    float_arithmetic!(f64);
}

/// Parts of `Number` that are written alike for `i64` and `u8`.
macro_rules! integer_arithmetic {
    () => {
        const ZERO: Self = 0;
        const ONE: Self = 1;

        functions! {
            fn add(self, other: Self) -> Self = self.wrapping_add(other);
            fn sub(self, other: Self) -> Self = self.wrapping_sub(other);
            fn mul(self, other: Self) -> Self = self.wrapping_mul(other);
            fn div(self, other: Self) -> Self = if other == 0 { 0 } else { self.wrapping_div(other) };
            fn fmod(self, divisor: Self) -> Self = if divisor == 0 { self } else { self.wrapping_rem(divisor) };
            fn neg(self) -> Self = self.wrapping_neg();
            fn is_nan(self) -> bool = false;
            fn from_f64(value: f64) -> Self = value as Self;
            fn from_i64(value: i64) -> Self = value as Self;
            fn wrap_f64(value: f64) -> Self = value as i64 as Self;
        }
    };
}

impl Number for i64 {
    integer_arithmetic!();

    functions! {
        fn abs(self) -> Self = self.wrapping_abs();
        fn sign(self) -> Self = self.signum();
    }

    #[inline(always)]
    fn pow(self, exponent: Self) -> Self {
        if exponent >= 0 {
            return power(self, exponent as u64);
        }
        match self {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        }
    }
}

impl Number for u8 {
    integer_arithmetic!();

    functions! {
        fn pow(self, exponent: Self) -> Self = power(self, u64::from(exponent));
        fn abs(self) -> Self = self;
        fn sign(self) -> Self = self.min(1);
    }
}

/// `base^exponent` by squaring.
#[inline(always)]
fn power<T: Number>(base: T, mut exponent: u64) -> T {
    let (mut result, mut square) = (T::ONE, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.mul(square);
        }
        square = square.mul(square);
        exponent >>= 1;
    }
    result
}
