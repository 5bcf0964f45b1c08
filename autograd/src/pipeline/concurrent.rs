//! Several batches forward and backward at once, on shared weights.

use device::{Panicked, Placement, SpinLock, StreamOptions, Team};
use tensor::{Device, Error, Generator, Result, Stream, Tensor, Tensors, next_key, preload, with_generator};

use super::deferred::{Update, collect, defer};
use crate::autocast::Inherited;
use crate::{Gradients, Var};

/// Lanes that run the forward and backward pass of a batch each, at once.
///
/// Every lane has a stream, and a host thread that drives it; lane 0 is driven by the calling thread. A step gives
/// what the same batches give one after the other, bit for bit: each batch's ops run in its own order, and gradients
/// are merged in batch order. One lane is the serial schedule: the default stream of the device, with all its threads
/// for one kernel.
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
    team: Team,
}

/// What a step of several batches gave.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step {
    /// Each batch's loss, in batch order. They may be pending on the lanes' streams; any use waits by itself.
    pub losses: Vec<Tensor>,
    /// The gradients of all batches, added in batch order.
    pub gradients: Gradients,
}

impl ConcurrentBatches {
    /// Lanes on `device`, which share its threads evenly.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no lanes or more than a [`Team`] may have, [`Error::Io`] if the system gives no thread.
    pub fn new(device: &Device, lanes: usize) -> Result<ConcurrentBatches> {
        if !(1..=Team::MAX_HELPERS + 1).contains(&lanes) {
            return Err(Error::invalid("ConcurrentBatches::new", "lanes", "1 to 1024", lanes));
        }
        let streams = if lanes == 1 {
            vec![device.default_stream()]
        } else {
            let threads = Some((device.threads() / lanes).max(1));
            let options = StreamOptions { placement: Placement::Caller, threads, ..StreamOptions::default() };
            (0..lanes).map(|_| device.new_stream_with(options)).collect::<Result<_>>()?
        };
        // What a lane would load at its first launches can hold up the others.
        device.start_threads()?;
        streams.iter().try_for_each(preload)?;
        Ok(ConcurrentBatches { streams, team: Team::new("lane", lanes - 1)? })
    }

    /// The lanes' streams.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Computes `loss` of each batch and its gradients, batch `i` on lane `i % lanes`, and merges the gradients in
    /// batch order. Random ops draw from a generator of the batch's own, the same whatever the number of lanes. The batches are
    /// under the [`autocast`](crate::autocast) that the call is under. What the
    /// batches put off with [`defer`] is done last, in batch order too.
    ///
    /// Returns once everything is launched, which for lanes that run inline means once it has run.
    ///
    /// # Errors
    /// That of the first batch, in batch order, whose loss or backward pass returned one or panicked
    /// ([`Error::LanePanicked`]); the other batches were run to their end. Then that of the first update that was put off
    /// and returned one or panicked; those after it are not run. [`Error::InvalidArgument`] for no batches;
    /// [`Error::Deadlock`] from within a batch of the same lanes, and where it would wait for them within a command.
    pub fn step<B, F>(&self, batches: impl IntoIterator<Item = B>, loss: F) -> Result<Step>
    where
        B: Send,
        F: Fn(B) -> Result<Var> + Sync,
    {
        let lanes = self.streams.len();
        let work: Vec<Slot<B>> = batches.into_iter().map(|batch| SpinLock::new(Work::Given(batch))).collect();
        if work.is_empty() {
            return Err(Error::invalid("ConcurrentBatches::step", "batches", "at least 1", "0"));
        }
        // One draw a step, whatever the number of batches and lanes, so that steps differ.
        let generator = Generator::current();
        next_key();
        let autocast = Inherited::current();
        let run = |index: usize, batch: B| -> Result<Done> {
            let batch = || {
                let (done, updates) = collect(|| {
                    let loss = loss(batch)?;
                    let gradients = loss.backward()?;
                    Ok((loss.value().clone(), gradients))
                });
                let (loss, gradients) = done?;
                Ok(Done { loss, gradients, updates })
            };
            with_generator(generator.fork(index as u64), || Inherited::scope(autocast.as_ref(), batch))
        };
        let drive = |lane: usize| {
            for (index, slot) in work.iter().enumerate().skip(lane).step_by(lanes) {
                let taken = std::mem::replace(&mut *slot.lock(), Work::Running);
                if let Work::Given(batch) = taken {
                    let done = caught(lane, || run(index, batch));
                    *slot.lock() = Work::Done(Box::new(done));
                }
            }
        };
        // A profile learns from the ranges which thread waits for which.
        let device = self.streams[0].device();
        device.range("ConcurrentBatches::step", || {
            self.team.run(&|lane| self.streams[lane].scope(|| device.range("lane", || drive(lane))))
        })?;
        finish(work, lanes)
    }
}

impl Tensors for Step {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Step { losses: self.losses.rebuild(f)?, gradients: self.gradients.rebuild(f)? })
    }
}

/// What a batch gave.
struct Done {
    loss: Tensor,
    gradients: Gradients,
    updates: Vec<Update>,
}

type Slot<B> = SpinLock<Work<B>>;

enum Work<B> {
    Given(B),
    Running,
    Done(Box<Result<Done>>),
}

/// Turns a panic of what a batch does into an error that names its lane.
fn caught<R>(lane: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
    Panicked::catch(f).unwrap_or_else(|panicked| Err(Error::LanePanicked { lane, message: panicked.message }))
}

/// Collects results in batch order.
fn finish<B>(work: Vec<Slot<B>>, lanes: usize) -> Result<Step> {
    let mut losses = Vec::with_capacity(work.len());
    let mut gradients: Option<Gradients> = None;
    let mut updates = Vec::new();
    for (index, slot) in work.into_iter().enumerate() {
        let lane = index % lanes;
        let Work::Done(done) = slot.into_inner() else {
            return Err(Error::LanePanicked { lane, message: "the batch did not run".into() });
        };
        let done = (*done)?;
        losses.push(done.loss);
        match &mut gradients {
            Some(sum) => sum.merge(done.gradients)?,
            None => gradients = Some(done.gradients),
        }
        updates.extend(done.updates.into_iter().map(|update| (lane, update)));
    }
    // No batch failed. A step within a batch of other lanes leaves them to that batch.
    updates.into_iter().try_for_each(|(lane, update)| caught(lane, || defer(update)))?;
    Ok(Step { losses, gradients: gradients.unwrap_or_default() })
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests;
