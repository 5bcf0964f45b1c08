use super::*;
use crate::cpu::activations::Activations;

/// The worst error of `f` against `exact` in units in the last place of the exact result, over floats at a
/// stride that is coprime to their number.
fn worst(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64, keep: impl Fn(f32) -> bool) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    for bits in (0..=u32::MAX).step_by(997) {
        let x = f32::from_bits(bits);
        if !x.is_finite() || !keep(x) {
            continue;
        }
        let (got, want) = (f(x), exact(f64::from(x)));
        let rounded = want as f32;
        if got == rounded {
            continue;
        }
        assert!(rounded.is_finite() && got.is_finite(), "f({x:e}) = {got:e}, not {rounded:e}");
        let magnitude = rounded.abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
        let error = (f64::from(got) - want).abs() / ulp;
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

fn check(name: &str, limit: f64, (error, x): (f64, f32)) {
    println!("{name}: {error:.3} ulp at {x:e}");
    assert!(error <= limit, "{name} is {error:.3} ulp wrong at {x:e}");
}

#[test]
fn functions_are_accurate_over_all_floats() {
    // Within half an ulp of the largest float, either rounding is right.
    check("exp", 1.0, worst(exp, f64::exp, |x| !(88.72..88.73).contains(&x)));
    check("log", 1.0, worst(log, f64::ln, |x| x > 0.0));
    check("tanh", 3.0, worst(tanh, f64::tanh, |_| true));
    check("sigmoid", 2.5, worst(Activations::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), |_| true));
    check("expm1", 2.0, worst(expm1, f64::exp_m1, |x| x < 40.0));
    check("log1p", 2.0, worst(log1p, f64::ln_1p, |x| x > -1.0));
    let cdf = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    // Below, results are subnormal.
    check("normal_cdf", 2.0, worst(normal_cdf, cdf, |x| x > -13.0));
}

#[test]
fn special_values_are_as_defined() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert!(
        [exp(nan), log(nan), tanh(nan), nan.sigmoid(), erf(nan), log(-1.0), log(-inf)]
            .iter()
            .all(|y| y.is_nan())
    );
    assert_eq!([exp(inf), exp(-inf), exp(0.0), exp(-0.0)], [inf, 0.0, 1.0, 1.0]);
    assert_eq!([log(inf), log(0.0), log(-0.0), log(1.0)], [inf, -inf, -inf, 0.0]);
    assert_eq!([tanh(inf), tanh(-inf), tanh(9.5), tanh(0.0)], [1.0, -1.0, 1.0, 0.0]);
    assert_eq!(tanh(-0.0).to_bits(), (-0.0_f32).to_bits());
    assert_eq!([inf.sigmoid(), (-inf).sigmoid(), 0.0.sigmoid()], [1.0, 0.0, 0.5]);
    assert_eq!([erf(inf), erf(-inf), erf(4.0), erf(0.0)], [1.0, -1.0, 1.0, 0.0]);
    assert_eq!([exp(89.0), exp(-105.0)], [inf, 0.0]);
}

#[test]
fn sine_and_cosine_of_turns_are_accurate() {
    let mut worst = 0.0_f64;
    for turns in (0..=u32::MAX).step_by(9973) {
        let angle = f64::from(turns) * (std::f64::consts::TAU / 4_294_967_296.0);
        let (s, c) = sin_cos_turns(turns);
        worst = worst.max((f64::from(s) - angle.sin()).abs()).max((f64::from(c) - angle.cos()).abs());
    }
    println!("sin_cos_turns: {worst:e}");
    assert!(worst < 1.1e-7, "{worst:e}");
}
