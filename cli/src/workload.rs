//! A model with its data and optimizer, and its training as a [`Comparison`].

use std::sync::Arc;

use autograd::{Var, no_grad};
use compare::{CompareOptions, Comparison, Lane};
use device::{Device, Error, Result};
use models::data::Position;
use models::{Batch, DataLoader, InMemory, LoaderOptions, Module, Optimizer};

use crate::Scale;

/// What a workload is called, and how it is trained unless told otherwise.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadInfo {
    /// The name on the command line.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// Rows in a lane's batch.
    pub batch: usize,
    /// Rows in a lane's batch when schedules are compared: enough work in a command for lanes to matter.
    pub compared_batch: usize,
    /// Epochs after which the model has learnt its data.
    pub epochs: u64,
    /// What runs at once in the concurrent schedule.
    pub overlap: Overlap,
    /// Whether [`Model::prepare`] works wherever the batch is, so that the host can do it before the batch is copied to the device.
    pub prepares_on_host: bool,
}

impl WorkloadInfo {
    /// With batches of one size, and a lane for each batch of a step.
    pub const fn new(name: &'static str, about: &'static str, batch: usize, epochs: u64) -> WorkloadInfo {
        let overlap = Overlap::Batches;
        WorkloadInfo { name, about, batch, compared_batch: batch, epochs, overlap, prepares_on_host: false }
    }
}

/// A model with its data and optimizer.
pub trait Workload: Sync {
    /// Its name and its defaults.
    fn info(&self) -> WorkloadInfo;

    /// The name on the command line.
    fn name(&self) -> &'static str {
        self.info().name
    }

    /// What runs at once in the concurrent schedule.
    fn overlap(&self) -> Overlap {
        self.info().overlap
    }

    /// Where its batches are before [`Model::prepare`] sees them: the device, or its [host](Device::host), from which that
    /// copies them.
    fn source(&self, device: &Device) -> Device {
        device.clone()
    }

    /// The scale of its images on `device`; `None` if they have one size, or if it has none.
    fn scale(&self, _: &Device) -> Option<Scale> {
        None
    }

    /// The same at another scale than the device's own; `None` if it has one size.
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

    /// The training and the held-out data; `seed` decides which rows are held out. Data that are made up have at least as many
    /// rows as a batch, and may be smaller for a CPU.
    ///
    /// # Errors
    /// `Format` if the data are damaged; `InvalidArgument` with both numbers for a batch of more rows than are made up.
    fn data_for(&self, batch: usize, seed: u64, device: &Device) -> Result<(InMemory, InMemory)>;

    /// [`data_for`](Workload::data_for) any batch.
    ///
    /// # Errors
    /// As for [`data_for`](Workload::data_for).
    fn data(&self, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        self.data_for(1, seed, device)
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

/// What [`comparison`] trains.
pub struct Trained {
    model: Arc<dyn Model>,
    optimizer: Box<dyn Optimizer>,
}

/// The training of `workload` on batches of `batch` rows as a comparison, with the [overlap](WorkloadInfo::overlap) of the workload.
///
/// ```
/// use compare::CompareOptions;
/// # fn main() -> device::Result<()> {
/// let options = CompareOptions { steps: 4, warmup: 2, traced: 2, ..CompareOptions::default() };
/// let workload = workloads::find("two-batch")?;
/// assert!(workloads::comparison(workload, &device::Device::cpu(), 64, options)?.run()?.is_identical());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`CompareOptions::check`]; `InvalidArgument` for an empty batch, one larger than the data, and more than two streams where
/// a workload has two parts.
pub fn comparison<'a>(
    workload: &'a dyn Workload,
    device: &Device,
    batch: usize,
    options: CompareOptions,
) -> Result<Comparison<'a, Trained, Batch>> {
    check(workload, batch, &options)?;
    let CompareOptions { seed, streams, .. } = options;
    let overlap = workload.overlap();
    let lanes = overlap.batches(streams);
    let scale = workload.scale(device).map_or(String::new(), |scale| format!(" at scale {scale}"));
    let (train, test) = workload.data_for(batch, seed, device)?;
    check_rows(batch, &train)?;
    let trained = move |device: &Device, branched: bool| -> Result<Trained> {
        let model: Arc<dyn Model> =
            if branched { workload.branched(seed, device)? } else { workload.model(seed, device)? }.into();
        let optimizer = workload.optimizer(model.parameters(), lanes)?;
        Ok(Trained { model, optimizer })
    };
    let comparison = Comparison::new(device)
        .setup(move |device| trained(device, false))
        .loader(move |device| batches(workload, train.clone(), batch, seed, device))
        .loss(move |Trained { model, .. }: &Trained, batch: &Batch| match overlap {
            Overlap::Stages => model.batch_loss(batch),
            _ => model.batch_loss(&no_grad(|| model.prepare(batch.clone()))?),
        })
        .update(|trained, gradients| trained.optimizer.step(&gradients))
        .model(|trained| &trained.model)
        .metrics(move |trained| {
            let device = trained.optimizer.parameters()[0].value().device().clone();
            let Evaluation { loss, accuracy } = trained.model.evaluate(&test, &device)?;
            Ok(vec![("held-out accuracy".into(), accuracy), ("held-out loss".into(), loss)])
        })
        .options(CompareOptions { batches_per_step: Some(lanes), ..options })
        .titled(workload.name(), format!("{}; batches of {batch} rows{scale}", workload.info().about));
    let comparison = match overlap {
        Overlap::Batches => comparison,
        Overlap::Branches => comparison.branched(move |device| trained(device, true)),
        Overlap::Stages => comparison.prepare(|trained| {
            let model = Arc::clone(&trained.model);
            move |batch| model.prepare(batch)
        }),
    };
    Ok(if workload.info().prepares_on_host { comparison.prepares_on_host() } else { comparison })
}

/// The batches of a training, endless, of so many rows each, where [`Workload::source`] has them.
///
/// # Errors
/// `InvalidArgument` for an empty batch, or one larger than the data.
pub(super) fn batches(
    workload: &dyn Workload,
    train: InMemory,
    batch: usize,
    seed: u64,
    device: &Device,
) -> Result<impl Iterator<Item = Result<Batch>> + use<>> {
    let device = workload.source(device);
    let options = LoaderOptions { batch, seed, drop_last: true, device, ..LoaderOptions::default() };
    let steps = DataLoader::new(train, options)?.steps(1, Position::default())?;
    Ok(steps.map(|batches| Ok(batches?.swap_remove(0))))
}

/// Whether a comparison can begin, before data are made.
///
/// # Errors
/// As for [`comparison`], but for the data.
pub fn check(workload: &dyn Workload, batch: usize, options: &CompareOptions) -> Result<()> {
    options.check()?;
    Error::require(batch > 0, "compare", "batch", "at least 1", batch)?;
    let fits = workload.overlap() == Overlap::Batches || options.streams <= 2;
    Error::require(fits, "compare", "streams", "at most 2 for a workload of two parts", options.streams)
}

/// Whether the data have a batch's rows.
///
/// # Errors
/// `InvalidArgument` if they do not.
pub fn check_rows(batch: usize, data: &InMemory) -> Result<()> {
    let value = format_args!("{batch} for {} rows", data.len());
    let expected = "at most the number of rows to train on";
    Error::require(batch <= data.len(), "compare", "batch", expected, value)
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
        let prepare = |(at, batch)| Lane::current().scope("batch", at, || self.prepare(batch));
        no_grad(|| batches.into_iter().enumerate().map(prepare).collect())
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
