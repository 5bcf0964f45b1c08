//! Stages of a step, each of which works on another batch.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use device::StreamId;
use tensor::{Device, Error, Result, Stream};

use super::deferred::is_in_batch;
use super::lines::{Item, Run, Stage, StageThreads, all, each, even};
use super::measured::Trial;
use super::progress::Progress;

/// Batches that are timed together.
const BLOCK: usize = 4;
/// The most batches that may wait between two streams.
pub(super) const MOST_DEPTH: usize = 1024;

/// Work on batches in stages, of which each has its stream: while one trains on a batch, the one before it prepares the next.
///
/// Values are handed over without a word about waits, which follow from what each command reads and writes. Every batch goes
/// through the stages in order, and every stage sees the batches in order. So a run gives, bit for bit, what it gives with
/// all stages on one stream, if what a stage changes (parameters, statistics, counters) is used by that stage alone: a
/// forward pass belongs into the stage of its backward pass and optimizer. What stages share otherwise is used in an order
/// that the schedule decides. Random ops draw from a generator of the batch and the stage, and
/// stages are under the [`no_grad`](crate::no_grad) and the [`autocast`](crate::autocast) that the run is under. A run within a batch of
/// [`ConcurrentBatches`](crate::ConcurrentBatches), which takes what is put off with [`defer`](crate::defer), has all stages on one stream.
/// [`progress`](Self::progress) goes through the same batches step by step.
///
/// The first batches of the first run that is not profiled are used to measure: how long each stage takes, and whether several streams are faster
/// than one. Neighbours share a stream where that is as fast, and all of them do where the gain is less than the noise;
/// [`report`](Self::report) says so.
///
/// ```
/// use autograd::{Device, Pipeline, Tensor};
/// # fn main() -> autograd::Result<()> {
/// let dev = Device::cpu();
/// let mut total = Tensor::zeros(&[], tensor::DType::F32, &dev)?;
/// let mut pipeline = Pipeline::new(&dev)
///     .stage("load", |n: usize| Tensor::from_slice(&[n as f32, 1.0], &[2], &dev))
///     .stage("scale", |x| x.mul_scalar(2.0))
///     .stage("train", |x| {
///         total = total.add(&x.sum(&[], false)?)?;
///         total.item::<f32>()
///     });
/// assert_eq!(pipeline.run(0..3)?, [2.0, 6.0, 12.0]);
/// # Ok(())
/// # }
/// ```
pub struct Pipeline<'a, In, Out> {
    device: Device,
    options: PipelineOptions,
    stages: Vec<Stage<'a>>,
    report: PipelineReport,
    /// Which stages share the several streams, and the times of a batch, to which several short runs add.
    trial: Option<(Vec<Range<usize>>, Trial)>,
    /// What runs the stages, once that is decided.
    lines: Option<StageThreads>,
    /// What goes on step by step.
    progress: Option<Progress>,
    ends: PhantomData<fn(In) -> Out>,
}

/// Options of a [`Pipeline`].
#[derive(Clone, Copy, Debug)]
pub struct PipelineOptions {
    /// Batches that may wait between two streams.
    pub depth: usize,
    /// Which stages share a stream.
    pub schedule: PipelineSchedule,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        PipelineOptions { depth: 1, schedule: PipelineSchedule::Measured }
    }
}

/// Which stages of a [`Pipeline`] share a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineSchedule {
    /// What is measured to be the fastest.
    #[default]
    Measured,
    /// All of them: one batch after the other.
    Serial,
    /// None.
    Stages,
}

/// How a [`Pipeline`] runs, and what was measured.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PipelineReport {
    /// The stages in order.
    pub stages: Vec<StageReport>,
    /// Streams that they are on.
    pub streams: usize,
    /// Milliseconds of a batch with all stages on one stream, if that was measured.
    pub serial_ms: Option<f64>,
    /// Milliseconds of a batch with the stages on several streams, if that was measured.
    pub concurrent_ms: Option<f64>,
}

/// A stage in a [`PipelineReport`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StageReport {
    /// Its name.
    pub name: Box<str>,
    /// Which of the streams it is on.
    pub stream: usize,
    /// That stream, as a recording names it.
    pub stream_id: StreamId,
    /// Milliseconds of a batch by itself, if that was measured.
    pub alone_ms: Option<f64>,
}

impl fmt::Display for PipelineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stage in &self.stages {
            write!(f, "{} on stream {}", stage.name, stage.stream)?;
            if let Some(ms) = stage.alone_ms {
                write!(f, ", {ms:.3} ms")?;
            }
            f.write_str("; ")?;
        }
        match (self.serial_ms, self.concurrent_ms) {
            (Some(serial), Some(concurrent)) => {
                write!(f, "a batch takes {serial:.3} ms on one stream, {concurrent:.3} ms on several: ")?;
                f.write_str(if self.streams > 1 { "several are used" } else { "one is used" })
            }
            _ if self.streams > 1 => f.write_str("several streams"),
            _ => f.write_str("one stream"),
        }
    }
}

impl<In: Send + 'static> Pipeline<'_, In, In> {
    /// A pipeline without stages, which gives what it gets.
    pub fn new(device: &Device) -> Self {
        Pipeline::with_options(device, PipelineOptions::default())
    }

    /// [`new`](Self::new) with options.
    pub fn with_options(device: &Device, options: PipelineOptions) -> Self {
        Pipeline::of(device.clone(), options, Vec::new())
    }
}

#[derive::located]
impl<'a, In: Send + 'static, Out: Send + 'static> Pipeline<'a, In, Out> {
    fn of(device: Device, options: PipelineOptions, stages: Vec<Stage<'a>>) -> Self {
        Pipeline {
            device,
            options,
            stages,
            report: PipelineReport::default(),
            trial: None,
            lines: None,
            progress: None,
            ends: PhantomData,
        }
    }

    /// Adds a stage, which is called with what the one before it gives, and with each batch in turn.
    pub fn stage<Next: Send + 'static>(
        mut self,
        name: &str,
        mut body: impl FnMut(Out) -> Result<Next> + Send + 'a,
    ) -> Pipeline<'a, In, Next> {
        let erased = move |item: Item| -> Result<Item> { Ok(Box::new(body(unboxed(item)?)?)) };
        let device = self.device.clone();
        self.stages.push(Stage { name: name.into(), body: Box::new(erased), device });
        Pipeline::of(self.device, self.options, self.stages)
    }

    /// Takes batches through all stages, and gives what the last one makes of each.
    ///
    /// Stages on streams of their own run on threads of their own; the last one runs on the calling thread. The host is a few
    /// batches ahead of the device at most.
    ///
    /// # Errors
    /// `Stage` with what the first batch to fail, in order, was refused by: the batches before it were run to their
    /// end, later ones may have been through some stages. Panics are caught. `InvalidArgument` for a depth of 0 or more than 1024,
    /// and while batches of [`progress`](Self::progress) are under way; `Deadlock` from within a stage; `Io` if the system gives no thread.
    pub fn run<I>(&mut self, batches: I) -> Result<Vec<Out>>
    where
        I: IntoIterator<Item = In>,
        I::IntoIter: Send,
    {
        let depth = self.options.depth;
        Error::require((1..=MOST_DEPTH).contains(&depth), "Pipeline::run", "depth", "1 to 1024", depth)?;
        let under_way = self.progress.as_ref().map_or(0, Progress::under_way);
        let expected = "none, as when `progress` has given the last one";
        Error::require(under_way == 0, "Pipeline::run", "batches under way", expected, under_way)?;
        let mut batches = boxed(batches.into_iter());
        let mut run = Run::new(&mut batches);
        let in_batch = is_in_batch();
        let lines = match self.lines.take_if(|_| !in_batch) {
            Some(lines) => lines,
            None if in_batch => StageThreads::new(&self.device, all(self.stages.len()), depth)?,
            None => self.decide(&mut run)?,
        };
        self.report_on(&lines.groups, &lines.streams);
        let done = run.go_on(&mut self.stages, &lines, usize::MAX);
        // Too few batches to measure decide nothing.
        if !in_batch && (self.options.schedule != PipelineSchedule::Measured || run.is_decided) {
            self.lines = Some(lines);
        }
        done?;
        run.outputs.into_iter().map(unboxed).collect()
    }

    /// One step: every stage works on the batch that is next for it, the first stage on the next of `batches`. Gives what the last
    /// stage makes of the oldest batch; `None` once no batch is left, neither in `batches` nor under way.
    ///
    /// The calling thread launches all stages, each on its stream, and waits for nothing, so a step can be timed, traced and
    /// synchronised by itself. What the last stage launches runs where a lane's commands do, and what the others launch beside it.
    /// One batch between two streams stays under way from step to step. A first step, and one after `None`, takes as many batches as
    /// it needs for one to reach the last stage; where `batches` has no more, those under way go on. Stages whose own work on the
    /// host takes long are for [`run`](Self::run), which gives them threads, or for a [`Prefetch`](crate::Prefetch).
    ///
    /// The steps until `None` give, bit for bit, what a [`run`](Self::run) on the same batches gives; random ops draw from the
    /// generator that is current in the first one. Stages are under the modes of the step that launches them, and what they put off
    /// with [`defer`](crate::defer) is the calling thread's. Nothing is measured: stages share streams as a run has decided, or as
    /// was asked for; where neither says so, each has a stream.
    ///
    /// ```
    /// use autograd::{Device, Pipeline, Tensor};
    /// # fn main() -> autograd::Result<()> {
    /// let dev = Device::cpu();
    /// let mut pipeline = Pipeline::new(&dev)
    ///     .stage("load", |n: usize| Tensor::from_slice(&[n as f32, 1.0], &[2], &dev))
    ///     .stage("train", |x| x.mul_scalar(2.0)?.sum(&[], false));
    /// let (mut batches, mut sums) = (0..3, Vec::new());
    /// // While a step trains on one batch, it loads the next one.
    /// while let Some(sum) = pipeline.progress(&mut batches)? {
    ///     sums.push(sum.item::<f32>()?);
    /// }
    /// assert_eq!(sums, [2.0, 4.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Stage` for a batch that a stage failed on, when its turn comes: after the outputs of all batches before it. That batch
    /// is gone; those behind it stay under way, and the next step goes on with them. Panics of stages and of `batches` are caught.
    /// `Io` if the system gives no thread, before a batch is taken.
    pub fn progress<I>(&mut self, batches: &mut I) -> Result<Option<Out>>
    where
        I: Iterator<Item = In> + ?Sized,
    {
        let (progress, stages) = self.begin()?;
        progress.step(stages, &mut boxed(batches)).map(|done| done.and_then(unboxed)).transpose()
    }

    /// Takes as many batches as [`progress`](Self::progress) keeps under way, so that the first step is like those behind it.
    ///
    /// ```
    /// use autograd::{Device, Pipeline};
    /// # fn main() -> autograd::Result<()> {
    /// let mut pipeline = Pipeline::new(&Device::cpu()).stage("load", |n: usize| Ok(n + 1)).stage("train", |n| Ok(10 * n));
    /// let mut batches = 0..3;
    /// pipeline.fill(&mut batches)?;
    /// assert_eq!(batches, 1..3);
    /// assert_eq!(pipeline.progress(&mut batches)?, Some(10));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Io` if the system gives no thread, before a batch is taken. What a batch is refused by, its step gives.
    pub fn fill<I>(&mut self, batches: &mut I) -> Result<()>
    where
        I: Iterator<Item = In> + ?Sized,
    {
        let (progress, stages) = self.begin()?;
        progress.fill(stages, &mut boxed(batches));
        Ok(())
    }

    /// What steps go on with.
    fn begin(&mut self) -> Result<(&mut Progress, &mut [Stage<'a>])> {
        let progress = match self.progress.take() {
            Some(progress) if !progress.is_over() => progress,
            known => {
                let groups = match (&self.lines, self.options.schedule) {
                    (Some(lines), _) => lines.groups.clone(),
                    (None, PipelineSchedule::Serial) => all(self.stages.len()),
                    (None, _) => each(self.stages.len()),
                };
                let progress = match known.filter(|known| known.groups == groups) {
                    Some(known) => known,
                    None => Progress::new(&self.device, groups)?,
                };
                self.report_on(&progress.groups, &progress.streams);
                progress
            }
        };
        Ok((self.progress.insert(progress), &mut self.stages))
    }

    /// How the stages run, and what was measured to decide that; empty before the first batch.
    pub fn report(&self) -> &PipelineReport {
        &self.report
    }

    fn report_on(&mut self, groups: &[Range<usize>], streams: &[Stream]) {
        self.report.streams = groups.len();
        let known = std::mem::take(&mut self.report.stages);
        let on = groups.iter().enumerate().flat_map(|(stream, group)| group.clone().map(move |_| stream));
        let stages = self.stages.iter().zip(on).enumerate().map(|(at, (stage, stream))| StageReport {
            name: stage.name.clone(),
            stream,
            stream_id: streams[stream].id(),
            alone_ms: known.get(at).and_then(|stage| stage.alone_ms),
        });
        self.report.stages = stages.collect();
    }

    /// Which stages share a stream.
    fn decide(&mut self, run: &mut Run<'_>) -> Result<StageThreads> {
        let (count, depth) = (self.stages.len(), self.options.depth);
        let serial = StageThreads::new(&self.device, all(count), depth)?;
        match self.options.schedule {
            // The recorder takes time, too, and its reader would be told of the waits: it is for a later run to measure.
            PipelineSchedule::Measured if count > 1 && !self.device.is_recording() => {
                self.measure(run, serial)
            }
            PipelineSchedule::Stages | PipelineSchedule::Measured if count > 1 => {
                StageThreads::new(&self.device, each(count), depth)
            }
            _ => {
                run.is_decided = true;
                Ok(serial)
            }
        }
    }

    /// Measures on the first batches.
    fn measure(&mut self, run: &mut Run<'_>, serial: StageThreads) -> Result<StageThreads> {
        run.go_on(&mut self.stages, &serial, 1)?;
        let alone = run.time_stages(&mut self.stages, &serial)?;
        self.report_on(&serial.groups, &serial.streams);
        self.report.stages.iter_mut().zip(&alone).for_each(|(stage, ms)| stage.alone_ms = Some(*ms));
        // Also where a CPU has fewer threads for kernels: what a stage takes may be the host's own, or waiting.
        let groups = even(&alone);
        run.is_decided = !run.is_over;
        if run.is_over || groups.len() == 1 {
            return Ok(serial);
        }
        let trial =
            self.trial.take_if(|(known, _)| *known == groups).map_or(Trial::new(1, 0, 3), |(_, trial)| trial);
        let (_, trial) = self.trial.insert((groups.clone(), trial));
        let several = StageThreads::new(&self.device, groups, self.options.depth)?;
        let fill = several.groups.len();
        // What a stream does first takes longer.
        run.go_on(&mut self.stages, &several, fill + 1)?;
        while trial.pays.is_none() {
            let one = run.timed(&mut self.stages, &serial, BLOCK)?;
            // Without the time in which the first batch comes through.
            let short = run.timed(&mut self.stages, &several, fill)?;
            let long = run.timed(&mut self.stages, &several, fill + BLOCK)?;
            if run.is_over {
                run.is_decided = false;
                return Ok(serial);
            }
            trial.add(false, one / BLOCK as f64);
            trial.add(true, (long - short) / BLOCK as f64);
        }
        [self.report.serial_ms, self.report.concurrent_ms] = trial.medians();
        Ok(if trial.several() { several } else { serial })
    }
}

/// Batches as stages take them, asked for no more once there are none.
fn boxed<T: Send + 'static>(batches: impl Iterator<Item = T>) -> impl Iterator<Item = Item> {
    batches.fuse().map(|batch| -> Item { Box::new(batch) })
}

/// What the stage before, or the last one, gave, as the types of both say.
fn unboxed<T: 'static>(item: Item) -> Result<T> {
    let another = |_| Error::invalid("Pipeline::run", "item", std::any::type_name::<T>(), "another");
    item.downcast::<T>().map(|item| *item).map_err(another)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
