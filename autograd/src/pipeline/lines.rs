//! How a pipeline's stages run: groups of neighbours, each on a stream that a thread drives.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use device::{AtCaller, Panicked, Placement, Team};
use tensor::{Device, Error, Generator, Result, Stream};

use super::around::{Around, failed};
use super::concurrent::{staged, streams};

/// What goes from one stage to the next.
pub(super) type Item = Box<dyn Any + Send>;

/// Batches on which each stage is timed by itself.
const TIMED: usize = 2;

pub(super) struct Stage<'a> {
    pub(super) name: Box<str>,
    pub(super) body: Box<dyn FnMut(Item) -> Result<Item> + Send + 'a>,
    pub(super) device: Device,
}

/// Streams for groups of stages, and the threads that drive them: the last one is the caller's.
pub(super) struct StageThreads {
    pub(super) groups: Vec<Range<usize>>,
    pub(super) streams: Vec<Stream>,
    team: Team,
}

impl StageThreads {
    /// A stream for each group.
    pub(super) fn new(device: &Device, groups: Vec<Range<usize>>) -> Result<StageThreads> {
        let streams = streams(device, &staged(groups.len(), Placement::Caller))?;
        let team = Team::new("stage", groups.len() - 1)?;
        Ok(StageThreads { groups, streams, team })
    }
}

/// One stage of a batch, which is a range of a profile.
fn through(around: &Around, stage: &mut Stage<'_>, number: usize, batch: usize, item: Item) -> Result<Item> {
    let generator = around.generator(batch).fork(number as u64);
    let Stage { name, body, device } = stage;
    match around.run(generator, || device.range(name, || AtCaller::user(|| body(item)))) {
        Ok(done) => done.map_err(|error| failed(&stage.name, batch, error)),
        Err(panicked) => Err(failed(&stage.name, batch, panicked)),
    }
}

/// A batch through a group of stages, of which the first one has the number `first`.
pub(super) fn through_all(
    around: &Around,
    stages: &mut [Stage<'_>],
    first: usize,
    batch: usize,
    item: Item,
) -> Result<Item> {
    let mut stages = stages.iter_mut().zip(first..);
    stages.try_fold(item, |item, (stage, number)| through(around, stage, number, batch, item))
}

/// Batches on their way.
pub(super) struct Run<'r> {
    around: Around,
    /// The number of the next batch.
    next: usize,
    batches: &'r mut (dyn Iterator<Item = Item> + Send),
    pub(super) outputs: Vec<Item>,
    /// There are no more batches.
    pub(super) is_over: bool,
    /// There were enough to decide how the stages run.
    pub(super) is_decided: bool,
}

/// The first failure in the order of batches.
type Failure = Mutex<Option<(usize, Error)>>;

fn keep(failure: &Failure, batch: usize, error: Error) {
    let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
    if first.as_ref().is_none_or(|(known, _)| batch < *known) {
        *first = Some((batch, error));
    }
}

/// Returns the next batch with its number; `None` if there is none, or the iterator panicked.
type NextBatch<'p> = Box<dyn FnMut(&Device, &Failure) -> Option<(usize, Item)> + Send + 'p>;

/// Passes a batch on. `false` if nobody receives it any more.
type PassOn<'p> = Box<dyn FnMut(&Stream, usize, Item) -> Result<bool> + Send + 'p>;

/// The ends of a channel between two groups of stages, in which `depth` batches may wait.
fn channel<'p>(depth: usize) -> (PassOn<'p>, NextBatch<'p>) {
    let (to, next) = sync_channel(depth);
    let give =
        move |stream: &Stream, batch, item| Ok(to.send((batch, item, stream.device().hand_off())).is_ok());
    let take = move |device: &Device, _: &Failure| {
        let (batch, item, from) = next.recv().ok()?;
        device.take_over(from);
        Some((batch, item))
    };
    (Box::new(give), Box::new(take))
}

/// Collects results; the device may be `most` batches behind the host.
fn collected(outputs: &mut Vec<Item>, most: usize) -> PassOn<'_> {
    let mut pending = VecDeque::new();
    Box::new(move |stream, _, item| {
        outputs.push(item);
        pending.push_back(stream.record()?);
        let oldest = if pending.len() > most { pending.pop_front() } else { None };
        oldest.map_or(Ok(()), |oldest| oldest.synchronize()).map(|()| true)
    })
}

/// A group of stages at work.
struct GroupWork<'p, 'a> {
    stages: &'p mut [Stage<'a>],
    /// The number of its first stage.
    first: usize,
    from: NextBatch<'p>,
    to: PassOn<'p>,
}

/// The next of the batches; what asking for it panicked with.
pub(super) fn taken(batches: &mut dyn Iterator<Item = Item>, batch: usize) -> Result<Option<Item>> {
    Panicked::catch(|| AtCaller::user(|| batches.next()))
        .map_err(|panicked| failed("batches", batch, panicked))
}

impl GroupWork<'_, '_> {
    /// Works until there is nothing left, or something failed.
    fn work(&mut self, stream: &Stream, around: &Around, failure: &Failure) {
        let _at = AtCaller::enter_at(around.caller);
        while let Some((batch, item)) = (self.from)(stream.device(), failure) {
            let made = through_all(around, self.stages, self.first, batch, item);
            match made.and_then(|item| (self.to)(stream, batch, item)) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return keep(failure, batch, error),
            }
        }
    }
}

impl<'r> Run<'r> {
    pub(super) fn new(generator: Generator, batches: &'r mut (dyn Iterator<Item = Item> + Send)) -> Run<'r> {
        Run {
            around: Around::new(generator),
            next: 0,
            batches,
            outputs: Vec::new(),
            is_over: false,
            is_decided: false,
        }
    }

    /// Takes up to `count` more batches through the stages.
    pub(super) fn go_on(
        &mut self,
        stages: &mut [Stage<'_>],
        lines: &StageThreads,
        depth: usize,
        count: usize,
    ) -> Result<()> {
        let (groups, last) = (lines.groups.len(), lines.groups.len() - 1);
        let failure = Failure::default();
        let parts = {
            let mut parts = Vec::with_capacity(groups);
            let (mut rest, mut outputs) = (stages, Some(&mut self.outputs));
            let (batches, next, is_over) = (&mut *self.batches, &mut self.next, &mut self.is_over);
            let mut left = count;
            let mut from: NextBatch<'_> = Box::new(move |_, failure| {
                left = left.checked_sub(1)?;
                let batch = *next;
                let item = taken(batches, batch).unwrap_or_else(|error| {
                    keep(failure, batch, error);
                    None
                });
                *is_over = item.is_none();
                *next += usize::from(item.is_some());
                item.map(|item| (batch, item))
            });
            for group in &lines.groups {
                let (own, others) = rest.split_at_mut(group.len());
                rest = others;
                let (to, next) = match outputs.take_if(|_| parts.len() == last) {
                    Some(outputs) => (collected(outputs, 2 * groups + depth), None),
                    None => {
                        let (to, next) = channel(depth);
                        (to, Some(next))
                    }
                };
                parts.push(Mutex::new(Some(GroupWork { stages: own, first: group.start, from, to })));
                let Some(next) = next else { break };
                from = next;
            }
            parts
        };
        let around = &self.around;
        let panicked = lines.team.run(&|thread| {
            // The caller's thread is number 0.
            let group = (thread + last) % groups;
            let part = parts[group].lock().unwrap_or_else(PoisonError::into_inner).take();
            // Its ends of the lines go with it.
            if let Some(mut part) = part {
                let stream = &lines.streams[group];
                stream.scope(|| part.work(stream, around, &failure));
            }
        })?;
        drop(parts);
        if let Some((_, error)) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        match panicked.into_iter().next() {
            Some((_, panicked)) => Err(failed("pipeline", self.next, panicked)),
            None => Ok(()),
        }
    }

    /// The mean milliseconds of each stage on a few batches, each of which ends before the next one begins.
    pub(super) fn time_stages(&mut self, stages: &mut [Stage<'_>], lines: &StageThreads) -> Result<Vec<f64>> {
        let mut times = vec![0.0; stages.len()];
        for _ in 0..TIMED {
            let batch = self.next;
            let Some(mut item) = taken(&mut *self.batches, batch)? else {
                self.is_over = true;
                break;
            };
            self.next += 1;
            for (number, stage) in stages.iter_mut().enumerate() {
                let (stream, start) = (&lines.streams[0], Instant::now());
                item = stream.scope(|| through(&self.around, stage, number, batch, item))?;
                stream.synchronize().map_err(|error| failed(&stage.name, batch, error))?;
                times[number] += start.elapsed().as_secs_f64() * 1e3 / TIMED as f64;
            }
            self.outputs.push(item);
        }
        Ok(times)
    }

    /// How many milliseconds `count` batches take.
    pub(super) fn timed(
        &mut self,
        stages: &mut [Stage<'_>],
        lines: &StageThreads,
        depth: usize,
        count: usize,
    ) -> Result<f64> {
        let start = Instant::now();
        self.go_on(stages, lines, depth, count)?;
        lines.streams.iter().try_for_each(Stream::synchronize)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

/// Groups of neighbours of which none takes longer than the slowest alone; the fewest that are about as good, and a single one
/// where several gain next to nothing.
pub(super) fn even(times: &[f64]) -> Vec<Range<usize>> {
    let limit = ALMOST * times.iter().copied().fold(0.0, f64::max);
    let (mut groups, mut sum) = (all(0), 0.0);
    for (at, time) in times.iter().enumerate() {
        let last = groups.len() - 1;
        if sum + time > limit && !groups[last].is_empty() {
            groups.push(at..at + 1);
            sum = *time;
        } else {
            groups[last].end = at + 1;
            sum += time;
        }
    }
    groups
}

/// Times that differ by no more than this factor are alike.
const ALMOST: f64 = 1.05;

/// Each stage in a group of its own.
pub(super) fn each(stages: usize) -> Vec<Range<usize>> {
    if stages == 0 { all(0) } else { (0..stages).map(|stage| stage..stage + 1).collect() }
}

/// All stages in one group.
pub(super) fn all(stages: usize) -> Vec<Range<usize>> {
    std::iter::once(0..stages).collect()
}
