//! Operands that are reached through indices, for both kinds of device.

use crate::loops::{LoopAxis, Loops, Places};

/// Two operands `[part, whole]` that differ along one axis, along which indices name rows of the whole.
#[derive(Clone, Debug)]
pub(crate) struct IndexedRows {
    pub(crate) op: &'static str,
    /// Axes before that one, and after it.
    pub(crate) outer: Loops<2>,
    pub(crate) inner: Places<2>,
    /// Steps along it.
    pub(crate) steps: [isize; 2],
    /// Rows of the part.
    pub(crate) count: usize,
    /// Rows of the whole.
    pub(crate) size: usize,
    pub(crate) index_step: isize,
}

impl IndexedRows {
    /// Elements of the whole, if they fill the memory from the first one on without gaps.
    pub(crate) fn filled(&self) -> Option<usize> {
        let inner = self.inner.loops();
        let along = LoopAxis { size: self.size, strides: self.steps };
        let axes = self.outer.axes.iter().chain(&inner.axes).chain([&along]);
        let axes = axes.map(|axis| LoopAxis { size: axis.size, strides: [axis.strides[1]] });
        let whole = Loops::from_axes(axes);
        // No two elements of what is written lie at one place.
        (whole.elements > 0 && whole.span() == (0, whole.elements as isize - 1)).then_some(whole.elements)
    }
}

/// Two operands and indices, `[part, whole, indices]`, of which each gives an element of the part its place in the whole along
/// an axis.
pub(crate) struct IndexedElements {
    pub(crate) op: &'static str,
    /// Over the shape of the indices; the whole stands still along the axis.
    pub(crate) loops: Loops<3>,
    /// All axes but that one.
    pub(crate) lines: Loops<3>,
    /// That one.
    pub(crate) along: LoopAxis<3>,
    /// Elements of the whole along it.
    pub(crate) size: usize,
}

/// Bags of rows of a table, in numbers.
pub(crate) struct BagSizes {
    pub(crate) op: &'static str,
    /// Indices.
    pub(crate) len: usize,
    /// Bags.
    pub(crate) count: usize,
    /// Rows of the table, and elements of each.
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// A row that counts for nothing, or -1.
    pub(crate) padding: i64,
    pub(crate) index_step: isize,
    pub(crate) offset_step: isize,
    pub(crate) weight_step: isize,
    pub(crate) member_step: isize,
    /// Steps from row to row and from column to column, of the table and of the sums.
    pub(crate) table_steps: [isize; 2],
    pub(crate) sum_steps: [isize; 2],
}
