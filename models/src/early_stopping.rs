//! The end of a training run that no longer gets better.

/// Which metric is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The lower one, as of a loss.
    #[default]
    Min,
    /// The higher one, as of an accuracy.
    Max,
}

/// Knows whether a metric is the best so far, and whether it has not been better for `patience` calls. All fields are public: a
/// checkpoint keeps `best` and `bad`.
///
/// ```
/// use models::{EarlyStopping, checkpoint, mlp};
/// # fn main() -> device::Result<()> {
/// # let model = mlp(&[2, 1], 0, &device::Device::cpu())?;
/// # let path = std::env::temp_dir().join(format!("streamgrad-best-{}.safetensors", std::process::id()));
/// let mut stopping = EarlyStopping { patience: 2, ..EarlyStopping::default() };
/// let mut epochs = 0;
/// for loss in [1.0, 0.8, 0.9, 0.85, 0.7] {
///     epochs += 1;
///     if stopping.improves(loss) {
///         checkpoint::save(&path, &model)?;
///     }
///     if stopping.is_over() {
///         break;
///     }
/// }
/// assert_eq!((epochs, stopping.best), (4, Some(0.8)));
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// Calls in a row without a better metric after which training is over; at least one.
    pub patience: u64,
    /// By how much a better metric has to differ from the best one.
    pub min_delta: f64,
    /// Which metric is better.
    pub direction: Direction,
    /// The best metric so far.
    pub best: Option<f64>,
    /// Calls in a row without a better metric.
    pub bad: u64,
}

/// Ten calls without a lower metric.
impl Default for EarlyStopping {
    fn default() -> Self {
        EarlyStopping { patience: 10, min_delta: 0.0, direction: Direction::Min, best: None, bad: 0 }
    }
}

impl EarlyStopping {
    /// Takes the metric of an epoch, and says whether it is the best so far: time to save the model. NaN never is; any other first
    /// metric is.
    pub fn improves(&mut self, metric: f64) -> bool {
        let is_better = |best: f64| match self.direction {
            Direction::Min => metric < best - self.min_delta,
            Direction::Max => metric > best + self.min_delta,
        };
        let improves = self.best.map_or(!metric.is_nan(), is_better);
        (self.best, self.bad) =
            if improves { (Some(metric), 0) } else { (self.best, self.bad.saturating_add(1)) };
        improves
    }

    /// Whether the last `patience` calls had no better metric.
    pub fn is_over(&self) -> bool {
        self.bad >= self.patience.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_metrics_and_the_end() {
        let plain = EarlyStopping { patience: 2, ..EarlyStopping::default() };
        let highest = EarlyStopping { direction: Direction::Max, ..plain };
        let delta = EarlyStopping { min_delta: 0.5, ..plain };
        // Metrics, which of them are the best so far, and after how many training is over.
        type Case = (EarlyStopping, &'static [f64], &'static [bool], Option<usize>);
        const NAN: f64 = f64::NAN;
        let cases: [Case; 7] = [
            (plain, &[3.0, 2.0, 2.0, 1.0, 1.5], &[true, true, false, true, false], None),
            (plain, &[3.0, 3.0, 3.0, 2.0], &[true, false, false, true], Some(3)),
            (highest, &[0.1, 0.3, 0.2, 0.3], &[true, true, false, false], Some(4)),
            (delta, &[3.0, 2.5, 2.4, 2.4], &[true, false, true, false], None),
            (
                EarlyStopping { direction: Direction::Max, ..delta },
                &[1.0, 1.5, 1.6],
                &[true, false, true],
                None,
            ),
            (plain, &[NAN, f64::INFINITY, NAN, 1.0], &[false, true, false, true], None),
            (EarlyStopping { patience: 0, ..plain }, &[1.0, 2.0], &[true, false], Some(2)),
        ];
        for (mut stopping, metrics, better, over) in cases {
            let mut ended = None;
            for (at, (&metric, &is_better)) in metrics.iter().zip(better).enumerate() {
                assert_eq!(stopping.improves(metric), is_better, "{metrics:?} at {at}");
                ended = ended.or(stopping.is_over().then_some(at + 1));
            }
            assert_eq!(ended, over, "{metrics:?}");
        }
    }
}
