//! `loss = -log_softmax(x)[label]` of each row; `x' = g (softmax(x) - one_hot(label))`.

use tensor::{Error, Result, Tensor, grad};

use super::{Dims, Draw, Reduction, Sample, if_needed, record_one, widened};
use crate::autocast::{Cast, suspended};
use crate::{Grads, Save, Var, record};

#[derive::located]
impl Var {
    /// The cross-entropy between the softmax of the logits and the labels, with a reduction. [`CrossEntropy`] has more
    /// options.
    ///
    /// Shapes: logits `[n, c]` and labels `[n]`, or `[c]` and `[]`, or `[n, c, ..]` and `[n, ..]`; the result is a
    /// scalar, or has the labels' shape with [`Reduction::None`]. For 16-bit logits it is computed in F32 and rounded
    /// once, or stays F32 under [`autocast`](crate::autocast()). [`Tensor::cross_entropy`] returns the losses of rows,
    /// unreduced, with the logarithms of sums.
    ///
    /// ```
    /// # use autograd::{Device, Result, Tensor, Var, ops::Reduction};
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu();
    /// let logits = Var::leaf(Tensor::zeros(&[2, 4], tensor::DType::F64, &device)?);
    /// let labels = Tensor::from_slice(&[0_i64, 3], &[2], &device)?;
    /// let loss = logits.cross_entropy(&labels, Reduction::Mean)?;
    /// assert!((loss.value().item::<f64>()? - 4_f64.ln()).abs() < 1e-12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Tensor::cross_entropy`]; `InvalidArgument` for the mean of no rows.
    pub fn cross_entropy(&self, labels: &Tensor, reduction: Reduction) -> Result<Var> {
        const OP: &str = "cross_entropy";
        let loss = |rounded: bool| {
            let (logits, flat) = rows(OP, self, labels)?;
            not_empty(OP, "labels", labels, reduction)?;
            let loss = reduction.apply(losses(&logits, &flat)?.reshape(labels.shape())?)?;
            if rounded { loss.to_dtype(self.dtype()) } else { Ok(loss) }
        };
        Cast::of(const { super::autocast_of(OP) }).map_or_else(|| loss(true), |_| suspended(|| loss(false)))
    }
}

/// Options of a cross-entropy: torch's, with torch's defaults.
///
/// ```
/// # use autograd::{Device, Result, Tensor, Var, ops::CrossEntropy};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let logits = Var::leaf(Tensor::zeros(&[2, 4], tensor::DType::F64, &device)?);
/// let labels = Tensor::from_slice(&[-100_i64, 3], &[2], &device)?;
/// let smooth = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
/// let loss = smooth.loss(&logits, &labels)?;
/// assert!((loss.value().item::<f64>()? - 4_f64.ln()).abs() < 1e-12);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    /// A factor `[c]` for the loss of each class; a mean is divided by the sum of the labels' factors. What has the factor 0 is not read.
    pub weight: Option<Tensor>,
    /// A label that stands for none: its loss is 0 and it does not count in a mean, whatever its logits are, which get no gradient.
    pub ignore_index: i64,
    /// The part of the target, between 0 and 1, that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// What is done with the losses.
    pub reduction: Reduction,
}

impl Default for CrossEntropy {
    fn default() -> Self {
        CrossEntropy { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean }
    }
}

impl CrossEntropy {
    /// The loss of `logits` for `labels`: `(1 - s) w[y] l[y] + s / c Σ w l` of each row with the smoothing `s` and
    /// `l = -log_softmax(x)`.
    ///
    /// Shapes and result as for [`Var::cross_entropy`], which is faster where no option is needed. A mean over factors whose sum is 0, such
    /// as that of no labels, is NaN or infinite, and its gradient is 0.
    ///
    /// # Errors
    /// As [`Var::cross_entropy`]; `InvalidArgument` unless `0 <= label_smoothing <= 1`; `ShapeMismatch` unless there is a
    /// weight for each class.
    pub fn loss(&self, logits: &Var, labels: &Tensor) -> Result<Var> {
        autocast!("cross_entropy", [logits, self.weight.as_ref()], |logits, weight| {
            CrossEntropy { weight, ..self.clone() }.loss(&logits, labels)
        });
        if logits.dtype().is_half() {
            let compute = logits.dtype().compute_dtype();
            let weight = self.weight.as_ref().map(|weight| weight.to_dtype(compute)).transpose()?;
            let wide = CrossEntropy { weight, ..self.clone() };
            return widened(logits, |logits| wide.loss(logits, labels));
        }
        const OP: &str = "cross_entropy";
        let smoothing = self.label_smoothing;
        let is_valid = (0.0..=1.0).contains(&smoothing);
        Error::require(is_valid, OP, "label_smoothing", "between 0 and 1", smoothing)?;
        let (rows, flat) = rows(OP, logits, labels)?;
        let classes = rows.shape()[1];
        let zero = Tensor::full(&[], 0.0, rows.dtype(), rows.device())?;
        // A label that is ignored becomes class 0 with a factor of 0.
        let ignored = flat.eq(&Tensor::full(&[], self.ignore_index, flat.dtype(), flat.device())?)?;
        let safe = Tensor::where_cond(&ignored, &flat.zeros_like()?, &flat)?;
        tensor::check_picked(OP, "label", rows.value(), &safe, classes)?;
        let counted = ignored.logical_not()?.to_dtype(rows.dtype())?;
        let factors = match &self.weight {
            Some(weight) if weight.shape() != [classes] => {
                return Err(Error::shape_mismatch(OP, "weight", &[classes], weight.shape()));
            }
            Some(weight) => Tensor::where_cond(&ignored, &zero, &weight.index_select_of(OP, 0, &safe)?)?,
            None => counted.clone(),
        };
        // What has no part in the loss is replaced, so that neither NaN nor an infinity reaches the loss or a gradient.
        let unread = if smoothing > 0.0 { ignored } else { factors.eq(&zero)? };
        let log_probs = rows.masked_fill(&unread.unsqueeze(1)?, 0.0)?.log_softmax(1)?;
        let own_factors = factors.mul_scalar(smoothing - 1.0)?;
        let own = log_probs.gather_of(OP, 1, &safe.unsqueeze(1)?, true)?.squeeze(1)?;
        let own = own.masked_fill(&own_factors.eq(&zero)?, 0.0)?;
        let mut losses = own.mul(&Var::constant(own_factors))?;
        if smoothing > 0.0 {
            let weighted = match &self.weight {
                Some(weight) => {
                    log_probs.masked_fill(&weight.eq(&zero)?, 0.0)?.mul(&Var::constant(weight.clone()))?
                }
                None => log_probs,
            };
            let share = counted.mul_scalar(-smoothing / classes as f64)?;
            losses = losses.add(&weighted.sum(&[1], false)?.mul(&Var::constant(share))?)?;
        }
        match self.reduction {
            Reduction::None => losses.reshape(labels.shape()),
            Reduction::Sum => losses.sum_all(),
            Reduction::Mean => mean(&losses.sum_all()?, &factors.sum(&[], false)?),
        }
    }

    /// The loss of `logits` for probabilities: `-Σ w ((1 - s) t + s / c) log_softmax(x)` of each row with the smoothing `s`. A mean is
    /// divided by the number of rows; `ignore_index` has no meaning here.
    ///
    /// Shapes: both `[n, c]`, `[n, c, ..]` or `[c]`; the result has the axes without that of the classes with [`Reduction::None`] and is
    /// a scalar otherwise.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; as for [`loss`](Self::loss).
    pub fn loss_of_probabilities(&self, logits: &Var, target: &Var) -> Result<Var> {
        const OP: &str = "cross_entropy";
        autocast!("cross_entropy", [logits, target, self.weight.as_ref()], |logits, target, weight| {
            CrossEntropy { weight, ..self.clone() }.loss_of_probabilities(&logits, &target)
        });
        Error::require_shapes(
            logits.shape() == target.shape(),
            OP,
            "target",
            logits.shape(),
            target.shape(),
        )?;
        let is_valid = (0.0..=1.0).contains(&self.label_smoothing);
        Error::require(is_valid, OP, "label_smoothing", "between 0 and 1", self.label_smoothing)?;
        not_empty(OP, "input", logits.value(), self.reduction)?;
        super::binary::computed(logits, target, |logits, target| {
            // As for labels: axis 1 of several.
            let axis = usize::from(logits.rank() > 1);
            let classes = logits.shape().get(axis).copied().unwrap_or(1);
            let share = self.label_smoothing / classes as f64;
            let mut target = target.mul_scalar(1.0 - self.label_smoothing)?.add_scalar(share)?;
            if let Some(weight) = &self.weight {
                Error::require_shapes(weight.shape() == [classes], OP, "weight", &[classes], weight.shape())?;
                let mut shape = smallvec::SmallVec::<[usize; 4]>::from_elem(1, logits.rank() - axis);
                shape[0] = classes;
                target = target.mul(&Var::constant(weight.to_dtype(target.dtype())?.reshape(&shape)?))?;
            }
            let axis = axis.cast_signed();
            let losses = logits.log_softmax(axis)?.mul(&target)?.sum(&[axis], false)?.neg()?;
            self.reduction.apply(losses)
        })
    }
}

/// `sum / total`, without a gradient where `total` is 0.
fn mean(sum: &Var, total: &Tensor) -> Result<Var> {
    let none = total.eq(0.0)?;
    let divisor = Tensor::where_cond(&none, &total.ones_like()?, total)?;
    Var::where_cond(&none, &Var::constant(sum.value().div(total)?), &sum.div(&Var::constant(divisor))?)
}

/// A loss by label wants one row for each label: the classes' axis comes last, the others are joined.
pub(super) fn rows(op: &'static str, x: &Var, labels: &Tensor) -> Result<(Var, Tensor)> {
    let shape = x.shape();
    let mismatch =
        || Error::shape_mismatch(op, "input [n, c, ..] takes labels [n, ..]", shape, labels.shape());
    // The classes are the only axis, or the second one.
    let at = usize::from(shape.len() > 1);
    let mut expected = Dims::from_slice(shape);
    if at >= shape.len() {
        return Err(mismatch());
    }
    let classes = expected.remove(at);
    if labels.shape() != &expected[..] {
        return Err(mismatch());
    }
    let flat = labels.reshape(&[labels.elements()])?;
    if shape.len() == 2 {
        return Ok((x.clone(), flat));
    }
    let mut order: Vec<isize> = (0..).take(shape.len()).filter(|&axis| axis != at as isize).collect();
    order.push(at as isize);
    Ok((x.permute(&order)?.reshape(&[labels.elements(), classes])?, flat))
}

/// The mean of no losses is an error rather than NaN.
pub(super) fn not_empty(
    op: &'static str,
    argument: &'static str,
    given: &Tensor,
    reduction: Reduction,
) -> Result<()> {
    let shape = format_args!("shape {:?}", given.shape());
    let is_valid = reduction != Reduction::Mean || !given.is_empty();
    Error::require(is_valid, op, argument, "not empty for a mean", shape)
}

/// One loss for each row, of the type that is computed in. Losses are made by one kernel, and so is the gradient; of the softmax
/// in between, the logarithm of each row's sum is kept.
fn losses(logits: &Var, labels: &Tensor) -> Result<Var> {
    let (losses, log_sums) = logits.value().cross_entropy(labels)?;
    let saved = [Save::Input(0), Save::Tensor(&log_sums), Save::Tensor(labels)];
    record_one("cross_entropy", logits, &saved, losses, |ctx, g| {
        let (log_sums, labels) = (ctx.saved(1), ctx.saved(2));
        cross_entropy_grad(&ctx.saved(0), log_sums.value(), labels.value(), g)
    })
}

/// `g (p - one_hot(label))` of each row with `p = softmax(x)`; `x' = g p (h - Σ h p)` and `g' = Σ h (p - one_hot(label))` for its
/// own gradient `h`.
pub(super) fn cross_entropy_grad(logits: &Var, log_sums: &Tensor, labels: &Tensor, g: &Var) -> Result<Var> {
    let value = grad::cross_entropy(logits.value(), log_sums, labels, g.value())?;
    let saved = [Save::Input(0), Save::Input(1), Save::Tensor(labels)];
    Ok(record("cross_entropy_grad", &[logits, g], &saved, value, |ctx, h| {
        let (logits, g, labels) = (ctx.saved(0), ctx.saved(1), ctx.saved(2));
        let (p, h) = (logits.to_dtype(g.dtype())?.softmax(1)?, h.to_dtype(g.dtype())?);
        let mean = h.mul(&p)?.sum(&[1], true)?;
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || h.sub(&mean)?.mul(&p)?.mul(&g.unsqueeze(1)?)?.to_dtype(logits.dtype()))?,
            if_needed(ctx, 1, || {
                let own = h.gather(1, &labels.value().unsqueeze(1)?)?;
                mean.sub(&own)?.squeeze(1)
            })?,
        ]))
    }))
}

/// The samples of a loss by label.
pub(super) fn by_label(d: &Draw, f: fn(&Var, &Tensor, Reduction) -> Result<Var>) -> Result<Vec<Sample>> {
    let of = |name, shape, labels: &[i64], labels_shape: &[usize], reduction| {
        let labels = d.indices(labels, labels_shape)?;
        d.sample(name, &[shape], move |v| f(&v[0], &labels, reduction))
    };
    let three = d.indices(&[1, 0, 1], &[3])?;
    Ok(vec![
        of("mean", &[3, 4], &[2, 0, 3], &[3], Reduction::Mean)?,
        of("sum", &[3, 4], &[2, 2, 1], &[3], Reduction::Sum)?,
        of("none", &[3, 4], &[3, 0, 1], &[3], Reduction::None)?,
        of("one_row", &[1, 5], &[4], &[1], Reduction::Mean)?,
        of("vector", &[3], &[1], &[], Reduction::Mean)?,
        of("image", &[2, 3, 2], &[0, 1, 2, 0], &[2, 2], Reduction::Mean)?,
        of("odd", &[5, 17], &[16, 0, 7, 8, 16], &[5], Reduction::Mean)?,
        d.sample("used_twice", &[&[3, 2]], move |v| f(&v[0], &three, Reduction::Sum)?.mul(&v[0]))?,
    ])
}

pub(super) fn option_samples(d: &Draw) -> Result<Vec<Sample>> {
    let weight = d.positive(&[4])?;
    let labels = d.indices(&[2, -1, 3, 0, -1], &[5])?;
    let of = |name, weight: Option<&Tensor>, label_smoothing, reduction| {
        let options = CrossEntropy { weight: weight.cloned(), ignore_index: -1, label_smoothing, reduction };
        let labels = labels.clone();
        d.sample(name, &[&[5, 4]], move |v| options.loss(&v[0], &labels))
    };
    let image = d.indices(&[0, 1, -100, 0], &[2, 2])?;
    Ok(vec![
        of("ignored", None, 0.0, Reduction::Mean)?,
        of("weighted", Some(&weight), 0.0, Reduction::Mean)?,
        of("smooth", None, 0.2, Reduction::Sum)?,
        of("all", Some(&weight), 0.2, Reduction::Mean)?,
        of("all_apart", Some(&weight), 0.2, Reduction::None)?,
        d.sample("image", &[&[2, 3, 2]], move |v| CrossEntropy::default().loss(&v[0], &image))?,
        d.sample("probabilities", &[&[5, 4], &[5, 4]], move |v| {
            let options = CrossEntropy {
                weight: Some(weight.clone()),
                label_smoothing: 0.2,
                ..CrossEntropy::default()
            };
            options.loss_of_probabilities(&v[0], &v[1].softmax(-1)?)
        })?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, tensor};
    use super::*;
    use tensor::ErrorKind;

    #[test]
    fn closed_form() -> Result<()> {
        let x = leaf(&[0.0, 3.0_f64.ln(), 3.0_f64.ln(), 0.0], &[2, 2])?;
        let labels = tensor(&[1_i64, 1], &[2])?;
        let (near, far) = (-0.75_f64.ln(), -0.25_f64.ln());
        close(&x.cross_entropy(&labels, Reduction::None)?, &[near, far])?;
        close(&x.cross_entropy(&labels, Reduction::Sum)?, &[near + far])?;
        let mean = x.cross_entropy(&labels, Reduction::Mean)?;
        close(&mean, &[(near + far) / 2.0])?;
        close_values(&gradient(&mean, &x)?, &[0.125, -0.125, 0.375, -0.375]);
        Ok(())
    }

    #[test]
    fn probabilities_of_one_class_are_a_label() -> Result<()> {
        let x = leaf(&[0.3, -1.0, 2.0, 0.5, 0.0, 1.5], &[2, 3])?;
        let (labels, weight) = (tensor(&[2_i64, 0], &[2])?, tensor(&[1.0, 2.0, 3.0], &[3])?);
        let one_hot = Var::constant(labels.one_hot(3)?.to_dtype(tensor::DType::F64)?);
        // Classes are the second axis of images.
        let image = x.reshape(&[1, 2, 3])?.transpose(1, 2)?;
        let loss = CrossEntropy { weight: Some(weight.clone()), ..CrossEntropy::default() };
        let loss = CrossEntropy { reduction: Reduction::None, ..loss };
        let found = loss.loss_of_probabilities(&image, &one_hot.reshape(&[1, 2, 3])?.transpose(1, 2)?)?;
        assert_eq!(found.shape(), [1, 2]);
        close(&found, &loss.loss(&x, &labels)?.to_vec::<f64>()?)?;
        for label_smoothing in [0.0, 0.3] {
            let reduction = Reduction::Sum;
            let options = CrossEntropy {
                weight: Some(weight.clone()),
                label_smoothing,
                reduction,
                ..CrossEntropy::default()
            };
            let want = options.loss(&x, &labels)?;
            let got = options.loss_of_probabilities(&x, &one_hot)?;
            close(&got, &want.to_vec::<f64>()?)?;
            close_values(&gradient(&got, &x)?, &gradient(&want, &x)?);
        }
        Ok(())
    }

    #[test]
    fn options_weigh_smooth_and_leave_out() -> Result<()> {
        let x = leaf(&[0.0, 3.0_f64.ln(), 3.0_f64.ln(), 0.0, 7.0, -7.0], &[3, 2])?;
        let labels = tensor(&[1_i64, 1, -100], &[3])?;
        let (near, far) = (-0.75_f64.ln(), -0.25_f64.ln());
        let with = |options: CrossEntropy| options.loss(&x, &labels);
        let plain = CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() };
        close(&with(plain.clone())?, &[near, far, 0.0])?;
        close(&with(CrossEntropy::default())?, &[(near + far) / 2.0])?;
        let smooth = CrossEntropy { label_smoothing: 0.2, ..plain.clone() };
        close(&with(smooth)?, &[0.9 * near + 0.1 * far, 0.9 * far + 0.1 * near, 0.0])?;
        let weight = Some(tensor(&[10.0, 2.0], &[2])?);
        close(
            &with(CrossEntropy { weight: weight.clone(), ..plain.clone() })?,
            &[2.0 * near, 2.0 * far, 0.0],
        )?;
        // Both labels have the same factor, which leaves with the mean.
        close(&with(CrossEntropy { weight: weight.clone(), ..Default::default() })?, &[(near + far) / 2.0])?;
        let both = CrossEntropy { weight, label_smoothing: 0.2, ..Default::default() };
        let smoothed = 0.1 * (2.0 * near + 10.0 * far) + 0.1 * (2.0 * far + 10.0 * near);
        close(&with(both)?, &[(0.8 * 2.0 * (near + far) + smoothed) / 4.0])?;
        assert!(with(CrossEntropy { label_smoothing: 1.5, ..plain.clone() }).is_err());
        let short = Some(tensor(&[1.0], &[1])?);
        assert!(matches!(
            with(CrossEntropy { weight: short, ..plain }).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { .. })
        ));
        Ok(())
    }

    /// Rows with ignored labels and labels with the weight 0 reach neither the loss nor a gradient, whatever they hold.
    #[test]
    fn what_does_not_count_is_not_read() -> Result<()> {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let counted = [0.0, 3.0_f64.ln()];
        let (near, slopes) = (-0.75_f64.ln(), [0.25, -0.25]);
        for bad in [[-inf, 1.0], [1.0, -inf], [nan, 1.0], [1.0, nan], [inf, 1.0], [-inf, -inf]] {
            let x = leaf(&[counted, bad].concat(), &[2, 2])?;
            for label_smoothing in [0.0, 0.2] {
                let options = CrossEntropy { label_smoothing, ..CrossEntropy::default() };
                let labels = tensor(&[1_i64, -100], &[2])?;
                let alone = options.loss(&leaf(&counted, &[1, 2])?, &tensor(&[1_i64], &[1])?)?;
                for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
                    let loss = CrossEntropy { reduction, ..options.clone() }.loss(&x, &labels)?;
                    let alone = alone.value().to_vec::<f64>()?[0];
                    let expected = if reduction == Reduction::None { vec![alone, 0.0] } else { vec![alone] };
                    close(&loss, &expected)?;
                    let gradient = gradient(&loss, &x)?;
                    close_values(&gradient[2..], &[0.0; 2]);
                    if label_smoothing == 0.0 {
                        close_values(&gradient[..2], &slopes);
                    }
                }
            }
            let weight = Some(tensor(&[0.0, 2.0], &[2])?);
            let weighted = CrossEntropy { weight, reduction: Reduction::Sum, ..CrossEntropy::default() };
            let loss = weighted.loss(&x, &tensor(&[1_i64, 0], &[2])?)?;
            close(&loss, &[2.0 * near])?;
            close_values(&gradient(&loss, &x)?, &[2.0 * slopes[0], 2.0 * slopes[1], 0.0, 0.0]);
        }
        // A class with the weight 0 is not read in the smoothed part, nor a label of which nothing is left.
        let x = leaf(&[-inf, 0.0, 0.0], &[1, 3])?;
        let options =
            CrossEntropy { label_smoothing: 0.3, reduction: Reduction::Sum, ..CrossEntropy::default() };
        let weight = Some(tensor(&[0.0, 1.0, 1.0], &[3])?);
        let loss = CrossEntropy { weight, ..options }.loss(&x, &tensor(&[1_i64], &[1])?)?;
        close(&loss, &[0.9 * 2.0_f64.ln()])?;
        Ok(())
    }

    /// As in torch, so that a batch without labels leaves the weights alone.
    #[test]
    fn the_mean_of_no_labels_is_nan_with_the_gradient_zero() -> Result<()> {
        let x = leaf(&[1.0, 2.0, f64::NAN, 0.5], &[2, 2])?;
        for (label_smoothing, weight, label) in
            [(0.0, None, -100_i64), (0.1, None, -100), (0.0, Some([0.0, 1.0]), 0)]
        {
            let weight = weight.map(|weight| tensor(&weight, &[2])).transpose()?;
            let options = CrossEntropy { weight, label_smoothing, ..CrossEntropy::default() };
            let loss = options.loss(&x, &tensor(&[label; 2], &[2])?)?;
            close(&loss, &[f64::NAN])?;
            close_values(&gradient(&loss, &x)?, &[0.0; 4]);
        }
        Ok(())
    }

    #[test]
    fn large_logits_do_not_overflow() -> Result<()> {
        let x = leaf(&[1000.0, 0.0], &[1, 2])?;
        close(&x.cross_entropy(&tensor(&[1_i64], &[1])?, Reduction::Mean)?, &[1000.0])
    }

    #[test]
    fn bad_input_is_an_error() -> Result<()> {
        let x = leaf(&[0.0; 6], &[2, 3])?;
        let loss = |labels: &[i64]| x.cross_entropy(&tensor(labels, &[labels.len()])?, Reduction::Mean);
        assert!(matches!(
            loss(&[0, 3]).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 3, size: 3, .. })
        ));
        assert!(matches!(
            loss(&[0, -1]).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: -1, .. })
        ));
        assert!(matches!(loss(&[0]).as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })));
        let floats = tensor(&[0.0, 1.0], &[2])?;
        assert!(matches!(
            x.cross_entropy(&floats, Reduction::Mean).as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeMismatch { .. })
        ));
        let (none, no_labels) = (leaf(&[], &[0, 3])?, tensor::<i64>(&[], &[0])?);
        assert!(matches!(
            none.cross_entropy(&no_labels, Reduction::Mean).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        close(&none.cross_entropy(&no_labels, Reduction::Sum)?, &[0.0])
    }
}
