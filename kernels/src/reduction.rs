//! What reductions join, how, and along which axes.

use smallvec::SmallVec;

use crate::loops::Loops;

/// How elements are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// `x0 + x1 + ..`; 0 without elements.
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

/// What is made of the elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reduction {
    Join(ReduceOp),
    /// The index of an element.
    Index(Extreme),
    /// The sum of squared distances from the mean over `elements - correction`, or over 0 if that is negative; or its square
    /// root, which is finite where the sum may not be.
    Var {
        correction: f64,
        root: bool,
    },
    LogSumExp,
}

/// Which element an index is asked of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extreme {
    Largest,
    Smallest,
}

impl Extreme {
    pub(crate) const fn op(self) -> &'static str {
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
