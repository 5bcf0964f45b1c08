//! The lower and the upper triangle of matrices.

use device::{DType, Result};

use crate::Tensor;
use crate::check::wrong_shape;

#[derive::located]
impl Tensor {
    /// The lower triangle of matrices, up to the diagonal that lies `diagonal` to the right of the main one; 0
    /// elsewhere.
    ///
    /// Shapes: `[.., m, n]`, unchanged.
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than two axes.
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        self.triangle("tril", diagonal, false)
    }

    /// The upper triangle of matrices, from the diagonal that lies `diagonal` to the right of the main one; 0
    /// elsewhere.
    ///
    /// # Errors
    /// As for [`Tensor::tril`].
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        self.triangle("triu", diagonal, true)
    }

    fn triangle(&self, op: &'static str, diagonal: i64, upper: bool) -> Result<Tensor> {
        let &[.., rows, columns] = self.shape() else {
            return Err(wrong_shape(op, "input", "of two axes at least", self));
        };
        let numbers = |len: usize, start: i64| {
            Tensor::arange(start, start.saturating_add(len as i64), 1, DType::I64, self.device())
        };
        // Diagonals beyond the corners are all alike.
        let diagonal = diagonal.clamp(-(rows as i64) - 1, columns as i64 + 1);
        let (row, column) = (numbers(rows, diagonal)?.unsqueeze(1)?, numbers(columns, 0)?);
        let kept = if upper { column.ge(&row)? } else { column.le(&row)? };
        let zero = Tensor::full(&[], 0.0, self.dtype, self.device())?;
        Tensor::where_cond(&kept, self, &zero)
    }
}
