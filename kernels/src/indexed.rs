//! Operands that are reached through indices, for both kinds of device.

use device::Result;
use smallvec::SmallVec;

use crate::layout::Layout;
use crate::loops::{LoopAxis, Loops, Places};

/// Operands `[part, whole, indices]`: an index gives elements of the part their place in the whole along an axis. Where it is the same for
/// all elements along another axis, it stands still there.
pub(crate) struct Indexed {
    pub(crate) axes: SmallVec<[LoopAxis<3>; 4]>,
    /// The one along which places are given.
    pub(crate) axis: usize,
    /// Places of the whole along it.
    pub(crate) size: usize,
}

/// Elements of a whole that go to a part.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    pub(crate) op: &'static str,
    /// Over the part; the whole stands still along the axis of the places.
    pub(crate) loops: Loops<3>,
    /// From one place of the whole to the next, and their number.
    pub(crate) step: isize,
    pub(crate) size: usize,
}

impl Indexed {
    pub(crate) fn gather(mut self, op: &'static str) -> Gather {
        let step = std::mem::take(&mut self.axes[self.axis].strides[1]);
        Gather { op, loops: Loops::from_axes(self.axes), step, size: self.size }
    }

    /// What is added.
    pub(crate) fn entries(self) -> Entries {
        let LoopAxis { size: each, strides: steps } = self.axes[self.axis];
        let (mut lines, mut columns) = (SmallVec::<[_; 4]>::new(), SmallVec::<[_; 4]>::new());
        for (at, axis) in self.axes.into_iter().enumerate().filter(|(at, _)| *at != self.axis) {
            match axis.strides {
                [part, whole, 0] if at > self.axis => {
                    columns.push(LoopAxis { size: axis.size, strides: [part, whole] });
                }
                _ => lines.push(axis),
            }
        }
        let (lines, columns) = (Loops::from_axes(lines), Loops::from_axes(columns));
        Entries { lines, each, steps, size: self.size, padding: -1, distinct: false, columns }
    }
}

/// Entries of a sum that are added one by one. The first run of a row is added to what is there; others are summed by themselves and
/// added in order.
pub(crate) const RUN: usize = 32;

/// The elements of sums and of what they begin with; without a `base` that is one zero for all.
///
/// # Errors
/// `ShapeMismatch`.
pub(crate) fn begin(op: &'static str, out: &Layout, base: Option<&Layout>) -> Result<Places<2>> {
    let base = base.unwrap_or(&Layout::contiguous(&[])).expand(op, out.shape())?;
    Ok(Places::of([out, &base]))
}

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
    /// Whether no two entries are of one row.
    pub(crate) distinct: bool,
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

    /// The same with lines as columns, if all share their indices.
    pub(crate) fn merged(self) -> Entries {
        if self.lines.axes.iter().any(|axis| axis.strides[2] != 0) {
            return self;
        }
        let of_line = |axis: &LoopAxis<3>| {
            let [part, whole, _] = axis.strides;
            LoopAxis { size: axis.size, strides: [part, whole] }
        };
        let axes = self.lines.axes.iter().map(of_line).chain(self.columns.axes.iter().copied());
        Entries { columns: Loops::from_axes(axes), lines: Loops::from_axes([]), ..self }
    }
}

impl BagSizes {
    /// What is added to the gradient of the table.
    pub(crate) fn entries(&self) -> Entries {
        let columns = LoopAxis { size: self.width, strides: [self.sum_steps[1], self.table_steps[1]] };
        let steps = [self.sum_steps[0], self.table_steps[0], self.index_step];
        let (lines, columns) = (Loops::from_axes([]), Loops::from_axes([columns]));
        let (size, padding) = (self.rows, self.padding);
        Entries { lines, each: self.len, steps, size, padding, distinct: false, columns }
    }
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
