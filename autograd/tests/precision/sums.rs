//! Reductions and norms at all magnitudes, within the error bound of sums in blocks.

use autograd::Var;
use tensor::{DType, Device, Result, Tensor};

use crate::big::Big;
use crate::{Random, on_devices, seed};

/// Elements of a row: several of a lane, and not a multiple of anything.
const ROW: usize = 331;
const ROWS: usize = 3;
const BITS: usize = 320;

/// The most additions that an element goes through on either device.
const DEPTH: f64 = (ROW / 32 + 8) as f64;

fn rounding(dtype: DType) -> [f64; 2] {
    let of_type = match dtype {
        DType::F64 => -53,
        DType::F32 => -24,
        DType::BF16 => -8,
        _ => -11,
    };
    // Of what is computed with, and of the result.
    [if dtype == DType::F64 { -53 } else { -24 }, of_type].map(|power| 2_f64.powi(power))
}

fn scales(device: &Device, dtype: DType) -> &'static [f64] {
    match (dtype, device.kind()) {
        (DType::F64, device::DeviceKind::Cpu) => &[1.0, 1e100, 1e-100, 1e200, 1e-200],
        (DType::F64, _) => &[1.0, 1e100, 1e-100],
        (DType::F16, _) => &[1.0, 2e3, 1e-3],
        _ => &[1.0, 1e10, 1e-10, 1e20, 1e-20, 1e30, 1e-30],
    }
}

/// A reduction or norm of rows: its name, the op, and the exact results of a row with the magnitudes that errors are relative
/// to.
type Case = (&'static str, fn(&Var) -> Result<Var>, fn(&[Big]) -> Vec<(Big, Big)>);

fn sum(x: &[Big]) -> Big {
    x.iter().fold(x[0].of(0.0), |sum, x| sum.add(x))
}

fn mean(x: &[Big]) -> Big {
    sum(x).div(&x[0].of(x.len() as f64))
}

fn squares(x: &[Big], centre: &Big) -> Big {
    sum(&x.iter().map(|x| x.sub(centre).mul(&x.sub(centre))).collect::<Vec<_>>())
}

fn alone(value: Big) -> Vec<(Big, Big)> {
    let magnitude = value.abs();
    vec![(value, magnitude)]
}

/// `(x - centre) / sqrt(mean square + eps)`, wrong by a part of itself and of the largest.
fn normalized(x: &[Big], centre: &Big, eps: f64) -> Vec<(Big, Big)> {
    let variance = squares(x, centre).div(&x[0].of(x.len() as f64));
    let deviation = variance.plus(eps).sqrt();
    let one = variance.sqrt().div(&deviation);
    x.iter().map(|x| x.sub(centre).div(&deviation)).map(|y| (y.clone(), y.abs().add(&one))).collect()
}

const CASES: &[Case] = &[
    ("sum", |x| x.sum(&[1], false), |x| vec![(sum(x), sum(&x.iter().map(Big::abs).collect::<Vec<_>>()))]),
    ("mean", |x| x.mean(&[1], false), |x| vec![(mean(x), mean(&x.iter().map(Big::abs).collect::<Vec<_>>()))]),
    ("var", |x| x.var(&[1], 1.0, false), |x| alone(squares(x, &mean(x)).div(&x[0].of((x.len() - 1) as f64)))),
    (
        "std",
        |x| x.std(&[1], 1.0, false),
        |x| alone(squares(x, &mean(x)).div(&x[0].of((x.len() - 1) as f64)).sqrt()),
    ),
    (
        "std of columns",
        |x| x.transpose(0, 1)?.contiguous()?.std(&[0], 0.0, false),
        |x| alone(squares(x, &mean(x)).div(&x[0].of(x.len() as f64)).sqrt()),
    ),
    ("layer_norm", |x| x.layer_norm(&[ROW], None, None, 1e-5), |x| normalized(x, &mean(x), 1e-5)),
    ("rms_norm", |x| x.rms_norm(&[ROW], None, Some(1e-5)), |x| normalized(x, &x[0].of(0.0), 1e-5)),
];

fn check(device: &Device, (name, run, exact): &Case, dtype: DType, wrong: &mut Vec<String>) -> Result<()> {
    for &scale in scales(device, dtype) {
        let mut random = Random::of(name, dtype);
        let numbers: Vec<f64> = (0..ROWS * ROW).map(|_| (random.unit() * 2.0 - 0.9) * scale).collect();
        let x = Tensor::from_slice(&numbers, &[ROWS, ROW], device)?.to_dtype(dtype)?;
        let numbers: Vec<Big> =
            x.to_dtype(DType::F64)?.to_vec::<f64>()?.into_iter().map(|x| Big::new(x, BITS)).collect();
        let found = run(&Var::constant(x))?.value().to_dtype(DType::F64)?.to_vec::<f64>()?;
        let [inner, outer] = rounding(dtype);
        let all: Vec<(Big, Big)> = numbers.chunks(ROW).flat_map(exact).collect();
        for (i, (value, magnitude)) in all.iter().enumerate() {
            let true_value = value.to_f64();
            let largest = match dtype {
                DType::F64 => f64::MAX,
                DType::F16 => 65504.0,
                _ => f64::from(f32::MAX),
            };
            // Results beyond the type, and those that are hardly in it.
            if true_value.abs() > largest * 0.99 || true_value.abs() < largest.recip() {
                continue;
            }
            // Subnormal numbers are as far apart as the smallest normal ones.
            let least = match dtype {
                DType::F64 => 0.0,
                DType::F16 => 2_f64.powi(-25),
                DType::BF16 => 2_f64.powi(-134),
                _ => 2_f64.powi(-150),
            };
            let allowed = magnitude.times((2.0 * DEPTH + 12.0) * inner).add(&value.abs().times(outer));
            let allowed = allowed.add(&value.of(least));
            let error = value.of(found[i]).sub(value).abs();
            if !found[i].is_finite() || allowed.less(&error) {
                let ratio = error.div(&allowed).to_f64();
                wrong.push(format!(
                    "{name} of {dtype} at {scale:e} on {}: {:e}, not {true_value:e}: {ratio:.2} of what is allowed",
                    device.description(),
                    found[i]
                ));
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn reductions_and_norms() {
    seed();
    on_devices(|device, dtype, wrong| CASES.iter().try_for_each(|case| check(device, case, dtype, wrong)));
}
