//! Shuffled batches that depend on seed, epoch and position alone.

use autograd::Var;
use device::{Device, Error, Result};
use tensor::{Generator, Tensor, Tensors};

use super::{InMemory, RaggedBatch};
use crate::random;

/// Some rows on a device, with the key of the random numbers that belong to them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The rows' values, `[b, features]`, F32.
    pub inputs: Tensor,
    /// The rows' classes, `[b]`, or `[b, n]` where a row has several, I64.
    pub labels: Tensor,
    /// The rows' categorical features.
    pub bags: Vec<RaggedBatch>,
    /// What random ops on this batch are keyed by: a mix of seed, epoch and position.
    pub key: u64,
}

impl Batch {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.labels.shape().first().copied().unwrap_or(0)
    }

    /// Whether there are no rows; never so for a batch that [`Batches`] made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as a constant of the graph.
    pub fn input(&self) -> Var {
        Var::constant(self.inputs.clone())
    }

    /// Runs `work` with random keys that follow from this batch alone, as [`tensor::with_generator`] does.
    pub fn seeded<R>(&self, work: impl FnOnce() -> R) -> R {
        tensor::with_generator(Generator::new(self.key), work)
    }
}

/// A captured step gets each batch's tensors, bags and key; the key is followed where random ops take it.
impl Tensors for Batch {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (inputs, labels) = (f(&self.inputs)?, f(&self.labels)?);
        Ok(Batch { inputs, labels, bags: self.bags.rebuild(f)?, key: self.key })
    }

    fn form(&self, f: &mut dyn FnMut(u64)) {
        self.bags.form(f);
    }

    fn seeds(&mut self, f: &mut dyn FnMut(&mut u64)) {
        f(&mut self.key);
    }
}

/// Cuts a data set into batches, shuffled anew in each epoch; cheap to clone.
///
/// The order of epoch `n` depends on the seed and on `n` alone, so training can stop and go on anywhere.
///
/// ```
/// use models::{Batches, Digits};
/// # fn main() -> device::Result<()> {
/// let batches = Batches::new(Digits::load()?, 64, 7, &device::Device::cpu())?;
/// assert_eq!(batches.per_epoch(), 29);
/// for batch in batches.epoch(0) {
///     let batch = batch?;
///     assert_eq!(batch.inputs.shape()[1], 64);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Batches {
    data: InMemory,
    batch_size: usize,
    seed: u64,
    shuffle: bool,
    drop_last: bool,
    device: Device,
}

impl Batches {
    /// Shuffled batches of `batch_size` rows on `device`; the last of an epoch may be smaller.
    ///
    /// # Errors
    /// `InvalidArgument` if `batch_size` is 0 or larger than the data set.
    pub fn new(data: InMemory, batch_size: usize, seed: u64, device: &Device) -> Result<Self> {
        if batch_size == 0 || batch_size > data.len() {
            return Err(Error::invalid(
                "batches",
                "batch_size",
                "at least 1 and at most the number of rows",
                format_args!("{batch_size} for {} rows", data.len()),
            ));
        }
        Ok(Batches { data, batch_size, seed, shuffle: true, drop_last: false, device: device.clone() })
    }

    /// Whether rows are shuffled; they are unless told otherwise.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Whether a smaller last batch is left out; it is kept unless told otherwise.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Rows in a batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Batches in an epoch; never 0.
    pub fn per_epoch(&self) -> usize {
        if self.drop_last {
            self.data.len() / self.batch_size
        } else {
            self.data.len().div_ceil(self.batch_size)
        }
    }

    /// The batches of epoch `number`.
    pub fn epoch(&self, number: u64) -> Epoch<'_> {
        Epoch { batches: self, order: self.order(number), number, next: 0 }
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        if self.shuffle {
            random::permutation(self.data.len(), random::mix(&[self.seed, epoch, SHUFFLE]))
        } else {
            (0..self.data.len()).collect()
        }
    }

    fn batch(&self, order: &[usize], epoch: u64, index: usize) -> Result<Batch> {
        let start = (index * self.batch_size).min(order.len());
        let rows = &order[start..(start + self.batch_size).min(order.len())];
        self.data.batch(rows, random::mix(&[self.seed, epoch, index as u64]), &self.device)
    }
}

/// Keeps the shuffles' random numbers apart from the batches' keys.
const SHUFFLE: u64 = 0x73_6875_6666_6c65;

/// The batches of one epoch; see [`Batches::epoch`].
#[derive(Debug)]
pub struct Epoch<'a> {
    batches: &'a Batches,
    order: Vec<usize>,
    number: u64,
    next: usize,
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.nth(0)
    }

    /// Skips without making the batches that are skipped.
    fn nth(&mut self, skip: usize) -> Option<Self::Item> {
        let index = self.next.saturating_add(skip);
        self.next = index.saturating_add(1).min(self.batches.per_epoch());
        (index < self.batches.per_epoch()).then(|| self.batches.batch(&self.order, self.number, index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.batches.per_epoch() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Epoch<'_> {}

/// Endless steps of `lanes` batches each, over the epochs.
///
/// With two lanes, lane 0 of every step has the batches of even number and lane 1 those of odd number.
#[derive(Debug)]
pub struct StepBatches {
    batches: Batches,
    lanes: usize,
    /// The number of the next batch, counted from the start of epoch 0.
    next: u64,
    order: Option<(u64, Vec<usize>)>,
}

impl StepBatches {
    /// Steps from number `start_step` on; the same batches come whether or not earlier steps were taken.
    ///
    /// # Errors
    /// `InvalidArgument` if `lanes` is 0.
    pub fn new(batches: Batches, lanes: usize, start_step: u64) -> Result<Self> {
        if lanes == 0 {
            return Err(Error::invalid("batches", "lanes", "at least 1", "0"));
        }
        Ok(StepBatches { batches, lanes, next: start_step.saturating_mul(lanes as u64), order: None })
    }

    /// The number of batches in a step.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    fn take_batch(&mut self) -> Result<Batch> {
        let per_epoch = self.batches.per_epoch() as u64;
        let (epoch, index) = (self.next / per_epoch, (self.next % per_epoch) as usize);
        self.next += 1;
        let order = match self.order.take() {
            Some((known, order)) if known == epoch => order,
            _ => self.batches.order(epoch),
        };
        let batch = self.batches.batch(&order, epoch, index);
        self.order = Some((epoch, order));
        batch
    }
}

impl Iterator for StepBatches {
    type Item = Result<Vec<Batch>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some((0..self.lanes).map(|_| self.take_batch()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(rows: usize) -> InMemory {
        InMemory::new((0..rows).map(|i| i as f32).collect(), 1, vec![0; rows], 1).unwrap()
    }

    fn rows(batch: &Batch) -> Vec<usize> {
        batch.inputs.to_vec::<f32>().unwrap().into_iter().map(|v| v as usize).collect()
    }

    fn epoch_rows(batches: &Batches, epoch: u64) -> Vec<Vec<usize>> {
        batches.epoch(epoch).map(|batch| rows(&batch.unwrap())).collect()
    }

    #[test]
    fn an_epoch_has_every_row_once_in_an_order_of_its_own() {
        let dev = Device::cpu();
        let batches = Batches::new(numbered(10), 4, 7, &dev).unwrap();
        let first = epoch_rows(&batches, 0);
        assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        let mut all = first.concat();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..10));
        assert_eq!(first, epoch_rows(&batches, 0));
        assert_ne!(first, epoch_rows(&batches, 1));
        assert_ne!(first, epoch_rows(&Batches::new(numbered(10), 4, 8, &dev).unwrap(), 0));
        let dropped = batches.clone().drop_last(true);
        assert_eq!((dropped.per_epoch(), dropped.epoch(0).len()), (2, 2));
        assert_eq!(epoch_rows(&dropped, 0)[..], first[..2]);
        assert_eq!(epoch_rows(&batches.shuffle(false), 3).concat(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn skipping_gives_the_same_batches() {
        let batches = Batches::new(numbered(10), 3, 7, &Device::cpu()).unwrap();
        let all = epoch_rows(&batches, 2);
        let mut skipped = batches.epoch(2);
        assert_eq!(rows(&skipped.nth(2).unwrap().unwrap()), all[2]);
        assert_eq!(skipped.len(), 1);
        assert_eq!(rows(&skipped.next().unwrap().unwrap()), all[3]);
        assert!(skipped.next().is_none() && skipped.nth(usize::MAX).is_none());
    }

    #[test]
    fn bad_sizes_are_errors() {
        let dev = Device::cpu();
        for size in [0, 11] {
            let error = Batches::new(numbered(10), size, 0, &dev).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "batch_size", .. }), "{error}");
        }
        let batches = Batches::new(numbered(10), 10, 0, &dev).unwrap();
        assert!(StepBatches::new(batches, 0, 0).is_err());
    }

    #[test]
    fn lanes_take_even_and_odd_batches_and_can_start_anywhere() {
        let batches = Batches::new(numbered(10), 2, 7, &Device::cpu()).unwrap();
        let stream = [epoch_rows(&batches, 0), epoch_rows(&batches, 1)].concat();
        let steps: Vec<_> =
            StepBatches::new(batches.clone(), 2, 0).unwrap().take(5).map(Result::unwrap).collect();
        for (number, step) in steps.iter().enumerate() {
            assert_eq!(rows(&step[0]), stream[2 * number]);
            assert_eq!(rows(&step[1]), stream[2 * number + 1]);
            assert_ne!(step[0].key, step[1].key);
        }
        let late = StepBatches::new(batches, 2, 3).unwrap().next().unwrap().unwrap();
        assert_eq!((rows(&late[0]), late[0].key), (rows(&steps[3][0]), steps[3][0].key));
    }
}
