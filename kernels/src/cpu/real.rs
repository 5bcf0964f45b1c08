//! Functions on `f32` and `f64`.

use std::f64::consts::FRAC_1_SQRT_2;

use super::activations::Activations;
use super::math;
use super::number::{Pair, Real, functions};

const INV_SQRT_TAU: f64 = 0.398_942_280_401_432_7;
/// What `INV_SQRT_TAU` lacks.
const INV_SQRT_TAU_LOW: f64 = -2.492_327_202_277_73e-17;
/// What `FRAC_1_SQRT_2` lacks.
const FRAC_1_SQRT_2_LOW: f64 = -4.833_646_656_726_457e-17;

impl Real for f32 {
    const HALF: Self = 0.5;
    const LOG2_E: Self = std::f32::consts::LOG2_E;
    const LARGE: Self = f32::MAX / 4.0;
    const SMALL: Self = f32::MIN_POSITIVE * 1024.0;
    const SHRINK: Self = f32::from_bits((127 - 80) << 23);

    functions! {
        fn exp(self) -> Self = math::exp(self);
        fn exp_pair(self, low: Self) -> Pair<Self> = math::exp_pair(self, low);
        fn expm1(self) -> Self = math::expm1(self);
        fn log(self) -> Self = math::log(self);
        fn log1p(self) -> Self = math::log1p(self);
        fn sqrt(self) -> Self = f32::sqrt(self);
        fn tanh(self) -> Self = math::tanh(self);
        fn erf(self) -> Self = math::erf(self);
        fn sin(self) -> Self = f32::sin(self);
        fn cos(self) -> Self = f32::cos(self);
        fn tan(self) -> Self = f32::tan(self);
        fn atan2(self, x: Self) -> Self = f32::atan2(self, x);
        fn log2(self) -> Self = f32::log2(self);
        fn floor(self) -> Self = f32::floor(self);
        fn ceil(self) -> Self = f32::ceil(self);
        fn nearest(self) -> Self = f32::round_ties_even(self);
        fn trunc(self) -> Self = f32::trunc(self);
        fn normal_cdf(self) -> Self = math::normal_cdf(self);
        fn gelu_erf_slope(self) -> Self = math::gelu_erf_slope(self);
        fn fma(self, factor: Self, term: Self) -> Self = f32::mul_add(self, factor, term);
        fn div_slope(self, y: Self, g: Self) -> Self = {
            let [x, y, g] = [self, y, g].map(f64::from);
            (-(g * x) / (y * y)) as f32
        };
        fn atan2_slope(self, y: Self, g: Self) -> Self = {
            let [x, y, g] = [self, y, g].map(f64::from);
            (g * y / (x * x + y * y)) as f32
        };
        fn in_parts(value: f64) -> [Self; 2] = {
            let nearest = value as f32;
            let rest = (value - f64::from(nearest)) as f32;
            [nearest, if rest.is_finite() { rest } else { 0.0 }]
        };
    }
}

/// `(1 + erf(x / sqrt 2)) / 2` in two parts.
#[inline(never)]
fn normal_cdf_pair(x: f64) -> Pair<f64> {
    let z = -x * FRAC_1_SQRT_2;
    let tail = 0.5 * libm::erfc(z);
    if f64::abs(z) > 26.0 {
        return Pair(tail, 0.0);
    }
    // The rounding error of `z`, times the slope.
    let low = -x.fma(FRAC_1_SQRT_2, z) - x * FRAC_1_SQRT_2_LOW;
    Pair(tail, -0.5 * low * z.erf_slope())
}

impl Real for f64 {
    const HALF: Self = 0.5;
    const LOG2_E: Self = std::f64::consts::LOG2_E;
    const LARGE: Self = f64::MAX / 4.0;
    const SMALL: Self = f64::MIN_POSITIVE * 1024.0;
    const SHRINK: Self = f64::from_bits((1023 - 560) << 52);

    functions! {
        fn exp(self) -> Self = f64::exp(self);
        fn expm1(self) -> Self = f64::exp_m1(self);
        fn log(self) -> Self = f64::ln(self);
        fn log1p(self) -> Self = f64::ln_1p(self);
        fn sqrt(self) -> Self = f64::sqrt(self);
        fn tanh(self) -> Self = f64::tanh(self);
        fn sin(self) -> Self = f64::sin(self);
        fn cos(self) -> Self = f64::cos(self);
        fn tan(self) -> Self = f64::tan(self);
        fn atan2(self, x: Self) -> Self = f64::atan2(self, x);
        fn log2(self) -> Self = f64::log2(self);
        fn floor(self) -> Self = f64::floor(self);
        fn ceil(self) -> Self = f64::ceil(self);
        fn nearest(self) -> Self = f64::round_ties_even(self);
        fn trunc(self) -> Self = f64::trunc(self);
        fn fma(self, factor: Self, term: Self) -> Self = f64::mul_add(self, factor, term);
        fn in_parts(value: f64) -> [Self; 2] = [value, 0.0];
    }

    #[inline(always)]
    fn exp_pair(self, low: f64) -> Pair<f64> {
        let e = f64::exp(self);
        Pair(e, e * low)
    }

    // One copy of each is enough.
    #[inline(never)]
    fn erf(self) -> f64 {
        libm::erf(self)
    }

    #[inline(never)]
    fn normal_cdf(self) -> f64 {
        normal_cdf_pair(self).value()
    }

    #[inline(never)]
    fn gelu_erf_slope(self) -> f64 {
        // Where the density is 0, its square must not overflow.
        let x = self.clamp(-39.0, 39.0);
        let square = Pair::product(x, x);
        let e = (-0.5 * square.0).exp_pair(-0.5 * square.1);
        let density = e.times(Pair::constant(INV_SQRT_TAU, INV_SQRT_TAU_LOW));
        // The two terms cancel near -0.75.
        let (product, cdf) = (Pair::product(x, density.0), normal_cdf_pair(x));
        let sum = Pair::sum(product.0, cdf.0);
        sum.0 + (sum.1 + (product.1 + cdf.1 + x * density.1))
    }

    #[inline(never)]
    fn div_slope(self, y: f64, g: f64) -> f64 {
        if [self, y, g].iter().any(|&x| x == 0.0 || !x.is_finite()) {
            return -g * (self / y / y);
        }
        let [(x, x_exponent), (y, y_exponent), (g, g_exponent)] = [self, y, g].map(libm::frexp);
        libm::ldexp(-(g * x) / (y * y), x_exponent + g_exponent - 2 * y_exponent)
    }

    #[inline(never)]
    fn atan2_slope(self, y: f64, g: f64) -> f64 {
        if y == 0.0 || g == 0.0 || [self, y, g].iter().any(|x| !x.is_finite()) {
            let distance = libm::hypot(self, y);
            return g * (y / distance) / distance;
        }
        let [(x, of_x), (y, of_y), (g, of_g)] = [self, y, g].map(libm::frexp);
        let larger = if x == 0.0 { of_y } else { of_x.max(of_y) };
        let [across, along] = [libm::ldexp(x, of_x - larger), libm::ldexp(y, of_y - larger)];
        libm::ldexp(g * y / across.mul_add(across, along * along), of_y + of_g - 2 * larger)
    }
}
