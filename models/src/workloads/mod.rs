//! The example programs, as data: model, batches, loss, optimizer. Whoever runs them decides how.

mod classify;
mod language;

use autograd::{Var, no_grad};
use device::{Device, Error, Result};

use crate::{Batch, InMemory, Module, Optimizer, correct, cross_entropy};

/// A model with its data, loss and optimizer.
pub trait Workload: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// One line on what it is.
    fn about(&self) -> &'static str;

    /// Rows in a lane's batch, unless told otherwise.
    fn default_batch(&self) -> usize;

    /// Rows in a lane's batch when schedules are compared, unless told otherwise: enough work in a command for lanes
    /// to matter.
    fn compared_batch(&self) -> usize {
        self.default_batch()
    }

    /// Lanes, unless told otherwise.
    fn default_streams(&self) -> usize {
        2
    }

    /// Epochs after which the model has learnt its data.
    fn default_epochs(&self) -> u64;

    /// A new model with its first values keyed by `seed`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Module>>;

    /// The training and the held-out data; `seed` decides which rows are held out.
    ///
    /// # Errors
    /// `Format` if the data are damaged.
    fn data(&self, seed: u64) -> Result<(InMemory, InMemory)>;

    /// The optimizer, for steps in which the gradients of `lanes` batches are added.
    ///
    /// # Errors
    /// As the optimizer's constructor; `InvalidArgument` if `lanes` is 0.
    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>>;

    /// The mean loss over one batch, with random ops keyed by the batch.
    ///
    /// # Errors
    /// Those of the model's ops.
    fn loss(&self, model: &dyn Module, batch: &Batch) -> Result<Var> {
        batch.seeded(|| cross_entropy(&model.forward(&batch.input())?, &batch.labels))
    }

    /// Loss and accuracy over all of `data`, without recording.
    ///
    /// The model is in evaluation mode meanwhile, and in training mode afterwards.
    ///
    /// # Errors
    /// Those of the model's ops.
    fn evaluate(&self, model: &dyn Module, data: &InMemory, device: &Device) -> Result<Evaluation> {
        model.set_training(false);
        let evaluation = evaluate(model, data, device);
        model.set_training(true);
        evaluation
    }
}

/// How well a model does on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss over the rows.
    pub loss: f64,
    /// The share of rows that are classified correctly.
    pub accuracy: f64,
}

/// Rows in one forward pass of an evaluation.
const EVALUATION_ROWS: usize = 512;

fn evaluate(model: &dyn Module, data: &InMemory, device: &Device) -> Result<Evaluation> {
    let batches =
        crate::Batches::new(data.clone(), EVALUATION_ROWS.min(data.len()), 0, device)?.shuffle(false);
    no_grad(|| {
        // All batches are enqueued before the first result is read.
        let mut parts = Vec::with_capacity(batches.per_epoch());
        for batch in batches.epoch(0) {
            let batch = batch?;
            let logits = model.forward(&batch.input())?;
            let loss = cross_entropy(&logits, &batch.labels)?;
            parts.push((loss.value().clone(), correct(logits.value(), &batch.labels)?, batch.len()));
        }
        let (mut loss, mut right) = (0.0, 0);
        for (mean, count, rows) in parts {
            loss += mean.to_dtype(device::DType::F64)?.item::<f64>()? * rows as f64;
            right += count.item::<i64>()?;
        }
        let rows = data.len() as f64;
        Ok(Evaluation { loss: loss / rows, accuracy: right as f64 / rows })
    })
}

/// Refuses a step of no batches.
fn expect_lanes(lanes: usize) -> Result<()> {
    if lanes > 0 {
        return Ok(());
    }
    let (argument, expected, value) = ("lanes", "at least 1", "0".into());
    Err(Error::InvalidArgument { op: "workload", argument, expected, value })
}

/// Every workload, the default first.
pub const ALL: &[&dyn Workload] = &[&classify::TWO_BATCH, &classify::MLP, &classify::CNN, &language::CharGpt];

/// The workload of that name.
///
/// ```
/// assert_eq!(models::workloads::find("mlp")?.name(), "mlp");
/// assert!(models::workloads::find("none").is_err());
/// # Ok::<(), device::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` with the name, if there is none.
pub fn find(name: &str) -> Result<&'static dyn Workload> {
    ALL.iter().copied().find(|workload| workload.name() == name).ok_or_else(|| Error::InvalidArgument {
        op: "workload",
        argument: "name",
        expected: NAMES,
        value: name.into(),
    })
}

const NAMES: &str = "one of two-batch, mlp, cnn, gpt";

#[cfg(test)]
mod tests;
