//! `embedding`: rows of a table by number; the gradient is added back there, in the order of the indices. `embedding_bag`:
//! sums or means of bags of rows.

use smallvec::SmallVec;
use tensor::{CompareOp, DType, Device, Error, Result, Tensor};

use super::samples::{Draw, Sample, sample};
use super::{Dims, one};
use crate::{Save, Var, record};

/// What is done with the rows of a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BagMode {
    /// Their mean, the default; 0 for an empty bag.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// Options of [`Var::embedding_bag`]: torch's, with torch's defaults.
#[derive(Clone, Debug, Default)]
pub struct BagOptions {
    /// What is done with the rows of a bag.
    pub mode: BagMode,
    /// A row that counts for nothing and has no gradient; a negative one counts from the end.
    pub padding_idx: Option<isize>,
    /// A factor for each index; for sums only.
    pub per_sample_weights: Option<Var>,
}

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
        let (rows, width) = table(self)?;
        let padding = padding_idx.map(|index| padding_row(index, rows)).transpose()?;
        let flat = indices.reshape(&[indices.elements()])?;
        let mut shape: Dims = SmallVec::from_slice(indices.shape());
        shape.push(width);
        let value = self.value().index_select(0, &flat)?.reshape(&shape)?;
        Ok(record("embedding", &[self], &[Save::Tensor(&flat)], value, move |ctx, g| {
            let indices = ctx.saved(0);
            let g = g.reshape(&[indices.value().elements(), width])?;
            Ok(one(embedding_grad(&g, indices.value(), rows, padding)?))
        }))
    }

    /// The sum or the mean of each bag of rows of `self`.
    ///
    /// Shapes: `[v, d]` with indices `[b, n]`, a bag in each row, or with indices `[n]` and `offsets [b]`, the first of which
    /// is 0: bag `i` goes from `offsets[i]` to the next one, the last to the end. Gives `[b, d]`.
    ///
    /// # Errors
    /// `IndexOutOfRange` for an index that is no row, and for offsets that begin after 0 or end after the indices;
    /// `DTypeMismatch` unless both are I64; `InvalidArgument` for offsets beside bags in rows and the other way round, and
    /// for weights of a mean; as [`Var::embedding`].
    pub fn embedding_bag(
        &self,
        indices: &Tensor,
        offsets: Option<&Tensor>,
        options: &BagOptions,
    ) -> Result<Var> {
        let (rows, width) = table(self)?;
        let (count, bags) = bags(indices, offsets)?;
        let flat = indices.reshape(&[indices.elements()])?;
        let mut parts = self.embedding(&flat, options.padding_idx)?;
        let kept =
            options.padding_idx.map(|index| kept(&flat, padding_row(index, rows)?, self)).transpose()?;
        if let Some(kept) = &kept {
            parts = parts.mul(&kept.unsqueeze(1)?)?;
        }
        if let Some(weights) = &options.per_sample_weights {
            if options.mode != BagMode::Sum {
                return Err(invalid("per_sample_weights", "none, for a mean", "weights".into()));
            }
            if weights.shape() != indices.shape() {
                let (lhs, rhs) = (indices.shape().into(), weights.shape().into());
                return Err(Error::ShapeMismatch { op: "embedding_bag", lhs, rhs });
            }
            parts = parts.mul(&weights.reshape(&[flat.elements(), 1])?)?;
        }
        let zeros = |shape: &[usize]| Tensor::zeros(shape, self.dtype(), self.device());
        let sums = Var::constant(zeros(&[count, width])?).index_add(0, &bags, &parts)?;
        if options.mode == BagMode::Sum {
            return Ok(sums);
        }
        let members = match kept {
            Some(kept) => kept.value().clone(),
            None => Tensor::ones(&[flat.elements()], self.dtype(), self.device())?,
        };
        let sizes = zeros(&[count])?.index_add(0, &bags, &members)?.clamp(1.0, f64::INFINITY)?;
        sums.div(&Var::constant(sizes.unsqueeze(1)?))
    }
}

/// Zeros with `g` added at the rows that were taken, but for the padding.
fn embedding_grad(g: &Var, indices: &Tensor, rows: usize, padding: Option<usize>) -> Result<Var> {
    let value = g.value().index_select_grad(0, indices, rows)?;
    if let Some(row) = padding {
        value.narrow(0, row, 1)?.zero_()?;
    }
    Ok(record("embedding_grad", &[g], &[Save::Tensor(indices)], value, move |ctx, h| {
        let indices = ctx.saved(0);
        let taken = h.index_select(0, indices.value())?;
        Ok(one(match padding {
            Some(row) => taken.mul(&kept(indices.value(), row, h)?.unsqueeze(1)?)?,
            None => taken,
        }))
    }))
}

/// 1 for each index that is not the padding, 0 for others, of the type of `like`: a constant.
fn kept(indices: &Tensor, padding: usize, like: &Var) -> Result<Var> {
    Ok(Var::constant(indices.compare_scalar(CompareOp::Ne, padding as f64)?.to_dtype(like.dtype())?))
}

/// The number of bags, and the bag of each index.
fn bags(indices: &Tensor, offsets: Option<&Tensor>) -> Result<(usize, Tensor)> {
    let device = indices.device();
    match (indices.shape(), offsets) {
        (&[count, each], None) => {
            let numbers = Tensor::arange(0_i64, count as i64, 1_i64, DType::I64, device)?;
            Ok((count, numbers.unsqueeze(1)?.expand(&[count, each])?.reshape(&[count * each])?))
        }
        (&[n], Some(offsets)) => {
            let &[count] = offsets.shape() else {
                return Err(invalid("offsets", "of rank 1", format!("shape {:?}", offsets.shape())));
            };
            // One more bag begins at each offset; an index before the first offset is in bag -1, which is refused.
            let begun = Tensor::zeros(&[n + 1], DType::I64, device)?;
            let begun = begun.index_add(0, offsets, &Tensor::ones(&[count], DType::I64, device)?)?;
            Ok((count, begun.cumsum(0)?.narrow(0, 0, n)?.add_scalar(-1.0)?))
        }
        (shape, offsets) => {
            let given = if offsets.is_some() { "with" } else { "without" };
            let value = format!("shape {shape:?} {given} offsets");
            Err(invalid("indices", "of rank 1 with offsets, or of rank 2 without", value))
        }
    }
}

/// Rows and width of a table.
fn table(weight: &Var) -> Result<(usize, usize)> {
    match *weight.shape() {
        [rows, width] => Ok((rows, width)),
        ref shape => Err(invalid("weight", "of rank 2", format!("shape {shape:?}"))),
    }
}

/// A row that may be counted from the end.
fn padding_row(index: isize, rows: usize) -> Result<usize> {
    let row = if index < 0 { index.checked_add_unsigned(rows) } else { Some(index) };
    match row.and_then(|row| usize::try_from(row).ok()).filter(|&row| row < rows) {
        Some(row) => Ok(row),
        None => Err(invalid("padding_idx", "one of the rows", format!("{index} of {rows} rows"))),
    }
}

#[cold]
fn invalid(argument: &'static str, expected: &'static str, value: String) -> Error {
    Error::InvalidArgument { op: "embedding", argument, expected, value: value.into() }
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    let d = Draw::new(device);
    let of = |name, indices: &[i64], shape: &[usize]| -> Result<Sample> {
        let indices = d.indices(indices, shape)?;
        Ok(sample(name, [d.normal(&[4, 3])?], move |v| v[0].embedding(&indices, None)?.square()))
    };
    // The padding is a constant: differences see it, gradients do not.
    let (constant, padded) = (Var::constant(d.normal(&[1, 3])?), d.indices(&[3, 0, 2, 3, 2], &[5])?);
    Ok(vec![
        of("vector", &[2, 0], &[2])?,
        of("matrix", &[3, 1, 1, 0, 3, 3], &[2, 3])?,
        of("scalar", &[2], &[])?,
        sample("padding", [d.normal(&[3, 3])?], move |v| {
            Var::cat(&[&v[0], &constant], 0)?.embedding(&padded, Some(-1))?.square()
        }),
    ])
}

pub(super) fn bag_samples(device: &Device) -> Result<Vec<Sample>> {
    let d = Draw::new(device);
    let rows = d.indices(&[0, 2, 2, 1, 3, 0], &[2, 3])?;
    let flat = rows.reshape(&[6])?;
    let offsets = d.indices(&[0, 2, 2, 5], &[4])?;
    let of = |name, offsets: Option<&Tensor>, mode, padding_idx| -> Result<Sample> {
        let indices = if offsets.is_some() { flat.clone() } else { rows.clone() };
        let options = BagOptions { mode, padding_idx, per_sample_weights: None };
        let offsets = offsets.cloned();
        Ok(sample(name, [d.normal(&[4, 2])?], move |v| {
            v[0].embedding_bag(&indices, offsets.as_ref(), &options)?.square()
        }))
    };
    Ok(vec![
        of("rows_mean", None, BagMode::Mean, None)?,
        of("rows_sum", None, BagMode::Sum, None)?,
        of("offsets_mean", Some(&offsets), BagMode::Mean, None)?,
        of("offsets_sum", Some(&offsets), BagMode::Sum, None)?,
        of("padding", Some(&offsets), BagMode::Mean, Some(2))?,
        sample("weighted", [d.normal(&[4, 2])?, d.normal(&[6])?], move |v| {
            let options = BagOptions {
                mode: BagMode::Sum,
                per_sample_weights: Some(v[1].clone()),
                ..Default::default()
            };
            v[0].embedding_bag(&flat, Some(&offsets), &options)
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, tensor};
    use super::*;

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
    fn bags_are_summed_or_averaged() -> Result<()> {
        let table = numbers()?;
        let (indices, offsets) = (tensor(&[0_i64, 2, 1], &[3])?, tensor(&[0_i64, 2, 2], &[3])?);
        let bag = |mode, padding_idx| {
            let options = BagOptions { mode, padding_idx, per_sample_weights: None };
            table.embedding_bag(&indices, Some(&offsets), &options)
        };
        close(&bag(BagMode::Sum, None)?, &[6.0, 8.0, 0.0, 0.0, 3.0, 4.0])?;
        let mean = bag(BagMode::Mean, None)?;
        close(&mean, &[3.0, 4.0, 0.0, 0.0, 3.0, 4.0])?;
        close_values(&gradient(&mean, &table)?, &[0.5, 0.5, 1.0, 1.0, 0.5, 0.5]);
        let padded = bag(BagMode::Mean, Some(2))?;
        close(&padded, &[1.0, 2.0, 0.0, 0.0, 3.0, 4.0])?;
        close_values(&gradient(&padded, &table)?, &[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        let rows = tensor(&[0_i64, 2, 1, 1], &[2, 2])?;
        close(&table.embedding_bag(&rows, None, &BagOptions::default())?, &[3.0, 4.0, 3.0, 4.0])
    }

    #[test]
    fn bad_arguments_are_errors() -> Result<()> {
        let table = numbers()?;
        let indices = tensor(&[0_i64, 3], &[2])?;
        assert!(matches!(
            table.embedding(&indices, None),
            Err(Error::IndexOutOfRange { index: 3, size: 3, .. })
        ));
        for padding in [3, -4] {
            let error = table.embedding(&tensor(&[0_i64], &[1])?, Some(padding));
            assert!(matches!(error, Err(Error::InvalidArgument { argument: "padding_idx", .. })));
        }
        let plain = BagOptions::default();
        assert!(table.embedding_bag(&tensor(&[0_i64], &[1])?, None, &plain).is_err());
        // The first bag does not begin at 0; a bag begins after the end.
        for offsets in [[1_i64, 2], [0, 3]] {
            let offsets = tensor(&offsets, &[2])?;
            let error = table.embedding_bag(&tensor(&[0_i64, 1], &[2])?, Some(&offsets), &plain);
            assert!(matches!(error, Err(Error::IndexOutOfRange { .. })), "{error:?}");
        }
        let weights = BagOptions { per_sample_weights: Some(leaf(&[1.0; 4], &[2, 2])?), ..plain };
        assert!(table.embedding_bag(&tensor(&[0_i64; 4], &[2, 2])?, None, &weights).is_err());
        Ok(())
    }
}
