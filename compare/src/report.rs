//! The figures of a comparison.

use std::fmt;

use ::profile::{Finding, Profile, Quantiles};
use device::{PlanReport, Recording, StreamId};

use crate::{CompareOptions, ExploreReport, StepProfile};

/// What a [`Comparison`](crate::Comparison) found. [`Display`](fmt::Display) gives its figures and the diagnosis as text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComparisonReport {
    /// What was compared.
    pub name: String,
    /// One line on it.
    pub about: String,
    /// The device's name.
    pub device: String,
    /// Threads that the device has for kernels.
    pub threads: usize,
    /// What was asked for.
    pub options: CompareOptions,
    /// Batches of a step.
    pub batches_per_step: usize,
    /// The serial schedule.
    pub serial: ScheduleReport,
    /// The concurrent schedule, if the step has one.
    pub concurrent: Option<ScheduleReport>,
    /// Further schedules: lanes beside stages, batches that the host prepares, and the captured ones: in the order of the stream, in
    /// that of the data, and in that with the next batches prepared beside it. Those that cannot be captured are named by the
    /// diagnosis instead.
    pub others: Vec<ScheduleReport>,
    /// What the concurrent schedule could reach.
    pub limits: Option<Limits>,
    /// Whether every loss of every batch has the same bits in all schedules, `None` if steps have no losses. In schedules whose
    /// batches another device prepares, losses have their [own](Gain::loss_difference).
    pub identical_losses: Option<bool>,
    /// Whether what else the steps gave has the same bits in these schedules, if they gave anything.
    pub identical_results: Option<bool>,
    /// Whether every tensor of the state has the same bits at their end, if the state is shown.
    pub identical_parameters: Option<bool>,
    /// Whether all has the same bits in other orders of the commands, if these were tried out.
    pub identical_orders: Option<bool>,
    /// How many orders, if the bits are the same in all.
    pub explored: Option<ExploreReport>,
    /// Numbers of the state at the end of the concurrent schedule, or of the serial one, by name.
    pub metrics: Vec<(String, f64)>,
    /// What limits the speed-up, by measured numbers.
    pub diagnosis: Vec<Finding>,
}

/// What a concurrent schedule could reach.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The best that a concurrent step could take: the longest chain of commands or, if that is longer, all commands spread over the
    /// threads or over a GPU's multiprocessors and copy engines, each command as long as it takes undisturbed and nothing between them. How much of the
    /// multiprocessors libraries' kernels take is not known: their commands count for the chain alone.
    pub bound_ms: f64,
    /// How long the serial step's commands, timed one by one, would keep the whole device busy: [`bound_ms`](Self::bound_ms) without
    /// the chain. An estimate, as the times of short commands have the host's in them, and as kernels that need different parts of a
    /// multiprocessor may share it. `None` where it is not known: on a CPU with more threads than streams, and where a library's
    /// kernels are not told.
    pub work_ms: Option<f64>,
    /// `(serial - concurrent) / (serial - bound)`, if the bound leaves room; 0 if the concurrent schedule is the slower one.
    pub efficiency: Option<f64>,
    /// How much longer a command takes beside the other lanes than alone.
    pub inflation: f64,
    /// A step's time on one lane's threads with the batches one after the other.
    pub alone_ms: f64,
}

impl ComparisonReport {
    /// Every schedule, the serial one first.
    pub fn schedules(&self) -> impl Iterator<Item = &ScheduleReport> {
        std::iter::once(&self.serial).chain(&self.concurrent).chain(&self.others)
    }

    /// The captured schedules.
    pub fn captured(&self) -> impl Iterator<Item = &ScheduleReport> {
        self.others.iter().filter(|schedule| schedule.captured.is_some())
    }

    /// Whether all that must be equal is, bit for bit.
    pub fn is_identical(&self) -> bool {
        let all =
            [self.identical_losses, self.identical_results, self.identical_parameters, self.identical_orders];
        all.into_iter().flatten().all(|is_equal| is_equal)
    }

    /// How the concurrent schedule compares with the serial one.
    pub fn gain(&self) -> Option<Gain> {
        self.concurrent.as_ref()?.gain
    }

    /// The part of the room above the [work](Limits::work_ms) of the serial commands that a captured schedule uses. Fused commands have
    /// less work, so that it may be more than all.
    pub fn captured_efficiency(&self, schedule: &ScheduleReport) -> Option<f64> {
        schedule.captured?;
        schedule.gain?.speedup?;
        efficiency(self.serial.step_ms.median, schedule.step_ms.median, self.limits?.work_ms?)
    }

    /// Whether other programs kept the machine so busy that the times say little: they had processors that the device's
    /// threads have work for, where the system says so, or a tenth of the serial steps, which all do the same, took much
    /// longer than the median.
    pub fn is_disturbed(&self) -> bool {
        self.diagnosis.iter().any(|finding| finding.code == "busy")
    }
}

/// One schedule's figures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScheduleReport {
    /// `serial`, `lanes`, `stages`, `branches`, `host-prepared`, or how it was captured.
    pub name: &'static str,
    /// Lanes.
    pub streams: usize,
    /// Wall time of a step, to the end of its last command.
    pub step_ms: Quantiles,
    /// Median wall time of a step until the host has launched its last command. A device that runs commands on the host's
    /// threads has run most of them by then.
    pub launch_ms: f64,
    /// What the traced steps show.
    pub profile: StepProfile,
    /// Commands launched in a step.
    pub launches_per_step: f64,
    /// Waits of one stream for another in a step.
    pub waits_per_step: f64,
    /// Needs across streams that took no wait, in a step.
    pub waits_elided_per_step: f64,
    /// Events recorded in a step.
    pub events_per_step: f64,
    /// Times that the host waited for the device in a step; one is the measurement's own.
    pub host_syncs_per_step: f64,
    /// The most that was ever allocated.
    pub peak_allocated_bytes: usize,
    /// The most that was ever reserved.
    pub peak_reserved_bytes: usize,
    /// Allocations by the driver after the warm-up.
    pub driver_allocations: u64,
    /// The mean loss over the batches of each measured step.
    pub losses: Vec<f64>,
    /// Its streams, with a name each; the default stream is the first.
    pub streams_by_name: Vec<(StreamId, String)>,
    /// The traced steps.
    pub recordings: Vec<Recording>,
    /// How it compares with the serial schedule, unless it is that.
    pub gain: Option<Gain>,
    /// If steps are replays: of what.
    pub captured: Option<CapturedReport>,
}

impl ScheduleReport {
    /// Steps in a second, by the median.
    pub fn steps_per_s(&self) -> f64 {
        if self.step_ms.median > 0.0 { 1e3 / self.step_ms.median } else { 0.0 }
    }

    /// The traced steps, with the streams' names.
    pub fn recorded(&self) -> Profile {
        self.named(self.recordings.iter().cloned())
    }

    /// Some of the traced steps, with the streams' names.
    pub fn named(&self, recordings: impl IntoIterator<Item = Recording>) -> Profile {
        let mut profile = Profile::of(recordings);
        for (stream, name) in &self.streams_by_name {
            profile.name_stream(*stream, name);
        }
        profile
    }
}

/// How a schedule compares with the serial one.
#[derive(Clone, Copy, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Gain {
    /// Median serial step over median step; `None` if the pairs of blocks disagree, as on a busy machine: nine tenths of their ratios
    /// are up to more than half as much again as the least tenth.
    pub speedup: Option<f64>,
    /// The same of each pair of neighbouring blocks.
    pub speedup_spread: Quantiles,
    /// Whether every loss of every batch has the same bits as in the serial schedule.
    pub identical_losses: bool,
    /// Whether what else the steps gave has.
    pub identical_results: bool,
    /// Whether every parameter has the same bits at the end as in the serial schedule.
    pub identical_parameters: bool,
    /// The most that a batch's loss differs from that in the serial schedule, as a part of it: where another device prepares the
    /// batches, what the two round differently, and what training makes of that.
    pub loss_difference: f64,
}

impl Gain {
    /// Whether all bits are those of the serial schedule.
    pub fn is_identical(&self) -> bool {
        self.identical_losses && self.identical_results && self.identical_parameters
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantiles { p10, p90, .. } = self.speedup_spread;
        match self.speedup {
            Some(speedup) => write!(f, "{speedup:.2}x (blocks of steps: {p10:.2} to {p90:.2})"),
            None => write!(f, "not known: blocks of steps disagree ({p10:.2}x to {p90:.2}x)"),
        }
    }
}

/// What a schedule replays.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CapturedReport {
    /// What the plan of a step is like; of the last form of batches, where there were several.
    pub plan: PlanReport,
    /// How often a step was captured: once for each form of batches, not in the measured time.
    pub captures: usize,
    /// How long that took in all.
    pub capture_ms: f64,
}

/// Less than this part of a serial step is no room for lanes to use.
const NO_ROOM: f64 = 0.05;

/// The part of the room below the serial step that the concurrent one uses.
pub(super) fn efficiency(serial_ms: f64, concurrent_ms: f64, bound_ms: f64) -> Option<f64> {
    let room = serial_ms - bound_ms;
    (room > NO_ROOM * serial_ms).then(|| ((serial_ms - concurrent_ms) / room).max(0.0))
}
