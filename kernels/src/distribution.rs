//! What random numbers depend on, and what they are drawn from.

use device::{Error, Result};

/// What a random op's numbers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandomKey {
    /// Chosen by the user.
    pub seed: u64,
    /// Which random op of the program this is.
    pub op: u64,
}

/// Which elements are left out, and what the others are multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// The probability with which an element is left out.
    pub p: f64,
    /// What is left out depends on, beside the element's number.
    pub key: RandomKey,
}

impl Dropout {
    /// The least of an element's first 24 bits with which it is kept, in each type.
    pub(crate) fn kept_from(&self) -> u32 {
        (self.p * 16_777_216.0).ceil() as u32
    }

    /// What elements that are kept are multiplied with.
    pub(crate) fn scale(&self) -> f64 {
        if self.p < 1.0 { 1.0 / (1.0 - self.p) } else { 0.0 }
    }

    /// # Errors
    /// [`Error::InvalidArgument`] unless `p` is a probability.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        if (0.0..=1.0).contains(&self.p) {
            return Ok(());
        }
        Err(Error::invalid(op, "p", "in 0..=1", format_args!("{:?}", self.p)))
    }
}

/// What to draw from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Distribution {
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, std: f64 },
    Integers { low: i64, high: i64 },
}
