//! Metrics that are summed over the batches of an epoch.
//!
//! Each `update` reads its batch back to the host, and so waits for the commands that led to it; sums are of F64 and U64. A metric of
//! no rows is NaN.

use autograd::{Reduction, Var};
use device::{DType, Error, Result};
use tensor::Tensor;

use crate::data::check_below;

/// The classes of labels `[n]` for logits `[n, c]`.
#[track_caller]
fn classes(op: &'static str, logits: &Tensor, labels: &Tensor) -> Result<Vec<i64>> {
    let fit = logits.rank() == 2 && labels.shape() == &logits.shape()[..1];
    Error::require_shapes(fit, op, "logits [n, c] takes labels [n]", logits.shape(), labels.shape())?;
    labels.dtype().require(op, "labels", DType::I64)?;
    let classes = labels.to_vec()?;
    check_below(op, "label", &classes, logits.shape()[1])?;
    Ok(classes)
}

/// The share of rows whose label is among the `k` classes of the largest logits; of equal logits that of the lower class comes first.
///
/// ```
/// use models::metrics::Accuracy;
/// use tensor::{Device, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let dev = Device::cpu();
/// let logits = Tensor::from_slice(&[0.1_f32, 0.7, 0.2, 0.5, 0.4, 0.1], &[2, 3], &dev)?;
/// let labels = Tensor::from_slice(&[1_i64, 1], &[2], &dev)?;
/// let (mut first, mut among_two) = (Accuracy::default(), Accuracy::top(2));
/// first.update(&logits, &labels)?;
/// among_two.update(&logits, &labels)?;
/// assert_eq!((first.value(), among_two.value()), (0.5, 1.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accuracy {
    k: usize,
    correct: u64,
    rows: u64,
}

/// The share of rows whose largest logit is at the label.
impl Default for Accuracy {
    fn default() -> Self {
        Accuracy::top(1)
    }
}

#[derive::located]
impl Accuracy {
    /// Counts rows whose label is among the `k` best classes.
    pub fn top(k: usize) -> Self {
        Accuracy { k, correct: 0, rows: 0 }
    }

    /// Adds a batch.
    ///
    /// Shapes: logits `[n, c]`, labels `[n]` (I64).
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`; `IndexOutOfRange` for a label outside `0..c`; `InvalidArgument` if `k` is 0 or more than `c`.
    pub fn update(&mut self, logits: &Tensor, labels: &Tensor) -> Result<()> {
        const OP: &str = "Accuracy::update";
        let labels = classes(OP, logits, labels)?;
        let value = format_args!("{} of {} classes", self.k, logits.shape()[1]);
        let is_valid = (1..=logits.shape()[1]).contains(&self.k);
        Error::require(is_valid, OP, "k", "1 to the number of classes", value)?;
        let best = logits.argtopk(self.k, 1, true)?.to_vec::<i64>()?;
        let hits = best.chunks(self.k).zip(&labels).filter(|(best, label)| best.contains(label));
        self.correct += hits.count() as u64;
        self.rows += labels.len() as u64;
        Ok(())
    }

    /// The share of all rows so far.
    pub fn value(&self) -> f64 {
        self.correct as f64 / self.rows as f64
    }
}

/// How often rows of each class were predicted as each class.
///
/// ```
/// use models::metrics::ConfusionMatrix;
/// use tensor::{Device, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let classes = |values: &[i64]| Tensor::from_slice(values, &[values.len()], &Device::cpu());
/// let mut matrix = ConfusionMatrix::new(2)?;
/// matrix.update(&classes(&[0, 0, 1, 1])?, &classes(&[0, 1, 1, 1])?)?;
/// assert_eq!((matrix.count(1, 0), matrix.accuracy()), (1, 0.75));
/// assert_eq!((matrix.scores(0).precision, matrix.scores(0).recall), (0.5, 1.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfusionMatrix {
    classes: usize,
    /// Row after row: labels down, predictions across.
    counts: Vec<u64>,
}

/// Scores of a class, or their means over classes; 0 where nothing is counted, as in scikit-learn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// The share of the class among the rows that were predicted as it.
    pub precision: f64,
    /// The share of the rows of the class that were predicted as it.
    pub recall: f64,
    /// The harmonic mean of precision and recall.
    pub f1: f64,
}

#[derive::located]
impl ConfusionMatrix {
    /// No rows yet, of classes `0..classes`.
    ///
    /// # Errors
    /// `InvalidArgument` unless there are 1 to 32768 classes.
    pub fn new(classes: usize) -> Result<Self> {
        let is_valid = (1..=32_768).contains(&classes);
        Error::require(is_valid, "ConfusionMatrix::new", "classes", "1 to 32768", classes)?;
        Ok(ConfusionMatrix { classes, counts: vec![0; classes * classes] })
    }

    /// Adds a batch.
    ///
    /// Shapes: predictions `[n]` (I64), or logits `[n, c]`, whose largest one is the prediction; labels `[n]` (I64).
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch`; `IndexOutOfRange` for a prediction or label that is no class. Nothing is counted then.
    pub fn update(&mut self, predictions: &Tensor, labels: &Tensor) -> Result<()> {
        const OP: &str = "ConfusionMatrix::update";
        let predictions = match predictions.rank() {
            2 => &predictions.argmax(1, false)?,
            _ => predictions,
        };
        let fit = predictions.rank() == 1 && predictions.shape() == labels.shape();
        Error::require_shapes(
            fit,
            OP,
            "predictions [n] or [n, c] takes labels [n]",
            predictions.shape(),
            labels.shape(),
        )?;
        let classes = |tensor: &Tensor| -> Result<Vec<i64>> {
            tensor.dtype().require(OP, "predictions and labels", DType::I64)?;
            let classes = tensor.to_vec()?;
            check_below(OP, "class", &classes, self.classes)?;
            Ok(classes)
        };
        let (predictions, labels) = (classes(predictions)?, classes(labels)?);
        for (prediction, label) in predictions.into_iter().zip(labels) {
            self.counts[label as usize * self.classes + prediction as usize] += 1;
        }
        Ok(())
    }

    /// How many rows of class `label` were predicted as `prediction`; 0 for what is no class.
    pub fn count(&self, label: usize, prediction: usize) -> u64 {
        let is_known = label < self.classes && prediction < self.classes;
        if is_known { self.counts[label * self.classes + prediction] } else { 0 }
    }

    /// Rows of a class that were predicted as it, all that were predicted as it, and all of it.
    fn totals(&self, class: usize) -> [u64; 3] {
        let sum = |count: &dyn Fn(usize) -> u64| (0..self.classes).map(count).sum();
        let (predicted, actual) =
            (sum(&|label| self.count(label, class)), sum(&|other| self.count(class, other)));
        [self.count(class, class), predicted, actual]
    }

    /// The share of rows that were predicted as their class.
    pub fn accuracy(&self) -> f64 {
        let correct: u64 = (0..self.classes).map(|class| self.count(class, class)).sum();
        correct as f64 / self.counts.iter().sum::<u64>() as f64
    }

    /// The scores of one class.
    pub fn scores(&self, class: usize) -> Scores {
        let [correct, predicted, actual] = self.totals(class);
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        let (precision, recall) = (share(correct, predicted), share(correct, actual));
        Scores { precision, recall, f1: share(2 * correct, predicted + actual) }
    }

    /// The means over the classes that occur as a label or as a prediction (macro averages).
    pub fn macro_scores(&self) -> Scores {
        let occurs = |class: &usize| self.totals(*class)[1..] != [0, 0];
        let all: Vec<Scores> = (0..self.classes).filter(occurs).map(|class| self.scores(class)).collect();
        let mean = |score: fn(&Scores) -> f64| all.iter().map(score).sum::<f64>() / all.len() as f64;
        Scores { precision: mean(|s| s.precision), recall: mean(|s| s.recall), f1: mean(|s| s.f1) }
    }
}

/// Errors of predicted numbers: mean absolute and squared error, and R², the share of the targets' variance that is explained.
///
/// ```
/// use models::metrics::Regression;
/// use tensor::{Device, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let of = |values: &[f32]| Tensor::from_slice(values, &[values.len()], &Device::cpu());
/// let mut errors = Regression::default();
/// errors.update(&of(&[2.5, 0.0, 2.0, 8.0])?, &of(&[3.0, -0.5, 2.0, 7.0])?)?;
/// assert_eq!((errors.mae(), errors.mse()), (0.5, 0.375));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regression {
    absolute: f64,
    columns: Vec<TargetColumn>,
}

/// A number that is predicted in each row.
#[derive(Clone, Debug, Default, PartialEq)]
struct TargetColumn {
    rows: u64,
    /// Sum of the squared errors.
    squared: f64,
    /// Mean of the targets, and the sum of their squared distances to it (Welford, 1962).
    mean: f64,
    variation: f64,
}

#[derive::located]
impl Regression {
    /// Adds a batch.
    ///
    /// Shapes: two that are equal, `[n]` or `[n, columns]`, the same columns in each batch.
    ///
    /// # Errors
    /// `ShapeMismatch`; `InvalidArgument` for other shapes.
    pub fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()> {
        let (own, other) = (predictions.shape(), targets.shape());
        const OP: &str = "Regression::update";
        Error::require_shapes(own == other, OP, "targets", own, other)?;
        let columns = match own {
            [_] => 1,
            &[_, columns] => columns,
            _ => 0,
        };
        let is_fit = columns > 0 && [0, columns].contains(&self.columns.len());
        let expected = "[n] or [n, columns], with as many columns in each batch";
        Error::require(is_fit, OP, "predictions", expected, format_args!("{own:?}"))?;
        self.columns.resize_with(columns, TargetColumn::default);
        let values = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.to_vec::<f64>();
        for (at, (prediction, target)) in values(predictions)?.into_iter().zip(values(targets)?).enumerate() {
            let (column, error) = (&mut self.columns[at % columns], prediction - target);
            self.absolute += error.abs();
            column.rows += 1;
            column.squared += error * error;
            let distance = target - column.mean;
            column.mean += distance / column.rows as f64;
            column.variation += distance * (target - column.mean);
        }
        Ok(())
    }

    /// The mean absolute error.
    pub fn mae(&self) -> f64 {
        self.absolute / self.count()
    }

    /// The mean squared error.
    pub fn mse(&self) -> f64 {
        self.columns.iter().map(|column| column.squared).sum::<f64>() / self.count()
    }

    /// `1 - Σ(prediction - target)² / Σ(target - mean)²`, the mean over the columns. As in scikit-learn, a column of equal targets counts 1
    /// without errors and 0 with some, and fewer than two rows give NaN.
    pub fn r2(&self) -> f64 {
        let of = |column: &TargetColumn| match (column.rows, column.variation == 0.0) {
            (0 | 1, _) => f64::NAN,
            (_, true) => f64::from(column.squared == 0.0),
            (_, false) => 1.0 - column.squared / column.variation,
        };
        self.columns.iter().map(of).sum::<f64>() / self.columns.len() as f64
    }

    fn count(&self) -> f64 {
        self.columns.iter().map(|column| column.rows).sum::<u64>() as f64
    }
}

/// The exponential of the mean cross-entropy over all labels.
///
/// ```
/// use models::metrics::Perplexity;
/// use tensor::{DType, Device, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let mut perplexity = Perplexity::default();
/// let labels = Tensor::from_slice(&[3_i64, 0], &[2], &Device::cpu())?;
/// perplexity.update(&Tensor::zeros(&[2, 8], DType::F64, &Device::cpu())?, &labels)?;
/// assert!((perplexity.value() - 8.0).abs() < 1e-12);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    losses: f64,
    count: u64,
}

#[derive::located]
impl Perplexity {
    /// Adds a batch.
    ///
    /// Shapes: logits `[n, c]` and labels `[n]` (I64), or `[n, c, ..]` and `[n, ..]`.
    ///
    /// # Errors
    /// As of [`cross_entropy`](crate::cross_entropy).
    pub fn update(&mut self, logits: &Tensor, labels: &Tensor) -> Result<()> {
        let logits = Var::constant(logits.to_dtype(logits.dtype().compute_dtype())?);
        let losses = logits.cross_entropy(labels, Reduction::None)?;
        self.losses += losses.value().to_dtype(DType::F64)?.to_vec::<f64>()?.iter().sum::<f64>();
        self.count += labels.elements() as u64;
        Ok(())
    }

    /// The perplexity of all labels so far.
    pub fn value(&self) -> f64 {
        (self.losses / self.count as f64).exp()
    }
}

#[cfg(test)]
mod tests {
    use approx::assert_abs_diff_eq;
    use device::Device;

    use super::*;

    fn floats(values: &[f32], shape: &[usize]) -> Tensor {
        Tensor::from_slice(values, shape, &Device::cpu()).unwrap()
    }

    fn labels(values: &[i64]) -> Tensor {
        Tensor::from_slice(values, &[values.len()], &Device::cpu()).unwrap()
    }

    #[test]
    fn accuracy_among_the_best_classes() {
        let logits = floats(&[3.0, 2.0, 1.0, 1.0, 2.0, 3.0, 2.0, 2.0, 2.0], &[3, 3]);
        let truth = labels(&[1, 0, 1]);
        // Ranks of the labels: 2, 3, and 2 since the lower class is first among equals.
        for (k, expected) in [(1, 0.0), (2, 2.0 / 3.0), (3, 1.0)] {
            let mut accuracy = Accuracy::top(k);
            assert!(accuracy.value().is_nan());
            accuracy.update(&logits, &truth).unwrap();
            assert_eq!(accuracy.value(), expected);
            accuracy.update(&logits.narrow(0, 0, 1).unwrap(), &labels(&[0])).unwrap();
            assert_eq!(accuracy.value(), (3.0 * expected + 1.0) / 4.0);
        }
    }

    /// Labels 0 0 0 1 1 2 with predictions 0 0 1 1 2 2, of which class 3 of 4 has nothing.
    #[test]
    fn a_confusion_matrix_and_its_scores() {
        let mut matrix = ConfusionMatrix::new(4).unwrap();
        assert!(matrix.accuracy().is_nan() && matrix.macro_scores().f1.is_nan());
        matrix.update(&labels(&[0, 0, 1, 1]), &labels(&[0, 0, 0, 1])).unwrap();
        let logits = floats(&[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 2.0, 1.0], &[2, 4]);
        matrix.update(&logits, &labels(&[1, 2])).unwrap();
        let counts = [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]];
        for (label, row) in counts.iter().enumerate() {
            let found: Vec<u64> = (0..4).map(|prediction| matrix.count(label, prediction)).collect();
            assert_eq!(found, row);
        }
        assert_eq!((matrix.count(4, 0), matrix.accuracy()), (0, 4.0 / 6.0));
        // By hand: precision 2/2, 1/2, 1/2; recall 2/3, 1/2, 1/1; F1 4/5, 2/4, 2/3.
        let scores = |precision, recall, f1| Scores { precision, recall, f1 };
        assert_eq!(matrix.scores(0), scores(1.0, 2.0 / 3.0, 0.8));
        assert_eq!(matrix.scores(1), scores(0.5, 0.5, 0.5));
        assert_eq!(matrix.scores(2), scores(0.5, 1.0, 2.0 / 3.0));
        assert_eq!([matrix.scores(3), matrix.scores(9)], [Scores::default(); 2]);
        let mean = matrix.macro_scores();
        assert_abs_diff_eq!(mean.precision, 2.0 / 3.0, epsilon = 1e-15);
        assert_abs_diff_eq!(mean.recall, 13.0 / 18.0, epsilon = 1e-15);
        assert_abs_diff_eq!(mean.f1, 59.0 / 90.0, epsilon = 1e-15);
    }

    #[test]
    fn errors_of_numbers() {
        let of = |batches: &[(&[f32], &[f32])]| {
            let mut errors = Regression::default();
            for (predictions, targets) in batches {
                let of = |values: &[f32]| floats(values, &[values.len(), 1]);
                errors.update(&of(predictions), &of(targets)).unwrap();
            }
            errors
        };
        // scikit-learn's example: 1 - 1.5 / 29.1875.
        let errors = of(&[(&[2.5, 0.0], &[3.0, -0.5]), (&[2.0, 8.0], &[2.0, 7.0])]);
        assert_eq!((errors.mae(), errors.mse()), (0.5, 0.375));
        assert_abs_diff_eq!(errors.r2(), 1.0 - 1.5 / 29.1875, epsilon = 1e-15);
        // Far from 0, where a sum of squares would lose the variance.
        let far = of(&[(&[8_388_608.0, 8_388_610.0], &[8_388_608.0, 8_388_609.0])]);
        assert_eq!(far.r2(), -1.0);
        let equal = |predictions: &[f32]| of(&[(predictions, &[2.0, 2.0])]).r2();
        assert_eq!((equal(&[2.0, 2.0]), equal(&[3.0, 2.0])), (1.0, 0.0));
        assert!(of(&[(&[2.0], &[2.0])]).r2().is_nan());
        // Each column by its own mean.
        let mut errors = Regression::default();
        errors
            .update(
                &floats(&[1.0, 1000.0, 1.0, 1002.0], &[2, 2]),
                &floats(&[0.0, 1000.0, 2.0, 1002.0], &[2, 2]),
            )
            .unwrap();
        assert_eq!((errors.r2(), errors.mae(), errors.mse()), (0.5, 0.5, 0.5));
        let refused = errors.update(&floats(&[1.0; 3], &[1, 3]), &floats(&[1.0; 3], &[1, 3])).unwrap_err();
        assert!(matches!(refused.kind(), device::ErrorKind::InvalidArgument { .. }), "{refused}");
        let none = of(&[]);
        assert!(none.mae().is_nan() && none.mse().is_nan() && none.r2().is_nan());
    }

    #[test]
    fn perplexity_is_over_labels_not_batches() {
        let mut perplexity = Perplexity::default();
        assert!(perplexity.value().is_nan());
        for dtype in [DType::F32, DType::BF16] {
            // Logarithms of 1, 1 and 2: probabilities 1/4, 1/4 and 1/2.
            let ln2 = 2_f64.ln();
            let logits =
                Tensor::from_slice(&[0.0, 0.0, ln2, 0.0, 0.0, ln2], &[2, 3], &Device::cpu()).unwrap();
            let mut perplexity = Perplexity::default();
            perplexity.update(&logits.to_dtype(dtype).unwrap(), &labels(&[0, 1])).unwrap();
            let second = logits.narrow(0, 0, 1).unwrap().to_dtype(dtype).unwrap();
            perplexity.update(&second, &labels(&[2])).unwrap();
            // (4 * 4 * 2)^(1/3)
            assert_abs_diff_eq!(
                perplexity.value(),
                32_f64.cbrt(),
                epsilon = if dtype == DType::F32 { 1e-6 } else { 1e-2 }
            );
        }
        perplexity
            .update(
                &Tensor::zeros(&[2, 5, 3], DType::F64, &Device::cpu()).unwrap(),
                &Tensor::zeros(&[2, 3], DType::I64, &Device::cpu()).unwrap(),
            )
            .unwrap();
        assert_abs_diff_eq!(perplexity.value(), 5.0, epsilon = 1e-12);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let (two, three) = (floats(&[0.0; 4], &[2, 2]), floats(&[0.0; 3], &[3]));
        let accuracy = |k, logits: &Tensor, labels: &Tensor| Accuracy::top(k).update(logits, labels);
        let matrix = |predictions: &Tensor, labels: &Tensor| {
            let mut matrix = ConfusionMatrix::new(2)?;
            let result = matrix.update(predictions, labels);
            assert_eq!(matrix, ConfusionMatrix::new(2)?);
            result
        };
        let cases = [
            (
                accuracy(1, &two, &labels(&[0])),
                "Accuracy::update: shapes [2, 2] and [1] do not fit: logits [n, c] takes labels [n]",
            ),
            (
                accuracy(1, &three, &labels(&[0; 3])),
                "Accuracy::update: shapes [3] and [3] do not fit: logits [n, c] takes labels [n]",
            ),
            (accuracy(1, &two, &labels(&[0, 2])), "Accuracy::update: label 2 is out of range for size 2"),
            (
                accuracy(3, &two, &labels(&[0, 1])),
                "Accuracy::update: k must be 1 to the number of classes, got 3 of 2 classes",
            ),
            (
                accuracy(0, &two, &labels(&[0, 1])),
                "Accuracy::update: k must be 1 to the number of classes, got 0 of 2 classes",
            ),
            (
                matrix(&three, &labels(&[0; 3])),
                "ConfusionMatrix::update: predictions and labels must be i64, got f32",
            ),
            (
                matrix(&labels(&[0, 2]), &labels(&[0, 1])),
                "ConfusionMatrix::update: class 2 is out of range for size 2",
            ),
            (
                matrix(&labels(&[0, 1]), &labels(&[0, -1])),
                "ConfusionMatrix::update: class -1 is out of range for size 2",
            ),
            (
                matrix(&labels(&[0]), &labels(&[0, 1])),
                "ConfusionMatrix::update: shapes [1] and [2] do not fit: predictions [n] or [n, c] takes labels [n]",
            ),
            (ConfusionMatrix::new(0).map(drop), "ConfusionMatrix::new: classes must be 1 to 32768, got 0"),
            (
                Regression::default().update(&two, &three),
                "Regression::update: targets must be of shape [2, 2], got [3]",
            ),
            (
                Perplexity::default().update(&two, &labels(&[0, 5])),
                "cross_entropy: label 5 is out of range for size 2",
            ),
        ];
        for (result, expected) in cases {
            assert_eq!(result.unwrap_err().to_string(), expected);
        }
    }
}
