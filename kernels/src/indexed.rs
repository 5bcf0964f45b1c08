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

/// Entries of a sum that are added one by one. The first run of a row is added to what is there; others are summed by themselves and
/// added in order.
pub(crate) const RUN: usize = 128;

/// Entries whose indices name rows of sums. Each line has entries and rows of its own.
#[derive(Clone, Debug)]
pub(crate) struct Entries {
    /// The first entry and row of each line, in the source, the sums and the indices.
    pub(crate) lines: Loops<3>,
    /// Entries of a line.
    pub(crate) each: usize,
    /// Steps along a line, likewise.
    pub(crate) steps: [isize; 3],
    /// Rows of a line.
    pub(crate) size: usize,
    /// An index that is left out, or -1.
    pub(crate) padding: i64,
    /// The elements of an entry and of its row.
    pub(crate) columns: Loops<2>,
}

impl Entries {
    /// Entries of all lines.
    pub(crate) fn count(&self) -> usize {
        self.lines.elements.saturating_mul(self.each)
    }

    /// Rows of all lines.
    pub(crate) fn keys(&self) -> usize {
        self.lines.elements.saturating_mul(self.size)
    }

    /// One line of rows that indices name.
    fn of_line(
        (each, size, padding): (usize, usize, i64),
        steps: [isize; 3],
        columns: impl IntoIterator<Item = LoopAxis<2>>,
    ) -> Entries {
        let (lines, columns) = (Loops::from_axes([]), Loops::from_axes(columns));
        Entries { lines, each, steps, size, padding, columns }
    }
}

impl IndexedRows {
    /// What is added to the whole.
    pub(crate) fn entries(&self) -> Entries {
        let [part, whole] = self.steps;
        let inner = self.inner.loops();
        let columns = self.outer.axes.iter().chain(&inner.axes).copied();
        Entries::of_line((self.count, self.size, -1), [part, whole, self.index_step], columns)
    }
}

impl IndexedElements {
    /// What is added to the whole.
    pub(crate) fn entries(&self) -> Entries {
        let LoopAxis { size: each, strides: steps } = self.along;
        let columns = Loops::from_axes([]);
        Entries { lines: self.lines.clone(), each, steps, size: self.size, padding: -1, columns }
    }
}

impl BagSizes {
    /// What is added to the gradient of the table.
    pub(crate) fn entries(&self) -> Entries {
        let columns = LoopAxis { size: self.width, strides: [self.sum_steps[1], self.table_steps[1]] };
        let steps = [self.sum_steps[0], self.table_steps[0], self.index_step];
        Entries::of_line((self.len, self.rows, self.padding), steps, [columns])
    }
}

/// Two operands and indices, `[part, whole, indices]`, of which each gives an element of the part its place in the whole along
/// an axis.
#[derive(Clone, Debug)]
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
