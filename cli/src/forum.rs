//! The model of a question that many have asked: two batches, with an all-gather between their layers.

use autograd::Var;
use comm::{Communicator, VarCollectives};
use device::{Device, Error, Result};
use tensor::RandomKey;

use models::{Forward, Linear, Module, Relu, Sequential};

/// Two linear layers with a ReLU between them, whose hidden values all ranks share: each rank applies the second layer to every
/// rank's part and joins the outputs.
///
/// Shapes: `[n, inputs] -> [n, ranks * outputs]`.
///
/// ```
/// use workloads::Forum;
/// # use comm::Communicator;
/// # use tensor::{DType, Tensor};
/// # fn main() -> device::Result<()> {
/// let rank = |comm: Communicator| -> device::Result<Vec<usize>> {
///     let model = Forum::new([10, 20, 2], 7, comm.device())?;
///     let x = Tensor::ones(&[4, 10], DType::F32, comm.device())?.into();
///     Ok(model.forward(&x, &comm)?.shape().to_vec())
/// };
/// let ranks = Communicator::threads(3)?.into_iter().map(|comm| std::thread::spawn(move || rank(comm)));
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().expect("no panic")?, [4, 6]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
pub struct Forum {
    first: Sequential,
    second: Linear,
}

impl Forum {
    /// A model of `[inputs, hidden, outputs]` features with its first values keyed by `seed`, the same on all ranks.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new([inputs, hidden, outputs]: [usize; 3], seed: u64, device: &Device) -> Result<Forum> {
        let key = |op| RandomKey { seed, op };
        Ok(Forum {
            first: Sequential::new().push(Linear::keyed(inputs, hidden, key(0), device)?).push(Relu),
            second: Linear::keyed(hidden, outputs, key(1), device)?,
        })
    }

    /// What the ranks share.
    ///
    /// # Errors
    /// Those of its ops.
    pub fn hidden(&self, x: &Var) -> Result<Var> {
        self.first.forward(x)
    }

    /// What follows from the hidden values of so many ranks, one behind the other.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not as many rows for each; those of its ops.
    pub fn outputs(&self, gathered: &Var, ranks: usize) -> Result<Var> {
        let rows = gathered.shape().first().copied().unwrap_or(0);
        let is_valid = ranks > 0 && rows % ranks == 0;
        Error::require(is_valid, "Forum::outputs", "gathered", "as many rows for each rank", rows)?;
        let parts = gathered.split(&vec![rows / ranks; ranks], 0)?;
        let outputs: Vec<Var> = parts.iter().map(|part| self.second.forward(part)).collect::<Result<_>>()?;
        Var::cat(&outputs.iter().collect::<Vec<_>>(), 1)
    }

    /// Both, with an all-gather between them.
    ///
    /// # Errors
    /// Those of its ops.
    pub fn forward(&self, x: &Var, comm: &Communicator) -> Result<Var> {
        self.outputs(&self.hidden(x)?.all_gather(comm)?, comm.size())
    }
}

/// How many messages of a rank's collectives follow one another in the middle of a batch's step: the all-gather and its gradient.
pub(super) fn messages(ranks: usize) -> u32 {
    2 * ranks.saturating_sub(1) as u32
}
