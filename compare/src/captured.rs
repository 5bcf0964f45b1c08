//! The captured schedules of a comparison, and what differs from the serial one.

use device::{Error, ErrorKind, PlanReport, Result};

use super::runner::{Captures, Runner};
use super::{Finding, ScheduleReport, speedups};
use ::profile::{Quantiles, median};

/// What a schedule replays, and how it compares with the serial one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CapturedReport {
    /// What the plan of a step is like; of the last form of batches, where there were several.
    pub plan: PlanReport,
    /// How often a step was captured: once for each form of batches, not in the measured time.
    pub captures: usize,
    /// How long that took in all.
    pub capture_ms: f64,
    /// Median serial step over median replayed step.
    pub speedup: f64,
    /// The same of each pair of neighbouring blocks.
    pub speedup_spread: Quantiles,
    /// Whether every loss of every batch has the same bits as in the serial schedule.
    pub identical_losses: bool,
    /// Whether every parameter has the same bits at the end as in the serial schedule.
    pub identical_parameters: bool,
}

/// The copies that replay, and why others do not.
#[derive(Default)]
pub(super) struct Captured {
    pub(super) runners: Vec<Runner>,
    refused: Vec<Finding>,
}

impl Captured {
    /// Takes a copy in, or why there is none.
    ///
    /// # Errors
    /// What has nothing to do with the capture.
    pub(super) fn add(&mut self, made: Result<Runner>) -> Result<()> {
        match made {
            Ok(runner) => self.runners.push(runner),
            Err(error) => self.refuse(error)?,
        }
        Ok(())
    }

    /// Has every copy do `work`; one that cannot go on is left out from then on.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub(super) fn each(&mut self, mut work: impl FnMut(&mut Runner) -> Result<()>) -> Result<()> {
        for mut runner in std::mem::take(&mut self.runners) {
            self.add(work(&mut runner).map(|()| runner))?;
        }
        Ok(())
    }

    fn refuse(&mut self, error: Error) -> Result<()> {
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

    /// The reports, with a finding for each and for those that there are not.
    pub(super) fn report(
        self,
        serial: &Runner,
        runs_on_host: bool,
        differences: &mut Differences,
    ) -> Result<(Vec<ScheduleReport>, Vec<Finding>)> {
        let (mut reports, mut findings) = (Vec::new(), self.refused);
        for runner in self.runners {
            let Some(Captures { plan, count: captures, ms: capture_ms }) = runner.captures() else {
                continue;
            };
            let [identical_losses, identical_parameters] = differences.add(serial, &runner)?;
            let speedup_spread = speedups(serial, &runner);
            let mut report = runner.report();
            let serial_ms = median(serial.times_ms());
            let speedup = serial_ms / report.step_ms.median;
            let captured = CapturedReport {
                plan,
                captures,
                capture_ms,
                speedup,
                speedup_spread,
                identical_losses,
                identical_parameters,
            };
            findings.push(finding(&report, &captured, runs_on_host));
            report.captured = Some(captured);
            reports.push(report);
        }
        Ok((reports, findings))
    }
}

/// What a captured schedule gains, what its edges allow, and what a replay costs beside its commands.
fn finding(schedule: &ScheduleReport, found: &CapturedReport, on_host: bool) -> Finding {
    let CapturedReport { plan, captures, capture_ms, speedup, speedup_spread, .. } = found;
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
    Finding::new("captured", message)
}

/// Where schedules differ from the serial one.
#[derive(Default)]
pub(super) struct Differences {
    pub(super) losses: Vec<String>,
    pub(super) parameters: Vec<String>,
}

impl Differences {
    /// Looks for those of one more schedule. Gives whether losses and parameters are equal.
    pub(super) fn add(&mut self, serial: &Runner, other: &Runner) -> Result<[bool; 2]> {
        let losses = serial.first_difference_in_losses(other);
        let parameters = serial.first_difference_in_parameters(other)?;
        let equal = [losses.is_none(), parameters.is_none()];
        let named = |found: String| format!("{}: {found}", other.name());
        self.losses.extend(losses.map(named));
        self.parameters.extend(parameters.map(named));
        Ok(equal)
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let of = |what: &'static str, all: &[String]| -> Vec<Finding> {
            all.iter().map(|found| Finding::new("not-equal", format!("a {what} differs, {found}"))).collect()
        };
        [of("loss", &self.losses), of("parameter", &self.parameters)].concat()
    }
}
