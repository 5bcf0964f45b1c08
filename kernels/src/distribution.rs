//! What random numbers depend on, and what they are drawn from.

/// What a random op's numbers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandomKey {
    /// Chosen by the user.
    pub seed: u64,
    /// Which random op of the program this is.
    pub op: u64,
}

/// What to draw from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Distribution {
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, std: f64 },
    Integers { low: i64, high: i64 },
}
