//! The schedules of a comparison, and how they differ from the serial one.

use std::sync::Arc;

use ::profile::{Finding, OtherPrograms, Quantiles};
use device::{Device, Error, ErrorKind, Result};
use tensor::Tensors;

use crate::chosen::{Chosen, How};
use crate::machine::Ticks;
use crate::program::Program;
use crate::runner::Runner;
use crate::{CapturedReport, CompareOptions, Gain, ScheduleReport};

/// The copies of a program that are compared.
pub(super) struct Runners<'a, S, B> {
    pub(super) serial: Runner<'a, S, B>,
    pub(super) concurrent: Option<Concurrent<'a, S, B>>,
    /// Further schedules, captured ones last.
    pub(super) others: Vec<Runner<'a, S, B>>,
    /// Why schedules cannot be captured.
    pub(super) refused: Vec<Finding>,
}

/// The concurrent schedule, and the serial one on one lane's threads, which runs beside no other.
pub(super) struct Concurrent<'a, S, B> {
    pub(super) runner: Runner<'a, S, B>,
    pub(super) alone: Runner<'a, S, B>,
}

impl<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static> Runners<'a, S, B> {
    pub(super) fn new(
        program: &Arc<Program<'a, S, B>>,
        options: &CompareOptions,
        chosen: &Chosen,
        device: &Device,
    ) -> Result<Self> {
        let (streams, threads) = (options.streams, device.threads());
        let with = |name, how, threads| {
            let keys = (options.seed, chosen.batches_per_step);
            Runner::new(name, program, keys, how, device.sibling(threads)?)
        };
        let runner = |&(name, how): &(&'static str, How)| with(name, how, threads);
        let serial = with("serial", How::Lanes(1), threads)?;
        let concurrent = |first| -> Result<_> {
            let alone = with("alone", How::Lanes(1), (threads / streams).max(1))?;
            Ok(Concurrent { runner: runner(first)?, alone })
        };
        let mut runners = Runners {
            serial,
            concurrent: chosen.concurrent.first().map(concurrent).transpose()?,
            others: chosen.concurrent.iter().skip(1).map(runner).collect::<Result<_>>()?,
            refused: Vec::new(),
        };
        chosen.others.iter().try_for_each(|one| runners.add(runner(one)))?;
        Ok(runners)
    }

    /// Runs all steps of all copies; what other programs had of the machine meanwhile.
    pub(super) fn run(
        &mut self,
        options: &CompareOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<OtherPrograms>> {
        let mut total = options.warmup.saturating_add(options.steps).saturating_add(options.traced);
        let mut done = 0;
        progress(done, total);
        for steps in blocks(options.warmup) {
            self.each(|runner| runner.warm_up(steps))?;
            done += steps;
            progress(done, total);
        }
        let mut others = None;
        for round in 1..=MOST_ROUNDS {
            let begin = Ticks::now();
            self.all().for_each(Runner::begin);
            for steps in blocks(options.steps) {
                self.each(|runner| runner.measure(steps))?;
                done += steps;
                progress(done, total);
            }
            self.all().for_each(Runner::end);
            others = begin.zip(Ticks::now()).and_then(|(begin, end)| begin.others_until(end));
            if self.agree() || round == MOST_ROUNDS {
                break;
            }
            total = total.saturating_add(options.steps);
        }
        if let Some(concurrent) = &mut self.concurrent {
            concurrent.alone.warm_up(options.warmup.min(8))?;
        }
        for steps in blocks(options.traced) {
            if let Some(concurrent) = &mut self.concurrent {
                concurrent.alone.trace(steps)?;
            }
            self.each(|runner| runner.trace(steps))?;
            done += steps;
            progress(done, total);
        }
        Ok(others)
    }

    /// Has every copy but the one that runs alone do `work`. One that fails to be captured is removed.
    fn each(&mut self, mut work: impl FnMut(&mut Runner<'a, S, B>) -> Result<()>) -> Result<()> {
        work(&mut self.serial)?;
        self.concurrent.iter_mut().try_for_each(|concurrent| work(&mut concurrent.runner))?;
        for mut runner in std::mem::take(&mut self.others) {
            self.add(work(&mut runner).map(|()| runner))?;
        }
        Ok(())
    }

    /// Adds a copy, or why it cannot be captured.
    fn add(&mut self, made: Result<Runner<'a, S, B>>) -> Result<()> {
        let error: Error = match made {
            Ok(runner) => {
                self.others.push(runner);
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

    /// Every copy but the one that runs alone.
    fn all(&mut self) -> impl Iterator<Item = &mut Runner<'a, S, B>> {
        let concurrent = self.concurrent.iter_mut().map(|concurrent| &mut concurrent.runner);
        std::iter::once(&mut self.serial).chain(concurrent).chain(&mut self.others)
    }

    /// Whether the measured blocks say how the schedules compare.
    fn agree(&self) -> bool {
        let concurrent = self.concurrent.iter().map(|concurrent| &concurrent.runner);
        concurrent.chain(&self.others).all(|other| is_credible(speedups(&self.serial, other)))
    }
}

/// How often steps are measured until their blocks agree.
const MOST_ROUNDS: usize = 3;

/// Cuts `steps` into blocks, about twelve, none longer than 32.
pub(super) fn blocks(steps: usize) -> impl Iterator<Item = usize> {
    let size = (steps / 12).clamp(1, 32);
    (0..steps).step_by(size).map(move |start| size.min(steps - start))
}

/// Ratios of neighbouring blocks of which nine tenths are more than this many times a tenth say nothing.
const CREDIBLE: f64 = 1.5;

fn is_credible(ratios: Quantiles) -> bool {
    ratios.p90 <= CREDIBLE * ratios.p10
}

/// How much faster than the serial schedule another one is, by pairs of neighbouring blocks.
fn speedups<S, B>(serial: &Runner<'_, S, B>, other: &Runner<'_, S, B>) -> Quantiles {
    Quantiles::of(serial.block_medians().zip(other.block_medians()).map(|(serial, other)| serial / other))
}

/// What a captured schedule gains, what its edges allow, and what a replay costs beside its commands.
pub(super) fn finding(schedule: &ScheduleReport, on_host: bool) -> Option<Finding> {
    let CapturedReport { plan, captures, capture_ms } = schedule.captured?;
    let gain = schedule.gain?;
    let step_ms = schedule.step_ms.median;
    let saved_ms = gain.speedup.map_or(0.0, |speedup| step_ms * (speedup - 1.0));
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
        "{} against the serial schedule: {gain}. A replay is one command, one slice of the \
         trace, that runs {} commands with {} edges, {} on the longest way; these allow at most {:.2}x by running at once. \
         {beside}. {taken} took {capture_ms:.1} ms{paid}",
        schedule.name, plan.commands, plan.edges, plan.critical_path, plan.gain,
    );
    Some(Finding::new("captured", message))
}

/// Where schedules differ from the serial one.
#[derive(Default)]
pub(super) struct Differences {
    found: Vec<(&'static str, String)>,
}

impl Differences {
    pub(super) fn add(&mut self, what: &'static str, found: String) {
        self.found.push((what, found));
    }

    pub(super) fn is_equal(&self, what: &'static str) -> bool {
        self.found.iter().all(|(other, _)| *other != what)
    }

    /// Adds where a schedule differs. Returns whether losses, results and parameters are equal.
    pub(super) fn compare<'a, S, B>(
        &mut self,
        serial: &Runner<'a, S, B>,
        other: &Runner<'a, S, B>,
        program: &Program<'a, S, B>,
    ) -> Result<[bool; 3]> {
        let differences = [
            (LOSS, serial.first_difference_in_losses(other)),
            (RESULT, serial.first_difference_in_results(other)),
            (PARAMETER, serial.first_difference_in_state(other, program)?),
        ];
        let equal = differences.each_ref().map(|(_, difference)| difference.is_none());
        let found = differences.into_iter().filter_map(|(what, found)| Some((what, found?)));
        let found = found.map(|(what, found)| (what, format!("{}: {found}", other.name())));
        // Batches that two devices prepared differ by rounding.
        self.found.extend(found.filter(|_| !other.is_on_two_devices()));
        Ok(equal)
    }

    /// The report of a schedule beside the serial one.
    pub(super) fn report<'a, S, B>(
        &mut self,
        serial: &Runner<'a, S, B>,
        other: Runner<'a, S, B>,
        program: &Program<'a, S, B>,
    ) -> Result<ScheduleReport> {
        let equal = self.compare(serial, &other, program)?;
        let loss_difference = serial.largest_difference_in_losses(&other);
        let (speedup_spread, serial_ms) = (speedups(serial, &other), serial.median_ms());
        let report = other.report();
        let speedup = is_credible(speedup_spread).then(|| serial_ms / report.step_ms.median);
        let [identical_losses, identical_results, identical_parameters] = equal;
        let gain = Gain {
            speedup,
            speedup_spread,
            identical_losses,
            identical_results,
            identical_parameters,
            loss_difference,
        };
        Ok(ScheduleReport { gain: Some(gain), ..report })
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = Finding> {
        self.found.iter().map(|(what, found)| Finding::new("not-equal", format!("a {what} differs, {found}")))
    }
}

/// What may differ.
pub(super) const LOSS: &str = "loss";
pub(super) const RESULT: &str = "result";
pub(super) const PARAMETER: &str = "parameter";
pub(super) const ORDER: &str = "result of another order";
