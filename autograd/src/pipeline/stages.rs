//! Stages of a step, each of which works on another batch.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use tensor::{Device, Error, Generator, Result, next_key};

use super::deferred::is_in_batch;
use super::lines::{Item, Lines, Run, Stage, all, even};
use super::measured::{median, pays};

/// Batches of which the time is taken at once, and how often that is done.
const BLOCK: usize = 4;
const ROUNDS: usize = 3;
/// The most batches that may wait between two streams.
pub(super) const MOST_DEPTH: usize = 1024;

/// Work on batches in stages, of which each has its stream: while one trains on a batch, the one before it prepares the next.
///
/// Values are handed over without a word about waits, which follow from what each command reads and writes. Every batch goes
/// through the stages in order, and every stage sees the batches in order. So a run gives, bit for bit, what it gives with
/// all stages on one stream, if what a stage changes (parameters, statistics, counters) is used by that stage alone: a
/// forward pass belongs into the stage of its backward pass and optimizer. What stages share otherwise is used in an order
/// that the schedule decides. Random ops draw from a generator of the batch and the stage, and
/// stages are under the [`no_grad`](crate::no_grad) and the [`autocast`](crate::autocast) that the run is under. Within a batch of
/// [`ConcurrentBatches`](crate::ConcurrentBatches), which takes what is put off with [`defer`](crate::defer), all stages are on one stream.
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
    rounds: Rounds,
    /// What runs the stages, once that is decided.
    lines: Option<Lines>,
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

/// The milliseconds of a batch on one stream and on several, which short runs measure together.
#[derive(Default)]
struct Rounds {
    /// Which stages share the several streams.
    groups: Vec<Range<usize>>,
    one: Vec<f64>,
    many: Vec<f64>,
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
            _ if self.streams > 1 => f.write_str("several streams, as was asked for"),
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
        Pipeline {
            device: device.clone(),
            options,
            stages: Vec::new(),
            report: PipelineReport::default(),
            rounds: Rounds::default(),
            lines: None,
            ends: PhantomData,
        }
    }
}

impl<'a, In: Send + 'static, Out: Send + 'static> Pipeline<'a, In, Out> {
    /// Adds a stage, which is called with what the one before it gives, and with each batch in turn.
    pub fn stage<Next: Send + 'static>(
        mut self,
        name: &str,
        mut body: impl FnMut(Out) -> Result<Next> + Send + 'a,
    ) -> Pipeline<'a, In, Next> {
        let erased = move |item: Item| -> Result<Item> {
            // What the stage before gave, as the types of both say.
            let Ok(item) = item.downcast::<Out>() else {
                return Err(Error::invalid("Pipeline::run", "item", std::any::type_name::<Out>(), "another"));
            };
            Ok(Box::new(body(*item)?))
        };
        let device = self.device.clone();
        self.stages.push(Stage { name: name.into(), body: Box::new(erased), device });
        let Pipeline { device, options, stages, .. } = self;
        Pipeline {
            device,
            options,
            stages,
            report: PipelineReport::default(),
            rounds: Rounds::default(),
            lines: None,
            ends: PhantomData,
        }
    }

    /// Takes batches through all stages, and gives what the last one makes of each.
    ///
    /// Stages on streams of their own run on threads of their own; the last one runs on the calling thread. The host is a few
    /// batches ahead of the device at most.
    ///
    /// # Errors
    /// [`Error::Stage`] with what the first batch to fail, in order, was refused by: the batches before it were run to their
    /// end, later ones may have been through some stages. Panics are caught. [`Error::InvalidArgument`] for a depth of 0 or more than 1024;
    /// [`Error::Deadlock`] from within a stage; [`Error::Io`] if the system gives no thread.
    pub fn run<I>(&mut self, batches: I) -> Result<Vec<Out>>
    where
        I: IntoIterator<Item = In>,
        I::IntoIter: Send,
    {
        let depth = self.options.depth;
        if !(1..=MOST_DEPTH).contains(&depth) {
            return Err(Error::invalid("Pipeline::run", "depth", "1 to 1024", depth));
        }
        let generator = Generator::current();
        // One draw a run, so that runs differ.
        next_key();
        let mut batches = batches.into_iter().fuse().map(|batch| -> Item { Box::new(batch) });
        let mut run = Run::new(generator, &mut batches);
        let in_batch = is_in_batch();
        let lines = match self.lines.take_if(|_| !in_batch) {
            Some(lines) => lines,
            None if in_batch => Lines::new(&self.device, all(self.stages.len()))?,
            None => self.decide(&mut run)?,
        };
        self.report_on(&lines);
        let done = run.go_on(&mut self.stages, &lines, self.options.depth, usize::MAX);
        // Too few batches to measure decide nothing.
        if !in_batch && (self.options.schedule != PipelineSchedule::Measured || run.is_decided) {
            self.lines = Some(lines);
        }
        done?;
        let outputs = run.outputs.into_iter().filter_map(|item| item.downcast::<Out>().ok());
        Ok(outputs.map(|out| *out).collect())
    }

    /// How the stages run, and what was measured to decide that; empty before the first run.
    pub fn report(&self) -> &PipelineReport {
        &self.report
    }

    fn report_on(&mut self, lines: &Lines) {
        self.report.streams = lines.groups.len();
        let stream = |stage: usize| lines.groups.iter().position(|group| group.contains(&stage)).unwrap_or(0);
        let known = std::mem::take(&mut self.report.stages);
        let stages = self.stages.iter().enumerate().map(|(at, stage)| StageReport {
            name: stage.name.clone(),
            stream: stream(at),
            alone_ms: known.get(at).and_then(|stage| stage.alone_ms),
        });
        self.report.stages = stages.collect();
    }

    /// Which stages share a stream.
    fn decide(&mut self, run: &mut Run<'_>) -> Result<Lines> {
        let count = self.stages.len();
        let serial = Lines::new(&self.device, all(count))?;
        match self.options.schedule {
            // The recorder takes time, too, and its reader would be told of the waits: it is for a later run to measure.
            PipelineSchedule::Measured if count > 1 && !self.device.is_recording() => {
                self.measure(run, serial)
            }
            PipelineSchedule::Stages | PipelineSchedule::Measured if count > 1 => {
                Lines::new(&self.device, (0..count).map(|stage| stage..stage + 1).collect())
            }
            _ => {
                run.is_decided = true;
                Ok(serial)
            }
        }
    }

    /// Measures on the first batches.
    fn measure(&mut self, run: &mut Run<'_>, serial: Lines) -> Result<Lines> {
        let depth = self.options.depth;
        run.go_on(&mut self.stages, &serial, depth, 1)?;
        let alone = run.time_stages(&mut self.stages, &serial)?;
        let report = |(stage, ms): (&Stage<'_>, &f64)| StageReport {
            name: stage.name.clone(),
            stream: 0,
            alone_ms: Some(*ms),
        };
        self.report.stages = self.stages.iter().zip(&alone).map(report).collect();
        // Also where a CPU has fewer threads for kernels: what a stage takes may be the host's own, or waiting.
        let groups = even(&alone);
        run.is_decided = !run.is_over;
        if run.is_over || groups.len() == 1 {
            return Ok(serial);
        }
        if self.rounds.groups != groups {
            self.rounds = Rounds { groups: groups.clone(), ..Rounds::default() };
        }
        let several = Lines::new(&self.device, groups)?;
        let fill = several.groups.len();
        // What a stream does first takes longer.
        run.go_on(&mut self.stages, &several, depth, fill + 1)?;
        while self.rounds.one.len() < ROUNDS {
            let one = run.timed(&mut self.stages, &serial, depth, BLOCK)?;
            // Without the time in which the first batch comes through.
            let short = run.timed(&mut self.stages, &several, depth, fill)?;
            let long = run.timed(&mut self.stages, &several, depth, fill + BLOCK)?;
            if run.is_over {
                run.is_decided = false;
                return Ok(serial);
            }
            self.rounds.one.push(one / BLOCK as f64);
            self.rounds.many.push((long - short) / BLOCK as f64);
        }
        let Rounds { one, many, .. } = &mut self.rounds;
        let pays = pays(one, many);
        (self.report.serial_ms, self.report.concurrent_ms) = (median(one), median(many));
        Ok(if pays { several } else { serial })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
