//! What a comparison runs on, and for how long.

use device::{Device, Error, Result};

use crate::{Overlap, Workload};

/// What a comparison runs on, and for how long.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// The device. On a CPU each schedule gets a device of its own of the same make, so that their statistics do not
    /// mix.
    pub device: Device,
    /// Streams of the concurrent schedule; for [`Overlap::Batches`] also the batches of a step in both, else 1 or 2.
    pub streams: usize,
    /// Rows of one batch.
    pub batch: usize,
    /// Steps that are measured.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// The seed of parameters, split and shuffles.
    pub seed: u64,
    /// Steps that are traced afterwards.
    pub traced: usize,
    /// Whether the serial schedule's step is captured and compared, too.
    pub graph: bool,
}

/// More lanes than this would be threads that only wait.
const MAX_STREAMS: usize = 256;

impl CompareOptions {
    /// The workload's own batch and lanes, and enough steps for it to learn.
    pub fn new(workload: &dyn Workload, device: &Device) -> CompareOptions {
        CompareOptions {
            device: device.clone(),
            streams: 2,
            batch: workload.info().compared_batch,
            steps: 1000,
            warmup: 200,
            seed: 7,
            traced: 32,
            graph: false,
        }
    }

    /// Whether a comparison can begin; [`compare`](crate::compare) asks, too.
    ///
    /// # Errors
    /// `InvalidArgument` for no streams, batch, steps or traced steps, and for more streams than 256, or than 2 where a
    /// workload has two parts.
    pub fn check(&self, workload: &dyn Workload) -> Result<()> {
        let counts = [
            ("streams", self.streams),
            ("batch", self.batch),
            ("steps", self.steps),
            ("traced", self.traced),
        ];
        for (argument, count) in counts {
            Error::require(count > 0, "compare", argument, "at least 1", count)?;
        }
        Error::require(self.streams <= MAX_STREAMS, "compare", "streams", "at most 256", self.streams)?;
        let fits = workload.overlap() == Overlap::Batches || self.streams <= 2;
        let expected = "at most 2 for a workload of two parts";
        Error::require(fits, "compare", "streams", expected, self.streams)
    }

    /// Whether the workload's data have a batch's rows, before a long run of other options.
    ///
    /// # Errors
    /// `InvalidArgument` if they do not, and what making the data fails with.
    pub fn check_rows(&self, workload: &dyn Workload) -> Result<()> {
        let (train, _) = workload.data_for(self.batch, self.seed, &self.device)?;
        let value = format_args!("{} for {} rows", self.batch, train.len());
        let is_valid = self.batch <= train.len();
        Error::require(is_valid, "compare", "batch", "at most the number of rows to train on", value)
    }
}
