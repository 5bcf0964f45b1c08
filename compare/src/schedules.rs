//! The schedules of a comparison, and how they differ from the serial one.

use ::profile::{Finding, Quantiles, median};
use device::{Device, Error, ErrorKind, Order, Result};
use models::InMemory;

use crate::runner::{How, Runner};
use crate::{CapturedReport, CompareOptions, Gain, Overlap, ScheduleReport, Workload};

/// The copies of a training that are compared.
pub(super) struct Runners {
    pub(super) serial: Runner,
    pub(super) concurrent: Runner,
    /// The serial schedule on one lane's threads, which runs beside no other.
    pub(super) alone: Runner,
    pub(super) hosted: Option<Runner>,
    pub(super) captured: Vec<Runner>,
    /// Why schedules cannot be captured.
    pub(super) refused: Vec<Finding>,
}

impl Runners {
    pub(super) fn new(
        workload: &dyn Workload,
        train: &InMemory,
        options: &CompareOptions,
    ) -> Result<Runners> {
        let threads = options.device.threads();
        let device = |threads| -> Result<Device> { options.device.sibling(threads) };
        let runner = |name, how, threads| Runner::new(name, workload, train, options, how, device(threads)?);
        let streams = options.streams;
        let hosted = || runner("host-prepared", How::Hosted, threads);
        let mut runners = Runners {
            serial: runner("serial", How::Eager { streams: 1 }, threads)?,
            concurrent: runner("concurrent", How::Eager { streams }, threads)?,
            alone: runner("alone", How::Eager { streams: 1 }, (threads / streams).max(1))?,
            hosted: workload.info().prepares_on_host.then(hosted).transpose()?,
            captured: Vec::new(),
            refused: Vec::new(),
        };
        let has_stages = workload.overlap() == Overlap::Stages && streams > 1;
        let stages = has_stages.then_some(("captured, stages", How::CapturedStages));
        let orders = [
            ("captured, serial order", How::Captured(Order::Streams)),
            ("captured, data order", How::Captured(Order::Data)),
        ];
        for (name, how) in orders.into_iter().chain(stages).filter(|_| options.graph) {
            runners.add_captured(runner(name, how, threads))?;
        }
        Ok(runners)
    }

    /// Has every copy but the one that runs alone do `work`. A captured one that fails to be captured is removed.
    pub(super) fn each(&mut self, mut work: impl FnMut(&mut Runner) -> Result<()>) -> Result<()> {
        work(&mut self.serial)?;
        work(&mut self.concurrent)?;
        self.hosted.iter_mut().try_for_each(&mut work)?;
        for mut runner in std::mem::take(&mut self.captured) {
            self.add_captured(work(&mut runner).map(|()| runner))?;
        }
        Ok(())
    }

    /// Adds a captured copy, or why there is none.
    fn add_captured(&mut self, made: Result<Runner>) -> Result<()> {
        let error: Error = match made {
            Ok(runner) => {
                self.captured.push(runner);
                return Ok(());
            }
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::Captured { .. }) {
            return Err(error);
        }
        let finding = Finding::new("not-captured", format!("the step cannot be replayed: {error}"));
        // Most often the same for every order.
        if !self.refused.contains(&finding) {
            self.refused.push(finding);
        }
        Ok(())
    }
}

/// How much faster than the serial schedule another one is, by pairs of neighbouring blocks.
pub(super) fn speedups(serial: &Runner, other: &Runner) -> Quantiles {
    Quantiles::of(serial.block_medians().zip(other.block_medians()).map(|(serial, other)| serial / other))
}

/// What a captured schedule gains, what its edges allow, and what a replay costs beside its commands.
pub(super) fn finding(schedule: &ScheduleReport, on_host: bool) -> Option<Finding> {
    let CapturedReport { plan, captures, capture_ms } = schedule.captured?;
    let Gain { speedup, speedup_spread, .. } = schedule.gain?;
    let step_ms = schedule.step_ms.median;
    let saved_ms = step_ms * (speedup - 1.0);
    let paid = if saved_ms > 0.0 {
        format!(", as long as {:.0} steps save", (capture_ms / saved_ms).ceil())
    } else {
        String::new()
    };
    let taken = match captures {
        1 => "The capture".to_owned(),
        _ => format!("{captures} captures, one for each form of batches,"),
    };
    let profile = &schedule.profile;
    let beside = if schedule.streams > 1 {
        format!(
            "The next batch is prepared beside it; the host takes {:.3} of a step's {step_ms:.3} ms to launch both",
            schedule.launch_ms
        )
    } else if on_host {
        format!(
            "Of a traced step's {:.3} ms, {:.3} are the replay, the rest prepares and copies the batches",
            profile.wall_ms,
            profile.mean_ms("replay").unwrap_or(0.0)
        )
    } else {
        format!(
            "The host takes {:.3} of a step's {step_ms:.3} ms to prepare and copy the batches and to launch the replay",
            schedule.launch_ms
        )
    };
    let message = format!(
        "{}: {speedup:.2}x the serial schedule (blocks of steps: {:.2} to {:.2}). A replay is one command, one slice of the \
         trace, that runs {} commands with {} edges, {} on the longest way; these allow at most {:.2}x by running at once. \
         {beside}. {taken} took {capture_ms:.1} ms{paid}",
        schedule.name,
        speedup_spread.p10,
        speedup_spread.p90,
        plan.commands,
        plan.edges,
        plan.critical_path,
        plan.gain,
    );
    Some(Finding::new("captured", message))
}

/// Where schedules differ from the serial one.
#[derive(Default)]
pub(super) struct Differences {
    pub(super) losses: Vec<String>,
    pub(super) parameters: Vec<String>,
}

impl Differences {
    /// Adds those of one more schedule. Returns whether losses and parameters are equal.
    pub(super) fn add(&mut self, serial: &Runner, other: &Runner) -> Result<[bool; 2]> {
        let losses = serial.first_difference_in_losses(other);
        let parameters = serial.first_difference_in_parameters(other)?;
        let equal = [losses.is_none(), parameters.is_none()];
        let named = |found: String| format!("{}: {found}", other.name());
        self.losses.extend(losses.map(named));
        self.parameters.extend(parameters.map(named));
        Ok(equal)
    }

    /// The report of one more schedule, whose differences are added.
    pub(super) fn report(&mut self, serial: &Runner, other: Runner) -> Result<ScheduleReport> {
        let [identical_losses, identical_parameters] = self.add(serial, &other)?;
        let loss_difference = serial.largest_difference_in_losses(&other);
        let speedup_spread = speedups(serial, &other);
        let report = other.report();
        let speedup = median(serial.times_ms()) / report.step_ms.median;
        let gain = Gain { speedup, speedup_spread, identical_losses, identical_parameters, loss_difference };
        Ok(ScheduleReport { gain: Some(gain), ..report })
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let of = |what: &'static str, all: &[String]| -> Vec<Finding> {
            all.iter().map(|found| Finding::new("not-equal", format!("a {what} differs, {found}"))).collect()
        };
        [of("loss", &self.losses), of("parameter", &self.parameters)].concat()
    }
}
