//! Elementary functions of `f32` without branches, so that loops over them become vector code.
//!
//! Polynomials are fused multiply-adds, which are exact before they round, so that all machines give the same bits; those
//! that lack the instruction are slower. The polynomials are minimax fits of our own. Errors in units in the last place
//! were measured over all floats, see the tests. NaN gives NaN.

// Decimal literals are as exact as the fits; `f32` rounds them.
#![allow(clippy::excessive_precision)]

use super::number::Pair;

/// Adding and subtracting it rounds to the nearest integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;
const ROUND_BITS: i32 = 0x4B40_0000;

/// `ln 2` in two parts; a product of the first with an integer below 256 is exact.
const LN2_HI: f32 = 0.693_145_751_953_125;
const LN2_LO: f32 = 1.428_606_820_309_417e-6;

/// `x y + z`, rounded once.
#[inline(always)]
fn fma(x: f32, y: f32, z: f32) -> f32 {
    x.mul_add(y, z)
}

#[inline(always)]
fn at_most(x: f32, bound: f32) -> f32 {
    if x > bound { bound } else { x }
}

#[inline(always)]
fn at_least(x: f32, bound: f32) -> f32 {
    if x < bound { bound } else { x }
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn exp2i(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// `x + low = n ln 2 + r` with `|r| <= ln(2) / 2`: gives `n` and `exp(r) - 1`, for `|x|` up to about 170 and a `low` below
/// the last digit of `x`.
#[inline(always)]
fn reduce_exp(x: f32, low: f32) -> (i32, f32) {
    let shifted = fma(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma(n, -LN2_LO, fma(n, -LN2_HI, x)) + low;
    let q = 1.991_218_605e-4;
    let q = fma(q, r, 1.394_110_094e-3);
    let q = fma(q, r, 8.333_276_661e-3);
    let q = fma(q, r, 4.166_635_327e-2);
    let q = fma(q, r, 1.666_666_680e-1);
    let q = fma(q, r, 5.000_000_047e-1);
    ((shifted.to_bits() as i32).wrapping_sub(ROUND_BITS), fma(r * r, q, r))
}

/// `x 2^n` for `n` in -252..=254.
#[inline(always)]
fn scale(x: f32, n: i32) -> f32 {
    // Two factors, since 2^n alone may overflow or be subnormal.
    let half = n >> 1;
    x * exp2i(half) * exp2i(n - half)
}

/// `e^x`, within 1 ulp; overflows to infinity and underflows gradually to 0.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, p) = reduce_exp(at_least(at_most(x, 89.0), -104.0), 0.0);
    scale(1.0 + p, n)
}

/// `e^(x + low)` for `x` up to 88, where `low` is below the last digit of `x`; as [`exp`].
#[inline(always)]
pub(crate) fn exp_pair(x: f32, low: f32) -> Pair<f32> {
    let (n, p) = reduce_exp(at_least(x, -104.0), low);
    let nearest = 1.0 + p;
    Pair(scale(nearest, n), scale(p - (nearest - 1.0), n))
}

/// `e^x - 1` for `x` up to 40, within 2 ulp.
#[inline(always)]
pub(crate) fn expm1(x: f32) -> f32 {
    let (n, p) = reduce_exp(at_least(x, -40.0), 0.0);
    let scale = exp2i(n);
    let y = fma(p, scale, scale - 1.0);
    // Keeps the sign of zero.
    if x == 0.0 { x } else { y }
}

/// Natural logarithm, within 1 ulp; -infinity at 0, NaN below.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    log_with(x, 0.0)
}

/// `log(1 + x)`, within 2 ulp; -infinity at -1, NaN below.
#[inline(always)]
pub(crate) fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    // The rounding error of `u`, relative to it; NaN where `u` is 0 or infinite.
    let low = (x - (u - 1.0)) / u;
    let y = log_with(u, if low.is_nan() { 0.0 } else { low });
    // Keeps the sign of zero.
    if x == 0.0 { x } else { y }
}

/// `log(x) + low`, where `low` is below the last digit of `x`.
#[inline(always)]
fn log_with(x: f32, low: f32) -> f32 {
    // Subnormal numbers are brought into range first.
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let bias = if subnormal { -23 } else { 0 };
    // m in [1/sqrt(2), sqrt(2)): subtract the bits of 1/sqrt(2), keep the exponent of what is left.
    const SQRT_HALF: i32 = 0x3F35_04F3;
    let bits = scaled.to_bits() as i32;
    let e = bits.wrapping_sub(SQRT_HALF) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let n = (e + bias) as f32;
    let p = -6.151_335_096e-2;
    let p = fma(p, f, 1.074_335_209e-1);
    let p = fma(p, f, -1.079_408_062e-1);
    let p = fma(p, f, 1.101_206_086e-1);
    let p = fma(p, f, -1.242_508_801e-1);
    let p = fma(p, f, 1.428_694_306e-1);
    let p = fma(p, f, -1.666_943_481e-1);
    let p = fma(p, f, 2.000_003_585e-1);
    let p = fma(p, f, -2.499_996_603e-1);
    let p = fma(p, f, 3.333_333_286e-1);
    let square = f * f;
    let small = fma(square, f * p, -0.5 * square) + low;
    let y = fma(n, LN2_HI, f + fma(n, LN2_LO, small));
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// Hyperbolic tangent `(e^2x - 1) / (e^2x + 1)`, within 3 ulp.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let e = expm1(at_most(2.0 * x.abs(), 20.0));
    (e / (e + 2.0)).copysign(x)
}

/// The probability that a standard normal variable exceeds `a = |x|`, as the product of `2^n`, `e^(-a^2 / 2) / 2^n` in two
/// parts, and their ratio in two parts. `a` is limited to what does not underflow.
struct NormalTail {
    a: f32,
    n: i32,
    power: Pair<f32>,
    ratio: Pair<f32>,
}

impl NormalTail {
    #[inline(always)]
    fn of(x: f32) -> NormalTail {
        let a = at_most(x.abs(), 14.6);
        let square = a * a;
        let (n, p) = reduce_exp(-0.5 * square, -0.5 * fma(a, a, -square));
        let nearest = 1.0 + p;
        let power = Pair(nearest, p - (nearest - 1.0));
        // The ratio goes from 1/2 to 1 / (a sqrt(2 pi)).
        let q = 3.236_220_5e-4;
        let q = fma(q, a, -2.375_825_6e-3);
        let q = fma(q, a, 9.133_576_3e-3);
        let q = fma(q, a, -2.588_137_3e-2);
        let q = fma(q, a, 6.225_979e-2);
        let q = fma(q, a, -1.329_350_8e-1);
        let q = fma(q, a, 2.499_957_3e-1);
        let q = fma(q, a, -3.989_421_4e-1);
        let near = fma(q, a, 0.5);
        let near_rest = fma(q, a, 0.5 - near);
        // Further away it is a polynomial of v = 1 / (3/2 + a), times v.
        let sum = a + 1.5;
        let v = 1.0 / sum;
        let v_rest = v * (fma(-v, sum, 1.0) - v * (1.5 - (sum - a)));
        let f = -44.610_085;
        let f = fma(f, v, 112.167_29);
        let f = fma(f, v, -116.761_5);
        let f = fma(f, v, 60.497_295);
        let f = fma(f, v, -12.748_454);
        let f = fma(f, v, -5.978_609_4e-1);
        let f = fma(f, v, -5.904_998_4e-1);
        let f = fma(f, v, 5.066_731_2e-1);
        let f = fma(f, v, 5.981_576_5e-1);
        let f = fma(f, v, 3.989_458_1e-1);
        let far = f * v;
        let far_rest = fma(f, v, -far) + f * v_rest;
        let is_near = a < 1.0;
        let ratio = Pair(if is_near { near } else { far }, if is_near { near_rest } else { far_rest });
        NormalTail { a, n, power, ratio }
    }

    /// `2^n e^(-a^2 / 2) factor`.
    #[inline(always)]
    fn times(&self, factor: Pair<f32>) -> f32 {
        let Pair(power, rest) = self.power;
        scale(fma(power, factor.0, fma(power, factor.1, rest * factor.0)), self.n)
    }
}

/// The distribution function of the normal distribution, within 2 ulp.
#[inline(always)]
pub(crate) fn normal_cdf(x: f32) -> f32 {
    let tail = NormalTail::of(x);
    let probability = tail.times(tail.ratio);
    if x < 0.0 { probability } else { 1.0 - probability }
}

/// The derivative of `x normal_cdf(x)`.
#[inline(always)]
pub(crate) fn gelu_erf_slope(x: f32) -> f32 {
    /// `1 / sqrt(2 pi)` in two parts.
    const DENSITY: f32 = 0.398_942_280_401_432_7_f64 as f32;
    const DENSITY_LOW: f32 = (0.398_942_280_401_432_7 - DENSITY as f64) as f32;
    let tail = NormalTail::of(x);
    // The tail less `a` times the density: both are multiples of e^(-a^2 / 2).
    let product = tail.a * DENSITY;
    let rest = tail.ratio.1 - fma(tail.a, DENSITY, -product) - tail.a * DENSITY_LOW;
    let Pair(difference, lost) = Pair::sum(tail.ratio.0, -product);
    let slope = tail.times(Pair(difference, lost + rest));
    if x < 0.0 { slope } else { 1.0 - slope }
}

/// Error function, within 2 ulp.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let p = 7.889_108_884e-5;
    let p = fma(p, z, -8.020_838_093e-4);
    let p = fma(p, z, 5.189_534_982e-3);
    let p = fma(p, z, -2.685_444_441e-2);
    let p = fma(p, z, 1.128_360_017e-1);
    let p = fma(p, z, -3.761_262_714e-1);
    let p = fma(p, z, 1.283_791_659e-1);
    let small = fma(a, p, a);
    // 1 - e^-q(a), with q = -log(1 - erf).
    let b = at_most(a, 3.95);
    let q = 2.169_787_387e-5;
    let q = fma(q, b, -4.414_757_984e-4);
    let q = fma(q, b, 4.205_300_734e-3);
    let q = fma(q, b, -2.521_038_386e-2);
    let q = fma(q, b, 1.084_221_711e-1);
    let q = fma(q, b, 6.332_163_287e-1);
    let q = fma(q, b, 1.129_580_347);
    let q = fma(q, b, -1.884_755_287e-4);
    let (n, e) = reduce_exp(-q, 0.0);
    let large = fma(1.0 + e, -exp2i(n), 1.0);
    (if a < 1.0 { small } else { large }).copysign(x)
}

/// Sine and cosine of `turns / 2^32` of a full turn, wrong by at most 1.1e-7.
#[inline(always)]
pub(crate) fn sin_cos_turns(turns: u32) -> (f32, f32) {
    // The nearest quarter turn, and the signed rest in -1/8..1/8 of a turn.
    let quarter = turns.wrapping_add(1 << 29) >> 30;
    let rest = turns.wrapping_sub(quarter << 30) as i32;
    let x = rest as f32 * (std::f32::consts::TAU / 4_294_967_296.0);
    let z = x * x;
    let s = 2.718_311_312e-6;
    let s = fma(s, z, -1.983_933_481e-4);
    let s = fma(s, z, 8.333_329_385e-3);
    let s = fma(s, z, -1.666_666_664e-1);
    let s = fma(x * z, s, x);
    let c = -2.721_023_235e-7;
    let c = fma(c, z, 2.479_951_993e-5);
    let c = fma(c, z, -1.388_888_375e-3);
    let c = fma(c, z, 4.166_666_662e-2);
    let c = 1.0 - fma(-z * z, c, 0.5 * z);
    let swapped = quarter & 1 == 1;
    let (sin, cos) = if swapped { (c, s) } else { (s, c) };
    let sin = if quarter & 2 == 2 { -sin } else { sin };
    let cos = if (quarter + 1) & 2 == 2 { -cos } else { cos };
    (sin, cos)
}

#[cfg(test)]
mod tests;
