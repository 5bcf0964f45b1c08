//! How a loss turns one value for each row or element into its result.

use tensor::Result;

use crate::Var;

/// What a loss does with its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean, the default.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Keeps them apart.
    None,
}

impl Reduction {
    pub(super) fn apply(self, losses: Var) -> Result<Var> {
        match self {
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
            Reduction::None => Ok(losses),
        }
    }
}
