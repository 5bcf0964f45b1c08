//! Problems of attention: the sizes, and where the operands lie.

use crate::distribution::Dropout;
use crate::layout::View;
use crate::loops::{LoopAxis, Loops};

/// Which keys a query attends to, and how.
#[derive(Clone, Copy, Debug)]
pub struct AttentionKind {
    /// Whether query `i` sees the keys `0..=i` only.
    pub causal: bool,
    /// What products of queries and keys are multiplied with.
    pub scale: f64,
    /// Which weights are left out, and what the others are multiplied with. They are counted in row-major order, as if there were a
    /// multiple of four keys.
    pub dropout: Option<Dropout>,
}

/// Sizes of one matrix of scores, and of what it is made of.
#[derive(Clone, Copy)]
pub(crate) struct ScoreSizes {
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Elements of a query and of a key.
    pub(crate) width: usize,
    /// Elements of a value.
    pub(crate) value_width: usize,
}

/// Attention over all leading axes. Operands are q, k, v, mask, out, g, dq, dk, dv; those that a pass does not have stay
/// where they are.
pub(crate) struct ScoreBatch {
    pub(crate) batch: Loops<9>,
    pub(crate) sizes: ScoreSizes,
    pub(crate) kind: AttentionKind,
    /// Steps along the last two axes of each operand.
    pub(crate) steps: [[isize; 2]; 9],
}

impl ScoreBatch {
    /// That of operands whose shapes were checked: queries, and the others in their order.
    pub(crate) fn of(
        kind: AttentionKind,
        sizes: ScoreSizes,
        q: View<'_>,
        others: [Option<View<'_>>; 8],
    ) -> ScoreBatch {
        let [k, v, mask, out, g, dq, dk, dv] = others;
        let leading = q.layout.rank() - 2;
        let operands = [Some(q), k, v, mask, out, g, dq, dk, dv];
        let step = |view: Option<View<'_>>, axis: usize| view.map_or(0, |view| view.layout.strides()[axis]);
        let axis = |axis| LoopAxis { size: q.shape()[axis], strides: operands.map(|view| step(view, axis)) };
        ScoreBatch {
            batch: Loops::from_axes((0..leading).map(axis)),
            sizes,
            kind,
            steps: operands.map(|view| [step(view, leading), step(view, leading + 1)]),
        }
    }

    /// The number of the first weight of a query.
    pub(crate) fn first_weight(&self, pair: usize, query: usize) -> usize {
        (pair * self.sizes.queries + query) * self.sizes.keys.next_multiple_of(4)
    }

    /// Scores of all products.
    pub(crate) fn scores(&self) -> usize {
        self.batch.elements.saturating_mul(self.sizes.queries * self.sizes.keys)
    }
}
