//! One copy of the program, stepped, timed or traced.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use allocator::{DeviceMemory, MemoryStats};
use autograd::{Pipeline, PipelineOptions, PipelineSchedule};
use device::{DType, Device, Recording, Result, Stream, StreamId, SyncStats};
use parking_lot::Mutex;
use tensor::{Tensor, Tensors};

use crate::chosen::{Chosen, HOSTED, How};
use crate::program::{Outcome, Program, Source, next};
use crate::trainer::Trainer;
use crate::{ScheduleReport, StepProfile};
use ::profile::{Quantiles, median};

pub(super) struct Runner<'a, S, B> {
    name: &'static str,
    device: Device,
    trainer: Arc<Mutex<Trainer<'a, S, B>>>,
    /// What prepares batches ahead, and trains.
    stages: Option<Pipeline<'a, Vec<B>, Outcome>>,
    streams: Named,
    batches: Source<'a, B>,
    batches_per_step: usize,
    found: Found,
}

/// What a [`Runner`] has found so far.
#[derive(Default)]
struct Found {
    /// The loss of every batch.
    losses: Vec<f64>,
    /// A hash of what else each step gave.
    results: Vec<u64>,
    /// Whether there was anything else.
    has_results: bool,
    /// The losses before the measured steps, and in them.
    warm: usize,
    measured: usize,
    /// How many steps were measured.
    steps: usize,
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

/// What runs at once, with a name each.
type Named = Vec<(StreamId, String)>;

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

impl<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static> Runner<'a, S, B> {
    pub(super) fn new(
        name: &'static str,
        program: &Arc<Program<'a, S, B>>,
        (seed, batches_per_step): (u64, usize),
        how: How,
        device: Device,
    ) -> Result<Self> {
        let trainer = Trainer::new(program, seed, how, &device)?;
        let streams = match how {
            How::Branches => {
                let names = ["first branch", "second branch"].map(str::to_owned);
                device.default_stream().branches(2)?.iter().map(Stream::id).zip(names).collect()
            }
            _ => {
                let streams = trainer.lanes.streams().iter().enumerate();
                streams.map(|(lane, stream)| (stream.id(), format!("lane {lane}"))).collect()
            }
        };
        // A device that is the host prepares batches itself.
        let is_elsewhere = how == How::Hosted && !device.runs_on_host();
        let source = if is_elsewhere { Device::cpu() } else { device.clone() };
        let batches = (program.batches)(&source)?;
        let (trainer, found) = (Arc::new(Mutex::new(trainer)), Found::default());
        let mut runner =
            Runner { name, device, trainer, stages: None, streams, batches, batches_per_step, found };
        if matches!(how, How::Stages | How::CapturedStages) {
            runner.add_stages()?;
        }
        Ok(runner)
    }

    /// Prepares the batches of the first step, of which every later step finds its own prepared.
    fn add_stages(&mut self) -> Result<()> {
        let (mut prepared, trainer) = (0, Arc::clone(&self.trainer));
        let prepare = trainer.lock().prepare.clone();
        let options = PipelineOptions { schedule: PipelineSchedule::Stages, ..PipelineOptions::default() };
        let mut stages = Pipeline::with_options(&self.device, options)
            .stage("prepare", move |batches: Vec<B>| {
                let first = prepared;
                prepared += batches.len() as u64;
                prepare.all(first, batches)
            })
            .stage("train", move |batches| trainer.lock().step_prepared(&batches));
        let first = next(&mut self.batches, self.batches_per_step)?;
        self.trainer.lock().capture(&first)?;
        stages.fill(&mut std::iter::once(first))?;
        self.device.synchronize()?;
        let named = stages.report().stages.iter();
        self.streams = named.map(|stage| (stage.stream_id, stage.name.to_string())).collect();
        self.stages = Some(stages);
        Ok(())
    }

    fn launch(&mut self, batches: Vec<B>) -> Result<Outcome> {
        match &mut self.stages {
            Some(stages) => Ok(stages.progress(&mut std::iter::once(batches))?.unwrap_or_default()),
            None => self.trainer.lock().step(batches),
        }
    }

    /// One step, timed and counted from the first launch to the end of the last command. Batches are made before
    /// that and losses are read after it.
    fn step(&mut self, traced: bool) -> Result<Taken> {
        let batches = next(&mut self.batches, self.batches_per_step)?;
        if self.stages.is_none() {
            self.trainer.lock().capture(&batches)?;
            // What made and prepared the batches is not the step's.
            self.device.synchronize()?;
        }
        let before = self.device.sync_stats();
        if traced {
            self.device.start_recording();
        }
        let start = Instant::now();
        let done = self.launch(batches)?;
        let launched = start.elapsed();
        self.device.synchronize()?;
        let took = start.elapsed();
        if traced {
            self.found.recordings.push(self.device.stop_recording());
        }
        let counts = self.device.sync_stats() - before;
        self.found.add(done)?;
        Ok(Taken { step_ms: ms(took), launch_ms: ms(launched), counts })
    }

    pub(super) fn warm_up(&mut self, steps: usize) -> Result<()> {
        (0..steps).try_for_each(|_| self.step(false).map(drop))
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
        self.found.steps += steps;
        self.found.times_ms.push(times);
        Ok(())
    }

    /// Runs the settling steps untraced, then `steps` traced ones.
    pub(super) fn trace(&mut self, steps: usize) -> Result<()> {
        self.warm_up(SETTLE)?;
        (0..steps).try_for_each(|_| self.step(true).map(drop))
    }
}

impl<S, B> Runner<'_, S, B> {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The measured steps start here; those measured before count as warm-up.
    pub(super) fn begin(&mut self) {
        let found = &mut self.found;
        found.warm = found.losses.len();
        (found.steps, found.counts) = (0, SyncStats::default());
        found.times_ms.clear();
        found.launch_ms.clear();
        found.driver_allocations = self.device.memory_stats().driver_allocations;
    }

    /// The measured steps are over.
    pub(super) fn end(&mut self) {
        self.found.measured = self.found.losses.len() - self.found.warm;
        self.found.memory = self.device.memory_stats();
        self.found.driver_allocations = self.found.memory.driver_allocations - self.found.driver_allocations;
    }

    /// The median of all step times.
    pub(super) fn median_ms(&self) -> f64 {
        median(self.found.times_ms.iter().flatten().copied())
    }

    pub(super) fn block_medians(&self) -> impl Iterator<Item = f64> {
        self.found.times_ms.iter().map(|times| median(times.iter().copied()))
    }

    pub(super) fn first_difference_in_losses(&self, other: &Self) -> Option<String> {
        let (mine, others) = (&self.found.losses, &other.found.losses);
        let batches = self.batches_per_step;
        if mine.len() != others.len() {
            return Some(format!("{} against {} of them", mine.len(), others.len()));
        }
        let mut pairs = mine.iter().zip(others).enumerate();
        let (at, (a, b)) = pairs.find(|(_, (a, b))| a.to_bits() != b.to_bits())?;
        Some(format!("step {}, batch {}: {a:e} against {b:e}", at / batches, at % batches))
    }

    /// As a part of the loss here.
    pub(super) fn largest_difference_in_losses(&self, other: &Self) -> f64 {
        let pairs =
            self.found.losses.iter().zip(&other.found.losses).filter(|(a, b)| a.to_bits() != b.to_bits());
        pairs
            .map(|(a, b)| ((a - b) / a).abs())
            .fold(0.0, |most: f64, next| if most.is_nan() || next <= most { most } else { next })
    }

    pub(super) fn first_difference_in_results(&self, other: &Self) -> Option<String> {
        let mut pairs = self.found.results.iter().zip(&other.found.results);
        pairs.position(|(a, b)| a != b).map(|step| format!("step {step}"))
    }

    /// Of the state that the program shows.
    pub(super) fn first_difference_in_state(
        &self,
        other: &Self,
        program: &Program<'_, S, B>,
    ) -> Result<Option<String>> {
        let [mine, others] = [self, other].map(|runner| program.shown(&runner.trainer.lock().state));
        if mine.len() != others.len() {
            return Ok(Some(format!("{} against {} tensors", mine.len(), others.len())));
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

    /// Whether another device prepares its batches.
    pub(super) fn is_on_two_devices(&self) -> bool {
        self.name == HOSTED && !self.device.runs_on_host()
    }

    pub(super) fn has_losses(&self) -> bool {
        !self.found.losses.is_empty()
    }

    /// Whether steps gave more than losses.
    pub(super) fn has_results(&self) -> bool {
        self.found.has_results
    }

    /// What `f` makes of the state.
    pub(super) fn with_state<R>(&self, f: impl FnOnce(&S) -> R) -> R {
        f(&self.trainer.lock().state)
    }

    pub(super) fn profile(&self) -> StepProfile {
        let lanes: Vec<StreamId> = self.streams.iter().map(|&(stream, _)| stream).collect();
        StepProfile::of(&self.found.recordings, &lanes)
    }

    pub(super) fn report(self) -> ScheduleReport {
        let found = &self.found;
        let per_step = |count: u64| count as f64 / found.steps.max(1) as f64;
        ScheduleReport {
            name: self.name,
            gain: None,
            captured: self.trainer.lock().captured(),
            streams: self.streams.len(),
            step_ms: Quantiles::of(found.times_ms.iter().flatten().copied()),
            launch_ms: median(found.launch_ms.iter().copied()),
            profile: self.profile(),
            launches_per_step: per_step(found.counts.launches),
            waits_per_step: per_step(found.counts.waits_inserted),
            waits_elided_per_step: per_step(found.counts.waits_elided),
            events_per_step: per_step(found.counts.events_recorded),
            host_syncs_per_step: per_step(found.counts.host_syncs),
            peak_allocated_bytes: found.memory.peak_allocated_bytes,
            peak_reserved_bytes: found.memory.peak_reserved_bytes,
            driver_allocations: found.driver_allocations,
            losses: found.losses[found.warm..found.warm + found.measured]
                .chunks(self.batches_per_step)
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

impl Found {
    /// Reads what a step gave.
    fn add(&mut self, (losses, results): Outcome) -> Result<()> {
        for loss in losses {
            self.losses.push(loss.to_dtype(DType::F64)?.item::<f64>()?);
        }
        self.has_results |= !results.is_empty();
        let mut hash = DefaultHasher::new();
        for result in results {
            (result.shape(), result.to_bytes()?).hash(&mut hash);
        }
        self.results.push(hash.finish());
        Ok(())
    }
}

/// All that two steps of each concurrent schedule give, or of the serial one if there is none, and the state after them.
pub(super) fn two_steps<'a, S: Send + Sync + 'a, B: Tensors + Send + 'static>(
    program: &Arc<Program<'a, S, B>>,
    seed: u64,
    chosen: &Chosen,
    device: &Device,
) -> Result<Vec<Tensor>> {
    let mut given = Vec::new();
    for how in chosen.explored() {
        let keys = (seed, chosen.batches_per_step);
        let mut runner = Runner::new("explored", program, keys, how, device.clone())?;
        for _ in 0..2 {
            let batches = next(&mut runner.batches, runner.batches_per_step)?;
            let (losses, others) = runner.launch(batches)?;
            given.extend(losses.into_iter().chain(others));
        }
        let shown = runner.with_state(|state| program.shown(state));
        given.extend(shown.into_iter().map(|(_, tensor)| tensor));
    }
    Ok(given)
}
