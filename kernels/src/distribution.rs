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
    /// `InvalidArgument` unless `p` is a probability.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        if (0.0..=1.0).contains(&self.p) {
            return Ok(());
        }
        Err(Error::invalid(op, "p", "in 0..=1", format_args!("{:?}", self.p)))
    }
}

/// How dropout leaves out weights of attention: by bits of Philox4x32-7, fifteen for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// The least bits of a weight that is kept.
    pub(crate) kept_from: u32,
    /// What weights that are kept are multiplied with.
    pub(crate) scale: f64,
}

impl Weights {
    const STEPS: u32 = 1 << 15;

    pub(crate) fn of(dropout: &Dropout) -> Weights {
        let kept_from = (dropout.p * f64::from(Weights::STEPS)).round() as u32;
        let kept = Weights::STEPS - kept_from;
        let scale = if kept == 0 { 0.0 } else { f64::from(Weights::STEPS) / f64::from(kept) };
        Weights { kept_from, scale }
    }
}

/// Rounds of Philox for weights of attention: the fewest that its authors found to pass all their tests.
pub(crate) const ROUNDS: usize = 7;
/// What Philox multiplies with.
pub(crate) const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// The keys of the rounds.
pub(crate) fn round_keys<const ROUNDS: usize>(seed: u64) -> [[u32; 2]; ROUNDS] {
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let first = [seed as u32, (seed >> 32) as u32];
    std::array::from_fn(|round| {
        std::array::from_fn(|k| first[k].wrapping_add(WEYL[k].wrapping_mul(round as u32)))
    })
}

/// What to draw from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Distribution {
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, std: f64 },
    Integers { low: i64, high: i64 },
}
