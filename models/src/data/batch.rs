//! What data sets in memory give.

use autograd::Var;
use device::Result;
use tensor::{Generator, Tensor, Tensors};

use super::RaggedBatch;

/// Some rows on a device, with the key of the random numbers that belong to them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The rows' values, `[b, ..]`, of the data set's type; `[b, features]`, F32 for an [`InMemory`](crate::InMemory).
    pub inputs: Tensor,
    /// What is to be told of the rows, `[b, ..]`: classes as I64, or targets.
    pub labels: Tensor,
    /// The rows' categorical features.
    pub bags: Vec<RaggedBatch>,
    /// What random ops on this batch are keyed by: a mix of seed, epoch and position.
    pub key: u64,
}

impl Batch {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.labels.shape().first().copied().unwrap_or(0)
    }

    /// Whether there are no rows; never so for a batch of a loader.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as a constant of the graph.
    pub fn input(&self) -> Var {
        Var::constant(self.inputs.clone())
    }

    /// Runs `work` with random keys that follow from this batch alone, as [`tensor::with_generator`] does.
    pub fn seeded<R>(&self, work: impl FnOnce() -> R) -> R {
        tensor::with_generator(Generator::new(self.key), work)
    }
}

/// A captured step gets each batch's tensors, bags and key; the key is followed where random ops take it.
impl Tensors for Batch {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (inputs, labels) = (f(&self.inputs)?, f(&self.labels)?);
        Ok(Batch { inputs, labels, bags: self.bags.rebuild(f)?, key: self.key })
    }

    fn form(&self, f: &mut dyn FnMut(u64)) {
        self.bags.form(f);
    }

    fn seeds(&mut self, f: &mut dyn FnMut(&mut u64)) {
        f(&mut self.key);
    }
}
