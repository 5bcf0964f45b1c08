//! A numeric derivative with its uncertainty.

use tensor::{DType, Result};

use super::norm;

/// The slope of a function at 0.
pub(super) struct Slope {
    pub(super) value: f64,
    /// Infinite if the function has no slope there that can be seen.
    pub(super) uncertainty: f64,
    /// By how much the slopes of the two sides differ.
    pub(super) jump: f64,
    /// The part of the uncertainty that comes from noise.
    from_noise: f64,
}

/// The distance of 1 to the next number.
pub(super) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2_f64.powi(-7),
        DType::F16 => 2_f64.powi(-10),
        DType::F32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    }
}

/// Where noise is measured: not at equal distances, at which rounding to a grid may look like a line.
pub(super) fn node(point: usize) -> f64 {
    (point + 1) as f64 + 0.5 * (point as f64 * 0.618).fract()
}

/// The standard deviation of noise in values at nodes, from their fourth divided differences, to which a smooth function adds
/// nothing (after Moré and Wild, "Estimating computational noise", 2011).
pub(super) fn noise_of(values: &[f64]) -> f64 {
    let difference = |first: usize| {
        let distance = |at: usize, other: usize| if at == other { 1.0 } else { node(at) - node(other) };
        let weight = |at: usize| 1.0 / (first..first + 5).map(|other| distance(at, other)).product::<f64>();
        let weights = (first..first + 5).map(weight);
        weights.clone().zip(&values[first..]).map(|(weight, value)| weight * value).sum::<f64>()
            / norm(weights)
    };
    norm((0..values.len() - 4).map(difference)) / (values.len() as f64 - 4.0).sqrt()
}

/// How much the noise of the function is amplified in a slope, for five deviations of it.
pub(super) const NOISE: f64 = 24.0;

/// The function of a step, which is 0 at 0, and its noise.
pub(super) type Rise<'a> = dyn FnMut(f64) -> Result<[f64; 2]> + 'a;

/// The slope by steps from `start` down to `least`, until it is certain `enough` or noise is all there is.
pub(super) fn search(
    rise: &mut Rise<'_>,
    start: f64,
    least: f64,
    enough: &dyn Fn(&Slope) -> bool,
) -> Result<Slope> {
    let mut best = Slope { value: f64::NAN, uncertainty: f64::INFINITY, jump: 0.0, from_noise: 0.0 };
    let (mut step, mut larger) = (start, 8.0 * start);
    while step >= least && !enough(&best) {
        let slope = extrapolated(rise, step)?;
        let ends = slope.from_noise >= best.uncertainty;
        best = if slope.uncertainty < best.uncertainty { slope } else { best };
        if ends {
            break;
        }
        step /= 8.0;
    }
    // Larger ones are only for noise: a kink would look smooth from afar.
    for _ in 0..2 {
        if !enough(&best) && best.from_noise > 0.5 * best.uncertainty {
            let slope = extrapolated(rise, larger)?;
            best = if slope.uncertainty < best.uncertainty { slope } else { best };
            larger *= 8.0;
        }
    }
    Ok(best)
}

/// The slope by growing steps, as long as that lessens noise as it should: beyond, steps jump over what the function does. But if
/// one of them shows no slope, rounding to steps may have hidden that there is none.
pub(super) fn search_up(rise: &mut Rise<'_>, least: f64, most: f64) -> Result<Slope> {
    // Shows which outputs change.
    rise(most)?;
    let (mut best, mut ends) = (extrapolated(rise, least)?, false);
    for power in 1.. {
        let step = least * 8_f64.powi(power);
        let next = if step <= most { extrapolated(rise, step)? } else { break };
        let is_near = (next.value - best.value).abs() <= next.uncertainty + best.uncertainty;
        let lessens = next.uncertainty < best.uncertainty && next.uncertainty > best.uncertainty / 32.0;
        ends |= best.uncertainty.is_finite() && !(is_near && lessens);
        if !ends {
            best = next;
        } else if !is_near && next.value.abs() <= next.uncertainty {
            best.uncertainty += best.value.abs();
            break;
        }
    }
    Ok(best)
}

/// Richardson's extrapolation from three steps, each half of the one before.
///
/// The uncertainty is the sum of three terms: the difference of the last two extrapolations, which bounds the truncation error; the noise
/// over the step; and half the difference of the one-sided slopes, so that the interval contains both at a kink.
fn extrapolated(rise: &mut Rise<'_>, step: f64) -> Result<Slope> {
    let (mut slopes, mut gaps, mut noise) = ([0.0; 3], [0.0; 3], 0.0_f64);
    for (halved, (slope, gap)) in slopes.iter_mut().zip(&mut gaps).enumerate() {
        let step = step / f64::from(1 << halved);
        let ([above, noise_above], [below, noise_below]) = (rise(step)?, rise(-step)?);
        (*slope, *gap) = ((above - below) / (2.0 * step), (above + below) / step);
        noise = noise.max(noise_above).max(noise_below);
    }
    let [first, second] = [0, 1].map(|at| (4.0 * slopes[at + 1] - slopes[at]) / 3.0);
    // A smooth function has gaps of odd powers of the step.
    let [one, two] = [0, 1].map(|at| 2.0 * gaps[at + 1] - gaps[at]);
    let (jump, from_noise) = (((8.0 * two - one) / 7.0).abs(), NOISE * noise / step);
    let uncertainty = (second - first).abs() + 0.5 * jump + from_noise;
    Ok(Slope { value: (16.0 * second - first) / 15.0, uncertainty, jump, from_noise })
}
