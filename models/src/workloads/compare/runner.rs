//! One copy of the training, stepped, timed or traced.

use std::time::{Duration, Instant};

use allocator::{DeviceMemory, MemoryStats};
use autograd::{ConcurrentBatches, Gradients, GraphOptions, Lanes, Order, Step, no_grad};
use device::{
    DType, Device, Error, Placement, Recording, Result, Stream, StreamId, StreamOptions, SyncStats,
};
use tensor::{PlanReport, Tensor, Tensors};

use super::hosted::host_of;
use super::profile::Profile;
use super::quantiles::{Quantiles, median};
use super::{CompareOptions, ScheduleReport};
use crate::data::{LoaderSteps, Position};
use crate::workloads::{CapturedStep, Evaluation, Model, Overlap, Training, Workload};
use crate::{Batch, DataLoader, InMemory, LoaderOptions, Optimizer};

/// How a copy is run.
#[derive(Clone, Copy)]
pub(super) enum How {
    /// Launched step by step, on so many streams; one is the serial schedule.
    Eager { streams: usize },
    /// The serial schedule, on batches that the host prepares before they are copied to the device.
    Hosted,
    /// The serial schedule, captured and replayed.
    Captured(Order),
}

pub(super) struct Runner {
    name: &'static str,
    device: Device,
    schedule: Schedule,
    /// What runs at once, with a name each.
    streams: Vec<(Stream, String)>,
    model: Box<dyn Model>,
    optimizer: Box<dyn Optimizer>,
    batches: LoaderSteps<InMemory>,
    /// The loss of every batch so far.
    losses: Vec<f64>,
    /// Batches before the measured steps, and in them.
    warm: usize,
    measured: usize,
    /// Step times of each block.
    times_ms: Vec<Vec<f64>>,
    /// How long the host took to launch each measured step.
    launch_ms: Vec<f64>,
    /// What the measured steps added up to.
    counts: SyncStats,
    driver_allocations: u64,
    /// At the end of the measured steps: an evaluation may take more.
    memory: MemoryStats,
    recordings: Vec<Recording>,
}

/// How a step's batches run.
enum Schedule {
    /// Forward and backward pass of each on a lane; the only lane of the serial schedule is the default stream.
    Lanes(ConcurrentBatches),
    /// The next step's batches are prepared while this step's train.
    Stages(Box<Stages>),
    /// Batches are prepared and copied to where a captured step reads them.
    Captured(Box<Replays>),
}

struct Replays {
    lanes: ConcurrentBatches,
    step: CapturedStep,
    /// What was captured last, how often, and how long that took in all.
    plan: PlanReport,
    captures: usize,
    capture_ms: f64,
}

impl Replays {
    fn new(lanes: ConcurrentBatches, device: &Device, order: Order) -> Replays {
        let step = CapturedStep::new(device, GraphOptions { order, ..GraphOptions::default() });
        Replays { lanes, step, plan: PlanReport::default(), captures: 0, capture_ms: 0.0 }
    }
}

struct Stages {
    prepare: Stream,
    train: Stream,
    ahead: Option<Vec<Batch>>,
}

/// A stream that has a share of the device's threads.
fn stream(device: &Device, streams: usize, placement: Placement) -> Result<Stream> {
    let threads = Some((device.threads() / streams).max(1));
    device.new_stream_with(StreamOptions { placement, threads, ..StreamOptions::default() })
}

impl Schedule {
    /// The schedule of a workload on so many streams, the model for it, and its streams. One stream is the serial schedule.
    #[expect(clippy::type_complexity, reason = "the parts of a runner")]
    fn new(
        workload: &dyn Workload,
        seed: u64,
        streams: usize,
        device: &Device,
    ) -> Result<(Schedule, Box<dyn Model>, Vec<(Stream, String)>)> {
        let overlap = if streams == 1 { Overlap::Batches } else { workload.overlap() };
        let share = |placement| stream(device, streams, placement);
        match overlap {
            Overlap::Batches => {
                let lanes = ConcurrentBatches::with_options(device, streams, Lanes::Always)?;
                let named = lanes.streams().iter().enumerate();
                let named = named.map(|(lane, stream)| (stream.clone(), format!("lane {lane}"))).collect();
                Ok((Schedule::Lanes(lanes), workload.model(seed, device)?, named))
            }
            Overlap::Branches => {
                let branches = device.default_stream().branches(2)?;
                let named = branches.into_iter().zip(["first branch", "second branch"].map(str::to_owned));
                let model = workload.branched(seed, device)?;
                Ok((Schedule::Lanes(ConcurrentBatches::new(device, 1)?), model, named.collect()))
            }
            Overlap::Stages => {
                // The host drives the part that trains, and a worker the one that prepares.
                let (prepare, train) = (share(Placement::Worker)?, share(Placement::Caller)?);
                [&prepare, &train].into_iter().try_for_each(tensor::preload)?;
                let named =
                    vec![(prepare.clone(), "prepare".to_owned()), (train.clone(), "train".to_owned())];
                let stages = Stages { prepare, train, ahead: None };
                Ok((Schedule::Stages(Box::new(stages)), workload.model(seed, device)?, named))
            }
        }
    }

    /// Losses of a step's batches, and their gradients' sum, with one optimizer step; of the batches before if these are
    /// prepared ahead.
    fn step(
        &mut self,
        model: &dyn Model,
        optimizer: &mut dyn Optimizer,
        batches: Vec<Batch>,
        device: &Device,
    ) -> Result<Vec<Tensor>> {
        let prepare = |batch| no_grad(|| model.prepare(batch));
        match self {
            Schedule::Lanes(lanes) => {
                let Step { losses, gradients, .. } =
                    lanes.step(batches, |batch| model.batch_loss(&uploaded(prepare(batch)?, device)?))?;
                optimizer.step(&gradients)?;
                Ok(losses)
            }
            Schedule::Captured(replays) => {
                let training = Training { lanes: &replays.lanes, model, optimizer };
                replays.step.step(training, batches)
            }
            Schedule::Stages(stages) => {
                let ahead = |batches: Vec<Batch>| -> Result<Vec<Batch>> {
                    stages.prepare.scope(|| batches.into_iter().map(prepare).collect())
                };
                let next = ahead(batches)?;
                let Some(now) = stages.ahead.replace(next) else { return Ok(Vec::new()) };
                stages.train.scope(|| {
                    let (mut losses, mut gradients) = (Vec::new(), None::<Gradients>);
                    for batch in &now {
                        let loss = model.batch_loss(batch)?;
                        losses.push(loss.value().clone());
                        match &mut gradients {
                            Some(sum) => sum.merge(loss.backward()?)?,
                            None => gradients = Some(loss.backward()?),
                        }
                    }
                    optimizer.step(&gradients.unwrap_or_default())?;
                    Ok(losses)
                })
            }
        }
    }
}

/// A batch on the device, where it is already unless the host has prepared it.
fn uploaded(batch: Batch, device: &Device) -> Result<Batch> {
    batch.rebuild(&mut |tensor| tensor.to_device(device))
}

/// What a step took.
struct Taken {
    step_ms: f64,
    /// Until the host had launched everything.
    launch_ms: f64,
    counts: SyncStats,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The first steps of a block of this many are not timed: the threads of the schedule before may still be looking for
/// work, and caches hold its data.
const SETTLED_BLOCK: usize = 8;
const SETTLE: usize = 2;

impl Runner {
    pub(super) fn new(
        name: &'static str,
        workload: &dyn Workload,
        train: &InMemory,
        options: &CompareOptions,
        how: How,
        device: Device,
    ) -> Result<Runner> {
        let loader = LoaderOptions {
            batch: options.batch,
            seed: options.seed,
            drop_last: true,
            device: if let How::Hosted = how { host_of(&device) } else { workload.source(&device) },
            ..LoaderOptions::default()
        };
        let loader = DataLoader::new(train.clone(), loader)?;
        let streams = if let How::Eager { streams } = how { streams } else { 1 };
        let (schedule, model, streams) = Schedule::new(workload, options.seed, streams, &device)?;
        let per_step = workload.overlap().batches(options.streams);
        let mut runner = Runner {
            name,
            optimizer: workload.optimizer(model.parameters(), per_step)?,
            schedule,
            streams,
            model,
            batches: loader.steps(per_step, Position::default())?,
            device,
            losses: Vec::new(),
            warm: 0,
            measured: 0,
            times_ms: Vec::new(),
            launch_ms: Vec::new(),
            counts: SyncStats::default(),
            driver_allocations: 0,
            memory: MemoryStats::default(),
            recordings: Vec::new(),
        };
        if matches!(runner.schedule, Schedule::Stages(_)) {
            // Every step has batches ready, the first one too.
            runner.step(false)?;
        }
        if let How::Captured(order) = how {
            runner.schedule = match runner.schedule {
                Schedule::Lanes(lanes) => {
                    Schedule::Captured(Box::new(Replays::new(lanes, &runner.device, order)))
                }
                schedule => schedule,
            };
        }
        Ok(runner)
    }

    /// Captures a step on batches like these, if there is none.
    fn capture(&mut self, batches: &[Batch]) -> Result<()> {
        let Schedule::Captured(replays) = &mut self.schedule else { return Ok(()) };
        let Replays { lanes, step, plan, captures, capture_ms } = &mut **replays;
        let start = Instant::now();
        let training = Training { lanes, model: &*self.model, optimizer: &mut *self.optimizer };
        let (report, fresh) = step.capture(training, batches.to_vec())?;
        // What prepared the batches is not the step's.
        self.device.synchronize()?;
        if fresh {
            *plan = report;
            *captures += 1;
            *capture_ms += ms(start.elapsed());
        }
        Ok(())
    }

    /// What is captured, how often, and how long that took.
    pub(super) fn plan(&self) -> Option<(PlanReport, usize, f64)> {
        match &self.schedule {
            Schedule::Captured(replays) => Some((replays.plan, replays.captures, replays.capture_ms)),
            Schedule::Lanes(_) | Schedule::Stages(_) => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// One step, timed and counted from the first launch to the end of the last command. Batches are made before
    /// that and losses are read after it.
    fn step(&mut self, traced: bool) -> Result<Taken> {
        let Some(batches) = self.batches.next() else { return Err(no_batches()) };
        let batches = batches?;
        self.capture(&batches)?;
        let before = self.device.sync_stats();
        if traced {
            self.device.start_recording();
        }
        let start = Instant::now();
        let losses = self.schedule.step(&*self.model, &mut *self.optimizer, batches, &self.device)?;
        let launched = start.elapsed();
        self.device.synchronize()?;
        let took = start.elapsed();
        if traced {
            self.recordings.push(self.device.stop_recording());
        }
        let counts = self.device.sync_stats() - before;
        for loss in losses {
            self.losses.push(scalar(&loss)?);
        }
        Ok(Taken { step_ms: ms(took), launch_ms: ms(launched), counts })
    }

    pub(super) fn warm_up(&mut self, steps: usize) -> Result<()> {
        for _ in 0..steps {
            self.step(false)?;
        }
        Ok(())
    }

    /// The measured steps start here.
    pub(super) fn begin(&mut self) {
        self.warm = self.losses.len();
        self.driver_allocations = self.device.memory_stats().driver_allocations;
    }

    /// The measured steps are over.
    pub(super) fn end(&mut self) {
        self.measured = self.losses.len() - self.warm;
        self.memory = self.device.memory_stats();
        self.driver_allocations = self.memory.driver_allocations - self.driver_allocations;
    }

    pub(super) fn measure(&mut self, steps: usize) -> Result<()> {
        let settle = if steps < SETTLED_BLOCK { 0 } else { SETTLE };
        let mut times = Vec::with_capacity(steps);
        for number in 0..steps {
            let Taken { step_ms, launch_ms, counts } = self.step(false)?;
            self.count(counts);
            if number >= settle {
                times.push(step_ms);
                self.launch_ms.push(launch_ms);
            }
        }
        self.times_ms.push(times);
        Ok(())
    }

    fn count(&mut self, step: SyncStats) {
        self.counts.launches += step.launches;
        self.counts.events_recorded += step.events_recorded;
        self.counts.waits_inserted += step.waits_inserted;
        self.counts.waits_elided += step.waits_elided;
        self.counts.host_syncs += step.host_syncs;
    }

    /// Runs the settling steps untraced, then `steps` traced ones.
    pub(super) fn trace(&mut self, steps: usize) -> Result<()> {
        for _ in 0..SETTLE {
            self.step(false)?;
        }
        for _ in 0..steps {
            self.step(true)?;
        }
        Ok(())
    }

    /// All step times.
    pub(super) fn times_ms(&self) -> impl Iterator<Item = f64> {
        self.times_ms.iter().flatten().copied()
    }

    pub(super) fn block_medians(&self) -> impl Iterator<Item = f64> {
        self.times_ms.iter().map(|times| median(times.iter().copied()))
    }

    pub(super) fn first_difference_in_losses(&self, other: &Runner) -> Option<String> {
        let lanes = self.batches.lanes();
        if self.losses.len() != other.losses.len() {
            return Some(format!("{} against {} of them", self.losses.len(), other.losses.len()));
        }
        let pairs = self.losses.iter().zip(&other.losses).enumerate();
        pairs
            .filter(|(_, (a, b))| a.to_bits() != b.to_bits())
            .map(|(at, (a, b))| format!("step {}, batch {}: {a:e} against {b:e}", at / lanes, at % lanes))
            .next()
    }

    /// As a part of the loss here.
    pub(super) fn largest_difference_in_losses(&self, other: &Runner) -> f64 {
        let pairs = self.losses.iter().zip(&other.losses).filter(|(a, b)| a.to_bits() != b.to_bits());
        pairs
            .map(|(a, b)| ((a - b) / a).abs())
            .fold(0.0, |most: f64, next| if most.is_nan() || next <= most { most } else { next })
    }

    /// Parameters and buffers.
    pub(super) fn first_difference_in_parameters(&self, other: &Runner) -> Result<Option<String>> {
        let state = |runner: &Runner| -> Vec<(String, Tensor)> {
            let named = runner.model.named_parameters().into_iter();
            let parameters = named.map(|(name, parameter)| (name, parameter.value().clone()));
            parameters.chain(runner.model.named_buffers()).collect()
        };
        let (mine, others) = (state(self), state(other));
        if mine.len() != others.len() {
            return Ok(Some(format!("{} against {} parameters", mine.len(), others.len())));
        }
        for ((name, a), (_, b)) in mine.iter().zip(&others) {
            let (a, b) = (bits(a)?, bits(b)?);
            let differ = a.iter().zip(&b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len());
            if differ > 0 {
                return Ok(Some(format!("{name}, in {differ} of {} elements", a.len())));
            }
        }
        Ok(None)
    }

    pub(super) fn evaluate(&self, test: &InMemory) -> Result<Evaluation> {
        self.model.evaluate(test, &self.device)
    }

    pub(super) fn profile(&self) -> Profile {
        let lanes: Vec<StreamId> = self.streams.iter().map(|(stream, _)| stream.id()).collect();
        Profile::of(&self.recordings, &lanes)
    }

    pub(super) fn report(self) -> ScheduleReport {
        let lanes = self.batches.lanes();
        let steps = (self.measured / lanes).max(1) as f64;
        let per_step = |count: u64| count as f64 / steps;
        ScheduleReport {
            name: self.name,
            captured: None,
            hosted: None,
            streams: self.streams.len(),
            step_ms: Quantiles::of(self.times_ms()),
            launch_ms: median(self.launch_ms.iter().copied()),
            profile: self.profile(),
            launches_per_step: per_step(self.counts.launches),
            waits_per_step: per_step(self.counts.waits_inserted),
            waits_elided_per_step: per_step(self.counts.waits_elided),
            events_per_step: per_step(self.counts.events_recorded),
            host_syncs_per_step: per_step(self.counts.host_syncs),
            peak_allocated_bytes: self.memory.peak_allocated_bytes,
            peak_reserved_bytes: self.memory.peak_reserved_bytes,
            driver_allocations: self.driver_allocations,
            losses: self.losses[self.warm..self.warm + self.measured]
                .chunks(lanes)
                .map(|step| step.iter().sum::<f64>() / step.len() as f64)
                .collect(),
            streams_by_name: self.streams_by_name(),
            recordings: self.recordings,
        }
    }

    fn streams_by_name(&self) -> Vec<(StreamId, String)> {
        let default = self.device.default_stream().id();
        let named = self.streams.iter().map(|(stream, name)| (stream.id(), name.clone()));
        let named = named.filter(|&(id, _)| id != default);
        std::iter::once((default, "default stream".to_owned())).chain(named).collect()
    }
}

fn no_batches() -> Error {
    Error::invalid("compare", "data", "endless", "no batch")
}

/// A loss, read by the host; a conversion to F64 keeps its value.
fn scalar(loss: &Tensor) -> Result<f64> {
    if loss.dtype() == DType::F32 {
        return Ok(f64::from(loss.item::<f32>()?));
    }
    loss.to_dtype(DType::F64)?.item::<f64>()
}

/// The bits of every element, in row-major order.
fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    let tensor = tensor.contiguous()?;
    if tensor.dtype() == DType::F32 {
        return Ok(tensor.to_vec::<f32>()?.into_iter().map(|value| u64::from(value.to_bits())).collect());
    }
    Ok(tensor.to_dtype(DType::F64)?.to_vec::<f64>()?.into_iter().map(f64::to_bits).collect())
}
