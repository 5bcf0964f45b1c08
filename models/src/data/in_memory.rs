//! A labelled data set on the host.

use std::sync::Arc;

use device::{Device, Error, Result};

use super::rows::Rows;
use super::{Batch, Dataset, Ragged, check_below};
use crate::random;

/// Rows of features, each with the number of its class; cheap to clone.
///
/// ```
/// use models::InMemory;
/// # fn main() -> device::Result<()> {
/// let data = InMemory::new(vec![0.0, 0.1, 0.9, 1.0, 0.2, 0.1], 2, vec![0, 1, 0], 2)?;
/// let (train, test) = data.split(0.34, 7)?;
/// assert_eq!((train.len(), test.len()), (2, 1));
/// let nan = InMemory::new(vec![0.0, f32::NAN], 2, vec![0], 2);
/// assert!(nan.unwrap_err().to_string().contains("NaN at row 0, column 1"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct InMemory {
    inputs: Rows<f32>,
    labels: Rows<i64>,
    classes: usize,
    bags: Arc<[Ragged]>,
}

#[derive::located]
impl InMemory {
    /// A data set of `labels.len()` rows with `features` values each, row after row.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no rows, features or classes, or if a value is NaN or infinite (it names
    /// row and column); `ShapeMismatch` if the counts do not fit; `IndexOutOfRange` for a label outside
    /// `0..classes`.
    pub fn new(inputs: Vec<f32>, features: usize, labels: Vec<i64>, classes: usize) -> Result<Self> {
        if let Some(at) = inputs.iter().position(|value| !value.is_finite()) {
            let (row, column) = (at / features.max(1), at % features.max(1));
            let value = format_args!("{} at row {row}, column {column}", inputs[at]);
            return Err(Error::invalid("data set", "inputs", "finite", value));
        }
        Self::with_non_finite(inputs, features, labels, classes)
    }

    /// As [`new`](InMemory::new), for data in which NaN and infinity have a meaning.
    ///
    /// # Errors
    /// As [`new`](InMemory::new), but for the values.
    pub fn with_non_finite(
        inputs: Vec<f32>,
        features: usize,
        labels: Vec<i64>,
        classes: usize,
    ) -> Result<Self> {
        Self::with_labels(inputs, features, labels, 1, classes)
    }

    /// As [`with_non_finite`](InMemory::with_non_finite), with `labels_per_row` labels for each row, such as one a pixel.
    ///
    /// # Errors
    /// As there.
    pub fn with_labels(
        inputs: Vec<f32>,
        features: usize,
        labels: Vec<i64>,
        labels_per_row: usize,
        classes: usize,
    ) -> Result<Self> {
        let counts = [
            ("rows", labels.len()),
            ("features", features),
            ("labels_per_row", labels_per_row),
            ("classes", classes),
        ];
        for (argument, count) in counts {
            Error::require(count > 0, "data set", argument, "at least 1", "0")?;
        }
        let rows = labels.len() / labels_per_row;
        let is_whole = labels.len().is_multiple_of(labels_per_row);
        let fit = is_whole && Some(inputs.len()) == rows.checked_mul(features);
        Error::require_shapes(
            fit,
            "data set",
            "inputs must be [rows, features]",
            &[rows, features],
            &[inputs.len()],
        )?;
        check_below("data set", "label", &labels, classes)?;
        let shape = [labels_per_row];
        let shape = if labels_per_row == 1 { &[][..] } else { &shape };
        let (inputs, labels) = (Rows::new(inputs, rows, &[features]), Rows::new(labels, rows, shape));
        Ok(InMemory { inputs, labels, classes, bags: Arc::new([]) })
    }

    /// The same rows with categorical features beside their values.
    ///
    /// # Errors
    /// `ShapeMismatch` if one has another number of rows.
    pub fn with_bags(self, bags: Vec<Ragged>) -> Result<Self> {
        match bags.iter().find(|bags| bags.len() != self.len()) {
            Some(bags) => Err(Error::shape_mismatch("data set", "bags", &[self.len()], &[bags.len()])),
            None => Ok(InMemory { bags: bags.into(), ..self }),
        }
    }

    /// The number of rows; never 0.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no rows: never, by construction.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values in a row.
    pub fn features(&self) -> usize {
        self.inputs.width()
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// One row's values, if there is such a row.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.inputs.row(index)
    }

    /// The categorical features.
    pub fn bags(&self) -> &[Ragged] {
        &self.bags
    }

    /// Every row's class, or classes one row after the other.
    pub fn labels(&self) -> &[i64] {
        self.labels.values()
    }

    /// The rows at `indices`, in that order, as a data set of their own.
    ///
    /// # Errors
    /// `IndexOutOfRange` for a row that is not there; `InvalidArgument` for no rows.
    pub fn select(&self, indices: &[usize]) -> Result<Self> {
        let (inputs, labels) = (self.inputs.select(indices)?, self.labels.select(indices)?);
        let bags = self.bags.iter().map(|bags| bags.select(indices)).collect::<Result<_>>()?;
        let data = Self::with_labels(inputs, self.features(), labels, self.labels.width(), self.classes)?;
        data.with_bags(bags)
    }

    /// Splits into a training and a test set; which row goes where depends on `seed` alone.
    ///
    /// The test set has `round(test_fraction * len)` rows, and each side at least one.
    ///
    /// # Errors
    /// `InvalidArgument` unless `0 < test_fraction < 1`, or if there are fewer than two rows.
    pub fn split(&self, test_fraction: f64, seed: u64) -> Result<(Self, Self)> {
        let expected = "between 0 and 1, exclusive";
        let is_valid = test_fraction > 0.0 && test_fraction < 1.0;
        Error::require(is_valid, "data set", "test_fraction", expected, test_fraction)?;
        Error::require(self.len() >= 2, "data set", "rows", "at least 2 to split", self.len())?;
        let order = random::permutation(self.len(), random::mix(&[seed, SPLIT]));
        let test = ((test_fraction * self.len() as f64).round() as usize).clamp(1, self.len() - 1);
        let (test, train) = order.split_at(test);
        Ok((self.select(train)?, self.select(test)?))
    }

    /// Every row as one batch on `device`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn tensors(&self, device: &Device) -> Result<Batch> {
        self.batch(&(0..self.len()).collect::<Vec<_>>(), 0, device)
    }
}

impl Dataset for InMemory {
    type Batch = Batch;

    fn len(&self) -> usize {
        InMemory::len(self)
    }

    fn batch(&self, rows: &[usize], key: u64, device: &Device) -> Result<Batch> {
        Ok(Batch {
            inputs: self.inputs.batch(rows, device)?,
            labels: self.labels.batch(rows, device)?,
            bags: self.bags.iter().map(|bags| bags.batch(rows, device)).collect::<Result<_>>()?,
            key,
        })
    }
}

/// Keeps the split's random numbers apart from those of the shuffles.
const SPLIT: u64 = 0x73_706c_6974;

#[cfg(test)]
mod tests {
    use device::ErrorKind;

    use super::*;

    fn small(rows: usize) -> InMemory {
        let inputs = (0..rows * 2).map(|i| i as f32).collect();
        InMemory::new(inputs, 2, (0..rows as i64).map(|i| i % 3).collect(), 3).unwrap()
    }

    #[test]
    fn bad_data_is_named() {
        let message = |inputs: &[f32], features, labels: &[i64], classes| {
            InMemory::new(inputs.to_vec(), features, labels.to_vec(), classes).unwrap_err().to_string()
        };
        assert_eq!(
            message(&[0.0, 1.0, 2.0, f32::NAN], 2, &[0, 1], 2),
            "data set: inputs must be finite, got NaN at row 1, column 1"
        );
        assert_eq!(
            message(&[f32::INFINITY, 1.0], 2, &[0], 2),
            "data set: inputs must be finite, got inf at row 0, column 0"
        );
        assert_eq!(message(&[0.0], 1, &[2], 2), "data set: label 2 is out of range for size 2");
        assert_eq!(message(&[0.0], 1, &[-1], 2), "data set: label -1 is out of range for size 2");
        assert_eq!(message(&[], 1, &[], 2), "data set: rows must be at least 1, got 0");
        assert_eq!(message(&[], 0, &[1], 2), "data set: features must be at least 1, got 0");
        assert_eq!(
            message(&[1.0, 2.0, 3.0], 2, &[1], 2),
            "data set: shapes [1, 2] and [3] do not fit: inputs must be [rows, features]"
        );
        assert_eq!(
            message(&[f32::NAN], 0, &[1], 2),
            "data set: inputs must be finite, got NaN at row 0, column 0"
        );
        assert!(InMemory::with_non_finite(vec![f32::NAN], 1, vec![0], 1).is_ok());
    }

    #[test]
    fn a_split_keeps_every_row_once_and_depends_on_the_seed() {
        let data = small(11);
        let (train, test) = data.split(0.25, 5).unwrap();
        assert_eq!((train.len(), test.len()), (8, 3));
        let firsts = |d: &InMemory| (0..d.len()).map(|r| d.row(r).unwrap()[0] as usize).collect::<Vec<_>>();
        let mut all = [firsts(&train), firsts(&test)].concat();
        all.sort_unstable();
        assert_eq!(all, (0..11).map(|i| 2 * i).collect::<Vec<_>>());
        assert_eq!(firsts(&data.split(0.25, 5).unwrap().1), firsts(&test));
        assert!((6..20).any(|seed| firsts(&data.split(0.25, seed).unwrap().1) != firsts(&test)));
        for bad in [0.0, 1.0, -0.5, f64::NAN] {
            assert!(matches!(
                data.split(bad, 0).as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "test_fraction", .. })
            ));
        }
        assert!(small(1).split(0.5, 0).is_err());
        let (train, test) = small(2).split(0.01, 0).unwrap();
        assert_eq!((train.len(), test.len()), (1, 1));
    }

    #[test]
    fn selecting_a_row_that_is_not_there_is_an_error() {
        assert!(matches!(
            small(3).select(&[0, 3]).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 3, size: 3, .. })
        ));
        assert!(small(3).select(&[]).is_err());
        assert!(small(3).row(3).is_none());
    }
}
