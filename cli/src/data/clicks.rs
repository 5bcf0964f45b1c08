//! A synthetic log of clicks, for models of advertisements: made up, with a known best loss.

use device::Result;

use models::random::{SplitMix, mix};
use models::{InMemory, Ragged};

/// What a log of clicks is like.
#[derive(Clone, Debug)]
pub struct ClickOptions {
    /// Rows.
    pub rows: usize,
    /// Dense features of a row, log-normal.
    pub dense: usize,
    /// For each categorical feature, the number of its values.
    pub categories: Vec<usize>,
    /// The most values that a row has of one feature; the number is uniform from 0.
    pub most: usize,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// 20,000 rows with 4 dense features and 6 categorical ones of 10 to 1,000 values, up to 4 in a row.
impl Default for ClickOptions {
    fn default() -> Self {
        let categories = vec![1000, 500, 200, 100, 30, 10];
        ClickOptions { rows: 20_000, dense: 4, categories, most: 4, seed: 7 }
    }
}

/// Rows of dense and categorical features, with whether there was a click.
///
/// Dense features are `e^z` with normal `z`. Value `k` of a categorical feature, counted from 1, comes about as often as `1 / k`
/// says (Zipf's law). A click has the probability `σ(b + Σ a z + Σ mean of u[value])`, where the means are over each feature's
/// values in the row and 0 if there are none, and the weights `a` and `u` are hidden. A model that found them would have
/// [`best_loss`](ClickLog::best_loss), one that knows only how frequent clicks are [`base_loss`](ClickLog::base_loss).
///
/// ```
/// use workloads::{ClickLog, ClickOptions};
/// # fn main() -> device::Result<()> {
/// let log = ClickLog::new(&ClickOptions { rows: 500, ..ClickOptions::default() })?;
/// assert_eq!((log.data().len(), log.data().features(), log.data().bags().len()), (500, 4, 6));
/// assert!(log.best_loss() < log.base_loss());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ClickLog {
    data: InMemory,
    best_loss: f64,
    base_loss: f64,
}

/// The weight of a click's part that all rows share.
const BIAS: f64 = -1.2;
/// The deviation of the hidden weights of a dense feature, and of a value.
const WEIGHTS: (f64, f64) = (0.8, 1.6);

impl ClickLog {
    /// Makes a log; equal options give equal logs.
    ///
    /// # Errors
    /// `InvalidArgument` for no rows, no dense features, and a feature without values.
    pub fn new(options: &ClickOptions) -> Result<ClickLog> {
        let ClickOptions { rows, dense, categories, most, seed } = options;
        let least = categories.iter().copied().min().unwrap_or(1);
        crate::expect_positive("click log", [("rows", *rows), ("dense", *dense), ("categories", least)])?;
        // Each part has numbers of its own, so that more of one leave the others as they are.
        let random = |part: u64| SplitMix(mix(&[*seed, part]));
        let hidden = |part: u64, count: usize, deviation: f64| -> Vec<f64> {
            let mut random = random(part);
            (0..count).map(|_| deviation * normal(&mut random)).collect()
        };
        let mut logits = vec![BIAS; *rows];
        let (mut values, weights) = (random(0), hidden(1, *dense, WEIGHTS.0));
        let mut inputs = Vec::with_capacity(rows * dense);
        for logit in &mut logits {
            for weight in &weights {
                let z = normal(&mut values);
                inputs.push(z.exp() as f32);
                *logit += weight * z;
            }
        }
        let mut bags = Vec::with_capacity(categories.len());
        for (feature, &size) in categories.iter().enumerate() {
            let part = 3 + 2 * feature as u64;
            let (mut values, weights) = (random(part), hidden(part + 1, size, WEIGHTS.1));
            let mut rows = Vec::with_capacity(*rows);
            for logit in &mut logits {
                let count = values.below(most.saturating_add(1));
                let row: Vec<usize> = (0..count).map(|_| zipf(&mut values, size)).collect();
                *logit += row.iter().map(|&value| weights[value]).sum::<f64>() / count.max(1) as f64;
                rows.push(row.into_iter().map(|value| value as i64).collect());
            }
            bags.push(Ragged::new(rows, size)?);
        }
        let chances: Vec<f64> = logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect();
        let mut draws = random(2);
        let labels: Vec<i64> = chances.iter().map(|&chance| i64::from(draws.unit() < chance)).collect();
        let rate = labels.iter().sum::<i64>() as f64 / *rows as f64;
        let data = InMemory::new(inputs, *dense, labels, 2)?.with_bags(bags)?;
        let best_loss = chances.into_iter().map(entropy).sum::<f64>() / *rows as f64;
        Ok(ClickLog { data, best_loss, base_loss: entropy(rate) })
    }

    /// The rows: dense features as values, categorical ones as bags, clicks as class 1.
    pub fn data(&self) -> &InMemory {
        &self.data
    }

    /// The mean log loss that is expected of the hidden probabilities themselves, in nats; no model can expect less.
    pub fn best_loss(&self) -> f64 {
        self.best_loss
    }

    /// The mean log loss of the share of clicks as everybody's probability.
    pub fn base_loss(&self) -> f64 {
        self.base_loss
    }
}

/// The entropy of a coin, in nats.
fn entropy(chance: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    part(chance) + part(1.0 - chance)
}

/// A number of the standard normal distribution (Box and Muller).
fn normal(random: &mut SplitMix) -> f64 {
    let (radius, turn) = (1.0 - random.unit(), random.unit());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
}

/// A number in `0..size`, `k` with a chance of `ln(1 + 1 / (k + 1)) / ln(size + 1)`.
fn zipf(random: &mut SplitMix, size: usize) -> usize {
    let value = ((size as f64 + 1.0).ln() * random.unit()).exp();
    (value as usize).clamp(1, size) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::ErrorKind;

    #[test]
    fn a_log_depends_on_its_options_alone() {
        let options = ClickOptions { rows: 300, ..ClickOptions::default() };
        let log = |options: &ClickOptions| ClickLog::new(options).unwrap();
        let rows = |log: &ClickLog| -> Vec<(Vec<f32>, Vec<Vec<i64>>, i64)> {
            let data = log.data();
            let bags = |row| data.bags().iter().map(|bags| bags.row(row).unwrap().to_vec()).collect();
            (0..data.len())
                .map(|row| (data.row(row).unwrap().to_vec(), bags(row), data.labels()[row]))
                .collect()
        };
        let first = rows(&log(&options));
        assert_eq!(first, rows(&log(&options)));
        assert_ne!(first, rows(&log(&ClickOptions { seed: 8, ..options.clone() })));
        // Fewer rows are the first ones.
        assert_eq!(first[..100], rows(&log(&ClickOptions { rows: 100, ..options })));
    }

    #[test]
    fn features_are_log_normal_values_are_zipf_and_labels_have_their_chances() {
        let log = ClickLog::new(&ClickOptions::default()).unwrap();
        let data = log.data();
        let logs: Vec<f64> =
            (0..data.len()).flat_map(|row| data.row(row).unwrap()).map(|x| f64::from(*x).ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let variance = logs.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / logs.len() as f64;
        // 80,000 numbers: deviations of 0.0035 and 0.005.
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");

        let bags = &data.bags()[0];
        let mut counts = vec![0.0; bags.size()];
        let mut lengths = [0; 5];
        for row in 0..data.len() {
            let row = bags.row(row).unwrap();
            lengths[row.len()] += 1;
            row.iter().for_each(|&value| counts[value as usize] += 1.0);
        }
        let total: f64 = counts.iter().sum();
        for value in [0, 1, 9, 99] {
            let chance = (1.0 + 1.0 / (value as f64 + 1.0)).ln() / 1001_f64.ln();
            let deviation = (total * chance).sqrt();
            assert!((counts[value] - total * chance).abs() < 4.0 * deviation, "{value}: {}", counts[value]);
        }
        assert!(counts[900..].iter().any(|&count| count > 0.0), "rare values come, too");
        assert!(lengths.iter().all(|count| (3700..4300).contains(count)), "{lengths:?}");

        let rate = data.labels().iter().sum::<i64>() as f64 / data.len() as f64;
        assert!((0.1..0.45).contains(&rate), "{rate}");
        approx::assert_abs_diff_eq!(log.base_loss(), entropy(rate), epsilon = 1e-12);
        assert!(log.best_loss() < 0.9 * log.base_loss(), "{} {}", log.best_loss(), log.base_loss());
    }

    #[test]
    fn bad_options_are_named() {
        let plain = ClickOptions { rows: 10, ..ClickOptions::default() };
        for (options, name) in [
            (ClickOptions { rows: 0, ..plain.clone() }, "rows"),
            (ClickOptions { dense: 0, ..plain.clone() }, "dense"),
            (ClickOptions { categories: vec![3, 0], ..plain.clone() }, "categories"),
        ] {
            let error = ClickLog::new(&options).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidArgument { argument, .. } if *argument == name),
                "{error}"
            );
        }
        // No categorical features, or no values in any row, are fine.
        ClickLog::new(&ClickOptions { categories: vec![], ..plain.clone() }).unwrap();
        ClickLog::new(&ClickOptions { most: 0, ..plain }).unwrap();
    }
}
