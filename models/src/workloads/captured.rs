//! A workload's step, captured.

use autograd::{ConcurrentBatches, no_grad};
use device::{Error, Result, Stream};
use tensor::{Graph, GraphOptions, Input, PlanReport, Tensor, Tensors, tensors_of};

use super::Model;
use crate::{Batch, Optimizer};

/// A step of a training, captured once and replayed with other batches.
///
/// What comes before the part that learns ([`Model::prepare`]) runs anew before each replay, since its random numbers follow
/// from the batch. Those that the loss itself would draw by the [key of a batch](Batch::seeded) are a number of the host: they
/// stay as they were at the capture. The model and the optimizer are held by what the step uses of them.
#[derive(Debug)]
pub struct CapturedStep {
    graph: Graph<Vec<Tensor>>,
    /// The tensors that the step reads its batches from.
    inputs: Vec<Input>,
}

impl CapturedStep {
    /// Captures a step on batches like these, on `lanes`. Nothing is trained yet.
    ///
    /// # Errors
    /// As [`Graph::capture_with`]; those of the model's ops.
    pub fn new(
        lanes: &ConcurrentBatches,
        model: &dyn Model,
        optimizer: &mut dyn Optimizer,
        batches: Vec<Batch>,
        options: GraphOptions,
    ) -> Result<CapturedStep> {
        // Tensors that nobody else has.
        let own = prepare(model, batches)?.rebuild(&mut Tensor::copy)?;
        let device = lanes.streams().first().map(Stream::device).cloned();
        let device = device.unwrap_or_else(|| own[0].labels.device().clone());
        let graph = Graph::capture_with(&device, options, || {
            let step = lanes.step(&own, |batch| model.batch_loss(batch))?;
            optimizer.step(&step.gradients)?;
            Ok(step.losses)
        })?;
        let inputs = tensors_of(&own)?.iter().map(|tensor| graph.input(tensor)).collect::<Result<_>>()?;
        Ok(CapturedStep { graph, inputs })
    }

    /// One step on `batches`: the losses, in batch order.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for batches of other shapes than the captured ones, [`Error::InvalidArgument`] for more or
    /// fewer of them; as [`Graph::replay`].
    pub fn step(&self, model: &dyn Model, batches: Vec<Batch>) -> Result<Vec<Tensor>> {
        let next = tensors_of(&prepare(model, batches)?)?;
        if next.len() != self.inputs.len() {
            let value = format_args!("{} tensors for {}", next.len(), self.inputs.len());
            return Err(Error::invalid("step", "batches", "as many as were captured", value));
        }
        self.inputs.iter().zip(&next).try_for_each(|(input, value)| input.set(value))?;
        self.graph.replay()
    }

    /// What the plan of the step is like.
    pub fn report(&self) -> PlanReport {
        self.graph.report()
    }
}

fn prepare(model: &dyn Model, batches: Vec<Batch>) -> Result<Vec<Batch>> {
    no_grad(|| batches.into_iter().map(|batch| model.prepare(batch)).collect())
}
