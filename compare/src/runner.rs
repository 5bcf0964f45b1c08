//! One copy of the training, stepped, timed or traced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use allocator::{DeviceMemory, MemoryStats};
use autograd::{
    ConcurrentBatches, GraphOptions, Lanes, Order, Pipeline, PipelineOptions, PipelineSchedule, no_grad,
};
use device::{DType, Device, Error, Recording, Result, Stream, StreamId, SyncStats};
use parking_lot::Mutex;
use tensor::Tensor;

use crate::{
    CapturedReport, CompareOptions, Evaluation, Model, Overlap, ScheduleReport, StepProfile, Trainer,
    Workload,
};
use ::profile::{Quantiles, median};
use models::data::{LoaderSteps, Position};
use models::{Batch, DataLoader, InMemory, LoaderOptions, checkpoint};

/// How a copy is run.
#[derive(Clone, Copy)]
pub(super) enum How {
    /// Launched step by step, on so many streams; one is the serial schedule.
    Eager { streams: usize },
    /// The serial schedule, on batches that the host prepares before they are copied to the device.
    Hosted,
    /// The serial schedule, captured and replayed.
    Captured(Order),
    /// The next batch is prepared while what trains is replayed in the order of its data.
    CapturedStages,
}

impl How {
    fn streams(self) -> usize {
        match self {
            How::Eager { streams } => streams,
            How::Hosted | How::Captured(_) => 1,
            How::CapturedStages => 2,
        }
    }
}

pub(super) struct Runner {
    name: &'static str,
    device: Device,
    schedule: Schedule,
    streams: Named,
    model: Arc<dyn Model>,
    batches: LoaderSteps<InMemory>,
    found: Found,
}

/// What a [`Runner`] has found so far.
#[derive(Default)]
struct Found {
    /// The loss of every batch.
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
    /// Forward and backward pass of each on a lane; the only lane of the serial schedule is the default stream. Where steps are
    /// captured, batches are prepared and copied to where they read them.
    Trained(Box<Trainer>),
    /// The next step's only batch is prepared while this step's trains, as it is captured if it is.
    Stages(Box<Pipeline<'static, Batch, Tensor>>, Option<Arc<Mutex<Trainer>>>),
}

/// What runs at once, with a name each.
type Named = Vec<(StreamId, String)>;

impl Schedule {
    /// The schedule of a workload, the model for it, and its streams; those of stages are made for the first batch. One stream is
    /// the serial schedule.
    fn new(
        workload: &dyn Workload,
        options: &CompareOptions,
        how: How,
        device: &Device,
    ) -> Result<(Schedule, Arc<dyn Model>, Named)> {
        let seed = options.seed;
        let streams = how.streams();
        let overlap = if streams == 1 { Overlap::Batches } else { workload.overlap() };
        let model: Arc<dyn Model> = match overlap {
            Overlap::Branches => workload.branched(seed, device)?,
            Overlap::Batches | Overlap::Stages => workload.model(seed, device)?,
        }
        .into();
        let optimizer =
            workload.optimizer(model.parameters(), workload.overlap().batches(options.streams))?;
        let trainer = |lanes, optimizer, order: Option<Order>| -> Result<Trainer> {
            let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
            let captured = order.map(|order| GraphOptions { order, ..GraphOptions::default() });
            Ok(Trainer::new(lanes, optimizer, captured))
        };
        let (schedule, named) = match (overlap, how) {
            (Overlap::Batches, how) => {
                let order = if let How::Captured(order) = how { Some(order) } else { None };
                let trainer = trainer(streams, optimizer, order)?;
                let named = trainer.lanes.streams().iter().enumerate();
                let named = named.map(|(lane, stream)| (stream.id(), format!("lane {lane}"))).collect();
                (Schedule::Trained(Box::new(trainer)), named)
            }
            (Overlap::Branches, _) => {
                let branches = device.default_stream().branches(2)?;
                let named =
                    branches.iter().map(Stream::id).zip(["first branch", "second branch"].map(str::to_owned));
                (Schedule::Trained(Box::new(trainer(1, optimizer, None)?)), named.collect())
            }
            (Overlap::Stages, How::CapturedStages) => {
                let replays = Arc::new(Mutex::new(trainer(1, optimizer, Some(Order::Data))?));
                let replayed = Arc::clone(&replays);
                let stages = stages(&model, device, move |model, batch| {
                    Ok(replayed.lock().replay(model, &vec![batch])?.swap_remove(0))
                });
                (Schedule::Stages(stages, Some(replays)), Named::new())
            }
            (Overlap::Stages, _) => {
                let mut optimizer = optimizer;
                let stages = stages(&model, device, move |model, batch| {
                    let loss = model.batch_loss(&batch)?;
                    optimizer.step(&loss.backward()?)?;
                    Ok(loss.value().clone())
                });
                (Schedule::Stages(stages, None), Named::new())
            }
        };
        Ok((schedule, model, named))
    }

    /// Losses of a step's batches, and their gradients' sum, with one optimizer step; of the batches before if these are
    /// prepared ahead.
    fn step(&mut self, model: &dyn Model, batches: Vec<Batch>) -> Result<Vec<Tensor>> {
        match self {
            Schedule::Trained(trainer) => trainer.step(model, batches),
            Schedule::Stages(pipeline, _) => {
                Ok(pipeline.progress(&mut batches.into_iter())?.into_iter().collect())
            }
        }
    }
}

/// What comes before the part that learns, and that part.
fn stages(
    model: &Arc<dyn Model>,
    device: &Device,
    mut train: impl FnMut(&dyn Model, Batch) -> Result<Tensor> + Send + 'static,
) -> Box<Pipeline<'static, Batch, Tensor>> {
    let (first, model) = (Arc::clone(model), Arc::clone(model));
    let options = PipelineOptions { schedule: PipelineSchedule::Stages, ..PipelineOptions::default() };
    let pipeline = Pipeline::with_options(device, options)
        .stage("prepare", move |batch| no_grad(|| first.prepare(batch)))
        .stage("train", move |batch| train(&*model, batch));
    Box::new(pipeline)
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
            device: match how {
                // A device that is the host prepares batches itself.
                How::Hosted if device.runs_on_host() => device.clone(),
                How::Hosted => Device::cpu(),
                _ => workload.source(&device),
            },
            ..LoaderOptions::default()
        };
        let loader = DataLoader::new(train.clone(), loader)?;
        let mut batches = loader.steps(workload.overlap().batches(options.streams), Position::default())?;
        let (mut schedule, model, mut streams) = Schedule::new(workload, options, how, &device)?;
        if let Schedule::Stages(pipeline, replays) = &mut schedule {
            // Every step has batches ready, the first one too, and finds itself captured.
            let first = next(&mut batches)?;
            if let Some(replays) = replays {
                replays.lock().capture(&*model, &model.prepare_all(first.clone())?)?;
            }
            pipeline.fill(&mut first.into_iter())?;
            device.synchronize()?;
            let stages = pipeline.report().stages.iter();
            streams = stages.map(|stage| (stage.stream_id, stage.name.to_string())).collect();
        }
        Ok(Runner { name, schedule, streams, model, batches, device, found: Found::default() })
    }

    /// Captures a step on batches like these, if there is none.
    fn capture(&mut self, batches: &[Batch]) -> Result<()> {
        let Schedule::Trained(trainer) = &mut self.schedule else { return Ok(()) };
        if trainer.captured().is_none() {
            return Ok(());
        }
        trainer.capture(&*self.model, &self.model.prepare_all(batches.to_vec())?)?;
        // What prepared the batches is not the step's.
        self.device.synchronize()
    }

    fn captured(&self) -> Option<CapturedReport> {
        match &self.schedule {
            Schedule::Trained(trainer) => trainer.captured(),
            Schedule::Stages(_, replays) => replays.as_ref()?.lock().captured(),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// One step, timed and counted from the first launch to the end of the last command. Batches are made before
    /// that and losses are read after it.
    fn step(&mut self, traced: bool) -> Result<Taken> {
        let batches = next(&mut self.batches)?;
        self.capture(&batches)?;
        let before = self.device.sync_stats();
        if traced {
            self.device.start_recording();
        }
        let start = Instant::now();
        let losses = self.schedule.step(&*self.model, batches)?;
        let launched = start.elapsed();
        self.device.synchronize()?;
        let took = start.elapsed();
        if traced {
            self.found.recordings.push(self.device.stop_recording());
        }
        let counts = self.device.sync_stats() - before;
        for loss in losses {
            self.found.losses.push(loss.to_dtype(DType::F64)?.item::<f64>()?);
        }
        Ok(Taken { step_ms: ms(took), launch_ms: ms(launched), counts })
    }

    pub(super) fn warm_up(&mut self, steps: usize) -> Result<()> {
        (0..steps).try_for_each(|_| self.step(false).map(drop))
    }

    /// The measured steps start here.
    pub(super) fn begin(&mut self) {
        self.found.warm = self.found.losses.len();
        self.found.driver_allocations = self.device.memory_stats().driver_allocations;
    }

    /// The measured steps are over.
    pub(super) fn end(&mut self) {
        self.found.measured = self.found.losses.len() - self.found.warm;
        self.found.memory = self.device.memory_stats();
        self.found.driver_allocations = self.found.memory.driver_allocations - self.found.driver_allocations;
    }

    pub(super) fn measure(&mut self, steps: usize) -> Result<()> {
        let settle = if steps < SETTLED_BLOCK { 0 } else { SETTLE };
        let mut times = Vec::with_capacity(steps);
        for number in 0..steps {
            let Taken { step_ms, launch_ms, counts } = self.step(false)?;
            self.found.counts.add(counts);
            if number >= settle {
                times.push(step_ms);
                self.found.launch_ms.push(launch_ms);
            }
        }
        self.found.times_ms.push(times);
        Ok(())
    }

    /// Runs the settling steps untraced, then `steps` traced ones.
    pub(super) fn trace(&mut self, steps: usize) -> Result<()> {
        self.warm_up(SETTLE)?;
        (0..steps).try_for_each(|_| self.step(true).map(drop))
    }

    /// All step times.
    pub(super) fn times_ms(&self) -> impl Iterator<Item = f64> {
        self.found.times_ms.iter().flatten().copied()
    }

    pub(super) fn block_medians(&self) -> impl Iterator<Item = f64> {
        self.found.times_ms.iter().map(|times| median(times.iter().copied()))
    }

    pub(super) fn first_difference_in_losses(&self, other: &Runner) -> Option<String> {
        let lanes = self.batches.lanes();
        if self.found.losses.len() != other.found.losses.len() {
            return Some(format!("{} against {} of them", self.found.losses.len(), other.found.losses.len()));
        }
        let pairs = self.found.losses.iter().zip(&other.found.losses).enumerate();
        pairs
            .filter(|(_, (a, b))| a.to_bits() != b.to_bits())
            .map(|(at, (a, b))| format!("step {}, batch {}: {a:e} against {b:e}", at / lanes, at % lanes))
            .next()
    }

    /// As a part of the loss here.
    pub(super) fn largest_difference_in_losses(&self, other: &Runner) -> f64 {
        let pairs =
            self.found.losses.iter().zip(&other.found.losses).filter(|(a, b)| a.to_bits() != b.to_bits());
        pairs
            .map(|(a, b)| ((a - b) / a).abs())
            .fold(0.0, |most: f64, next| if most.is_nan() || next <= most { most } else { next })
    }

    /// Parameters and buffers.
    pub(super) fn first_difference_in_parameters(&self, other: &Runner) -> Result<Option<String>> {
        let [mine, others] = [self, other].map(|runner| checkpoint::state(&*runner.model));
        if mine.len() != others.len() {
            return Ok(Some(format!("{} against {} parameters", mine.len(), others.len())));
        }
        for ((name, a), (_, b)) in mine.iter().zip(&others) {
            let (each, elements) = (a.dtype().size_bytes(), a.elements());
            let (a, b) = (a.to_bytes()?, b.to_bytes()?);
            let pairs = a.chunks(each).zip(b.chunks(each));
            let differ = pairs.filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len()) / each;
            if differ > 0 {
                return Ok(Some(format!("{name}, in {differ} of {elements} elements")));
            }
        }
        Ok(None)
    }

    pub(super) fn evaluate(&self, test: &InMemory) -> Result<Evaluation> {
        self.model.evaluate(test, &self.device)
    }

    pub(super) fn profile(&self) -> StepProfile {
        let lanes: Vec<StreamId> = self.streams.iter().map(|&(stream, _)| stream).collect();
        StepProfile::of(&self.found.recordings, &lanes)
    }

    pub(super) fn report(self) -> ScheduleReport {
        let lanes = self.batches.lanes();
        let steps = (self.found.measured / lanes).max(1) as f64;
        let per_step = |count: u64| count as f64 / steps;
        ScheduleReport {
            name: self.name,
            gain: None,
            captured: self.captured(),
            streams: self.streams.len(),
            step_ms: Quantiles::of(self.times_ms()),
            launch_ms: median(self.found.launch_ms.iter().copied()),
            profile: self.profile(),
            launches_per_step: per_step(self.found.counts.launches),
            waits_per_step: per_step(self.found.counts.waits_inserted),
            waits_elided_per_step: per_step(self.found.counts.waits_elided),
            events_per_step: per_step(self.found.counts.events_recorded),
            host_syncs_per_step: per_step(self.found.counts.host_syncs),
            peak_allocated_bytes: self.found.memory.peak_allocated_bytes,
            peak_reserved_bytes: self.found.memory.peak_reserved_bytes,
            driver_allocations: self.found.driver_allocations,
            losses: self.found.losses[self.found.warm..self.found.warm + self.found.measured]
                .chunks(lanes)
                .map(|step| step.iter().sum::<f64>() / step.len() as f64)
                .collect(),
            streams_by_name: self.streams_by_name(),
            recordings: self.found.recordings,
        }
    }

    fn streams_by_name(&self) -> Vec<(StreamId, String)> {
        let default = self.device.default_stream().id();
        let named = self.streams.iter().filter(|&&(id, _)| id != default).cloned();
        std::iter::once((default, "default stream".to_owned())).chain(named).collect()
    }
}

/// The batches of the next step.
fn next(batches: &mut LoaderSteps<InMemory>) -> Result<Vec<Batch>> {
    batches.next().unwrap_or_else(|| Err(Error::invalid("compare", "data", "endless", "no batch")))
}
