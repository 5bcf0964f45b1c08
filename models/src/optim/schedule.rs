//! Learning rates as functions of the step's number.

use device::{Error, Result};

use super::Optimizer;

/// A learning rate that changes from step to step.
///
/// A schedule has no state: `at(base_lr, step)` is torch's closed form for step number `step`, counted from 0, of an
/// optimizer whose rate was `base_lr`. What a checkpoint has to keep is the number of the step.
///
/// ```
/// use models::LrSchedule;
/// # fn main() -> device::Result<()> {
/// let warm_up = LrSchedule::Linear { start_factor: 0.1, end_factor: 1.0, total_iters: 10 };
/// let cosine = LrSchedule::Cosine { t_max: 90, eta_min: 0.0 };
/// let schedule = LrSchedule::sequence([(0, warm_up), (10, cosine)])?;
/// let rates = [0, 5, 10, 55, 100].map(|step| schedule.at(0.2, step));
/// for (rate, expected) in rates.into_iter().zip([0.02, 0.11, 0.2, 0.1, 0.0]) {
///     assert!((rate - expected).abs() < 1e-15);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum LrSchedule {
    /// `base_lr`.
    Constant,
    /// `base_lr gamma^floor(step / step_size)`.
    Step {
        /// Steps between two changes; 0 counts as 1.
        step_size: u64,
        /// The factor of a change.
        gamma: f64,
    },
    /// `base_lr gamma^k`, where `k` is the number of milestones that are at most `step`.
    MultiStep {
        /// The steps of the changes, in any order; one that is named twice changes twice.
        milestones: Vec<u64>,
        /// The factor of a change.
        gamma: f64,
    },
    /// `base_lr gamma^step`.
    Exponential {
        /// The factor of each step.
        gamma: f64,
    },
    /// `eta_min + (base_lr - eta_min) (1 + cos(pi step / t_max)) / 2`: down in `t_max` steps, and up again in as many.
    Cosine {
        /// Steps from the highest rate to the lowest; 0 counts as 1.
        t_max: u64,
        /// The lowest rate.
        eta_min: f64,
    },
    /// [`Cosine`](Self::Cosine) from the highest rate to the lowest, again and again (Loshchilov and Hutter, "SGDR: Stochastic gradient
    /// descent with warm restarts", 2017).
    WarmRestarts {
        /// Steps to the first restart; 0 counts as 1.
        t_0: u64,
        /// How many times as long each period is as the one before; 0 counts as 1.
        t_mult: u64,
        /// The lowest rate.
        eta_min: f64,
    },
    /// From `base_lr / div_factor` up to `base_lr` and down to `base_lr / (div_factor final_div_factor)`, each as half a cosine (Smith and
    /// Topin, "Super-convergence", 2018). The usual factors are 25 and 10,000.
    OneCycle {
        /// Steps in all; later ones have the rate of the last.
        total_steps: u64,
        /// The part of the steps that goes up, usually 0.3.
        pct_start: f64,
        /// The highest rate by the first one.
        div_factor: f64,
        /// The first rate by the last one.
        final_div_factor: f64,
    },
    /// `base_lr (start_factor + (end_factor - start_factor) min(step / total_iters, 1))`: a warm-up.
    Linear {
        /// The factor of step 0.
        start_factor: f64,
        /// The factor from step `total_iters` on.
        end_factor: f64,
        /// Steps from one to the other; 0 has the factor of the end at once.
        total_iters: u64,
    },
    /// One schedule after another; see [`LrSchedule::sequence`].
    Sequence(Vec<(u64, LrSchedule)>),
}

impl LrSchedule {
    /// Schedules from given steps on: each counts its steps from its first one, and all start from the same base rate.
    ///
    /// # Errors
    /// `InvalidArgument` unless the first one begins at step 0 and each later one after the one before.
    pub fn sequence(parts: impl Into<Vec<(u64, LrSchedule)>>) -> Result<LrSchedule> {
        let parts = parts.into();
        let starts: Vec<u64> = parts.iter().map(|(start, _)| *start).collect();
        let value = format_args!("{starts:?}");
        let is_valid = starts.first() == Some(&0) && starts.is_sorted_by(|a, b| a < b);
        Error::require(is_valid, "sequence", "parts", "first steps that increase from 0", value)?;
        Ok(LrSchedule::Sequence(parts))
    }

    /// The learning rate of step number `step`, counted from 0.
    pub fn at(&self, base_lr: f64, step: u64) -> f64 {
        match self {
            LrSchedule::Constant => base_lr,
            LrSchedule::Step { step_size, gamma } => base_lr * power(*gamma, step / (*step_size).max(1)),
            LrSchedule::MultiStep { milestones, gamma } => {
                let passed = milestones.iter().filter(|&&milestone| milestone <= step).count();
                base_lr * power(*gamma, passed as u64)
            }
            LrSchedule::Exponential { gamma } => base_lr * power(*gamma, step),
            LrSchedule::Cosine { t_max, eta_min } => {
                // Within one period, so that a long run keeps the argument's digits.
                let t_max = (*t_max).max(1);
                let step = (u128::from(step) % (2 * u128::from(t_max))) as f64;
                annealed(base_lr, *eta_min, step / t_max as f64)
            }
            LrSchedule::WarmRestarts { t_0, t_mult, eta_min } => {
                let (mut step, mut period) = (step, (*t_0).max(1));
                if *t_mult < 2 {
                    step %= period;
                }
                while step >= period {
                    (step, period) = (step - period, period.saturating_mul(*t_mult));
                }
                annealed(base_lr, *eta_min, step as f64 / period as f64)
            }
            LrSchedule::OneCycle { total_steps, pct_start, div_factor, final_div_factor } => {
                let (first, last) = (base_lr / div_factor, base_lr / div_factor / final_div_factor);
                let (end, step) = (total_steps.saturating_sub(1) as f64, step as f64);
                let top = (pct_start * *total_steps as f64 - 1.0).min(end);
                if step < top {
                    annealed(first, base_lr, step / top)
                } else {
                    annealed(base_lr, last, ((step - top) / (end - top).max(f64::MIN_POSITIVE)).min(1.0))
                }
            }
            LrSchedule::Linear { start_factor, end_factor, total_iters } => {
                let share = step.min(*total_iters) as f64 / (*total_iters).max(1) as f64;
                let share = if *total_iters == 0 { 1.0 } else { share };
                base_lr * (start_factor + (end_factor - start_factor) * share)
            }
            LrSchedule::Sequence(parts) => {
                let current = parts.iter().rev().find(|(start, _)| *start <= step);
                current.map_or(base_lr, |(start, schedule)| schedule.at(base_lr, step - start))
            }
        }
    }

    /// Sets the rate of step number `step` in an optimizer whose rate was `base_lr` when it began.
    ///
    /// # Errors
    /// `InvalidArgument` if the rate is negative or not finite, as with a factor below 0.
    #[derive::located]
    pub fn apply(&self, optimizer: &mut dyn Optimizer, base_lr: f64, step: u64) -> Result<()> {
        optimizer.set_learning_rate(self.at(base_lr, step))
    }
}

/// Half a cosine from `from` to `to`, of which this part is done.
fn annealed(from: f64, to: f64, done: f64) -> f64 {
    to + (from - to) * (1.0 + (std::f64::consts::PI * done).cos()) / 2.0
}

fn power(gamma: f64, exponent: u64) -> f64 {
    gamma.powi(i32::try_from(exponent).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use autograd::Var;
    use device::Device;
    use tensor::Tensor;

    use super::*;
    use crate::{Sgd, SgdOptions};
    use device::ErrorKind;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-15 * want.abs().max(1.0), "{got} instead of {want}");
    }

    #[test]
    fn closed_forms() {
        let step = LrSchedule::Step { step_size: 3, gamma: 0.5 };
        [8.0, 8.0, 8.0, 4.0, 4.0, 4.0, 2.0]
            .iter()
            .enumerate()
            .for_each(|(i, &v)| close(step.at(8.0, i as u64), v));
        let multi = LrSchedule::MultiStep { milestones: vec![4, 1, 4], gamma: 0.1 };
        [1.0, 0.1, 0.1, 0.1, 1e-3].iter().enumerate().for_each(|(i, &v)| close(multi.at(1.0, i as u64), v));
        let exponential = LrSchedule::Exponential { gamma: 0.9 };
        close(exponential.at(0.3, 20), 0.3 * 0.9_f64.powi(20));
        let cosine = LrSchedule::Cosine { t_max: 4, eta_min: 0.5 };
        for (at, want) in [(0, 1.5), (2, 1.0), (4, 0.5), (6, 1.0), (8, 1.5), (12, 0.5)] {
            close(cosine.at(1.5, at), want);
        }
        // Far out, too, the phase keeps its digits.
        close(cosine.at(1.5, (1 << 62) + 4), 0.5);
        let linear = LrSchedule::Linear { start_factor: 0.25, end_factor: 1.0, total_iters: 3 };
        [1.0, 2.0, 3.0, 4.0, 4.0].iter().enumerate().for_each(|(i, &v)| close(linear.at(4.0, i as u64), v));
    }

    #[test]
    fn degenerate_schedules_are_finite() {
        close(LrSchedule::Step { step_size: 0, gamma: 0.5 }.at(1.0, 2), 0.25);
        close(LrSchedule::Cosine { t_max: 0, eta_min: 0.0 }.at(1.0, 1), 0.0);
        close(LrSchedule::Linear { start_factor: 0.0, end_factor: 0.5, total_iters: 0 }.at(1.0, 0), 0.5);
        close(LrSchedule::Exponential { gamma: 0.5 }.at(1.0, u64::MAX), 0.0);
        for t_mult in [0, 1, 3] {
            close(LrSchedule::WarmRestarts { t_0: 0, t_mult, eta_min: 0.5 }.at(1.0, 0), 1.0);
            let late = LrSchedule::WarmRestarts { t_0: 3, t_mult, eta_min: 0.5 }.at(1.0, u64::MAX);
            assert!((0.5..=1.0).contains(&late), "{late}");
        }
        let cycle = |total_steps, pct_start| LrSchedule::OneCycle {
            total_steps,
            pct_start,
            div_factor: 10.0,
            final_div_factor: 10.0,
        };
        for (schedule, at) in [(cycle(0, 0.3), 0), (cycle(1, 0.3), 5), (cycle(4, 0.0), 9), (cycle(4, 1.0), 9)]
        {
            let rate = schedule.at(1.0, at);
            assert!((0.01..=1.0).contains(&rate), "{schedule:?}: {rate}");
        }
        close(LrSchedule::Sequence(Vec::new()).at(0.7, 3), 0.7);
    }

    #[test]
    fn a_sequence_counts_each_part_from_its_first_step() {
        let parts = [
            (0, LrSchedule::Linear { start_factor: 0.5, end_factor: 1.0, total_iters: 2 }),
            (2, LrSchedule::Constant),
            (3, LrSchedule::Exponential { gamma: 0.5 }),
        ];
        let sequence = LrSchedule::sequence(parts).unwrap();
        let want = [0.5, 0.75, 1.0, 1.0, 0.5, 0.25];
        want.iter().enumerate().for_each(|(i, &v)| close(sequence.at(1.0, i as u64), v));
        for starts in [vec![], vec![1], vec![0, 2, 2], vec![0, 3, 1]] {
            let parts: Vec<_> = starts.into_iter().map(|start| (start, LrSchedule::Constant)).collect();
            let error = LrSchedule::sequence(parts).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument { argument: "parts", .. }), "{error}");
        }
    }

    #[test]
    fn rates_reach_the_optimizer_or_are_refused() {
        let w = Var::leaf(Tensor::scalar(1.0_f64, &Device::cpu()).unwrap());
        let mut sgd = Sgd::new(vec![w], SgdOptions { lr: 0.8, ..SgdOptions::default() }).unwrap();
        let base = sgd.learning_rate();
        LrSchedule::Step { step_size: 1, gamma: 0.5 }.apply(&mut sgd, base, 3).unwrap();
        close(sgd.learning_rate(), 0.1);
        let bad = LrSchedule::Linear { start_factor: -1.0, end_factor: 1.0, total_iters: 2 };
        assert!(matches!(
            bad.apply(&mut sgd, base, 0).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "lr", .. })
        ));
        close(sgd.learning_rate(), 0.1);
    }
}
