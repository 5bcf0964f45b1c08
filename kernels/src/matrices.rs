//! Matrices in memory, and batches of their products, for both kinds of device.

use smallvec::SmallVec;

use crate::layout::View;
use crate::loops::LoopAxis;

/// Where the elements of a matrix lie: its sizes, and the steps from row to row and from column to column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixLayout {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row: isize,
    pub(crate) column: isize,
}

impl MatrixLayout {
    /// The last two axes of a view.
    pub(crate) fn of(view: &View<'_>) -> MatrixLayout {
        let (shape, strides) = (view.shape(), view.layout.strides());
        let r = shape.len() - 2;
        MatrixLayout { rows: shape[r], columns: shape[r + 1], row: strides[r], column: strides[r + 1] }
    }

    pub(crate) fn transposed(self) -> MatrixLayout {
        MatrixLayout { rows: self.columns, columns: self.rows, row: self.column, column: self.row }
    }
}

/// The leading axes of a batch of products, with their strides in C, A and B. Most have none, and a command is moved.
pub(crate) type BatchAxes = SmallVec<[LoopAxis<3>; 1]>;

/// Products `C = A B` for all indices of the leading axes.
#[derive(Clone, Debug)]
pub(crate) struct MatrixBatch {
    pub(crate) c: MatrixLayout,
    pub(crate) a: MatrixLayout,
    pub(crate) b: MatrixLayout,
    pub(crate) axes: BatchAxes,
}

impl MatrixBatch {
    /// Those of views of one rank; `b` may lack the leading axes.
    pub(crate) fn of(c: &View<'_>, a: &View<'_>, b: &View<'_>) -> MatrixBatch {
        let shared = b.layout.rank() == 2;
        let axis = |i: usize| {
            let step = |view: &View<'_>| view.layout.strides()[i];
            let strides = [step(c), step(a), if shared { 0 } else { step(b) }];
            LoopAxis { size: c.shape()[i], strides }
        };
        let mut batch = MatrixBatch {
            c: MatrixLayout::of(c),
            a: MatrixLayout::of(a),
            b: MatrixLayout::of(b),
            axes: (0..c.layout.rank() - 2).map(axis).collect(),
        };
        batch.fold();
        batch
    }

    /// Turns leading axes that only continue the rows of A and C, for one and the same B, into rows.
    fn fold(&mut self) {
        while let Some(&LoopAxis { size, strides }) = self.axes.last() {
            let follows = |matrix: &MatrixLayout, stride| {
                isize::try_from(self.c.rows).ok().and_then(|rows| rows.checked_mul(matrix.row))
                    == Some(stride)
            };
            let [c, a, b] = strides;
            if !(size == 1 || follows(&self.c, c) && follows(&self.a, a) && b == 0) {
                return;
            }
            let Some(rows) = self.c.rows.checked_mul(size) else { return };
            (self.a.rows, self.c.rows) = (rows, rows);
            self.axes.pop();
        }
    }

    /// The number of products.
    pub(crate) fn len(&self) -> usize {
        self.axes.iter().fold(1, |len, axis| len.saturating_mul(axis.size))
    }
}
