//! Several batches forward and backward at once, on shared weights.

use std::time::Instant;

use device::{
    AtCaller, Capture, Lane, Panicked, Placement, Priority, Schedule, SpinLock, StreamOptions, SyncMode, Team,
};
use parking_lot::Mutex;
use tensor::{Device, Error, ErrorKind, Result, Stream, Tensor, Tensors, preload};

use super::around::Around;
use super::deferred::{Update, collect, defer};
use super::measured::{LaneReport, Trial};
use crate::backward::{Ends, backward_from, backward_until};
use crate::{Gradients, Var, no_grad};

/// Lanes that run the forward and backward pass of a batch each, at once.
///
/// Every lane has a stream, and a host thread that drives it; lane 0 is driven by the calling thread. A step gives
/// what the same batches give one after the other, bit for bit: each batch's ops run in its own order, and gradients
/// are merged in batch order. One lane is the serial schedule: the current stream, which has all threads for one kernel unless it is a
/// lane itself.
///
/// Small steps are faster on one stream: what lanes gain is less than the hand-off, and than what a kernel has of all
/// threads. So the first two dozen steps of several batches are measured, in turn on the lanes and in serial order, and lanes are
/// used from then on if they gain more than the noise; [`report`](Self::report) says so. Results are the same either way.
/// [`Lanes::Always`] leaves this out.
///
/// ```
/// use autograd::{ConcurrentBatches, Device, Tensor, Var};
/// let dev = Device::cpu();
/// let w = Var::leaf(Tensor::from_slice(&[3.0f32], &[1], &dev)?);
/// let lanes = ConcurrentBatches::new(&dev, 2)?;
/// let step = lanes.step([1.0, 2.0], |x| w.mul_scalar(x)?.sum(&[], false))?;
/// assert_eq!(step.losses[1].item::<f32>()?, 6.0);
/// assert_eq!(step.gradients.get(&w).map(|g| g.item::<f32>()).transpose()?, Some(3.0));
/// # Ok::<(), autograd::Error>(())
/// ```
#[derive(Debug)]
pub struct ConcurrentBatches {
    streams: Vec<Stream>,
    device: Device,
    team: Team,
    /// Of steps and of runs without gradients; `None` where lanes are always used.
    trials: Option<[Mutex<Trial>; 2]>,
}

/// What [`ConcurrentBatches`] do with batches, by the index of its measurement.
#[derive(Clone, Copy)]
enum Work {
    Steps,
    Runs,
}

/// Options of [`ConcurrentBatches`].
#[derive(Clone, Debug, Default)]
pub struct LaneOptions {
    /// When lanes are used.
    pub lanes: Lanes,
    /// How urgent the work of each lane is, in order; [`Priority::Normal`] for lanes beyond. A single lane is the
    /// current stream, whatever priority that has.
    pub priorities: Vec<Priority>,
}

impl From<Lanes> for LaneOptions {
    fn from(lanes: Lanes) -> LaneOptions {
        LaneOptions { lanes, ..LaneOptions::default() }
    }
}

/// When [`ConcurrentBatches`] use their lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lanes {
    /// In steps of several batches, if they are measured to be faster there. On devices that try out orders
    /// ([`Schedule::Explore`] and [`Schedule::Delay`]) and in captured steps, where times say nothing, and under
    /// [`SyncMode::Manual`], where the user waits for the lanes, in every step. Steps that a profile records are not measured:
    /// they use the lanes as long as nothing is decided.
    #[default]
    Measured,
    /// In every step.
    Always,
}

/// What a batch gives to [`ConcurrentBatches::step`]: its loss, alone or with values of any type beside it.
pub trait BatchResult: Send {
    /// What is given beside the loss.
    type Output: Send;

    /// The loss, and what is beside it.
    fn into_parts(self) -> (Var, Self::Output);
}

impl BatchResult for Var {
    type Output = ();

    fn into_parts(self) -> (Var, ()) {
        (self, ())
    }
}

impl<T: Send> BatchResult for (Var, T) {
    type Output = T;

    fn into_parts(self) -> (Var, T) {
        self
    }
}

/// What a step of several batches gave.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step<T = ()> {
    /// Each batch's loss, in batch order. They may be pending on the lanes' streams; any use waits by itself.
    pub losses: Vec<Tensor>,
    /// What each batch gave beside its loss, in batch order.
    pub outputs: Vec<T>,
    /// The gradients of all batches, added in batch order.
    pub gradients: Gradients,
}

#[derive::located]
impl ConcurrentBatches {
    /// Lanes on `device`, which share its threads evenly. They are used where they are faster: [`Lanes::Measured`].
    ///
    /// # Errors
    /// `InvalidArgument` for no lanes or more than a [`Team`] may have, `Io` if the system gives no thread.
    pub fn new(device: &Device, lanes: usize) -> Result<ConcurrentBatches> {
        ConcurrentBatches::with_options(device, lanes, LaneOptions::default())
    }

    /// [`new`](Self::new) with options, or with [`Lanes`] alone.
    ///
    /// # Errors
    /// As for [`new`](Self::new); `InvalidArgument` for more priorities than lanes.
    pub fn with_options(
        device: &Device,
        lanes: usize,
        options: impl Into<LaneOptions>,
    ) -> Result<ConcurrentBatches> {
        let LaneOptions { lanes: schedule, mut priorities } = options.into();
        let is_valid = (1..=Team::MAX_HELPERS + 1).contains(&lanes);
        Error::require(is_valid, "ConcurrentBatches::new", "lanes", "1 to 1024", lanes)?;
        let expected = "one for each lane at most";
        let is_valid = priorities.len() <= lanes;
        Error::require(is_valid, "ConcurrentBatches::new", "priorities", expected, priorities.len())?;
        priorities.resize(lanes, Priority::Normal);
        let options = |priority| StreamOptions { priority, ..DRIVEN };
        let options: Vec<StreamOptions> = priorities.into_iter().map(options).collect();
        let tries_orders = matches!(device.schedule(), Schedule::Explore(_) | Schedule::Delay { .. });
        let measured = schedule == Lanes::Measured && lanes > 1 && !tries_orders;
        Ok(ConcurrentBatches {
            streams: streams(device, &options)?,
            device: device.clone(),
            team: Team::new("lane", lanes - 1)?,
            trials: measured.then(|| [(); 2].map(|()| Mutex::new(Trial::new(2, 1, 5)))),
        })
    }

    /// The lanes' streams; of a single lane the default stream, which is most often the current one.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Whether the lanes are used for [steps](Self::step), and what was measured to decide that.
    pub fn report(&self) -> LaneReport {
        self.report_of(Work::Steps)
    }

    /// The same for batches without gradients, which [`run`](Self::run) measures on their own.
    pub fn run_report(&self) -> LaneReport {
        self.report_of(Work::Runs)
    }

    fn report_of(&self, work: Work) -> LaneReport {
        let lanes = self.streams.len();
        match &self.trials {
            Some(trials) => trials[work as usize].lock().report(lanes),
            None => LaneReport { lanes, used: Some(lanes), serial_ms: None, concurrent_ms: None },
        }
    }

    /// Computes `loss` of each batch and its gradients, batch `i` on lane `i % lanes`, and merges the gradients in
    /// batch order. Random ops draw from a generator of the batch's own, the same whatever the number of lanes. The batches are
    /// under the [`autocast`](crate::autocast) that the call is under. What the
    /// batches put off with [`defer`] is done last, in batch order too.
    ///
    /// A batch may give more than its loss, such as scores or statistics: `loss` returns a [`Var`], or `(Var, T)` for any `T`.
    ///
    /// More batches than lanes are taken in rounds of one for each lane, whose gradients are merged before the next one: many
    /// small batches take the memory of a few.
    ///
    /// Returns once everything is launched, which for lanes that run inline means once it has run; a step that is measured
    /// waits for the device.
    ///
    /// ```
    /// use autograd::{ConcurrentBatches, Device, Tensor, Var};
    /// let dev = Device::cpu();
    /// let w = Var::leaf(Tensor::from_slice(&[3.0f32], &[1], &dev)?);
    /// let lanes = ConcurrentBatches::new(&dev, 2)?;
    /// let step = lanes.step([1.0, 2.0], |x| Ok((w.mul_scalar(x)?.sum_all()?, format!("batch of {x}"))))?;
    /// assert_eq!(step.outputs, ["batch of 1", "batch of 2"]);
    /// # Ok::<(), autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of the first batch, in batch order, whose loss or backward pass returned one or panicked
    /// (`LanePanicked`); the other batches were run to their end. Then that of the first update that was put off
    /// and returned one or panicked; those after it are not run. `InvalidArgument` for no batches;
    /// `Deadlock` from within a batch of the same lanes, and where it would wait for them within a command.
    /// A step that is measured returns what the device met before it, too.
    pub fn step<B, R, F>(&self, batches: impl IntoIterator<Item = B>, loss: F) -> Result<Step<R::Output>>
    where
        B: Send,
        R: BatchResult,
        F: Fn(B) -> Result<R> + Sync,
    {
        let run = |batch| {
            let (loss, output) = AtCaller::user(|| loss(batch))?.into_parts();
            let gradients = loss.backward()?;
            Ok((loss.value().clone(), output, gradients))
        };
        let mut step = Step { losses: Vec::new(), outputs: Vec::new(), gradients: Gradients::default() };
        self.in_rounds(Work::Steps, "ConcurrentBatches::step", batches, run, |(loss, output, gradients)| {
            step.losses.push(loss);
            step.outputs.push(output);
            step.gradients.merge(gradients)
        })?;
        Ok(step)
    }

    /// What `work` gives for each batch, in batch order, computed on lanes as [`step`](Self::step) does, without gradients: as in
    /// [`no_grad`]. Whether lanes pay is measured apart from steps.
    ///
    /// ```
    /// use autograd::{ConcurrentBatches, DType, Device, Tensor, Var};
    /// let dev = Device::cpu();
    /// let w = Var::leaf(Tensor::from_slice(&[1.0f32, 2.0], &[2, 1], &dev)?);
    /// let lanes = ConcurrentBatches::new(&dev, 2)?;
    /// let batches = [1.0, 2.0].map(|value| Tensor::full(&[1, 2], value, DType::F32, &dev));
    /// let scores = lanes.run(batches, |x| Var::constant(x?).matmul(&w))?;
    /// assert_eq!(scores[1].value().item::<f32>()?, 6.0);
    /// # Ok::<(), autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub fn run<B, T, F>(&self, batches: impl IntoIterator<Item = B>, work: F) -> Result<Vec<T>>
    where
        B: Send,
        T: Send,
        F: Fn(B) -> Result<T> + Sync,
    {
        let mut outputs = Vec::new();
        let run = |batch| no_grad(|| AtCaller::user(|| work(batch)));
        self.in_rounds(Work::Runs, "ConcurrentBatches::run", batches, run, |output| {
            outputs.push(output);
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Runs each batch in rounds of one for each lane, and gives the results to `add` in batch order.
    fn in_rounds<B: Send, T: Send>(
        &self,
        work: Work,
        op: &'static str,
        batches: impl IntoIterator<Item = B>,
        run: impl Fn(B) -> Result<T> + Sync,
        mut add: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let (first, later) = self.first(op, batches)?;
        let around = Around::next();
        let run = |index: usize, batch: B| as_batch(&around, index, || run(batch));
        let at_least = first.len();
        let mut batches = first.into_iter().chain(later);
        let updates = self.timed(work, at_least, |width| {
            let mut started = 0;
            // The first error, once all batches were run to their end.
            let mut updates = Ok(Vec::new());
            loop {
                let round: Vec<B> = AtCaller::user(|| batches.by_ref().take(width).collect());
                if round.is_empty() {
                    return Ok(updates);
                }
                let done = self.each(width, started, round, &run)?;
                started += done.len();
                for done in done {
                    updates = updates.and_then(|mut updates: Vec<Updates>| {
                        let (result, own) = done?;
                        add(result)?;
                        updates.push(own);
                        Ok(updates)
                    });
                }
            }
        })??;
        self.update(updates)
    }

    /// Computes `forward` of each batch, on lanes as [`step`](Self::step) does, one `loss` of all of them, and the gradients of
    /// that, each batch's part of the backward pass on its lane. What is given has that one loss.
    ///
    /// `loss` runs on the current stream, when all batches are through their forward pass, and may use other values of the
    /// tape, too. What several batches use and was computed before goes through its part of the backward pass once, after theirs,
    /// and so do hooks of parameters. It gets each batch's result as a leaf of its own, in batch order. Gradients are added
    /// in the order of one backward pass, newest first: those of `loss`, then those of the last batch, and so on. They have the
    /// bits of that pass where a batch uses no parameter twice.
    ///
    /// ```
    /// use autograd::{ConcurrentBatches, DType, Device, Tensor, Var};
    /// let dev = Device::cpu();
    /// let w = Var::leaf(Tensor::from_slice(&[1.0f32, 2.0], &[2, 1], &dev)?);
    /// let lanes = ConcurrentBatches::new(&dev, 2)?;
    /// let batch = |value| Tensor::full(&[3, 2], value, DType::F32, &dev);
    /// let forward = |x| Var::constant(x).matmul(&w);
    /// let step = lanes.merged_step([batch(1.0)?, batch(2.0)?], forward, |y| Var::cat(&[&y[0], &y[1]], 1)?.square()?.mean(&[], false))?;
    /// assert_eq!(step.losses[0].item::<f32>()?, 22.5);
    /// assert_eq!(step.gradients.get(&w).map(|g| g.to_vec::<f32>()).transpose()?, Some(vec![15.0, 15.0]));
    /// # Ok::<(), autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`step`](Self::step), and those of `loss` and its backward pass.
    pub fn merged_step<B, F, L>(
        &self,
        batches: impl IntoIterator<Item = B>,
        forward: F,
        loss: L,
    ) -> Result<Step>
    where
        B: Send,
        F: Fn(B) -> Result<Var> + Sync,
        L: FnOnce(&[Var]) -> Result<Var>,
    {
        let (mut batches, later) = self.first("ConcurrentBatches::merged_step", batches)?;
        AtCaller::user(|| batches.extend(later));
        let (around, count) = (Around::next(), batches.len());
        // Its result, and the leaf that stands for it in the loss.
        let forward = |index, item| {
            as_batch(&around, index, || {
                let value = AtCaller::user(|| forward(item))?;
                let leaf =
                    if value.requires_grad() { Var::leaf(value.value().clone()) } else { value.detach() };
                Ok((value, leaf))
            })
        };
        let merged = |width| {
            let forward: Result<Vec<_>> = self.each(width, 0, batches, &forward)?.into_iter().collect();
            let (parts, mut updates): (Vec<(Var, Var)>, Vec<Updates>) = forward?.into_iter().unzip();
            let (values, leaves): (Vec<Var>, Vec<Var>) = parts.into_iter().unzip();
            let (loss, own) = as_batch(&around, count, || AtCaller::user(|| loss(&leaves)))?;
            updates.push(own);
            let ends = Ends::shared_by(values.iter().chain([&loss]));
            let (mut gradients, mut at_ends) = backward_until(&loss, None, &ends)?;
            let parts = gradients.take(&leaves);
            drop(leaves);
            let back = |_, (value, gradient): (Var, Option<Var>)| match gradient {
                Some(_) => backward_until(&value, gradient, &ends),
                None => Ok(Default::default()),
            };
            let parts = self.each(width, 0, values.into_iter().zip(parts).collect(), &back)?;
            for (of_leaves, of_ends) in parts.into_iter().collect::<Result<Vec<_>>>()?.into_iter().rev() {
                gradients.merge(of_leaves)?;
                at_ends.merge(of_ends)?;
            }
            if !at_ends.is_empty() {
                gradients.merge(backward_from(at_ends)?)?;
            }
            let outputs = Vec::new();
            Ok((Step { losses: vec![loss.value().clone()], outputs, gradients }, updates))
        };
        let (step, updates) = self.timed(Work::Steps, count, merged)?;
        self.update(updates)?;
        Ok(step)
    }

    /// The first batches, at most one for each lane, and those after them.
    fn first<I: IntoIterator>(&self, op: &'static str, batches: I) -> Result<(Vec<I::Item>, I::IntoIter)> {
        let mut batches = AtCaller::user(|| batches.into_iter());
        let first: Vec<I::Item> = AtCaller::user(|| batches.by_ref().take(self.streams.len()).collect());
        Error::require(!first.is_empty(), op, "batches", "at least 1", "0")?;
        Ok((first, batches))
    }

    /// Runs a step of so many batches, at least, which is told how many lanes it has; takes the time of it while that is to
    /// be decided.
    fn timed<R>(&self, work: Work, batches: usize, step: impl FnOnce(usize) -> Result<R>) -> Result<R> {
        let lanes = self.streams.len();
        let is_tried = !Capture::is_current() && self.device.sync_mode() == SyncMode::Auto;
        let Some(trials) = self.trials.as_ref().filter(|_| is_tried) else { return step(lanes) };
        let trial = &trials[work as usize];
        if batches < 2 {
            return step(1);
        }
        let width = |on_lanes| if on_lanes { lanes } else { 1 };
        let (is_decided, on_lanes) = {
            let trial = trial.lock();
            (trial.pays.is_some(), trial.several())
        };
        if is_decided {
            return step(width(on_lanes));
        }
        // The recorder takes time, too, and its reader would be told of the waits.
        if self.device.is_recording() {
            return step(lanes);
        }
        self.synchronize()?;
        let start = Instant::now();
        let done = step(width(on_lanes))?;
        self.synchronize()?;
        trial.lock().add(on_lanes, start.elapsed().as_secs_f64() * 1e3);
        Ok(done)
    }

    /// Waits for all that a step uses.
    fn synchronize(&self) -> Result<()> {
        self.streams.iter().chain([&Stream::current(&self.device)]).try_for_each(Stream::synchronize)
    }

    /// Does `work` on each item, of which the first has the number `from`, on so many lanes; one is the serial order.
    fn each<I: Send, T: Send>(
        &self,
        width: usize,
        from: usize,
        items: Vec<I>,
        work: &(impl Fn(usize, I) -> Result<T> + Sync),
    ) -> Result<Vec<Result<T>>> {
        let current = [Stream::current(&self.device)];
        let streams = if width > 1 { &self.streams[..] } else { &current[..] };
        let lanes = width.min(items.len()).max(1);
        let slot = |item| SpinLock::new((Some(item), None));
        let slots: Vec<_> = items.into_iter().map(slot).collect();
        let (caller, outer) = (AtCaller::location(), Lane::current());
        let drive = |lane: usize| {
            let _at = AtCaller::enter_at(caller);
            for (at, slot) in slots.iter().enumerate().skip(lane).step_by(lanes) {
                let item = slot.lock().0.take();
                let work = |item| self.caught(from + at, || work(from + at, item));
                let done = item.map(|item| outer.scope("batch", from + at, || work(item)));
                slot.lock().1 = done;
            }
        };
        // A profile learns from the ranges which thread waits for which.
        self.device.range("ConcurrentBatches::step", || {
            self.team.run_some(lanes - 1, &|lane| {
                streams[lane].scope(|| self.device.range("lane", || drive(lane)))
            })
        })?;
        let done = slots.into_iter().enumerate().map(|(at, slot)| {
            let skipped = || Err(self.panicked(from + at, "the batch did not run".into()));
            slot.into_inner().1.unwrap_or_else(skipped)
        });
        Ok(done.collect())
    }

    /// Turns a panic of what batch `index` does into an error that names its lane.
    fn caught<R>(&self, index: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
        Panicked::catch(f).unwrap_or_else(|panicked| Err(self.panicked(index, panicked.message)))
    }

    #[cold]
    fn panicked(&self, index: usize, message: Box<str>) -> Error {
        // The batch's lane, whatever lanes are used.
        Error::new(ErrorKind::LanePanicked { lane: index % self.streams.len(), message })
    }

    /// Does what each batch put off; none of them failed. A step within a batch of other lanes leaves it to that batch.
    fn update(&self, updates: Vec<Updates>) -> Result<()> {
        let updates = updates.into_iter().enumerate();
        let mut updates =
            updates.flat_map(|(index, updates)| updates.into_iter().map(move |update| (index, update)));
        updates.try_for_each(|(index, update)| self.caught(index, || defer(update)))
    }
}

/// A stream whose commands run on the thread that launches them.
pub(super) const DRIVEN: StreamOptions =
    StreamOptions { priority: Priority::Normal, placement: Placement::Caller, threads: None };

/// What the streams of so many groups of stages are like: what is done for later batches fills what the last stream leaves of a
/// device.
pub(super) fn staged(groups: usize, ahead: Placement) -> Vec<StreamOptions> {
    let ahead = StreamOptions { priority: Priority::Low, placement: ahead, ..DRIVEN };
    let mut options = vec![ahead; groups.saturating_sub(1)];
    options.push(DRIVEN);
    options
}

/// Streams beside each other. A single one is the default stream, with all threads; several share them evenly.
pub(super) fn streams(device: &Device, options: &[StreamOptions]) -> Result<Vec<Stream>> {
    let threads = Some((device.threads() / options.len()).max(1));
    let stream = |&options: &StreamOptions| device.new_stream_with(StreamOptions { threads, ..options });
    let streams = match options {
        [_] => vec![device.default_stream()],
        several => several.iter().map(stream).collect::<Result<_>>()?,
    };
    // What a stream would load at its first launches can hold up the others.
    device.start_threads()?;
    streams.iter().try_for_each(preload)?;
    Ok(streams)
}

/// Runs `f` as the batch with this number. Gives what it put off, too.
fn as_batch<R>(around: &Around, index: usize, f: impl FnOnce() -> Result<R>) -> Result<(R, Updates)> {
    let (done, updates) = around.scope(around.generator(index), || collect(f));
    Ok((done?, updates))
}

/// What a batch put off.
type Updates = Vec<Update>;

impl<T: Tensors> Tensors for Step<T> {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (losses, outputs) = (self.losses.rebuild(f)?, self.outputs.rebuild(f)?);
        Ok(Step { losses, outputs, gradients: self.gradients.rebuild(f)? })
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests;
