//! A leaf that is moved, and its derivatives compared.

use tensor::{DType, Device, Error, ErrorKind, RandomKey, Result, Tensor};

use super::slope::{NOISE, Slope, node, noise_of, search, search_up, unit};
use super::{Base, Check, DIRECTION, Results, SAMPLE, norm, normal, numbers};

/// A derivative below this share of the typical one of its leaf counts as large as this share.
const SMALL: f64 = 1e-3;
/// A derivative counts as at least as large as this share of the function's value for a step of the leaf's own size.
const NO_EFFECT: f64 = 1e-8;
/// How many times as uncertain as with other last bits an analytic derivative is.
const DEVIATIONS: f64 = 2.0;

pub(super) struct Moved<'a> {
    check: &'a Check<'a>,
    base: &'a Base,
    index: usize,
    values: &'a [f64],
    /// The sizes of steps of 1, powers of two.
    scales: Vec<f64>,
    /// `None` where no gradient leads to the leaf.
    analytic: Option<Vec<f64>>,
    /// The same with other last bits.
    perturbed: Vec<Option<&'a [f64]>>,
    /// The typical effect of a step of 1.
    typical: f64,
    /// The noise of each element of the outputs, weighted.
    noises: Vec<f64>,
    /// The norm of the weighted outputs.
    size: f64,
}

/// The elements that move, and how far in a step of 1.
type Direction = [(usize, f64)];

/// A derivative along a direction, compared.
pub(super) struct Derivative {
    analytic: f64,
    /// That of the function less the analytic derivative.
    pub(super) slope: Slope,
    /// What errors are relative to.
    pub(super) magnitude: f64,
    pub(super) allowed: f64,
    pub(super) is_wrong: bool,
}

impl<'a> Moved<'a> {
    pub(super) fn new(
        check: &'a Check<'a>,
        base: &'a Base,
        index: usize,
        values: &'a [f64],
        analytic: Option<Vec<f64>>,
        perturbed: Vec<Option<&'a [f64]>>,
    ) -> Result<Moved<'a>> {
        let root = (values.len() as f64).sqrt();
        let usual = norm(values.iter().copied()) / root;
        let scale = |x: &f64| Some(x.abs().max(usual)).filter(|x| x.is_normal()).unwrap_or(1.0);
        let scales: Vec<f64> = values.iter().map(|x| scale(x).log2().floor().exp2()).collect();
        let effects = analytic.iter().flatten().zip(&scales).map(|(a, scale)| a * scale);
        let typical = norm(effects.filter(|effect| effect.is_finite())) / root;
        let weighted = base.outputs.iter().zip(&base.weights).map(|(y, weight)| y * weight);
        let (size, noises) = (norm(weighted.filter(|y| y.is_finite())), base.noises.clone());
        let mut moved =
            Moved { check, base, index, values, scales, analytic, perturbed, typical, noises, size };
        moved.measure_noise()?;
        Ok(moved)
    }

    fn dtype(&self) -> DType {
        self.check.leaves[self.index].dtype()
    }

    pub(super) fn unit(&self) -> f64 {
        self.base.unit.max(unit(self.dtype()))
    }

    /// The relative uncertainty up to which a derivative with a rounding of `unit` is decided.
    pub(super) fn tolerance(&self, unit: f64) -> f64 {
        self.check.options.rtol.max(unit.sqrt())
    }

    /// A random direction through all elements.
    fn anywhere(&self) -> Result<Vec<(usize, f64)>> {
        let drawn = normal(self.check.options.seed, DIRECTION, self.index, self.values.len())?;
        Ok(drawn.iter().zip(&self.scales).map(|(drawn, scale)| drawn * scale).enumerate().collect())
    }

    /// The analytic effects of a step of 1.
    fn effects(&self, direction: &Direction) -> impl Iterator<Item = f64> {
        direction
            .iter()
            .map(|&(element, by)| self.analytic.as_ref().map_or(0.0, |analytic| analytic[element] * by))
    }

    /// How far rounding may move the analytic derivative.
    fn rounding(&self, direction: &Direction, analytic: f64) -> f64 {
        let effect = |sample: &Option<&[f64]>| {
            direction
                .iter()
                .map(|&(element, by)| sample.map_or(0.0, |sample| sample[element] * by))
                .sum::<f64>()
        };
        let moved = self.perturbed.iter().map(|sample| (effect(sample) - analytic).abs());
        let finite: Vec<f64> = moved.filter(|moved| moved.is_finite()).collect();
        if finite.len() < 2 && self.analytic.is_some() {
            f64::INFINITY
        } else {
            finite.into_iter().fold(0.0, f64::max)
        }
    }

    /// Measures the noise of each output on points as close together as they may be for their values to differ.
    fn measure_noise(&mut self) -> Result<()> {
        let (direction, unit) = (self.anywhere()?, self.unit());
        let coarsest = (2.0 * unit).max(1.0 / 256.0);
        let mut open: Vec<usize> = (0..self.noises.len()).collect();
        for power in 0..4 {
            let spacing = (64.0 * unit * 4096_f64.powi(power)).min(coarsest);
            let step = |point| self.step(&direction, spacing * node(point));
            let (changes, rises): (Vec<_>, Vec<_>) = (0..8).map(step).collect::<Result<_>>()?;
            let (weights, noises) = (&self.base.weights, &mut self.noises);
            open.retain(|&at| {
                let weighted = |changes: &Vec<f64>| changes[at] * weights[at];
                // Of a single output without the slope, and so without the rounding of the leaf.
                let near: Vec<f64> =
                    if weights.len() == 1 { rises.clone() } else { changes.iter().map(weighted).collect() };
                let is_open = changes.windows(2).filter(|pair| pair[0][at] == pair[1][at]).count() > 1;
                if !is_open || spacing == coarsest {
                    noises[at] = noises[at].max(noise_of(&near));
                }
                is_open && spacing < coarsest
            });
            if open.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// What a step changes in each element of the outputs, and in their weighted sum beyond the analytic derivative.
    fn step(&self, direction: &Direction, step: f64) -> Result<(Vec<f64>, f64)> {
        let mut values = self.values.to_vec();
        direction.iter().for_each(|(element, by)| values[*element] += step * by);
        self.check.set(self.index, &values)?;
        let changes = self.base.changes(&self.check.evaluate()?)?;
        // As the leaf's type rounded them.
        let values = numbers(self.check.leaves[self.index].value())?;
        let moved = |&(element, _): &(usize, f64)| (element, values[element] - self.values[element]);
        let moved: Vec<(usize, f64)> = direction.iter().map(moved).collect();
        // Not the difference of two sums, which would lose it in rounding.
        let rise: f64 = changes.iter().zip(&self.base.weights).map(|(change, weight)| change * weight).sum();
        Ok((changes, rise - self.effects(&moved).sum::<f64>()))
    }

    /// Compares the derivatives of all elements, or that along a random direction and those of a sample.
    pub(super) fn check(&self, results: &mut Results) -> Result<()> {
        let (most, count) = (self.check.options.elements, self.values.len());
        let mut elements: Vec<usize> = (0..count).collect();
        if count > most {
            self.check_direction(results)?;
            let key = RandomKey { seed: self.check.options.seed, op: 4 * self.index as u64 + SAMPLE };
            let drawn = Tensor::uniform(&[most], 0.0, count as f64, DType::F64, key, &Device::cpu())?;
            elements = drawn.to_vec::<f64>()?.into_iter().map(|drawn| drawn as usize).collect();
            elements.sort_unstable();
            elements.dedup();
        }
        for element in elements {
            results.add(self, Some(element), &self.compare(&[(element, self.scales[element])])?);
        }
        Ok(())
    }

    /// Compares the derivative along one direction, and halves a wrong one down to an element that makes it so.
    fn check_direction(&self, results: &mut Results) -> Result<()> {
        let mut direction = self.anywhere()?;
        let mut found = self.compare(&direction)?;
        results.add(self, None, &found);
        while found.is_wrong && direction.len() > 1 {
            let right = direction.split_off(direction.len() / 2);
            found = self.compare(&direction)?;
            if !found.is_wrong {
                direction = right;
                found = self.compare(&direction)?;
            }
        }
        if let (true, Some(&(element, _))) = (found.is_wrong, direction.first()) {
            results.add(self, Some(element), &self.compare(&[(element, self.scales[element])])?);
        }
        Ok(())
    }

    /// Something wrong has to be so with steps from the smallest up, too.
    fn compare(&self, direction: &Direction) -> Result<Derivative> {
        let found = self.compare_by(direction, false)?;
        if found.is_wrong { self.compare_by(direction, true) } else { Ok(found) }
    }

    fn compare_by(&self, direction: &Direction, upwards: bool) -> Result<Derivative> {
        let rtol = self.check.options.rtol;
        let (analytic, effect) = (self.effects(direction).sum::<f64>(), norm(self.effects(direction)));
        let floor = effect.max(SMALL * self.typical).max(NO_EFFECT * self.size);
        let magnitude = |slope: &Slope| floor.max((analytic + slope.value).abs());
        // An element that once changed has noise also where rounding hides the change.
        let mut noises = vec![0.0; self.noises.len()];
        let mut rise = |step| {
            let (changes, rise) = self.step(direction, step)?;
            let changed =
                noises.iter_mut().zip(&self.noises).zip(&changes).filter(|(_, change)| **change != 0.0);
            changed.for_each(|((slot, noise), _)| *slot = *noise);
            Ok([rise, norm(noises.iter().copied())])
        };
        let enough = |slope: &Slope| slope.uncertainty <= self.tolerance(self.base.unit) * magnitude(slope);
        let least = 64.0 * unit(self.dtype());
        let start = least.max(1.0 / 64.0);
        let mut slope = if upwards {
            search_up(&mut rise, least, 64.0 * start)?
        } else {
            search(&mut rise, start, least, &enough)?
        };
        let magnitude = magnitude(&slope);
        if slope.value.abs() > slope.uncertainty + rtol * magnitude {
            // The rounding of outputs may hide a change; if none changes at all, that of numbers about as large as 1.
            let is_still = noises.iter().all(|noise| *noise == 0.0);
            let still = if is_still { self.base.unit * norm(self.base.weights.iter().copied()) } else { 0.0 };
            slope.uncertainty += NOISE / start * (norm(self.noises.iter().copied()) + still)
                + DEVIATIONS * self.rounding(direction, analytic);
        }
        let allowed = slope.uncertainty + rtol * magnitude;
        let is_wrong = !analytic.is_finite() || slope.value.abs() > allowed;
        Ok(Derivative { analytic, slope, magnitude, allowed, is_wrong })
    }

    #[cold]
    pub(super) fn failure(&self, element: Option<usize>, found: &Derivative) -> Error {
        let scale = element.map_or(1.0, |element| self.scales[element]);
        let (analytic, uncertainty) = (found.analytic / scale, found.slope.uncertainty / scale);
        let (numeric, rtol) = (analytic + found.slope.value / scale, self.check.options.rtol);
        let input = self.check.names[self.index].as_str().into();
        let leaf = &self.check.leaves[self.index];
        let frozen = leaf.is_leaf() && !leaf.requires_grad();
        let (op, users, _at) = self.base.users(leaf);
        Error::new(match self.analytic {
            None => ErrorKind::GradientMissing { input, element, numeric, uncertainty, frozen },
            Some(_) => ErrorKind::GradientMismatch {
                op,
                users,
                input,
                element,
                analytic,
                numeric,
                uncertainty,
                rtol,
            },
        })
    }
}
