//! Activations and derivatives whose terms cancel, computed with numbers in two parts. `cuda/elementwise.cuh` has the same
//! formulas.

use std::f64::consts::FRAC_2_SQRT_PI;

use super::number::{Pair, Real};

impl<T: Real> Pair<T> {
    /// `a + b`, exactly.
    #[inline(always)]
    pub(crate) fn sum(a: T, b: T) -> Pair<T> {
        let sum = a.add(b);
        let of_b = sum.sub(a);
        Pair(sum, a.sub(sum.sub(of_b)).add(b.sub(of_b)))
    }

    /// `a b`, exactly.
    #[inline(always)]
    pub(super) fn product(a: T, b: T) -> Pair<T> {
        let product = a.mul(b);
        Pair(product, a.fma(b, product.neg()))
    }

    #[inline(always)]
    fn plus(self, other: Pair<T>) -> Pair<T> {
        let sum = Pair::sum(self.0, other.0);
        Pair(sum.0, sum.1.add(self.1.add(other.1)))
    }

    #[inline(always)]
    pub(super) fn times(self, other: Pair<T>) -> Pair<T> {
        let product = Pair::product(self.0, other.0);
        Pair(product.0, product.1.add(self.0.mul(other.1).add(self.1.mul(other.0))))
    }

    #[inline(always)]
    fn recip(self) -> Pair<T> {
        let nearest = self.0.recip();
        let rest = nearest.neg().fma(self.0, T::ONE).sub(nearest.mul(self.1));
        Pair(nearest, nearest.mul(rest))
    }

    /// The quotient, rounded about once.
    #[inline(always)]
    fn over(self, other: Pair<T>) -> T {
        let inverse = other.0.recip();
        let quotient = self.0.mul(inverse);
        let rest = quotient.neg().fma(other.0, self.0).add(self.1.sub(quotient.mul(other.1)));
        rest.fma(inverse, quotient)
    }

    #[inline(always)]
    pub(super) fn value(self) -> T {
        self.0.add(self.1)
    }

    /// A constant and what its F64 lacks.
    #[inline(always)]
    pub(super) fn constant(value: f64, low: f64) -> Pair<T> {
        let [nearest, rest] = T::in_parts(value);
        Pair(nearest, rest.add(T::from_f64(low)))
    }

    #[inline(always)]
    fn one() -> Pair<T> {
        Pair(T::ONE, T::ZERO)
    }
}

const TWO_SQRT_2_OVER_PI: f64 = 1.595_769_121_605_730_8;
const TWO_SQRT_2_OVER_PI_LOW: f64 = -9.969_308_809_110_92e-17;
/// `2 sqrt(2 / pi) 0.044715`, and three times that.
const GELU_CUBIC: (f64, f64) = (0.071_354_816_272_600_25, -6.175_149_918_155_315e-19);
const GELU_CUBIC_SLOPE: (f64, f64) = (0.214_064_448_817_800_73, 1.202_524_283_236_786_2e-17);

pub(crate) trait Activations: Real {
    /// `1 / (1 + e^-x)`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        // e^-|x| never overflows, and keeps the precision of small results.
        let e = self.abs().neg().exp();
        (if self < Self::ZERO { e } else { Self::ONE }).div(Self::ONE.add(e))
    }

    /// The derivative of the sigmoid function, `e / (1 + e)^2` with `e = e^-|x|`.
    #[inline(always)]
    fn sigmoid_slope(self) -> Self {
        let e = self.abs().neg().exp_pair(Self::ZERO);
        let d = Pair::one().plus(e);
        e.over(d.times(d))
    }

    /// `sigmoid(self) - y`, without cancellation where `y` is 1.
    #[inline(always)]
    fn sigmoid_less(self, y: Self) -> Self {
        let s = self.abs().neg().sigmoid();
        if self > Self::ZERO { Self::ONE.sub(y).sub(s) } else { s.sub(y) }
    }

    /// `self factor`, which is exact where exponentials of it are neither 0 nor infinite.
    #[inline(always)]
    fn scaled(self, factor: Self) -> Pair<Self> {
        let product = Pair::product(self, factor);
        // The rest of infinity is not a number.
        Pair(product.0, if product.0.abs() > Self::from_f64(1024.0) { Self::ZERO } else { product.1 })
    }

    /// `ln(1 + e^z) / beta` for `z = beta x`, and `x` where that is above a threshold.
    #[inline(always)]
    fn softplus(self, beta: Self, threshold: Self) -> Self {
        let z = self.scaled(beta);
        let e = z.0.abs().neg().exp_pair(if z.0 > Self::ZERO { z.1.neg() } else { z.1 });
        let soft = e.value().log1p();
        let whole = if z.0 > Self::ZERO { z.0.add(soft) } else { soft };
        if z.0 > threshold { self } else { whole.div(beta) }
    }

    /// The derivative of [`softplus`](Self::softplus).
    #[inline(always)]
    fn softplus_slope(self, beta: Self, threshold: Self) -> Self {
        let z = self.scaled(beta);
        if z.0 > threshold { Self::ONE } else { Self::ONE.gated(z) }
    }

    /// The derivative `1 / (1 + |x|)^2` of `x / (1 + |x|)`.
    #[inline(always)]
    fn softsign_slope(self) -> Self {
        let a = self.abs();
        // The parts of infinity are not numbers.
        let y = Pair::sum(Self::ONE, if a > Self::LARGE { Self::LARGE } else { a }).recip();
        y.times(y).value()
    }

    /// The derivative of the error function, `2 / sqrt(pi) e^(-x^2)`.
    #[inline(always)]
    fn erf_slope(self) -> Self {
        // Where it underflows, the square must not overflow.
        let x = self.clamp(Self::from_f64(-28.0), Self::from_f64(28.0));
        let square = Pair::product(x, x);
        square
            .0
            .neg()
            .exp_pair(square.1.neg())
            .times(Pair::constant(FRAC_2_SQRT_PI, 1.533_545_961_316_588e-17))
            .value()
    }

    /// `x sigmoid(x)`.
    #[inline(always)]
    fn silu(self) -> Self {
        self.gated(Pair(self, Self::ZERO))
    }

    /// `self sigmoid(u)`.
    #[inline(always)]
    fn gated(self, u: Pair<Self>) -> Self {
        let below = u.0 < Self::ZERO;
        let e = u.0.abs().neg().exp_pair(if below { u.1 } else { u.1.neg() });
        let small = self.fma(e.0, self.mul(e.1));
        (if below { small } else { self }).div(Self::ONE.add(e.0))
    }

    /// `s + s (1 - s) slope` with `s = sigmoid(u)`: the derivative of `x sigmoid(u)` for a slope of `x u'`.
    #[inline(always)]
    fn gated_slope(u: Pair<Self>, slope: Pair<Self>) -> Self {
        let below = u.0 < Self::ZERO;
        let (shift, unit) = Self::tail(u.0);
        let raised = u.0.abs().neg().add(shift).exp_pair(if below { u.1 } else { u.1.neg() });
        let e = Pair(raised.0.mul(unit), raised.1.mul(unit));
        let d = Pair::one().plus(e);
        // For u < 0 it is e (1 + e + slope) / d^2, where 1 + slope may cancel, else (1 + e + e slope) / d^2.
        let small = Pair::one().plus(slope).plus(e).times(raised);
        let large = Pair(slope.0.fma(e.0, d.0), d.1);
        let top = Pair(if below { small.0 } else { large.0 }, if below { small.1 } else { large.1 });
        top.over(d.times(d)).mul(unit)
    }

    /// What is added to the exponent of `e^u`, exactly, and what its exponential is multiplied with in turn: far below 0 the
    /// exponential may be subnormal where its product with `u` is not.
    #[inline(always)]
    fn tail(u: Self) -> (Self, Self) {
        let is_deep = u < Self::from_f64(-80.0);
        let (shift, unit) = (Self::from_f64(64.0), Self::from_f64(1.603_810_890_548_638e-28));
        if is_deep { (shift, unit) } else { (Self::ZERO, Self::ONE) }
    }

    /// The derivative of `x sigmoid(x)`.
    #[inline(always)]
    fn silu_slope(self) -> Self {
        // Beyond it, 0 and 1.
        let x = Pair(self.clamp(Self::from_f64(-800.0), Self::from_f64(750.0)), Self::ZERO);
        Self::gated_slope(x, x)
    }

    /// `u = 2 sqrt(2 / pi) (x + 0.044715 x^3)`, for `x` limited to where its sigmoid is 0 or 1, and `x u'`.
    #[inline(always)]
    fn gelu_tanh_parts(self) -> [Pair<Self>; 2] {
        let x = self.clamp(Self::from_f64(-23.0), Self::from_f64(23.0));
        let square = Pair::product(x, x);
        let linear = Pair::constant(TWO_SQRT_2_OVER_PI, TWO_SQRT_2_OVER_PI_LOW);
        [GELU_CUBIC, GELU_CUBIC_SLOPE].map(|(cubic, low)| {
            square.times(Pair::constant(cubic, low)).plus(linear).times(Pair(x, Self::ZERO))
        })
    }

    /// `x sigmoid(u)`, which is `x (1 + tanh(u / 2)) / 2`.
    #[inline(always)]
    fn gelu_tanh(self) -> Self {
        let [u, _] = self.gelu_tanh_parts();
        self.gated(u)
    }

    /// The derivative of [`gelu_tanh`](Self::gelu_tanh).
    #[inline(always)]
    fn gelu_tanh_slope(self) -> Self {
        let [u, slope] = self.gelu_tanh_parts();
        Self::gated_slope(u, slope)
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

    /// `e = e^x`, for `x` limited to where the gate of [`mish`](Self::mish) is 1, and `1 / (e (e + 2) + 2)`.
    #[inline(always)]
    fn mish_parts(self) -> [Pair<Self>; 2] {
        let e = self.exp_pair(Self::ZERO);
        [e, Self::mish_weight(e)]
    }

    /// `1 / (e (e + 2) + 2)`.
    #[inline(always)]
    fn mish_weight(e: Pair<Self>) -> Pair<Self> {
        let two = Pair(Self::from_f64(2.0), Self::ZERO);
        e.times(e.plus(two)).plus(two).recip()
    }

    /// `x tanh(log(1 + e^x)) = x n / (n + 2)`, `n = e^x (e^x + 2)`.
    #[inline(always)]
    fn mish(self) -> Self {
        let top = Self::from_f64(25.0);
        let [e, y] = (if self > top { top } else { self }).mish_parts();
        let gate = e.times(e.plus(Pair(Self::from_f64(2.0), Self::ZERO))).times(y);
        self.mul(gate.value())
    }

    /// `e y ((e + 2) + 4 x (1 + e) y)` with `y = 1 / (n + 2)`.
    #[inline(always)]
    fn mish_slope(self) -> Self {
        let x = self.clamp(Self::from_f64(-800.0), Self::from_f64(25.0));
        let (shift, unit) = Self::tail(x);
        let raised = x.add(shift).exp_pair(Self::ZERO);
        let e = Pair(raised.0.mul(unit), raised.1.mul(unit));
        let y = Self::mish_weight(e);
        let bend = e.plus(Pair::one()).times(y).times(Pair(x.mul(Self::from_f64(4.0)), Self::ZERO));
        raised.times(y.times(e.plus(Pair(Self::from_f64(2.0), Self::ZERO)).plus(bend))).value().mul(unit)
    }
}

impl<T: Real> Activations for T {}
