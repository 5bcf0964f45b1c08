//! A workload's step, captured.

use autograd::ConcurrentBatches;
use device::{Device, Result};
use tensor::{GraphCache, GraphOptions, PlanReport, Tensor};

use crate::Model;
use models::{Batch, Optimizer};

/// Forms of batches that are kept: batches of click logs have one each.
const FORMS: usize = 8;

/// A training whose steps are captured for each form of batch that they meet, and replayed.
///
/// What comes before the part that learns is not captured: steps are given what it makes of batches ([`Model::prepare_all`]), and all
/// of them the same lanes, model and optimizer.
#[derive(Debug)]
pub struct CapturedStep(GraphCache<Vec<Batch>, Vec<Tensor>>);

/// What a step trains, and on what.
pub struct Training<'a> {
    /// The streams of its batches.
    pub lanes: &'a ConcurrentBatches,
    /// The model.
    pub model: &'a dyn Model,
    /// The optimizer of the model's parameters.
    pub optimizer: &'a mut dyn Optimizer,
}

impl Training<'_> {
    fn step(&mut self, batches: &Vec<Batch>) -> Result<Vec<Tensor>> {
        let step = self.lanes.step(batches, |batch| self.model.batch_loss(batch))?;
        self.optimizer.step(&step.gradients)?;
        Ok(step.losses)
    }
}

impl CapturedStep {
    /// Nothing is captured yet.
    pub fn new(device: &Device, options: GraphOptions) -> CapturedStep {
        CapturedStep(GraphCache::new(device, options, FORMS))
    }

    /// Captures the step for prepared batches like these, if it is not yet; nothing is trained. What the plan is like, and whether it was
    /// captured just now.
    ///
    /// # Errors
    /// As [`Graph::capture_with`](tensor::Graph::capture_with); those of the model's ops.
    pub fn capture(
        &mut self,
        mut training: Training<'_>,
        batches: &Vec<Batch>,
    ) -> Result<(PlanReport, bool)> {
        self.0.capture(batches, |batches| training.step(batches))
    }

    /// One step on prepared batches: the losses, in batch order.
    ///
    /// # Errors
    /// As [`capture`](Self::capture) and [`Graph::replay`](tensor::Graph::replay).
    pub fn step(&mut self, mut training: Training<'_>, batches: &Vec<Batch>) -> Result<Vec<Tensor>> {
        self.0.run(batches, |batches| training.step(batches))
    }
}
