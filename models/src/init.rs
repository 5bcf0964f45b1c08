//! First values of parameters by the usual rules. Each writes a parameter in place, from a key or the thread's next one.

use autograd::Var;
use device::{DType, Error, Result};
use tensor::{RandomKey, Tensor};

/// The number of elements that an output sums over, and that an input is used in: of a weight `[out, in, ..]`.
fn fans(op: &'static str, weight: &Var) -> Result<[f64; 2]> {
    let &[outer, inner, ref window @ ..] = weight.shape() else {
        let value = format_args!("shape {:?}", weight.shape());
        return Err(Error::invalid(op, "weight", "of rank 2 at least", value));
    };
    let window: usize = window.iter().product();
    Ok([inner * window, outer * window].map(|fan| fan as f64))
}

/// Uniform numbers from `low..high`.
///
/// # Errors
/// As for [`Tensor::uniform`].
#[derive::located]
pub fn uniform(weight: &Var, low: f64, high: f64, key: impl Into<Option<RandomKey>>) -> Result<()> {
    let value = weight.value();
    value.copy_(&Tensor::uniform(value.shape(), low, high, value.dtype(), key, value.device())?)
}

/// Normal numbers of this mean and standard deviation.
///
/// # Errors
/// As for [`Tensor::normal`].
#[derive::located]
pub fn normal(weight: &Var, mean: f64, std: f64, key: impl Into<Option<RandomKey>>) -> Result<()> {
    let value = weight.value();
    value.copy_(&Tensor::normal(mean, std, value.shape(), value.dtype(), key, value.device())?)
}

/// Uniform in `±gain sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio 2010).
///
/// # Errors
/// `InvalidArgument` for a weight of rank below 2.
#[derive::located]
pub fn xavier_uniform(weight: &Var, gain: f64, key: impl Into<Option<RandomKey>>) -> Result<()> {
    let [fan_in, fan_out] = fans("xavier_uniform", weight)?;
    let bound = gain * (6.0 / (fan_in + fan_out)).sqrt();
    uniform(weight, -bound, bound, key)
}

/// Normal with the standard deviation `gain sqrt(2 / (fan_in + fan_out))` (Glorot and Bengio 2010).
///
/// # Errors
/// As for [`xavier_uniform`].
#[derive::located]
pub fn xavier_normal(weight: &Var, gain: f64, key: impl Into<Option<RandomKey>>) -> Result<()> {
    let [fan_in, fan_out] = fans("xavier_normal", weight)?;
    normal(weight, 0.0, gain * (2.0 / (fan_in + fan_out)).sqrt(), key)
}

/// Uniform in `±gain sqrt(3 / fan_in)` (He et al. 2015). The usual gain before a ReLU is `sqrt(2)`.
///
/// # Errors
/// As for [`xavier_uniform`].
#[derive::located]
pub fn kaiming_uniform(weight: &Var, gain: f64, key: impl Into<Option<RandomKey>>) -> Result<()> {
    let [fan_in, _] = fans("kaiming_uniform", weight)?;
    let bound = gain * (3.0 / fan_in).sqrt();
    uniform(weight, -bound, bound, key)
}

/// Normal with the standard deviation `gain / sqrt(fan_in)` (He et al. 2015). The usual gain before a ReLU is `sqrt(2)`.
///
/// # Errors
/// As for [`xavier_uniform`].
#[derive::located]
pub fn kaiming_normal(weight: &Var, gain: f64, key: impl Into<Option<RandomKey>>) -> Result<()> {
    let [fan_in, _] = fans("kaiming_normal", weight)?;
    normal(weight, 0.0, gain / fan_in.sqrt(), key)
}

/// Numbers of the normal distribution of mean 0 and deviation `std`, cut off at `low` and `high`.
///
/// They are `std sqrt(2) erf⁻¹(u)` of uniform numbers `u`, computed in F64.
///
/// ```
/// # use autograd::Var;
/// # use tensor::{DType, RandomKey, Tensor};
/// # fn main() -> device::Result<()> {
/// let w = Var::leaf(Tensor::zeros(&[64, 64], DType::F32, &device::Device::cpu())?);
/// models::init::truncated_normal(&w, 0.02, -0.04, 0.04, RandomKey { seed: 1, op: 0 })?;
/// assert!(w.to_vec::<f32>()?.iter().all(|x| x.abs() <= 0.04));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` unless `low < high` and `std` is above 0.
#[derive::located]
pub fn truncated_normal(
    weight: &Var,
    std: f64,
    low: f64,
    high: f64,
    key: impl Into<Option<RandomKey>>,
) -> Result<()> {
    const OP: &str = "truncated_normal";
    Error::require(low < high, OP, "low..high", "in this order", format_args!("{low}..{high}"))?;
    Error::require(std > 0.0 && std.is_finite(), OP, "std", "above 0 and finite", std)?;
    let (value, scale) = (weight.value(), std * std::f64::consts::SQRT_2);
    let bounds = Tensor::from_slice(&[low / scale, high / scale], &[2], value.device())?.erf()?;
    let (low_erf, high_erf) = (bounds.select(0, 0)?, bounds.select(0, 1)?);
    let share = Tensor::uniform(value.shape(), 0.0, 1.0, DType::F64, key, value.device())?;
    let target = share.mul(&high_erf.sub(&low_erf)?)?.add(&low_erf)?;
    // Winitzki's approximation of the inverse, which is off by 4e-3 at most, and Newton's steps.
    let log = target.square()?.neg()?.log1p()?;
    let half = log.mul_scalar(0.5)?.add_scalar(2.0 / (std::f64::consts::PI * 0.147))?;
    let size = half.square()?.sub(&log.mul_scalar(1.0 / 0.147)?)?.sqrt()?.sub(&half)?.sqrt()?;
    let mut x = size.mul(&target.sign()?)?;
    for _ in 0..3 {
        let slope = x.square()?.exp()?.mul_scalar(std::f64::consts::PI.sqrt() / 2.0)?;
        let step = x.erf()?.sub(&target)?.mul(&slope)?;
        // Far out, where `erf` is rounded to 1, there is no slope to follow.
        x = Tensor::where_cond(&step.abs()?.lt(0.1)?, &x.sub(&step)?, &x)?;
    }
    value.copy_(&x.mul_scalar(scale)?.clamp(low, high)?.to_dtype(value.dtype())?)
}

/// A matrix with orthonormal rows or columns, whichever are fewer, times `gain`: all axes but the first count as columns.
///
/// Computed on the host, by Gram and Schmidt's procedure on normal numbers (Saxe et al. 2013).
///
/// # Errors
/// `InvalidArgument` for a weight of rank below 2.
#[derive::located]
pub fn orthogonal(weight: &Var, gain: f64, key: impl Into<Option<RandomKey>>) -> Result<()> {
    fans("orthogonal", weight)?;
    let value = weight.value();
    let rows = value.shape()[0];
    let columns = value.elements() / rows.max(1);
    let (count, len) = (rows.min(columns), rows.max(columns));
    let drawn = Tensor::randn(&[count, len], DType::F64, key, value.device())?.to_vec::<f64>()?;
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    for vector in drawn.chunks(len.max(1)) {
        let mut vector = vector.to_vec();
        // Twice, since the first pass leaves rounding errors of the size of what it takes away.
        for known in basis.iter().chain(&basis) {
            let along: f64 = known.iter().zip(&vector).map(|(a, b)| a * b).sum();
            vector.iter_mut().zip(known).for_each(|(x, known)| *x -= along * known);
        }
        let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|x| *x /= norm);
        basis.push(vector);
    }
    let matrix = Tensor::from_slice(&basis.concat(), &[count, len], value.device())?;
    let matrix = if rows <= columns { matrix } else { matrix.t()? };
    value.copy_(&matrix.mul_scalar(gain)?.reshape(value.shape())?.to_dtype(value.dtype())?)
}

#[cfg(test)]
mod tests {
    use device::Device;

    use super::*;

    fn key(op: u64) -> RandomKey {
        RandomKey { seed: 5, op }
    }

    fn zeros(shape: &[usize]) -> Result<Var> {
        Ok(Var::leaf(Tensor::zeros(shape, DType::F64, &Device::cpu())?))
    }

    fn moments(weight: &Var) -> Result<[f64; 2]> {
        let of = |x: Tensor| x.item::<f64>();
        Ok([of(weight.value().mean(&[], false)?)?, of(weight.value().std(&[], 1.0, false)?)?])
    }

    #[test]
    fn deviations_are_those_of_the_rules() -> Result<()> {
        let weight = zeros(&[100, 60, 3])?;
        let (fan_in, fan_out) = (180.0_f64, 300.0_f64);
        let near = |std: f64| -> Result<()> {
            let [mean, found] = moments(&weight)?;
            assert!(mean.abs() < std / 30.0 && (found / std - 1.0).abs() < 0.03, "{mean} {found} {std}");
            Ok(())
        };
        xavier_uniform(&weight, 2.0, key(1))?;
        near(2.0 * (2.0 / (fan_in + fan_out)).sqrt())?;
        xavier_normal(&weight, 1.0, key(2))?;
        near((2.0 / (fan_in + fan_out)).sqrt())?;
        kaiming_uniform(&weight, 2_f64.sqrt(), key(3))?;
        near((2.0 / fan_in).sqrt())?;
        kaiming_normal(&weight, 2_f64.sqrt(), key(4))?;
        near((2.0 / fan_in).sqrt())?;
        // The deviation of a normal distribution that is cut off at twice its deviation.
        truncated_normal(&weight, 0.5, -1.0, 1.0, key(5))?;
        near(0.5 * 0.879_626)?;
        assert!(xavier_uniform(&zeros(&[3])?, 1.0, None).is_err());
        Ok(())
    }

    #[test]
    fn a_truncated_distribution_is_that_of_the_normal_one() -> Result<()> {
        let weight = zeros(&[100_000])?;
        for [low, high] in [[-2.0, 2.0], [0.5, 3.0], [-5.0, -1.0]] {
            truncated_normal(&weight, 1.0, low, high, key(6))?;
            let mut sorted = weight.to_vec::<f64>()?;
            sorted.sort_by(f64::total_cmp);
            let cdf = |x: f64| -> Result<f64> {
                let erf = Tensor::scalar(x / 2_f64.sqrt(), &Device::cpu())?.erf()?;
                Ok(0.5 + 0.5 * erf.item::<f64>()?)
            };
            let (from, to) = (cdf(low)?, cdf(high)?);
            for part in [0.05, 0.3, 0.5, 0.8, 0.99] {
                let x = sorted[(part * 1e5) as usize];
                let share = (cdf(x)? - from) / (to - from);
                assert!((share - part).abs() < 6e-3, "{low}..{high}: {share} below {x}, {part} expected");
            }
        }
        assert!(truncated_normal(&weight, 1.0, 1.0, 1.0, None).is_err());
        Ok(())
    }

    #[test]
    fn rows_or_columns_are_orthonormal() -> Result<()> {
        for shape in [[7, 12], [12, 7], [5, 5]] {
            let weight = zeros(&shape)?;
            orthogonal(&weight, 3.0, key(7))?;
            let w = weight.value();
            let gram = if shape[0] <= shape[1] { w.matmul(&w.t()?)? } else { w.t()?.matmul(w)? };
            let identity =
                Tensor::eye(shape[0].min(shape[1]), DType::F64, &Device::cpu())?.mul_scalar(9.0)?;
            let error = gram.sub(&identity)?.abs()?.max(&[], false)?.item::<f64>()?;
            assert!(error < 1e-12, "{error}");
        }
        Ok(())
    }
}
