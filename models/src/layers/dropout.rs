//! Dropout with a mask that is a function of its key.

use autograd::Var;
use device::{Error, Result};

use crate::{Forward, Module, Training};

/// Sets each element to zero with probability `p` and scales the rest by `1 / (1 - p)`, while training.
///
/// In evaluation it is the identity. Each forward pass takes the next key of the thread
/// ([`tensor::next_key`]); inside [`Batch::seeded`](crate::Batch::seeded) that key follows from the batch and
/// from the layer's place in the pass, so the mask is the same on every lane, thread and schedule.
#[derive(Debug, Module)]
pub struct Dropout {
    #[module(skip)]
    p: f64,
    training: Training,
}

#[derive::located]
impl Dropout {
    /// A layer that drops each element with probability `p`, in training.
    ///
    /// # Errors
    /// `InvalidArgument` if `p` is not in `0..=1`.
    pub fn new(p: f64) -> Result<Self> {
        Error::require((0.0..=1.0).contains(&p), "dropout", "p", "between 0 and 1", p)?;
        Ok(Dropout { p, training: Training::default() })
    }
}

#[derive::located]
impl Forward for Dropout {
    fn forward(&self, input: &Var) -> Result<Var> {
        if self.p == 0.0 || !self.training.is_on() {
            return Ok(input.clone());
        }
        input.dropout(self.p, tensor::next_key())
    }
}
