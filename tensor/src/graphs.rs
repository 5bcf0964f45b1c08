//! Captured steps by the shapes of their batches.

use std::fmt;

use device::{Capture, DType, Device, Error, GraphOptions, PlanReport, Result};

use crate::graph::stand_in;
use crate::{Generator, Graph, Tensor, Tensors};

/// A step with a batch, captured for each form of batch that it sees: at the first sight of the shapes and types of a batch's
/// tensors, and replayed from then on.
///
/// The step sees tensors of its own, which each batch is copied into, so batches may come and go. Tensors that are one in a batch
/// are several in the step. The seeds of a batch's random ops follow the batch. The modes that [`run`](Graphs::run) is called
/// under are no part of the form: each capture keeps those of its first call. What else does not change between replays is said
/// at [`Graph`]; what the step borrows, it keeps, so what changes between steps, such as an optimizer's learning rate, is best
/// put behind a `RefCell`.
///
/// ```
/// use tensor::{Device, Graphs, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let dev = Device::cpu();
/// let mut graphs = Graphs::new(&dev, |[x, y]: &[Tensor; 2]| x.mul(y)?.sum_to(&[]));
/// for rows in [2, 3, 2] {
///     let batch = [Tensor::from_slice(&vec![2.0f32; rows], &[rows], &dev)?, Tensor::scalar(0.5f32, &dev)?];
///     assert_eq!(graphs.run(&batch)?.item::<f32>()?, rows as f32);
/// }
/// assert_eq!(graphs.len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Graphs<B, R, F> {
    cache: GraphCache<B, R>,
    step: F,
}

/// The captured steps of [`Graphs`], for who has the step elsewhere: it is given each time, and called only to be captured.
pub struct GraphCache<B, R> {
    device: Device,
    options: GraphOptions,
    most: usize,
    /// The one that was used last comes last.
    kept: Vec<CapturedBatch<B, R>>,
}

/// A captured step, with the batch that it reads.
struct CapturedBatch<B, R> {
    form: BatchSignature,
    tensors: Vec<Tensor>,
    seeds: Vec<u64>,
    graph: Graph<R>,
    /// Who holds the tensors' other parts.
    _batch: B,
}

/// What batches of one capture have in common.
#[derive(PartialEq)]
struct BatchSignature {
    numbers: Vec<u64>,
    tensors: Vec<(Vec<usize>, DType, Device)>,
}

impl BatchSignature {
    fn of(batch: &impl Tensors, tensors: &[Tensor]) -> BatchSignature {
        let mut numbers = Vec::new();
        batch.form(&mut |number| numbers.push(number));
        let form = |tensor: &Tensor| (tensor.shape().to_vec(), tensor.dtype(), tensor.device().clone());
        BatchSignature { numbers, tensors: tensors.iter().map(form).collect() }
    }
}

#[derive::located]
impl<B: Tensors, R: Tensors, F: FnMut(&B) -> Result<R>> Graphs<B, R, F> {
    /// No captured step yet, of as many as there will be.
    pub fn new(device: &Device, step: F) -> Self {
        Graphs { cache: GraphCache::new(device, GraphOptions::default(), usize::MAX), step }
    }

    /// How steps are planned that are captured from now on.
    #[must_use]
    pub fn options(self, options: GraphOptions) -> Self {
        Graphs { cache: GraphCache { options, ..self.cache }, ..self }
    }

    /// At most `most` captured steps, and at least one: a further one takes the place of that which was not used for longest,
    /// once it is captured.
    #[must_use]
    pub fn at_most(self, most: usize) -> Self {
        Graphs { cache: GraphCache { most: most.max(1), ..self.cache }, ..self }
    }

    /// How many steps are captured.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Runs the step on a batch: copies it into the tensors of its form, captures the step if there are none, and replays it.
    ///
    /// Asynchronous, on the current stream, and ordered like any command.
    ///
    /// # Errors
    /// As for [`Graph::capture_with`] and [`Graph::replay`].
    pub fn run(&mut self, batch: &B) -> Result<R> {
        self.cache.run(batch, &mut self.step)
    }
}

#[derive::located]
impl<B: Tensors, R: Tensors> GraphCache<B, R> {
    /// No captured step yet; see [`Graphs::options`] and [`Graphs::at_most`].
    pub fn new(device: &Device, options: GraphOptions, most: usize) -> Self {
        GraphCache { device: device.clone(), options, most: most.max(1), kept: Vec::new() }
    }

    /// How many steps are captured.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Captures `step` for batches of this one's form, if it is not yet; nothing runs. What the plan is like, and whether it was
    /// captured just now.
    ///
    /// # Errors
    /// As for [`Graph::capture_with`].
    pub fn capture(&mut self, batch: &B, step: impl FnMut(&B) -> Result<R>) -> Result<(PlanReport, bool)> {
        let (batch, tensors, _) = parts(batch)?;
        self.of_form(&batch, &tensors, step).map(|(kept, fresh)| (kept.graph.report(), fresh))
    }

    /// As [`Graphs::run`].
    ///
    /// # Errors
    /// As for [`Graph::capture_with`] and [`Graph::replay`].
    pub fn run(&mut self, batch: &B, step: impl FnMut(&B) -> Result<R>) -> Result<R> {
        let (batch, tensors, seeds) = parts(batch)?;
        self.of_form(&batch, &tensors, step)?.0.replay(&tensors, &seeds)
    }

    /// The captured step for a batch with these tensors, and whether it was captured just now.
    fn of_form(
        &mut self,
        batch: &B,
        tensors: &[Tensor],
        mut step: impl FnMut(&B) -> Result<R>,
    ) -> Result<(&CapturedBatch<B, R>, bool)> {
        Capture::none("replay")?;
        let form = BatchSignature::of(batch, tensors);
        let known = self.kept.iter().position(|kept| kept.form == form);
        match known {
            Some(known) => self.kept[known..].rotate_left(1),
            None => {
                let fresh = CapturedBatch::capture(&self.device, self.options, form, batch, &mut step)?;
                let too_many = (self.kept.len() + 1).saturating_sub(self.most);
                self.kept.drain(..too_many);
                self.kept.push(fresh);
            }
        }
        Ok((&self.kept[self.kept.len() - 1], known.is_none()))
    }
}

/// A copy of a batch that shares its tensors, these, and the seeds.
fn parts<B: Tensors>(batch: &B) -> Result<(B, Vec<Tensor>, Vec<u64>)> {
    let ((mut batch, tensors), mut seeds) = (batch.shared()?, Vec::new());
    batch.seeds(&mut |seed| seeds.push(*seed));
    Ok((batch, tensors, seeds))
}

impl<B: Tensors, R: Tensors> CapturedBatch<B, R> {
    fn capture(
        device: &Device,
        options: GraphOptions,
        form: BatchSignature,
        batch: &B,
        step: &mut impl FnMut(&B) -> Result<R>,
    ) -> Result<Self> {
        let own =
            batch.rebuild(&mut |tensor| Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device()))?;
        let (mut own, tensors, _) = parts(&own)?;
        let value = "a batch that shows others when it is rebuilt";
        let expected = "the same tensors in the same order each time";
        let is_valid = BatchSignature::of(&own, &tensors).tensors == form.tensors;
        Error::require(is_valid, "replay", "batch", expected, value)?;
        let mut seeds = Vec::new();
        own.seeds(&mut |seed| {
            *seed = stand_in();
            seeds.push(*seed);
        });
        let graph = Graph::capture_with(device, options, || step(&own))?;
        Ok(CapturedBatch { form, tensors, seeds, graph, _batch: own })
    }

    fn replay(&self, tensors: &[Tensor], seeds: &[u64]) -> Result<R> {
        self.tensors.iter().zip(tensors).try_for_each(|(own, tensor)| own.copy_(tensor))?;
        let seeds = self.seeds.iter().zip(seeds);
        self.graph.replay_seeded(seeds.map(|(own, seed)| (*own, Generator::new(*seed))).collect())
    }
}

impl<B, R, F> fmt::Debug for Graphs<B, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graphs").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl<B, R> fmt::Debug for GraphCache<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graphs: Vec<&Graph<R>> = self.kept.iter().map(|kept| &kept.graph).collect();
        f.debug_struct("GraphCache").field("device", &self.device).field("graphs", &graphs).finish()
    }
}
