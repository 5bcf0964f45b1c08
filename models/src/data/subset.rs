//! Parts of data sets.

use std::sync::Arc;

use device::{Device, Error, Result};

use super::{Dataset, no_row};
use crate::random;

/// Some rows of a data set, in an order of their own; as cheap to clone as the data set, of which an [`Arc`] is one, too.
///
/// ```
/// use models::{Dataset, Digits, Subset};
/// # fn main() -> device::Result<()> {
/// let digits = Digits::load()?;
/// let zeros: Vec<usize> = (0..digits.len()).filter(|&row| digits.labels()[row] == 0).collect();
/// let zeros = Subset::new(digits, zeros)?;
/// assert_eq!(zeros.batch(&[0, 1], 0, &device::Device::cpu())?.labels.to_vec::<i64>()?, [0, 0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Subset<D> {
    data: D,
    rows: Arc<[usize]>,
}

#[derive::located]
impl<D: Dataset> Subset<D> {
    /// The rows of these numbers. A number may be there more than once.
    ///
    /// # Errors
    /// `IndexOutOfRange` for a row that is not there; `InvalidArgument` for no rows.
    pub fn new(data: D, rows: impl Into<Arc<[usize]>>) -> Result<Self> {
        let rows = rows.into();
        Error::require(!rows.is_empty(), "subset", "rows", "at least 1", "0")?;
        match rows.iter().find(|&&row| row >= data.len()) {
            Some(&row) => Err(no_row("subset", row, data.len())),
            None => Ok(Subset { data, rows }),
        }
    }

    /// The numbers of the rows in the whole data set.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }
}

/// The data set itself.
impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn batch(&self, rows: &[usize], key: u64, device: &Device) -> Result<D::Batch> {
        (**self).batch(rows, key, device)
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn batch(&self, rows: &[usize], key: u64, device: &Device) -> Result<D::Batch> {
        let row =
            |&row: &usize| self.rows.get(row).copied().ok_or_else(|| no_row("subset", row, self.rows.len()));
        self.data.batch(&rows.iter().map(row).collect::<Result<Vec<_>>>()?, key, device)
    }
}

/// Rows of each part of a [`random_split`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths<const N: usize> {
    /// Numbers of rows, which add up to all.
    Counts([usize; N]),
    /// Shares of the rows, which add up to 1. Each is rounded down, and the rows that are left go to the parts one by one from the
    /// first on, as in PyTorch.
    Fractions([f64; N]),
}

impl<const N: usize> From<[usize; N]> for Lengths<N> {
    fn from(counts: [usize; N]) -> Self {
        Lengths::Counts(counts)
    }
}

impl<const N: usize> From<[f64; N]> for Lengths<N> {
    fn from(fractions: [f64; N]) -> Self {
        Lengths::Fractions(fractions)
    }
}

/// Splits a data set at random; each row is in one part, and which one depends on `seed` alone.
///
/// ```
/// use models::{Dataset, Digits, random_split};
/// # fn main() -> device::Result<()> {
/// let [train, validation, test] = random_split(Digits::load()?, [0.8, 0.1, 0.1], 7)?;
/// assert_eq!([train.len(), validation.len(), test.len()], [1438, 180, 179]);
/// let [train, test] = random_split(Digits::load()?, [1500, 297], 7)?;
/// assert_eq!([train.len(), test.len()], [1500, 297]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidArgument` for lengths that do not add up, that are negative or not finite, and for a part without rows.
#[derive::located]
pub fn random_split<D: Dataset + Clone, const N: usize>(
    data: D,
    lengths: impl Into<Lengths<N>>,
    seed: u64,
) -> Result<[Subset<D>; N]> {
    const OP: &str = "random_split";
    let (rows, lengths) = (data.len(), lengths.into());
    let value = format!("{lengths:?} for {rows} rows");
    let counts = match lengths {
        Lengths::Counts(counts) => {
            let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
            Error::require(sum == Some(rows), OP, "lengths", "as many as there are rows", &value)?;
            counts
        }
        Lengths::Fractions(fractions) => {
            let sum: f64 = fractions.iter().sum();
            let is_valid = fractions.iter().all(|share| *share >= 0.0) && (sum - 1.0).abs() < 1e-9;
            Error::require(is_valid, OP, "lengths", "shares that add up to 1", &value)?;
            let mut counts = fractions.map(|share| ((share * rows as f64).floor() as usize).min(rows));
            // At most one a part but for the rounding of the sum.
            let left = rows.saturating_sub(counts.iter().sum());
            (0..left).for_each(|at| counts[at % N] += 1);
            counts
        }
    };
    Error::require(!counts.contains(&0), OP, "lengths", "at least one row for each part", value)?;
    let order = random::permutation(rows, random::mix(&[seed, PARTS]));
    let mut rest = &order[..];
    Ok(counts.map(|count| {
        let (part, others) = rest.split_at(count.min(rest.len()));
        rest = others;
        Subset { data: data.clone(), rows: part.into() }
    }))
}

/// Keeps the random numbers of splits apart from those of the shuffles.
const PARTS: u64 = 0x70_6172_7473;

#[cfg(test)]
mod tests {
    use tensor::{DType, Tensor};

    use super::*;
    use crate::TensorDataset;

    fn numbered(rows: usize) -> TensorDataset {
        let values = Tensor::arange(0, rows as i64, 1, DType::I64, &Device::cpu()).unwrap();
        TensorDataset::new(&values, &values).unwrap()
    }

    #[test]
    fn every_row_is_in_one_part_which_depends_on_the_seed() {
        let cases: [([f64; 3], usize, [usize; 3]); 4] = [
            ([0.5, 0.25, 0.25], 8, [4, 2, 2]),
            // Of 7, 3.5, 1.75 and 1.75 are rounded down; two are left.
            ([0.5, 0.25, 0.25], 7, [4, 2, 1]),
            ([0.1, 0.2, 0.7], 10, [1, 2, 7]),
            ([1.0 / 3.0; 3], 100, [34, 33, 33]),
        ];
        for (fractions, rows, expected) in cases {
            let data = Arc::new(numbered(rows));
            let parts = random_split(Arc::clone(&data), fractions, 5).unwrap();
            assert_eq!(parts.each_ref().map(Dataset::len), expected);
            let mut all = parts.each_ref().map(|part| part.rows().to_vec()).concat();
            assert_ne!(all, (0..rows).collect::<Vec<_>>());
            all.sort_unstable();
            assert_eq!(all, (0..rows).collect::<Vec<_>>());
            let again = random_split(Arc::clone(&data), expected, 5).unwrap();
            assert_eq!(again.each_ref().map(Subset::rows), parts.each_ref().map(Subset::rows));
            let other = random_split(data, expected, 6).unwrap();
            assert_ne!(other.each_ref().map(Subset::rows), parts.each_ref().map(Subset::rows));
        }
    }

    #[test]
    fn batches_are_those_of_the_whole() {
        let part = Subset::new(numbered(9), [7, 0, 7]).unwrap();
        let batch = part.clone().batch(&[2, 1], 3, &Device::cpu()).unwrap();
        assert_eq!((batch.inputs.to_vec::<i64>().unwrap(), batch.key), (vec![7, 0], 3));
        let error = part.batch(&[3], 0, &Device::cpu()).unwrap_err();
        assert_eq!(error.to_string(), "subset: row 3 is out of range for size 3");
    }

    #[test]
    fn bad_parts_are_errors() {
        let message =
            |lengths: Lengths<2>| random_split(numbered(4), lengths, 0).map(drop).unwrap_err().to_string();
        let cases: [(Lengths<2>, &str); 6] = [
            ([1, 2].into(), "as many as there are rows, got Counts([1, 2]) for 4 rows"),
            (
                [usize::MAX, 5].into(),
                "as many as there are rows, got Counts([18446744073709551615, 5]) for 4 rows",
            ),
            ([4, 0].into(), "at least one row for each part, got Counts([4, 0]) for 4 rows"),
            ([0.5, 0.4].into(), "shares that add up to 1, got Fractions([0.5, 0.4]) for 4 rows"),
            ([1.5, -0.5].into(), "shares that add up to 1, got Fractions([1.5, -0.5]) for 4 rows"),
            ([f64::NAN, 1.0].into(), "shares that add up to 1, got Fractions([NaN, 1.0]) for 4 rows"),
        ];
        for (lengths, expected) in cases {
            assert_eq!(message(lengths), format!("random_split: lengths must be {expected}"));
        }
        let message = |rows: &[usize]| Subset::new(numbered(4), rows).map(drop).unwrap_err().to_string();
        assert_eq!(message(&[]), "subset: rows must be at least 1, got 0");
        assert_eq!(message(&[1, 4]), "subset: row 4 is out of range for size 4");
    }
}
