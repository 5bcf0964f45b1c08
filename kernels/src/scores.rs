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
    /// Which weights are left out, and what the others are multiplied with.
    ///
    /// A weight has fifteen random bits, and is left out if they are less than `2^15 p`, which is rounded to the nearest integer `n`. The
    /// others are multiplied with `2^15 / (2^15 - n)`, so that the mean of a weight stays. Below `p = 2^-16` none is left out, from
    /// `1 - 2^-16` on all are.
    ///
    /// The bits are those of Philox4x32-7, the rounds of which are fewer than other random numbers take: the fewest that its authors
    /// found to pass all tests. They depend on the key and on the weight's place alone. For query `q` and key `k` of the pair of matrices
    /// `i`, of `s` queries, the counter is `[k / 16 * 4 + k % 8 / 2, (i * ceil(s / 16) + q / 16) * 8 + q % 8, op, op >> 32]`, whose
    /// first two words wrap around, and the key is `[seed, seed >> 32]`. Of the counter's words it is number
    /// `k % 16 / 8 * 2 + q % 16 / 8`, and of that the lower fifteen bits of the lower half for an even key, of the upper half for an odd one.
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

    /// A query's number in the counters of random bits, and whether it is the further one of the two that share them.
    pub(crate) fn query_number(&self, pair: usize, query: usize) -> (u32, bool) {
        let block = pair * self.sizes.queries.div_ceil(16) + query / 16;
        ((block * 8 + query % 8) as u32, query % 16 >= 8)
    }

    /// A key's number in them.
    pub(crate) fn key_number(key: usize) -> u32 {
        (key / 16 * 4 + key % 8 / 2) as u32
    }

    /// Scores of all products.
    pub(crate) fn scores(&self) -> usize {
        self.batch.elements.saturating_mul(self.sizes.queries.saturating_mul(self.sizes.keys))
    }
}
