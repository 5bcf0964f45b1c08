//! Whether streams beside each other are worth it, found out by trying both.

use std::fmt;

use device::{median, quantiles};

/// The least gain, as a part of the time on one stream, for which several are used.
const LEAST_GAIN: f64 = 0.03;

/// Whether the times on several streams are less than those on one by more than the noise of these: by more than they differ
/// among themselves, the outermost quarters left out.
fn pays(one: &[f64], several: &[f64]) -> bool {
    let outer = (one.len() / 4) as f64 / one.len().saturating_sub(1).max(1) as f64;
    let [low, middle, high] = quantiles(one.iter().copied(), [outer, 0.5, 1.0 - outer]);
    let noise = (high - low).max(LEAST_GAIN * middle);
    !several.is_empty() && median(several.iter().copied()) + noise < middle
}

/// Runs on one stream and on several in turn, and keeps the faster one.
#[derive(Debug)]
pub(super) struct Trial {
    /// Runs of one kind before the other kind has its turn. Only the last of them counts: threads that slept meanwhile are awake,
    /// and caches hold what the run uses.
    turn: usize,
    /// Turns of each kind that do not count, because they do what is done once, such as allocation.
    warm_up: usize,
    /// Turns of each kind that count.
    rounds: usize,
    runs: usize,
    /// Milliseconds of the runs that count, on one stream and on several.
    ms: [Vec<f64>; 2],
    /// Whether several streams pay, once that is known.
    pub(super) pays: Option<bool>,
}

impl Trial {
    pub(super) fn new(turn: usize, warm_up: usize, rounds: usize) -> Trial {
        Trial { turn, warm_up, rounds, runs: 0, ms: Default::default(), pays: None }
    }

    /// Whether the next run is to use several streams.
    pub(super) fn several(&self) -> bool {
        self.pays.unwrap_or((self.runs / self.turn) % 2 == 1)
    }

    /// Records the time of a run, and decides once there are enough.
    pub(super) fn add(&mut self, several: bool, ms: f64) {
        let (turns, last) = (self.runs / self.turn, self.runs % self.turn == self.turn - 1);
        self.runs += 1;
        if last && turns >= 2 * self.warm_up {
            self.ms[usize::from(several)].push(ms);
        }
        if self.runs == 2 * self.turn * (self.warm_up + self.rounds) {
            self.pays = Some(pays(&self.ms[0], &self.ms[1]));
        }
    }

    /// The milliseconds of a run on one stream and on several, once that is decided.
    pub(super) fn medians(&self) -> [Option<f64>; 2] {
        let median = |times: &Vec<f64>| self.pays.map(|_| median(times.iter().copied()));
        self.ms.each_ref().map(median)
    }

    pub(super) fn report(&self, lanes: usize) -> LaneReport {
        let [serial_ms, concurrent_ms] = self.medians();
        let used = self.pays.map(|pays| if pays { lanes } else { 1 });
        LaneReport { lanes, used, serial_ms, concurrent_ms }
    }
}

/// How [`ConcurrentBatches`](crate::ConcurrentBatches) run their steps, and what was measured.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LaneReport {
    /// Lanes that there are.
    pub lanes: usize,
    /// Lanes that are used, 1 for the serial order; `None` while that is being measured.
    pub used: Option<usize>,
    /// Milliseconds of a step in serial order, once that is measured.
    pub serial_ms: Option<f64>,
    /// Milliseconds of a step on the lanes, once that is measured.
    pub concurrent_ms: Option<f64>,
}

impl fmt::Display for LaneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaneReport { lanes, used, .. } = self;
        if let (Some(serial), Some(concurrent)) = (self.serial_ms, self.concurrent_ms) {
            write!(f, "a step takes {serial:.3} ms in serial order, {concurrent:.3} ms on {lanes} lanes: ")?;
        }
        match used {
            None => write!(f, "whether {lanes} lanes pay is being measured"),
            Some(1) => f.write_str("batches run one after the other"),
            Some(_) => write!(f, "batches run on {lanes} lanes"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn several_streams_pay_if_they_gain_more_than_the_noise() {
        assert!(pays(&[10.1, 9.9, 10.0], &[30.0, 4.0, 5.0]));
        assert!(!pays(&[9.9, 10.0, 10.1], &[9.6, 9.8, 9.9]), "3 % are nothing");
        assert!(!pays(&[6.0, 10.0, 11.0], &[5.0, 5.5, 6.0]), "as much as the times on one stream differ");
        assert!(!pays(&[9.9, 10.0, 10.1], &[11.0, 12.0, 13.0]));
        assert!(
            pays(&[10.0, 10.1, 9.9, 80.0, 1.0], &[5.0, 5.0, 5.0, 5.0, 70.0]),
            "one that is far out is left out"
        );
        assert!(!pays(&[], &[1.0]) && !pays(&[1.0], &[]));
    }

    /// Steps that take `serial` and `lanes` milliseconds, with the first turn of either ten times as long.
    fn tried(serial: f64, lanes: f64) -> (Trial, usize) {
        let (mut trial, mut steps) = (Trial::new(2, 1, 5), 0);
        while trial.pays.is_none() {
            let on_lanes = trial.several();
            assert!(trial.report(3).used.is_none());
            let ms = if on_lanes { lanes } else { serial };
            trial.add(on_lanes, if steps < 4 { 10.0 * ms } else { ms });
            steps += 1;
        }
        (trial, steps)
    }

    #[test]
    fn both_are_tried_in_turn_and_the_faster_one_stays() {
        let (trial, steps) = tried(4.0, 2.0);
        assert_eq!((steps, trial.several()), (24, true));
        let report = trial.report(3);
        assert_eq!((report.used, report.serial_ms, report.concurrent_ms), (Some(3), Some(4.0), Some(2.0)));
        assert_eq!(
            report.to_string(),
            "a step takes 4.000 ms in serial order, 2.000 ms on 3 lanes: batches run on 3 lanes"
        );
        let (trial, _) = tried(1.0, 4.0);
        assert!(!trial.several());
        assert_eq!(trial.report(3).used, Some(1));
    }
}
