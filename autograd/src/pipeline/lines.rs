//! How a pipeline's stages run: groups of neighbours, each on a stream that a thread drives.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use device::{AtCaller, Panicked, Placement, Team};
use parking_lot::Mutex;
use tensor::{Device, Result, Stream};

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
    /// Batches that may wait in the channel between two groups.
    depth: usize,
    team: Team,
}

impl StageThreads {
    /// A stream for each group.
    pub(super) fn new(device: &Device, groups: Vec<Range<usize>>, depth: usize) -> Result<StageThreads> {
        let streams = streams(device, &staged(groups.len(), Placement::Caller))?;
        let team = Team::new("stage", groups.len() - 1)?;
        Ok(StageThreads { groups, streams, depth, team })
    }
}

/// One stage of a batch, which is a range of a profile.
fn through(around: &Around, stage: &mut Stage<'_>, number: usize, batch: usize, item: Item) -> Result<Item> {
    let generator = around.generator(batch).fork(number as u64);
    let Stage { name, body, device } = stage;
    let run = || device.range(name, || AtCaller::user(|| body(item)));
    match around.lane.scope("staged batch", batch, || around.run(generator, run)) {
        Ok(done) => done.map_err(|error| failed(&stage.name, batch, error)),
        Err(panicked) => Err(failed(&stage.name, batch, panicked)),
    }
}

/// Takes batches through a group of stages, of which the first one has the number `first`.
pub(super) fn through_all<'s>(
    around: &'s Around,
    stages: &'s mut [Stage<'_>],
    first: usize,
) -> impl FnMut(Made) -> Made {
    move |made| {
        let (batch, item) = made?;
        let mut stages = stages.iter_mut().zip(first..);
        let item = stages.try_fold(item, |item, (stage, number)| through(around, stage, number, batch, item));
        Ok((batch, item?))
    }
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

/// What the stages so far made of a batch, with its number.
pub(super) type Made = Result<(usize, Item)>;

/// Batches as a group of stages takes them. The first error is the last item.
type Batches<'p> = Box<dyn Iterator<Item = Made> + Send + 'p>;

/// The work of one group.
type GroupWork<'p> = Box<dyn FnOnce() -> Result<()> + Send + 'p>;

/// The next of the batches, with the number that it gets; what asking for it panicked with.
pub(super) fn taken(batches: &mut dyn Iterator<Item = Item>, batch: usize) -> Option<Made> {
    let item = Panicked::catch(|| AtCaller::user(|| batches.next()))
        .map_err(|panicked| failed("batches", batch, panicked));
    item.map(|item| item.map(|item| (batch, item))).transpose()
}

impl<'r> Run<'r> {
    pub(super) fn new(batches: &'r mut (dyn Iterator<Item = Item> + Send)) -> Run<'r> {
        let around = Around::next();
        Run { around, next: 0, batches, outputs: Vec::new(), is_over: false, is_decided: false }
    }

    /// Takes up to `count` more batches through the stages. Each group pulls its batches from the one before it, through a
    /// channel.
    pub(super) fn go_on(
        &mut self,
        stages: &mut [Stage<'_>],
        lines: &StageThreads,
        count: usize,
    ) -> Result<()> {
        let depth = lines.depth;
        let (around, outputs) = (&self.around, &mut self.outputs);
        let (batches, next, is_over) = (&mut *self.batches, &mut self.next, &mut self.is_over);
        let mut source: Batches<'_> = Box::new((0..count).map_while(move |_| {
            let taken = taken(batches, *next);
            *is_over = !matches!(taken, Some(Ok(_)));
            *next += usize::from(!*is_over);
            taken
        }));
        let (groups, last, device) = (&lines.groups, lines.groups.len() - 1, lines.streams[0].device());
        let (mut rest, mut works) = (stages, Vec::<Mutex<Option<GroupWork<'_>>>>::new());
        for group in &groups[..last] {
            let (own, others) = rest.split_at_mut(group.len());
            rest = others;
            let (to, next) = sync_channel(depth);
            let pass_on = move || {
                for made in source.map(through_all(around, own, group.start)) {
                    let has_failed = made.is_err();
                    if to.send((made, device.hand_off())).is_err() || has_failed {
                        break;
                    }
                }
                Ok(())
            };
            works.push(Mutex::new(Some(Box::new(pass_on))));
            source = Box::new(next.into_iter().map(move |(made, from)| {
                device.take_over(from);
                made
            }));
        }
        let stream = &lines.streams[last];
        let collect = move || {
            let mut pending = VecDeque::new();
            for made in source.map(through_all(around, rest, groups[last].start)) {
                outputs.push(made?.1);
                pending.push_back(stream.record()?);
                // The device is a few batches behind the host at most.
                if pending.len() > 2 * groups.len() + depth
                    && let Some(oldest) = pending.pop_front()
                {
                    oldest.synchronize()?;
                }
            }
            Ok(())
        };
        works.push(Mutex::new(Some(Box::new(collect))));
        let failure = Mutex::new(None);
        let panicked = lines.team.run(&|thread| {
            let _at = AtCaller::enter_at(around.caller);
            // The caller's thread is number 0 and runs the last group.
            let group = (thread + last) % groups.len();
            let work = works[group].lock().take();
            if let Some(Err(error)) = work.map(|work| lines.streams[group].scope(work)) {
                *failure.lock() = Some(error);
            }
        })?;
        drop(works);
        if let Some(error) = failure.into_inner() {
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
            let Some((batch, mut item)) = taken(&mut *self.batches, self.next).transpose()? else {
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
        count: usize,
    ) -> Result<f64> {
        let start = Instant::now();
        self.go_on(stages, lines, count)?;
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
