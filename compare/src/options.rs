//! How a comparison is run, and for how long.

use device::{Error, Result};

/// How a [`Comparison`](crate::Comparison) is run, and for how long.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Streams of the concurrent schedules.
    pub streams: usize,
    /// Batches of a step: `None` for as many as streams where they run on lanes, else for one.
    pub batches_per_step: Option<usize>,
    /// Steps that are measured.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// Steps that are traced afterwards.
    pub traced: usize,
    /// Whether the serial schedule's step is captured and compared, too, in the order of its stream and in that of its data.
    pub captured: bool,
    /// How many more schedules of two steps are tried out and compared, as [`explore`](crate::explore) does: on a CPU, whatever
    /// the device, with one thread.
    pub explored: usize,
    /// The seed of the generator that the program's random ops draw from.
    pub seed: u64,
}

impl Default for CompareOptions {
    /// Two streams, 100 steps after 20 of warm-up, 16 traced ones, captured schedules, and 8 schedules that are tried out.
    fn default() -> Self {
        CompareOptions {
            streams: 2,
            batches_per_step: None,
            steps: 100,
            warmup: 20,
            traced: 16,
            captured: true,
            explored: 8,
            seed: 7,
        }
    }
}

/// More lanes than this would be threads that only wait.
const MAX_STREAMS: usize = 256;

impl CompareOptions {
    /// Whether a comparison can begin; [`run`](crate::Comparison::run) asks, too.
    ///
    /// # Errors
    /// `InvalidArgument` for no streams, batches of a step, steps or traced steps, and for more streams than 256.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("streams", self.streams),
            ("batches_per_step", self.batches_per_step.unwrap_or(1)),
            ("steps", self.steps),
            ("traced", self.traced),
        ];
        for (argument, count) in counts {
            Error::require(count > 0, "compare", argument, "at least 1", count)?;
        }
        Error::require(self.streams <= MAX_STREAMS, "compare", "streams", "at most 256", self.streams)
    }
}
