//! `embedding`: rows of a table by number; the gradient is added back there, in the order of the indices.

use tensor::{Error, Result, Tensor, grad};

use super::{Dims, Draw, Sample, indices, record_one};
use crate::autocast::wide;
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The rows of `self` that the indices name. The row `padding_idx`, which counts from the end if it is negative, has no
    /// gradient.
    ///
    /// Shapes: `[v, d]` with indices of any shape `[..]` of I64 gives `[.., d]`.
    ///
    /// # Errors
    /// `IndexOutOfRange`, `DTypeMismatch`, `DeviceMismatch`; `InvalidArgument` unless `self` has rank 2, and for a
    /// `padding_idx` that is no row.
    pub fn embedding(&self, indices: &Tensor, padding_idx: Option<isize>) -> Result<Var> {
        const OP: &str = "embedding";
        let weight = &wide(self)?;
        let (rows, width) = table(OP, weight)?;
        let padding = padding_idx.map(|index| padding_row(OP, index, rows)).transpose()?;
        tensor::check_picked(OP, "index", weight.value(), indices, rows)?;
        let flat = indices.reshape(&[indices.elements()])?;
        let mut shape = Dims::from_slice(indices.shape());
        shape.push(width);
        let value = weight.value().index_select_of(OP, 0, &flat)?.reshape(&shape)?;
        record_one(OP, weight, &[Save::Tensor(&flat)], value, move |ctx, g| {
            let indices = ctx.saved(0);
            let g = g.reshape(&[indices.value().elements(), width])?;
            embedding_grad(&g, indices.value(), rows, padding)
        })
    }
}

/// Zeros with `g` added at the rows that were taken, but for the padding.
fn embedding_grad(g: &Var, indices: &Tensor, rows: usize, padding: Option<usize>) -> Result<Var> {
    let value = grad::index_select(g.value(), 0, indices, rows)?;
    if let Some(row) = padding {
        value.narrow(0, row, 1)?.zero_()?;
    }
    record_one("embedding_grad", g, &[Save::Tensor(indices)], value, move |ctx, h| {
        let indices = ctx.saved(0);
        let taken = h.index_select(0, indices.value())?;
        let Some(row) = padding else { return Ok(taken) };
        let padding = indices.value().eq(row as f64)?;
        taken.masked_fill(&padding.unsqueeze(1)?, 0.0)
    })
}

/// Rows and width of a table.
pub(super) fn table(op: &'static str, weight: &Var) -> Result<(usize, usize)> {
    match *weight.shape() {
        [rows, width] => Ok((rows, width)),
        ref shape => Err(Error::invalid(op, "weight", "of rank 2", format_args!("shape {shape:?}"))),
    }
}

/// The row of a table with this number, which counts from the end if it is negative.
///
/// # Errors
/// `InvalidArgument` if there is no such row.
#[doc(hidden)]
pub fn padding_row(op: &'static str, index: isize, rows: usize) -> Result<usize> {
    let row = if index < 0 { index.checked_add_unsigned(rows) } else { Some(index) };
    match row.and_then(|row| usize::try_from(row).ok()).filter(|&row| row < rows) {
        Some(row) => Ok(row),
        None => {
            let value = format_args!("{index} of {rows} rows");
            Err(Error::invalid(op, "padding_idx", "one of the rows", value))
        }
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("vector", &[&[4, 3]], |v| v[0].embedding(&indices(v, &[2, 0], &[2])?, None)?.square()),
        ("matrix", &[&[4, 3]], |v| {
            v[0].embedding(&indices(v, &[3, 1, 1, 0, 3, 3], &[2, 3])?, None)?.square()
        }),
        ("scalar", &[&[4, 3]], |v| v[0].embedding(&indices(v, &[2], &[])?, None)?.square()),
        // The padding is a constant: differences see it, gradients do not.
        ("padding", &[&[3, 3]], |v| {
            let padding = Var::constant(v[0].value().narrow(0, 0, 1)?.full_like(0.5)?);
            let table = Var::cat(&[&v[0], &padding], 0)?;
            table.embedding(&indices(v, &[3, 0, 2, 3, 2], &[5])?, Some(-1))?.square()
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, tensor};
    use super::*;
    use tensor::ErrorKind;

    fn numbers() -> Result<Var> {
        leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])
    }

    #[test]
    fn rows_by_number_and_a_padding_without_gradient() -> Result<()> {
        let table = numbers()?;
        let indices = tensor(&[2_i64, 0, 2, 1], &[2, 2])?;
        let y = table.embedding(&indices, None)?;
        assert_eq!(y.shape(), [2, 2, 2]);
        close(&y, &[5.0, 6.0, 1.0, 2.0, 5.0, 6.0, 3.0, 4.0])?;
        close_values(&gradient(&y, &table)?, &[1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
        for padding in [2, -1] {
            let y = table.embedding(&indices, Some(padding))?;
            close(&y, &[5.0, 6.0, 1.0, 2.0, 5.0, 6.0, 3.0, 4.0])?;
            close_values(&gradient(&y, &table)?, &[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        }
        Ok(())
    }

    #[test]
    fn bad_arguments_are_errors() -> Result<()> {
        let table = numbers()?;
        let indices = tensor(&[0_i64, 3], &[2])?;
        assert!(matches!(
            table.embedding(&indices, None).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 3, size: 3, .. })
        ));
        for padding in [3, -4] {
            let error = table.embedding(&tensor(&[0_i64], &[1])?, Some(padding));
            assert!(matches!(
                error.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "padding_idx", .. })
            ));
        }
        Ok(())
    }
}
