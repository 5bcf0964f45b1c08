//! The same training on one stream and on several, side by side: times, equality, and why it is not faster.
//!
//! [`compare`] trains two copies of a [`Workload`] from the same first values over the same batches. The *serial* one
//! runs everything in order on the default stream and may use all threads for each kernel; the *concurrent* one runs at
//! once what the workload says ([`Overlap`]): the batches of a step on a lane each, two branches of one batch, or the
//! preparation of a batch beside the training on the one before. Both merge the gradients in batch order and take one
//! optimizer step, so losses and parameters must be equal bit for bit.
//!
//! Steps are timed untraced, in alternating blocks; a short traced phase afterwards says where the time goes. A third
//! copy, with one lane's threads and nobody beside it, says how long the commands take undisturbed.
//!
//! Where the host can do what comes before the part that learns ([`Workload::prepares_on_host`]), one more copy has it do that, and
//! then copies the batch to the device and trains as the serial one does. The time of its steps has both in it; the batches of
//! the other schedules are on the device before a step begins.
//!
//! If asked, two more copies replay the serial schedule's step, captured once in the order of its stream and once in that of
//! its data ([`Order`]), in the same blocks. What a step replays reads its batches from tensors that are filled before, within
//! the time of the step. A replay is one command of a recording. Where batches are prepared ahead, a third copy prepares the next one
//! beside the replay in the order of the data.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod bound;
mod captured;
mod explore;
mod hosted;
mod machine;
mod profile;
mod runner;
mod scale;
mod step;
#[cfg(test)]
mod tests;
mod workload;

use device::{Device, Error, Order, Recording, Result, StreamId};

pub use ::profile::{Finding, Quantiles};
use ::profile::{Profile, Schedules, diagnose_schedules};
pub use captured::CapturedReport;
pub use explore::{Explore, ExploreReport, explore, explore_all};
pub use hosted::HostedReport;
pub use profile::{LaneProfile, OpProfile, StepProfile};
pub use scale::Scale;
pub use step::{CapturedStep, Training};
pub use workload::{Evaluation, Model, Overlap, Workload};

use captured::{Captured, Differences};
use machine::Ticks;
use runner::{How, Runner};

/// What a comparison runs on, and for how long.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// The device. On a CPU each schedule gets a device of its own of the same make, so that their statistics do not
    /// mix.
    pub device: Device,
    /// Streams of the concurrent schedule; for [`Overlap::Batches`] also the batches of a step in both, else 1 or 2.
    pub streams: usize,
    /// Rows of one batch.
    pub batch: usize,
    /// Steps that are measured.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// The seed of parameters, split and shuffles.
    pub seed: u64,
    /// Steps that are traced afterwards.
    pub traced: usize,
    /// Whether the serial schedule's step is captured and compared, too.
    pub graph: bool,
}

/// Less than this part of a serial step is no room for lanes to use.
const NO_ROOM: f64 = 0.05;

/// More lanes than this would be threads that only wait.
const MAX_STREAMS: usize = 256;

impl CompareOptions {
    /// The workload's own batch and lanes, and enough steps for it to learn.
    pub fn new(workload: &dyn Workload, device: &Device) -> CompareOptions {
        CompareOptions {
            device: device.clone(),
            streams: workload.default_streams(),
            batch: workload.compared_batch(),
            steps: 1000,
            warmup: 200,
            seed: 7,
            traced: 32,
            graph: false,
        }
    }

    /// Whether a comparison can begin; [`compare`] asks, too.
    ///
    /// # Errors
    /// `InvalidArgument` for no streams, batch, steps or traced steps, and for more streams than 256, or than 2 where a
    /// workload has two parts.
    pub fn check(&self, workload: &dyn Workload) -> Result<()> {
        let counts = [
            ("streams", self.streams),
            ("batch", self.batch),
            ("steps", self.steps),
            ("traced", self.traced),
        ];
        let invalid =
            |argument, expected, value: usize| Err(Error::invalid("compare", argument, expected, value));
        for (argument, count) in counts {
            if count == 0 {
                return invalid(argument, "at least 1", 0);
            }
        }
        if self.streams > MAX_STREAMS {
            return invalid("streams", "at most 256", self.streams);
        }
        if workload.overlap() != Overlap::Batches && self.streams > 2 {
            return invalid("streams", "at most 2 for a workload of two parts", self.streams);
        }
        Ok(())
    }

    /// Whether the workload's data have a batch's rows, before a long run of other options.
    ///
    /// # Errors
    /// `InvalidArgument` if they do not, and what making the data fails with.
    pub fn check_rows(&self, workload: &dyn Workload) -> Result<()> {
        let (train, _) = workload.data_for(self.batch, self.seed, &self.device)?;
        if self.batch > train.len() {
            let value = format_args!("{} for {} rows", self.batch, train.len());
            return Err(Error::invalid("compare", "batch", "at most the number of rows to train on", value));
        }
        Ok(())
    }
}

/// What [`compare`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Comparison {
    /// The workload's name.
    pub workload: &'static str,
    /// The device's name.
    pub device: String,
    /// Threads that the device has for kernels.
    pub threads: usize,
    /// What was asked for.
    pub options: CompareOptions,
    /// The scale of its images, if they have more than one.
    pub scale: Option<Scale>,
    /// Batches of a step.
    pub batches_per_step: usize,
    /// The serial schedule.
    pub serial: ScheduleReport,
    /// The concurrent schedule.
    pub concurrent: ScheduleReport,
    /// The schedule whose batches the host prepares, for a workload that has one.
    pub hosted: Option<ScheduleReport>,
    /// The captured schedules, in the order of the stream, in that of the data, and in that with the next batch prepared beside it,
    /// for a workload of stages on two streams; those that cannot be captured are named by the diagnosis instead.
    pub captured: Vec<ScheduleReport>,
    /// Median serial step over median concurrent step.
    pub speedup: f64,
    /// The same of each pair of neighbouring blocks.
    pub speedup_spread: Quantiles,
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
    /// Whether every loss of every batch has the same bits in all schedules; in those whose batches another device prepares, they
    /// have their [own](HostedReport::loss_difference).
    pub identical_losses: bool,
    /// Whether every parameter has the same bits at the end of these schedules.
    pub identical_parameters: bool,
    /// The share of held-out rows that the concurrent model classifies correctly.
    pub accuracy: f64,
    /// The mean loss over the held-out rows.
    pub held_out_loss: f64,
    /// What limits the speed-up, by measured numbers.
    pub diagnosis: Vec<Finding>,
}

impl Comparison {
    /// Every schedule, the serial one first.
    pub fn schedules(&self) -> impl Iterator<Item = &ScheduleReport> {
        [&self.serial, &self.concurrent].into_iter().chain(&self.hosted).chain(&self.captured)
    }

    /// The part of the room above the [work](Self::work_ms) of the serial commands that a captured schedule uses. Fused commands have
    /// less work, so that it may be more than all.
    pub fn captured_efficiency(&self, schedule: &ScheduleReport) -> Option<f64> {
        schedule.captured?;
        efficiency(self.serial.step_ms.median, schedule.step_ms.median, self.work_ms?)
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
    /// `serial`, `concurrent`, `host-prepared`, or how it was captured.
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
    /// If steps are replays: of what, and how they compare.
    pub captured: Option<CapturedReport>,
    /// If the host prepares the batches: how that compares.
    pub hosted: Option<HostedReport>,
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

/// Runs `workload` on one stream and on several.
///
/// `progress` is told now and then how many of how many steps are done.
///
/// ```
/// use compare::{CompareOptions, compare};
/// # fn main() -> device::Result<()> {
/// let workload = workloads::find("two-batch")?;
/// let options = CompareOptions::new(workload, &device::Device::cpu());
/// let found = compare(workload, &CompareOptions { steps: 4, warmup: 2, traced: 2, ..options }, |_, _| ())?;
/// assert!(found.identical_losses && found.identical_parameters);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` for no streams, batch or steps, for a batch larger than the data, and for more than 256
/// streams; what the workload's ops answer.
pub fn compare(
    workload: &dyn Workload,
    options: &CompareOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<Comparison> {
    options.check(workload)?;
    let (train, test) = workload.data_for(options.batch, options.seed, &options.device)?;
    let threads = options.device.threads();
    let runner = |name, how, threads| {
        Runner::new(name, workload, &train, options, how, options.device.sibling(threads)?)
    };
    let mut serial = runner("serial", How::Eager { streams: 1 }, threads)?;
    let mut concurrent = runner("concurrent", How::Eager { streams: options.streams }, threads)?;
    let mut alone = runner("alone", How::Eager { streams: 1 }, (threads / options.streams).max(1))?;
    let hosted = || runner("host-prepared", How::Hosted, threads);
    let mut hosted = workload.prepares_on_host().then(hosted).transpose()?;
    let mut captured = Captured::default();
    let has_stages = workload.overlap() == Overlap::Stages && options.streams > 1;
    let stages = has_stages.then_some(("captured, stages", How::CapturedStages));
    for (name, how) in CAPTURED.into_iter().chain(stages).filter(|_| options.graph) {
        captured.add(runner(name, how, threads))?;
    }

    let total = options.warmup.saturating_add(options.steps).saturating_add(options.traced);
    let mut done = 0;
    progress(done, total);
    for steps in blocks(options.warmup) {
        serial.warm_up(steps)?;
        concurrent.warm_up(steps)?;
        hosted.iter_mut().try_for_each(|runner| runner.warm_up(steps))?;
        captured.each(|runner| runner.warm_up(steps))?;
        done += steps;
        progress(done, total);
    }
    let begin = Ticks::now();
    serial.begin();
    concurrent.begin();
    hosted.iter_mut().for_each(Runner::begin);
    captured.runners.iter_mut().for_each(Runner::begin);
    for steps in blocks(options.steps) {
        serial.measure(steps)?;
        concurrent.measure(steps)?;
        hosted.iter_mut().try_for_each(|runner| runner.measure(steps))?;
        captured.each(|runner| runner.measure(steps))?;
        done += steps;
        progress(done, total);
    }
    serial.end();
    concurrent.end();
    hosted.iter_mut().for_each(Runner::end);
    captured.runners.iter_mut().for_each(Runner::end);
    let others = begin.zip(Ticks::now()).and_then(|(begin, end)| begin.others_until(end));
    alone.warm_up(options.warmup.min(8))?;
    for steps in blocks(options.traced) {
        alone.trace(steps)?;
        serial.trace(steps)?;
        concurrent.trace(steps)?;
        hosted.iter_mut().try_for_each(|runner| runner.trace(steps))?;
        captured.each(|runner| runner.trace(steps))?;
        done += steps;
        progress(done, total);
    }

    let on_host = options.device.runs_on_host();
    let mut differences = Differences::default();
    differences.add(&serial, &concurrent)?;
    let hosted =
        hosted.map(|runner| hosted::report(&serial, runner, on_host, &mut differences)).transpose()?;
    let (captured, captured_findings) = captured.report(&serial, on_host, &mut differences)?;
    let held_out = concurrent.evaluate(&test)?;
    let speedup_spread = speedups(&serial, &concurrent);
    let alone = alone.profile();
    let (serial, concurrent) = (serial.report(), concurrent.report());
    let (serial_ms, concurrent_ms) = (serial.step_ms.median, concurrent.step_ms.median);
    let host_threads = on_host.then_some(threads);
    let (bound_ms, work_ms) = bound::bounds(&serial, &concurrent, &alone, host_threads);
    let schedules = Schedules {
        streams: concurrent.streams,
        are_independent: workload.overlap() != Overlap::Stages,
        threads: host_threads,
        steps: serial.losses.len(),
        serial_ms: serial.step_ms,
        concurrent_ms,
        launch_ms: concurrent.launch_ms,
        others,
        // Both traced.
        split_gain: alone.wall_ms / serial.profile.wall_ms,
        overlap: concurrent.profile.overlap,
        chain_ms: concurrent.profile.critical_path_ms,
        bound_ms,
        inflation: bound::inflation(&concurrent.profile, &alone),
        host_syncs: serial.host_syncs_per_step.max(concurrent.host_syncs_per_step),
        driver_allocations: serial.driver_allocations.max(concurrent.driver_allocations),
        peak_reserved_bytes: serial.peak_reserved_bytes.max(concurrent.peak_reserved_bytes),
    };
    let mut diagnosis = differences.findings();
    diagnosis.extend(diagnose_schedules(&concurrent.recorded(), &schedules));
    // The default stream has its part of the step before the branches and behind them.
    diagnosis.retain(|finding| workload.overlap() != Overlap::Branches || finding.code != "default-stream");
    diagnosis.extend(captured_findings);
    Ok(Comparison {
        workload: workload.name(),
        device: options.device.name(),
        threads,
        options: options.clone(),
        scale: workload.scale(&options.device),
        batches_per_step: workload.overlap().batches(options.streams),
        speedup: serial_ms / concurrent_ms,
        speedup_spread,
        bound_ms,
        work_ms,
        efficiency: efficiency(serial_ms, concurrent_ms, bound_ms),
        inflation: schedules.inflation,
        alone_ms: alone.wall_ms,
        identical_losses: differences.losses.is_empty(),
        identical_parameters: differences.parameters.is_empty(),
        accuracy: held_out.accuracy,
        held_out_loss: held_out.loss,
        diagnosis,
        serial,
        concurrent,
        hosted,
        captured,
    })
}

/// How the step of the serial schedule is captured.
const CAPTURED: [(&str, How); 2] = [
    ("captured, serial order", How::Captured(Order::Streams)),
    ("captured, data order", How::Captured(Order::Data)),
];

/// How much faster than the serial schedule another one is, by pairs of neighbouring blocks.
fn speedups(serial: &Runner, other: &Runner) -> Quantiles {
    Quantiles::of(serial.block_medians().zip(other.block_medians()).map(|(serial, other)| serial / other))
}

/// The part of the room below the serial step that the concurrent one uses.
fn efficiency(serial_ms: f64, concurrent_ms: f64, bound_ms: f64) -> Option<f64> {
    let room = serial_ms - bound_ms;
    (room > NO_ROOM * serial_ms).then(|| ((serial_ms - concurrent_ms) / room).max(0.0))
}

/// Cuts `steps` into blocks, about twelve, none longer than 32.
fn blocks(steps: usize) -> impl Iterator<Item = usize> {
    let size = (steps / 12).clamp(1, 32);
    (0..steps).step_by(size).map(move |start| size.min(steps - start))
}
