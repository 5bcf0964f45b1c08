//! What kernels need to know about elements: arithmetic on all of them, functions on the floating-point ones.

use device::Element;

use super::math;

/// An element that can be computed with. Integers wrap around on overflow.
pub(crate) trait Number: Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Rounds towards 0 for integers, and gives 0 where an integer is divided by 0.
    fn div(self, other: Self) -> Self;
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

/// A floating-point element.
pub(crate) trait Real: Number {
    const HALF: Self;

    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn sigmoid(self) -> Self;
    fn erf(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;

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

    /// The distribution function of the normal distribution, `(1 + erf(x / sqrt 2)) / 2`.
    #[inline(always)]
    fn normal_cdf(self) -> Self {
        let half_root = Self::from_f64(std::f64::consts::FRAC_1_SQRT_2);
        Self::HALF.mul(Self::ONE.add(self.mul(half_root).erf()))
    }

    /// The density of the normal distribution, `exp(-x^2 / 2) / sqrt(2 pi)`.
    #[inline(always)]
    fn normal_density(self) -> Self {
        self.mul(self).mul(Self::HALF.neg()).exp().mul(Self::from_f64(INV_SQRT_TAU))
    }

    /// `sigmoid(2 u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is `(1 + tanh(u)) / 2`.
    #[inline(always)]
    fn gelu_gate(self) -> Self {
        let cubic = Self::from_f64(GELU_CUBIC).mul(self).mul(self);
        let u = Self::from_f64(TWO_SQRT_2_OVER_PI).mul(self).mul(Self::ONE.add(cubic));
        u.sigmoid()
    }

    /// `s + x s (1 - s) 2 u'`, `s = sigmoid(2 u)`, see [`gelu_gate`](Self::gelu_gate).
    #[inline(always)]
    fn gelu_tanh_slope(self) -> Self {
        let s = self.gelu_gate();
        let cubic = Self::from_f64(3.0 * GELU_CUBIC).mul(self).mul(self);
        let slope = Self::from_f64(TWO_SQRT_2_OVER_PI).mul(Self::ONE.add(cubic));
        s.add(self.mul(s.mul(Self::ONE.sub(s))).mul(slope))
    }

    /// `min(max(x + 3, 0), 6) / 6`.
    #[inline(always)]
    fn hard_sigmoid(self) -> Self {
        self.add(Self::from_f64(3.0)).clamp(Self::ZERO, Self::from_f64(6.0)).div(Self::from_f64(6.0))
    }

    /// Whether `hard_sigmoid` rises here.
    #[inline(always)]
    fn is_bent(self) -> bool {
        self > Self::from_f64(-3.0) && self < Self::from_f64(3.0)
    }

    /// `tanh(log(1 + e^x)) = n / (n + 2)`, `n = e^x (e^x + 2)`, which is 1 where that overflows.
    #[inline(always)]
    fn mish_gate(self) -> Self {
        let top = Self::from_f64(20.0);
        let e = (if self > top { top } else { self }).exp();
        let n = e.mul(e.add(Self::from_f64(2.0)));
        n.div(n.add(Self::from_f64(2.0)))
    }
}

const INV_SQRT_TAU: f64 = 0.398_942_280_401_432_7;
const TWO_SQRT_2_OVER_PI: f64 = 1.595_769_121_605_730_8;
const GELU_CUBIC: f64 = 0.044_715;

/// Functions that are always inlined, each as an expression.
macro_rules! functions {
    ($(fn $name:ident($($arguments:tt)*) -> $result:ty = $value:expr;)+) => {$(
        #[inline(always)]
        fn $name($($arguments)*) -> $result {
            $value
        }
    )+};
}

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

impl Real for f32 {
    const HALF: Self = 0.5;

    functions! {
        fn exp(self) -> Self = math::exp(self);
        fn log(self) -> Self = math::log(self);
        fn sqrt(self) -> Self = f32::sqrt(self);
        fn tanh(self) -> Self = math::tanh(self);
        fn sigmoid(self) -> Self = math::sigmoid(self);
        fn erf(self) -> Self = math::erf(self);
        fn sin(self) -> Self = f32::sin(self);
        fn cos(self) -> Self = f32::cos(self);
    }
}

impl Real for f64 {
    const HALF: Self = 0.5;

    functions! {
        fn exp(self) -> Self = f64::exp(self);
        fn log(self) -> Self = f64::ln(self);
        fn sqrt(self) -> Self = f64::sqrt(self);
        fn tanh(self) -> Self = f64::tanh(self);
        fn sin(self) -> Self = f64::sin(self);
        fn cos(self) -> Self = f64::cos(self);
    }

    #[inline(always)]
    fn sigmoid(self) -> Self {
        let e = f64::exp(-f64::abs(self));
        (if self < 0.0 { e } else { 1.0 }) / (1.0 + e)
    }
    // One copy of it is enough.
    #[inline(never)]
    fn erf(self) -> Self {
        libm::erf(self)
    }
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
