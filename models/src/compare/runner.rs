//! One copy of the training, stepped, timed or traced.

use std::time::{Duration, Instant};

use allocator::DeviceMemory;
use autograd::{ConcurrentBatches, Step};
use device::{DType, Device, Error, Recording, Result, StreamId, SyncStats};
use tensor::Tensor;

use super::profile::Profile;
use super::quantiles::{Quantiles, median};
use super::{CompareOptions, ScheduleReport};
use crate::workloads::Evaluation;
use crate::{Batches, InMemory, Module, Optimizer, StepBatches, Workload};

pub(super) struct Runner<'a> {
    workload: &'a dyn Workload,
    device: Device,
    lanes: ConcurrentBatches,
    model: Box<dyn Module>,
    optimizer: Box<dyn Optimizer>,
    batches: StepBatches,
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
    recordings: Vec<Recording>,
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

impl<'a> Runner<'a> {
    pub(super) fn new(
        workload: &'a dyn Workload,
        train: &InMemory,
        options: &CompareOptions,
        lanes: usize,
        device: Device,
    ) -> Result<Runner<'a>> {
        let batches = Batches::new(train.clone(), options.batch, options.seed, &device)?.drop_last(true);
        let model = workload.model(options.seed, &device)?;
        Ok(Runner {
            workload,
            lanes: ConcurrentBatches::new(&device, lanes)?,
            optimizer: workload.optimizer(model.parameters(), options.streams)?,
            model,
            batches: StepBatches::new(batches, options.streams, 0)?,
            device,
            losses: Vec::new(),
            warm: 0,
            measured: 0,
            times_ms: Vec::new(),
            launch_ms: Vec::new(),
            counts: SyncStats::default(),
            driver_allocations: 0,
            recordings: Vec::new(),
        })
    }

    /// One step, timed and counted from the first launch to the end of the last command. Batches are made before
    /// that and losses are read after it.
    fn step(&mut self, traced: bool) -> Result<Taken> {
        let Some(batches) = self.batches.next() else { return Err(no_batches()) };
        let batches = batches?;
        let before = self.device.sync_stats();
        if traced {
            self.device.start_recording();
        }
        let (workload, model) = (self.workload, &*self.model);
        let start = Instant::now();
        let Step { losses, gradients, .. } =
            self.lanes.step(batches, |batch| workload.loss(model, &batch))?;
        self.optimizer.step(&gradients)?;
        drop(gradients);
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
        self.driver_allocations = self.device.memory_stats().driver_allocations - self.driver_allocations;
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

    pub(super) fn block_medians(&self) -> impl Iterator<Item = f64> {
        self.times_ms.iter().map(|times| median(times.iter().copied()))
    }

    pub(super) fn first_difference_in_losses(&self, other: &Runner<'_>) -> Option<String> {
        let lanes = self.batches.lanes();
        if self.losses.len() != other.losses.len() {
            return Some(format!("{} against {} of them", self.losses.len(), other.losses.len()));
        }
        let pairs = self.losses.iter().zip(&other.losses).enumerate();
        pairs
            .filter(|(_, (a, b))| a.to_bits() != b.to_bits())
            .map(|(at, (a, b))| {
                format!("step {}, batch {}: serial {a:e}, concurrent {b:e}", at / lanes, at % lanes)
            })
            .next()
    }

    /// Parameters and buffers.
    pub(super) fn first_difference_in_parameters(&self, other: &Runner<'_>) -> Result<Option<String>> {
        let state = |runner: &Runner<'_>| -> Vec<(String, Tensor)> {
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
        self.workload.evaluate(&*self.model, test, &self.device)
    }

    pub(super) fn profile(&self) -> Profile {
        let lanes: Vec<StreamId> = self.lanes.streams().iter().map(device::Stream::id).collect();
        Profile::of(&self.recordings, &lanes)
    }

    pub(super) fn report(self, name: &'static str) -> ScheduleReport {
        let lanes = self.batches.lanes();
        let steps = (self.measured / lanes).max(1) as f64;
        let per_step = |count: u64| count as f64 / steps;
        let memory = self.device.memory_stats();
        ScheduleReport {
            name,
            streams: self.lanes.streams().len(),
            step_ms: Quantiles::of(self.times_ms.iter().flatten().copied()),
            launch_ms: median(self.launch_ms.iter().copied()),
            profile: self.profile(),
            launches_per_step: per_step(self.counts.launches),
            waits_per_step: per_step(self.counts.waits_inserted),
            waits_elided_per_step: per_step(self.counts.waits_elided),
            events_per_step: per_step(self.counts.events_recorded),
            host_syncs_per_step: per_step(self.counts.host_syncs),
            peak_allocated_bytes: memory.peak_allocated_bytes,
            peak_reserved_bytes: memory.peak_reserved_bytes,
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
        let lanes = self.lanes.streams().iter().map(device::Stream::id).filter(|&id| id != default);
        let named = lanes.enumerate().map(|(lane, id)| (id, format!("lane {lane}")));
        std::iter::once((default, "default stream".to_owned())).chain(named).collect()
    }
}

fn no_batches() -> Error {
    Error::InvalidArgument { op: "compare", argument: "data", expected: "endless", value: "no batch".into() }
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
