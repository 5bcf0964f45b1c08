//! What reductions join, how, and along which axes.

use std::fmt;

use smallvec::SmallVec;

use crate::loops::Loops;

/// How elements are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// `x0 + x1 + ..`; 0 without elements.
    #[default]
    Sum,
    /// The sum divided by the number of elements; NaN without elements. Floats only.
    Mean,
    /// `x0 x1 ..`; 1 without elements.
    Prod,
    /// The largest element; NaN if there is one.
    Max,
    /// The smallest element; NaN if there is one.
    Min,
}

impl ReduceOp {
    /// The op's name in errors and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is made of the elements.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Reduction {
    /// `x0 op x1 op ..`
    Join(ReduceOp),
    /// The index along one axis, as I64, of the first element that is largest or smallest; NaN counts as more extreme.
    Index(Extreme),
    /// The sum of squared distances from the mean over `elements - correction`, or over 0 if that is negative. Floats only. On CUDA it
    /// is one pass, whose lanes, blocks and parts are joined by their means and their squared distances from them.
    Var {
        /// Subtracted from the number of elements.
        correction: f64,
        /// Whether to take the square root, which is finite where the sum may not be.
        root: bool,
    },
    /// `m + log(sum exp(x - m))` with `m = max x`; -infinity without elements. Floats only.
    LogSumExp,
}

impl Reduction {
    /// The op's name in errors and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Join(op) => op.name(),
            Reduction::Index(which) => which.op(),
            Reduction::Var { root: false, .. } => "var",
            Reduction::Var { root: true, .. } => "std",
            Reduction::LogSumExp => "logsumexp",
        }
    }
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Reduction::Join(op)
    }
}

/// Which element an index is asked of.
#[derive(Clone, Copy, Debug)]
pub enum Extreme {
    /// The largest.
    Largest,
    /// The smallest.
    Smallest,
}

impl Extreme {
    /// The op's name in errors and profiles.
    pub const fn op(self) -> &'static str {
        match self {
            Extreme::Largest => "argmax",
            Extreme::Smallest => "argmin",
        }
    }
}

/// The axes of a reduction: one output for each element of `kept`, folded over `reduced`.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    pub(crate) kept: Loops<1>,
    pub(crate) reduced: Loops<1>,
}

impl Axes {
    /// Whether the elements fill a range of memory, in whatever order.
    pub(crate) fn are_dense(&self) -> bool {
        let mut axes: SmallVec<[_; 8]> = self.kept.axes.iter().chain(&self.reduced.axes).collect();
        axes.sort_unstable_by_key(|axis| axis.strides[0]);
        let mut next = 1;
        axes.iter().all(|axis| {
            let follows = axis.strides[0] == next;
            next *= axis.size as isize;
            follows
        })
    }

    /// How many elements there are.
    pub(crate) fn elements(&self) -> usize {
        self.kept.elements * self.reduced.elements
    }
}
