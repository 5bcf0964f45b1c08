//! Rows that are drawn by weight.

use std::sync::Arc;

use device::{Error, Result, SplitMix};

/// Draws rows with probabilities in proportion to their weights; an option of a [`DataLoader`](crate::DataLoader).
///
/// The draws of an epoch depend on the loader's seed and the epoch alone. Rows of weight 0 are never drawn.
///
/// ```
/// use models::{DataLoader, InMemory, LoaderOptions, WeightedSampler};
/// # fn main() -> device::Result<()> {
/// // One row of class 1 among four: both classes are drawn equally often.
/// let data = InMemory::new(vec![0.0, 0.1, 0.2, 0.9], 1, vec![0, 0, 0, 1], 2)?;
/// let sampler = WeightedSampler::new(vec![1.0, 1.0, 1.0, 3.0], 100, true)?;
/// let loader = DataLoader::new(data, LoaderOptions { batch: 10, sampler: Some(sampler), ..LoaderOptions::default() })?;
/// assert_eq!(loader.per_epoch(), 10);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WeightedSampler {
    weights: Arc<[f64]>,
    draws: usize,
    replacement: bool,
}

#[derive::located]
impl WeightedSampler {
    /// Draws `draws` rows in each epoch, from all rows each time with `replacement`, else from those that are left.
    ///
    /// # Errors
    /// `InvalidArgument` for a weight that is negative or not finite, weights whose sum is 0 or not finite, no draws, and, without
    /// replacement, more draws than positive weights.
    pub fn new(weights: impl Into<Arc<[f64]>>, draws: usize, replacement: bool) -> Result<Self> {
        const OP: &str = "weighted sampler";
        let weights = weights.into();
        if let Some(row) = weights.iter().position(|weight| !(*weight >= 0.0 && weight.is_finite())) {
            let value = format_args!("{} for row {row}", weights[row]);
            return Err(Error::invalid(OP, "weights", "at least 0 and finite", value));
        }
        // The sum of no numbers is -0.
        let sum = 0.0 + weights.iter().sum::<f64>();
        Error::require(sum > 0.0 && sum.is_finite(), OP, "weights", "of a positive, finite sum", sum)?;
        let positive = weights.iter().filter(|weight| **weight > 0.0).count();
        let is_valid = draws > 0 && (replacement || draws <= positive);
        let value = format_args!("{draws} of {positive}");
        Error::require(
            is_valid,
            OP,
            "draws",
            "at least 1, and without replacement at most the positive weights",
            value,
        )?;
        Ok(WeightedSampler { weights, draws, replacement })
    }

    /// How many rows have a weight.
    pub(super) fn rows(&self) -> usize {
        self.weights.len()
    }

    pub(super) fn draws(&self) -> usize {
        self.draws
    }

    /// The rows of an epoch, in the order of their draws.
    pub(super) fn order(&self, seed: u64) -> Vec<usize> {
        let mut random = SplitMix(seed);
        if self.replacement {
            let mut sum = 0.0;
            let sums: Vec<f64> = self
                .weights
                .iter()
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect();
            // A product that is rounded up to the sum belongs to the last row that has a weight.
            let last = sums.partition_point(|&before| before < sum);
            let draw = |_| {
                let target = random.unit() * sum;
                sums.partition_point(|&before| before <= target).min(last)
            };
            return (0..self.draws).map(draw).collect();
        }
        // The largest ln(u) / w are a draw without replacement (Efraimidis and Spirakis, 2006).
        let key = |(row, weight): (usize, &f64)| ((1.0 - random.unit()).ln() / weight, row);
        let mut keys: Vec<(f64, usize)> = self.weights.iter().enumerate().map(key).collect();
        keys.retain(|&(_, row)| self.weights[row] > 0.0);
        keys.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        keys.into_iter().take(self.draws).map(|(_, row)| row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: [f64; 5] = [0.0, 1.0, 2.0, 5.0, 0.0];

    #[test]
    fn rows_are_drawn_in_proportion_to_their_weights() {
        let frequencies = |rows: &[usize]| {
            [0, 1, 2, 3, 4]
                .map(|row| rows.iter().filter(|&&drawn| drawn == row).count() as f64 / rows.len() as f64)
        };
        let expected = WEIGHTS.map(|weight| weight / 8.0);
        let drawn = WeightedSampler::new(WEIGHTS, 20_000, true).unwrap().order(3);
        // Within four standard deviations, sqrt(0.25 / 20000) each at most.
        approx::assert_abs_diff_eq!(frequencies(&drawn)[..], expected[..], epsilon = 0.015);
        let single = WeightedSampler::new(WEIGHTS, 1, false).unwrap();
        let firsts: Vec<usize> =
            (0..20_000).flat_map(|seed| single.order(crate::random::mix(&[seed]))).collect();
        approx::assert_abs_diff_eq!(frequencies(&firsts)[..], expected[..], epsilon = 0.015);
        assert_eq!((frequencies(&drawn)[0], frequencies(&firsts)[4]), (0.0, 0.0));
    }

    #[test]
    fn draws_are_keyed_and_without_replacement_differ() {
        for replacement in [false, true] {
            let sampler = WeightedSampler::new(vec![1.0; 100], 100, replacement).unwrap();
            let mut order = sampler.order(1);
            assert_eq!(order, sampler.order(1));
            assert_ne!(order, sampler.order(2));
            order.sort_unstable();
            assert_eq!(order.iter().copied().eq(0..100), !replacement);
        }
        let mut all = WeightedSampler::new(WEIGHTS, 3, false).unwrap().order(9);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    }

    #[test]
    fn bad_weights_are_errors() {
        let cases: [(&[f64], usize, bool, &str); 7] = [
            (&[1.0, -1.0], 1, true, "weights must be at least 0 and finite, got -1 for row 1"),
            (&[f64::NAN], 1, true, "weights must be at least 0 and finite, got NaN for row 0"),
            (&[0.0, 0.0], 1, true, "weights must be of a positive, finite sum, got 0"),
            (&[f64::MAX, f64::MAX], 1, true, "weights must be of a positive, finite sum, got inf"),
            (&[], 1, true, "weights must be of a positive, finite sum, got 0"),
            (
                &[1.0],
                0,
                true,
                "draws must be at least 1, and without replacement at most the positive weights, got 0 of 1",
            ),
            (
                &[1.0, 0.0],
                2,
                false,
                "draws must be at least 1, and without replacement at most the positive weights, got 2 of 1",
            ),
        ];
        for (weights, draws, replacement, expected) in cases {
            let error = WeightedSampler::new(weights, draws, replacement).unwrap_err();
            assert_eq!(error.to_string(), format!("weighted sampler: {expected}"));
        }
    }
}
