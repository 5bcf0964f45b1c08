//! Batches of a data set, in an order that depends on the seed alone.

use std::sync::Arc;

use autograd::{PipelineSchedule, Prefetch, PrefetchOptions, PrefetchReport, autocast, no_grad};
use device::{Device, Error, ErrorKind, Lane, Panicked, Result, Team};
use parking_lot::Mutex;
use tensor::{Generator, with_generator};

use super::WeightedSampler;
use crate::random;

/// Rows that batches are made of.
///
/// ```
/// use models::data::Dataset;
/// use tensor::{Device, Result, Tensor};
///
/// /// Each row is its number.
/// struct Numbers(usize);
///
/// impl Dataset for Numbers {
///     type Batch = Tensor;
///     fn len(&self) -> usize {
///         self.0
///     }
///     fn batch(&self, rows: &[usize], _key: u64, device: &Device) -> Result<Tensor> {
///         let values: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
///         Tensor::from_slice(&values, &[rows.len()], device)
///     }
/// }
/// assert_eq!(Numbers(5).batch(&[4, 2], 0, &Device::cpu())?.to_vec::<i64>()?, [4, 2]);
/// # Ok::<(), tensor::Error>(())
/// ```
pub trait Dataset: Send + Sync {
    /// What a batch is.
    type Batch: Send + 'static;

    /// The number of rows.
    fn len(&self) -> usize;

    /// Whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of these numbers, in this order, on `device`. What the batch itself is keyed by is `key`; random ops on this
    /// thread draw numbers of their own, which follow from it.
    ///
    /// # Errors
    /// `IndexOutOfRange` for a row that is not there; what the data set cannot read.
    fn batch(&self, rows: &[usize], key: u64, device: &Device) -> Result<Self::Batch>;
}

/// Options of a [`DataLoader`].
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// Rows of a batch; all rows in one smaller batch if there are fewer.
    pub batch: usize,
    /// Where batches go.
    pub device: Device,
    /// Whether each epoch has an order of its own; else it is that of the data set.
    pub shuffle: bool,
    /// Draws the rows of each epoch by weight, in place of all of them by `shuffle`.
    pub sampler: Option<WeightedSampler>,
    /// Decides the orders, and the keys of batches.
    pub seed: u64,
    /// Whether a smaller last batch is left out.
    pub drop_last: bool,
    /// Threads that make batches ahead, by turns; with 0 each batch is made when it is asked for.
    pub workers: usize,
    /// Batches that may wait, those of all workers together, but at least one for each.
    pub prefetch: usize,
    /// Whether the workers are used at all events (`Stages`), or where they are measured to be faster.
    pub schedule: PipelineSchedule,
    /// Which part of the batches this loader has, counted from 0. Each epoch is dealt out batch by batch.
    pub rank: usize,
    /// Into how many parts they are dealt out. All get as many; up to `ranks - 1` at the end of an epoch go to nobody.
    pub ranks: usize,
}

/// Single rows, shuffled, on the CPU; no workers, two batches that wait once there are some, and one rank.
impl Default for LoaderOptions {
    fn default() -> Self {
        LoaderOptions {
            batch: 1,
            device: Device::cpu(),
            shuffle: true,
            sampler: None,
            seed: 0,
            drop_last: false,
            workers: 0,
            prefetch: 2,
            schedule: PipelineSchedule::Measured,
            rank: 0,
            ranks: 1,
        }
    }
}

/// Where a loader is: everything before this batch was taken. Kept in checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The batch of the epoch, counted from 0.
    pub batch: u64,
}

/// Cuts a data set into batches, shuffled anew in each epoch; cheap to clone.
///
/// What batch `i` of epoch `n` is depends on the seed and these two alone, whatever the workers and whoever asks: training can
/// stop and go on at any [`Position`]. With `ranks`, rank `r` has the batches `r`, `r + ranks`, .. of the one loader that has
/// them all, with their keys.
///
/// ```
/// use models::{DataLoader, Digits, LoaderOptions};
/// # fn main() -> device::Result<()> {
/// let options = LoaderOptions { batch: 64, seed: 7, workers: 2, ..LoaderOptions::default() };
/// let loader = DataLoader::new(Digits::load()?, options)?;
/// assert_eq!(loader.per_epoch(), 29);
/// for batch in loader.epoch(0) {
///     let batch = batch?;
///     assert_eq!(batch.inputs.shape()[1], 64);
/// }
/// # Ok(())
/// # }
/// ```
pub struct DataLoader<D: Dataset> {
    plan: Arc<BatchPlan<D>>,
    /// Workers that came to the end of an epoch, and may go on with the next one, from the batch of this number.
    kept: Arc<Numbered<Prefetch<D::Batch>>>,
}

/// The batches of a [`DataLoader`] from a position on, of one epoch or of all.
///
/// An error names its batch by its number in the epoch, and the next one comes after it.
pub struct LoaderIter<D: Dataset> {
    loader: DataLoader<D>,
    /// The workers, once there are any.
    running: Option<Prefetch<D::Batch>>,
    /// The number of the next batch, counted from the start of epoch 0.
    next: u64,
    end: u64,
    /// Reported in place of a batch: the iterator was asked to begin behind the last batch that has a number.
    error: Option<Error>,
}

/// Endless steps of several batches each; see [`DataLoader::steps`].
pub struct LoaderSteps<D: Dataset> {
    batches: LoaderIter<D>,
    lanes: usize,
}

/// What batches follow from.
struct BatchPlan<D> {
    data: D,
    options: LoaderOptions,
    per_epoch: u64,
    /// The rows of an even and of an odd epoch, with its number: workers may be at the end of one and at the start of the next.
    orders: [Numbered<Arc<[usize]>>; 2],
}

/// A value and its number, if there is one now.
type Numbered<T> = Mutex<Option<(u64, T)>>;

const OP: &str = "data loader";

/// Keeps the shuffles' random numbers apart from the batches' keys.
const SHUFFLE: u64 = 0x73_6875_6666_6c65;
/// Keeps the random numbers that a data set draws for a batch apart from those that the batch's key gives.
const LOAD: u64 = 0x6c6f_6164;

impl<D: Dataset> BatchPlan<D> {
    fn new(data: D, options: LoaderOptions) -> Result<Self> {
        let LoaderOptions { batch, workers, prefetch, rank, ranks, drop_last, .. } = options;
        let weights = options.sampler.as_ref().map_or(data.len(), WeightedSampler::rows);
        Error::require_shapes(weights == data.len(), OP, "sampler", &[data.len()], &[weights])?;
        let rows = options.sampler.as_ref().map_or(data.len(), WeightedSampler::draws);
        Error::require(rows > 0, OP, "rows", "at least 1", rows)?;
        Error::require(batch > 0, OP, "batch", "at least 1", batch)?;
        let value = format_args!("{batch} for {rows} rows");
        let is_valid = batch <= rows || !drop_last;
        Error::require(is_valid, OP, "batch", "at most the number of rows with drop_last", value)?;
        Error::require(workers <= Team::MAX_HELPERS, OP, "workers", "at most 1023", workers)?;
        let is_valid = workers == 0 || (1..=1024).contains(&prefetch);
        Error::require(is_valid, OP, "prefetch", "1 to 1024", prefetch)?;
        let value = format_args!("{rank} of {ranks}");
        Error::require(rank < ranks, OP, "rank", "below the number of ranks", value)?;
        let all = if drop_last { rows / batch } else { rows.div_ceil(batch) };
        let value = format_args!("{all} batches for {ranks} ranks");
        Error::require(all >= ranks, OP, "ranks", "at most the number of batches", value)?;
        let per_epoch = (all / ranks) as u64;
        Ok(BatchPlan { data, options, per_epoch, orders: Default::default() })
    }

    /// The number of the batch at a position, counted from the start of epoch 0.
    fn number(&self, position: Position) -> Result<u64> {
        let number =
            position.epoch.checked_mul(self.per_epoch).and_then(|first| first.checked_add(position.batch));
        number.filter(|number| *number < u64::MAX).ok_or_else(|| {
            let Position { epoch, batch } = position;
            let value = format!("batch {batch} of epoch {epoch}, of {} batches each", self.per_epoch);
            Error::invalid(OP, "position", "one of the first 2^64 - 1 batches", value)
        })
    }

    fn position(&self, number: u64) -> Position {
        Position { epoch: number / self.per_epoch, batch: number % self.per_epoch }
    }

    fn order(&self, epoch: u64) -> Arc<[usize]> {
        let mut known = self.orders[(epoch % 2) as usize].lock();
        if let Some((_, rows)) = known.as_ref().filter(|(known, _)| *known == epoch) {
            return Arc::clone(rows);
        }
        let LoaderOptions { shuffle, sampler, seed, .. } = &self.options;
        let seed = random::mix(&[*seed, epoch, SHUFFLE]);
        let rows: Arc<[usize]> = match sampler {
            Some(sampler) => sampler.order(seed).into(),
            None if *shuffle => random::permutation(self.data.len(), seed).into(),
            None => (0..self.data.len()).collect(),
        };
        *known = Some((epoch, Arc::clone(&rows)));
        rows
    }

    /// The batch of this number, counted from the start of epoch 0.
    fn load(&self, number: u64) -> Result<D::Batch> {
        let LoaderOptions { batch, seed, rank, ranks, device, .. } = &self.options;
        let Position { epoch, batch: index } = self.position(number);
        let among_all = index as usize * ranks + rank;
        let key = random::mix(&[*seed, epoch, among_all as u64]);
        let generator = Generator::new(random::mix(&[key, LOAD]));
        let load = || {
            let order = self.order(epoch);
            let start = among_all * batch;
            let rows = &order[start..start.saturating_add(*batch).min(order.len())];
            // A worker may load it, so nothing of the caller's thread may matter.
            let batch = || autocast(None, || no_grad(|| self.data.batch(rows, key, device)));
            Lane::default().scope("load", number as usize, || with_generator(generator, batch))
        };
        let failed = |source| {
            let stage = format!("load, epoch {epoch}").into();
            Error::new(ErrorKind::Stage { stage, batch: index as usize, source })
        };
        match Panicked::catch(load) {
            Ok(loaded) => loaded.map_err(|error| failed(Arc::new(error))),
            Err(panicked) => Err(failed(Arc::new(panicked))),
        }
    }
}

#[derive::located]
impl<D: Dataset + 'static> DataLoader<D> {
    /// A loader of `data`.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no rows, if a batch has none or, with `drop_last`, more than there are, for a rank that is not below `ranks` and more ranks
    /// than batches, for more than 1023 workers, and for workers with a `prefetch` of 0 or more than 1024; `ShapeMismatch` for a
    /// sampler of another number of rows.
    pub fn new(data: D, options: LoaderOptions) -> Result<Self> {
        Ok(DataLoader { plan: Arc::new(BatchPlan::new(data, options)?), kept: Arc::default() })
    }

    /// The data set.
    pub fn dataset(&self) -> &D {
        &self.plan.data
    }

    /// The options.
    pub fn options(&self) -> &LoaderOptions {
        &self.plan.options
    }

    /// Batches in an epoch, those of other ranks not counted; never 0.
    pub fn per_epoch(&self) -> usize {
        self.plan.per_epoch as usize
    }

    /// Where a loader is that gave so many batches.
    pub fn position(&self, batches: u64) -> Position {
        self.plan.position(batches)
    }

    /// The batches of epoch `number`; an error if they have no numbers below 2^64 - 1.
    ///
    /// Workers go on with the next epoch before it is asked for.
    pub fn epoch(&self, number: u64) -> LoaderIter<D> {
        let per_epoch = self.plan.per_epoch;
        let last = self.plan.number(Position { epoch: number, batch: per_epoch - 1 });
        let end = last.as_ref().map_or(0, |last| last + 1);
        self.between(last.map(|_| end - per_epoch), end)
    }

    /// The batches from `position` on, without end; an error if it is behind the last batch, that of number 2^64 - 2.
    pub fn iter_from(&self, position: Position) -> LoaderIter<D> {
        self.between(self.plan.number(position), u64::MAX)
    }

    /// Endless steps of `lanes` batches each, from `position` on. With two lanes from the start, lane 0 of every step has the
    /// batches of even number and lane 1 those of odd number.
    ///
    /// # Errors
    /// `InvalidArgument` unless there are 1 to 1024 lanes, and for a position behind the last batch.
    pub fn steps(&self, lanes: usize, position: Position) -> Result<LoaderSteps<D>> {
        Error::require((1..=Team::MAX_HELPERS + 1).contains(&lanes), OP, "lanes", "1 to 1024", lanes)?;
        self.plan.number(position)?;
        Ok(LoaderSteps { batches: self.iter_from(position), lanes })
    }

    fn between(&self, next: Result<u64>, end: u64) -> LoaderIter<D> {
        let (next, error) = match next {
            Ok(next) => (next, None),
            Err(error) => (end, Some(error)),
        };
        LoaderIter { loader: self.clone(), running: None, next, end, error }
    }

    /// Workers whose next batch has this number: those that are kept, or new ones.
    fn start(&self, next: u64) -> Result<Prefetch<D::Batch>> {
        let kept = self.kept.lock().take();
        match kept {
            Some((known, batches)) if known == next => return Ok(batches),
            // What is elsewhere ends before others begin.
            elsewhere => drop(elsewhere),
        }
        let LoaderOptions { workers, prefetch: depth, schedule, device, .. } = &self.plan.options;
        let source = |worker| {
            let plan = Arc::clone(&self.plan);
            (next.saturating_add(worker)..u64::MAX).step_by(*workers).map(move |number| plan.load(number))
        };
        let options = PrefetchOptions { depth: *depth, schedule: *schedule };
        let sources = (0..*workers as u64).map(source);
        // The caller's random numbers are the same with and without workers.
        let start = || autocast(None, || Prefetch::interleaved(device, sources, options));
        with_generator(Generator::new(0), start)
    }
}

impl<D: Dataset> LoaderIter<D> {
    /// Where it is.
    pub fn position(&self) -> Position {
        self.loader.plan.position(self.next)
    }

    /// Who makes the batches, and what was measured to decide that; `None` if there are no workers, or before the first batch.
    pub fn report(&self) -> Option<PrefetchReport> {
        self.running.as_ref().map(Prefetch::report)
    }
}

impl<D: Dataset + 'static> Iterator for LoaderIter<D> {
    type Item = Result<D::Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        if self.next >= self.end {
            return None;
        }
        if self.loader.plan.options.workers > 0 && self.running.is_none() {
            match self.loader.start(self.next) {
                Ok(running) => self.running = Some(running),
                // Without workers no batch was asked for: the next try is for the same one.
                Err(error) => return Some(Err(error)),
            }
        }
        self.next += 1;
        match &mut self.running {
            None => Some(self.loader.plan.load(self.next - 1)),
            Some(running) => running.next(),
        }
    }

    /// Skips without making the batches that are skipped.
    fn nth(&mut self, skip: usize) -> Option<Self::Item> {
        if skip > 0 {
            self.running = None;
            self.next = self.next.saturating_add(skip as u64).min(self.end);
        }
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.end - self.next).unwrap_or(usize::MAX);
        let left = left.saturating_add(usize::from(self.error.is_some()));
        (left, Some(left))
    }
}

impl<D: Dataset> Drop for LoaderIter<D> {
    fn drop(&mut self) {
        let kept = self.running.take().filter(|_| self.next == self.end);
        // What was kept before ends without the lock.
        let former = kept.and_then(|kept| self.loader.kept.lock().replace((self.next, kept)));
        drop(former);
    }
}

impl<D: Dataset> LoaderSteps<D> {
    /// The number of batches in a step.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Where it is.
    pub fn position(&self) -> Position {
        self.batches.position()
    }
}

impl<D: Dataset + 'static> Iterator for LoaderSteps<D> {
    type Item = Result<Vec<D::Batch>>;

    fn next(&mut self) -> Option<Self::Item> {
        // All of a step's, those behind one that failed too: the next step's lanes are the same.
        let step: Vec<_> = self.batches.by_ref().take(self.lanes).collect();
        (!step.is_empty()).then(|| step.into_iter().collect())
    }
}

impl<D: Dataset> Clone for DataLoader<D> {
    fn clone(&self) -> Self {
        DataLoader { plan: Arc::clone(&self.plan), kept: Arc::clone(&self.kept) }
    }
}

#[cfg(test)]
mod tests;
