//! What trains a model: op by op, or by captured steps.

use std::time::Instant;

use autograd::{ConcurrentBatches, Var, no_grad};
use device::Result;
use tensor::{GraphCache, GraphOptions, Tensor, Tensors};

use crate::{CapturedReport, Model};
use models::{Batch, Optimizer};

/// Forms of batches that are kept: batches of click logs have one each.
const FORMS: usize = 8;

/// Lanes and an optimizer that train a model. Steps are run op by op or, for each form of batch that they meet, captured and replayed.
///
/// What comes before the part that learns is not captured ([`Model::prepare`]). All steps are given the same model.
pub struct Trainer {
    /// The streams of a step's batches.
    pub lanes: ConcurrentBatches,
    /// The optimizer of the model's parameters.
    pub optimizer: Box<dyn Optimizer>,
    graphs: Option<GraphCache<Vec<Batch>, Vec<Tensor>>>,
    captured: CapturedReport,
}

impl Trainer {
    /// Steps are captured if it is said how.
    pub fn new(
        lanes: ConcurrentBatches,
        optimizer: Box<dyn Optimizer>,
        captured: Option<GraphOptions>,
    ) -> Trainer {
        let device = lanes.streams()[0].device();
        let graphs = captured.map(|options| GraphCache::new(device, options, FORMS));
        Trainer { lanes, optimizer, graphs, captured: CapturedReport::default() }
    }

    /// One step: the losses, in batch order.
    ///
    /// # Errors
    /// Those of the model's ops; as [`capture`](Self::capture) and [`Graph::replay`](tensor::Graph::replay).
    pub fn step(&mut self, model: &dyn Model, batches: Vec<Batch>) -> Result<Vec<Tensor>> {
        if self.graphs.is_some() {
            return self.replay(model, &model.prepare_all(batches)?);
        }
        let device = self.lanes.streams()[0].device();
        // On the device, where it is already unless the host has prepared it.
        let uploaded = |batch: Batch| batch.rebuild(&mut |tensor| tensor.to_device(device));
        let prepared = |batch| no_grad(|| model.prepare(batch)).and_then(uploaded);
        train(&self.lanes, &mut *self.optimizer, batches, |batch| model.batch_loss(&prepared(batch)?))
    }

    /// One step on prepared batches ([`Model::prepare_all`]).
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn replay(&mut self, model: &dyn Model, batches: &Vec<Batch>) -> Result<Vec<Tensor>> {
        let Trainer { lanes, optimizer, graphs, .. } = self;
        let mut step = |batches: &_| train(lanes, &mut **optimizer, batches, |batch| model.batch_loss(batch));
        match graphs {
            Some(graphs) => graphs.run(batches, step),
            None => step(batches),
        }
    }

    /// Captures the step for prepared batches like these, if steps are captured and this one is not yet; nothing is trained.
    ///
    /// # Errors
    /// As [`Graph::capture_with`](tensor::Graph::capture_with); those of the model's ops.
    pub fn capture(&mut self, model: &dyn Model, batches: &Vec<Batch>) -> Result<()> {
        let Trainer { lanes, optimizer, graphs: Some(graphs), captured } = self else { return Ok(()) };
        let start = Instant::now();
        let step = |batches: &_| train(lanes, &mut **optimizer, batches, |batch| model.batch_loss(batch));
        let (plan, is_fresh) = graphs.capture(batches, step)?;
        if is_fresh {
            captured.plan = plan;
            captured.captures += 1;
            captured.capture_ms += start.elapsed().as_secs_f64() * 1e3;
        }
        Ok(())
    }

    /// What was captured; `None` if steps are not.
    pub fn captured(&self) -> Option<CapturedReport> {
        self.graphs.is_some().then_some(self.captured)
    }
}

fn train<B: Send>(
    lanes: &ConcurrentBatches,
    optimizer: &mut dyn Optimizer,
    batches: impl IntoIterator<Item = B>,
    loss: impl Fn(B) -> Result<Var> + Sync,
) -> Result<Vec<Tensor>> {
    let step = lanes.step(batches, loss)?;
    optimizer.step(&step.gradients)?;
    Ok(step.losses)
}
