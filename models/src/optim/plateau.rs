//! A learning rate that falls when a metric no longer does.

use device::{Error, Result};

use super::Optimizer;

/// Multiplies the learning rate by `factor` once a metric, such as the validation loss, has not fallen for more than `patience` calls. A
/// metric has fallen if it is less than `best (1 - threshold)`. All fields are public: a checkpoint keeps `best`, `bad` and `cooling`.
///
/// ```
/// use models::{Plateau, Sgd, Optimizer, mlp, Module};
/// # fn main() -> device::Result<()> {
/// let mut sgd = Sgd::new(mlp(&[2, 1], 0, &device::Device::cpu())?.parameters(), 0.5)?;
/// let mut plateau = Plateau { patience: 1, ..Plateau::default() };
/// let losses = [1.0, 0.9, 0.95, 0.92, 0.91];
/// let rates = losses.map(|loss| plateau.step(loss, &mut sgd).map(|()| sgd.learning_rate()));
/// assert_eq!(rates.into_iter().collect::<device::Result<Vec<_>>>()?, [0.5, 0.5, 0.5, 0.05, 0.05]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// What the rate is multiplied by.
    pub factor: f64,
    /// Calls in a row without a fall that change nothing.
    pub patience: u64,
    /// How much of the best metric a fall is at least.
    pub threshold: f64,
    /// Calls after a change of the rate that do not count.
    pub cooldown: u64,
    /// The lowest rate.
    pub min_lr: f64,
    /// The best metric so far.
    pub best: f64,
    /// Calls in a row without a fall.
    pub bad: u64,
    /// Calls that are still not counted.
    pub cooling: u64,
}

impl Default for Plateau {
    /// A tenth after ten calls, as in PyTorch.
    fn default() -> Self {
        Plateau {
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            cooldown: 0,
            min_lr: 0.0,
            best: f64::INFINITY,
            bad: 0,
            cooling: 0,
        }
    }
}

impl Plateau {
    /// Takes the metric of an epoch, and perhaps sets the optimizer's rate. NaN has not fallen.
    ///
    /// # Errors
    /// `InvalidArgument` for a factor that is not between 0 and 1.
    #[derive::located]
    pub fn step(&mut self, metric: f64, optimizer: &mut dyn Optimizer) -> Result<()> {
        let is_valid = (0.0..1.0).contains(&self.factor);
        Error::require(is_valid, "Plateau::step", "factor", "at least 0 and less than 1", self.factor)?;
        if metric < self.best * (1.0 - self.threshold) {
            (self.best, self.bad) = (metric, 0);
        } else {
            self.bad += 1;
        }
        if self.cooling > 0 {
            (self.cooling, self.bad) = (self.cooling - 1, 0);
        }
        if self.bad > self.patience {
            (self.cooling, self.bad) = (self.cooldown, 0);
            let old = optimizer.learning_rate();
            let new = (old * self.factor).max(self.min_lr);
            // As in PyTorch, a fall of less is none.
            if old - new > 1e-8 {
                optimizer.set_learning_rate(new)?;
            }
        }
        Ok(())
    }
}
