//! The example programs, as data: model, batches, loss, optimizer. Whoever runs them decides how; [`compare`] runs one on one
//! stream and on several, side by side. Their models and their made-up data are here, too.

mod autoencoder;
mod branches;
mod captured;
mod classify;
mod clicks;
pub mod compare;
mod data;
mod dlrm;
mod forum;
mod gpt;
mod images;
mod language;
mod lenet;
mod plan;
mod scale;

use autograd::{Var, no_grad};
use device::{DType, Device, Error, Result};
use tensor::Tensor;

use crate::{Batch, DataLoader, InMemory, LoaderOptions, Module, Optimizer, correct, cross_entropy};

pub use autoencoder::{EncoderDecoder, PyramidOptions, decoder, encoder, pixel_cross_entropy};
pub use branches::Branches;
pub use captured::{CapturedStep, Training};
pub use data::{ClickLog, ClickOptions, Images};
pub use dlrm::{Dlrm, DlrmOptions};
pub use forum::Forum;
pub use gpt::{Gpt, GptBlock, GptOptions};
pub use lenet::lenet;
pub use plan::{Plan, PlanOptions, PlannedStep, plan};
pub use scale::Scale;

/// A model with its data and optimizer.
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

    /// Streams, unless told otherwise.
    fn default_streams(&self) -> usize {
        2
    }

    /// Epochs after which the model has learnt its data.
    fn default_epochs(&self) -> u64;

    /// What runs at once in the concurrent schedule.
    fn overlap(&self) -> Overlap {
        Overlap::Batches
    }

    /// Where its batches are before [`Model::prepare`] sees them: the device, or its [host](Device::host), from which that
    /// copies them.
    fn source(&self, device: &Device) -> Device {
        device.clone()
    }

    /// Whether [`Model::prepare`] works wherever the batch is, so that the host can do it before the batch is copied to the device.
    fn prepares_on_host(&self) -> bool {
        false
    }

    /// The scale of its images on `device`; `None` if they have one size, or if it has none.
    fn scale(&self, _: &Device) -> Option<Scale> {
        None
    }

    /// The same at another scale than the device's own; `None` if it has one size. See [`scaled`].
    fn at_scale(&self, _: Scale) -> Option<&'static dyn Workload> {
        None
    }

    /// A new model with its first values keyed by `seed`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>>;

    /// The same model with its branches at once ([`Device::concurrent`]), for [`Overlap::Branches`].
    ///
    /// # Errors
    /// As for [`model`](Workload::model).
    fn branched(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        self.model(seed, device)
    }

    /// The training and the held-out data; `seed` decides which rows are held out. Made-up data may be smaller for a CPU.
    ///
    /// # Errors
    /// `Format` if the data are damaged.
    fn data(&self, seed: u64, device: &Device) -> Result<(InMemory, InMemory)>;

    /// [`data`](Workload::data), with at least as many rows as a batch has where they are made up.
    ///
    /// # Errors
    /// As for [`data`](Workload::data); `InvalidArgument` with both numbers for a batch of more rows than are made.
    fn data_for(&self, _batch: usize, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        self.data(seed, device)
    }

    /// The optimizer, for steps in which the gradients of `lanes` batches are added.
    ///
    /// # Errors
    /// As the optimizer's constructor; `InvalidArgument` if `lanes` is 0.
    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>>;
}

/// What runs at once in a workload's concurrent schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The batches of a step, each on a lane.
    Batches,
    /// One batch is prepared ([`Model::prepare`]) while the model trains on the one before.
    Stages,
    /// Two branches of the model, forward and backward, within one batch.
    Branches,
}

impl Overlap {
    /// Batches of a step on so many streams.
    pub fn batches(self, streams: usize) -> usize {
        if self == Overlap::Batches { streams } else { 1 }
    }
}

/// A module that knows its loss.
pub trait Model: Module {
    /// What comes before the part that learns, without gradient. A schedule may do it one batch ahead, on another stream.
    ///
    /// # Errors
    /// Those of its ops.
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(batch)
    }

    /// [`prepare`](Self::prepare) for each batch, unrecorded.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    fn prepare_all(&self, batches: Vec<Batch>) -> Result<Vec<Batch>> {
        no_grad(|| batches.into_iter().map(|batch| self.prepare(batch)).collect())
    }

    /// The mean loss over one prepared batch, with random ops keyed by the batch.
    ///
    /// # Errors
    /// Those of the model's ops.
    fn batch_loss(&self, batch: &Batch) -> Result<Var>;

    /// Loss and accuracy over all of `data`, without recording.
    ///
    /// The model is in evaluation mode meanwhile, and in training mode afterwards.
    ///
    /// # Errors
    /// Those of the model's ops.
    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation>;
}

/// How well a model does on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss over the rows.
    pub loss: f64,
    /// The share of rows that are classified correctly.
    pub accuracy: f64,
}

/// Evaluates `part` on batches of so many rows, which gives a batch's mean loss and its number of right answers out of how
/// many.
fn evaluate(
    model: &dyn Model,
    data: &InMemory,
    rows: usize,
    device: &Device,
    part: impl Fn(&Batch) -> Result<(Tensor, Tensor, usize)>,
) -> Result<Evaluation> {
    let batch = rows.min(data.len());
    let options = LoaderOptions { batch, shuffle: false, device: device.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(data.clone(), options)?;
    model.set_training(false);
    // All batches are enqueued before the first result is read.
    let parts = no_grad(|| loader.epoch(0).map(|batch| part(&batch?)).collect::<Result<Vec<_>>>());
    model.set_training(true);
    let (mut loss, mut right, mut all) = (0.0, 0, 0);
    for (mean, count, of) in parts? {
        loss += mean.to_dtype(DType::F64)?.item::<f64>()? * of as f64;
        right += count.to_dtype(DType::I64)?.item::<i64>()?;
        all += of;
    }
    Ok(Evaluation { loss: loss / all as f64, accuracy: right as f64 / all as f64 })
}

/// A batch's mean cross-entropy and the number of rows that have their largest score at the label.
fn by_class(scores: &Var, batch: &Batch) -> Result<(Tensor, Tensor, usize)> {
    let loss = cross_entropy(scores, &batch.labels)?;
    Ok((loss.value().clone(), correct(scores.value(), &batch.labels)?, batch.len()))
}

/// Refuses a step of no batches.
fn expect_lanes(lanes: usize) -> Result<()> {
    if lanes > 0 {
        return Ok(());
    }
    Err(Error::invalid("workload", "lanes", "at least 1", 0))
}

/// Every workload, the default first.
pub const ALL: &[&dyn Workload] = &[
    &classify::TWO_BATCH,
    &classify::MLP,
    &classify::CNN,
    &language::CharGpt,
    &clicks::Clicks,
    &images::EncodeDecode(None),
    &images::Augmented(None),
    &images::Prefetched,
    &images::Branched(Scale::Article),
];

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
    ALL.iter()
        .copied()
        .find(|workload| workload.name() == name)
        .ok_or_else(|| Error::invalid("workload", "name", NAMES, name))
}

/// The workload at a scale, if one is asked for.
///
/// # Errors
/// `InvalidArgument` with the scale, if the workload has one size.
pub fn scaled(workload: &'static dyn Workload, scale: Option<Scale>) -> Result<&'static dyn Workload> {
    let Some(scale) = scale else { return Ok(workload) };
    let one_size = || Error::invalid(workload.name(), "scale", "none, as it has one size", scale);
    workload.at_scale(scale).ok_or_else(one_size)
}

const NAMES: &str = "one of two-batch, mlp, cnn, gpt, dlrm, encoder-decoder, augment, prefetch, branches";

#[cfg(test)]
mod tests;
