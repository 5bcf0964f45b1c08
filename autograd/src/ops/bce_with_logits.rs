//! `loss = max(x, 0) - x t + ln(1 + e^-|x|)`; `x' = g (σ(x) - t)`, `t' = -g x`.

use tensor::{BinaryGradOp, Result, Tensor};

use super::mse_loss::loss_by_element;
use super::{Draw, Reduction, Sample, binary_slope, if_needed, sample};
use crate::{Grads, Save, Var, record};

#[derive::located]
impl Var {
    /// The binary cross-entropy between `σ(x)` and the target, `-t ln σ(x) - (1 - t) ln(1 - σ(x))`, without
    /// overflow.
    ///
    /// Shapes: both the same; the result is a scalar, or has that shape with [`Reduction::None`]. [`BceWithLogits`] has weights.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `InvalidArgument` for the mean of no elements.
    pub fn bce_with_logits(&self, target: &Var, reduction: Reduction) -> Result<Var> {
        autocast!("bce_with_logits", [self, target], |x, target| x.bce_with_logits(&target, reduction));
        loss_by_element("bce_with_logits", self, target, reduction, losses)
    }
}

/// Options of a binary cross-entropy with logits: torch's, with torch's defaults.
///
/// ```
/// # use autograd::{Device, Result, Tensor, Var, ops::BceWithLogits};
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let logits = Var::leaf(Tensor::zeros(&[2, 1], tensor::DType::F64, &device)?);
/// let target = Var::constant(Tensor::ones(&[2, 1], tensor::DType::F64, &device)?);
/// let pos_weight = Some(Tensor::scalar(3.0_f64, &device)?);
/// let loss = BceWithLogits { pos_weight, ..BceWithLogits::default() }.loss(&logits, &target)?;
/// assert!((loss.item::<f64>()? - 3.0 * 2_f64.ln()).abs() < 1e-12);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct BceWithLogits {
    /// A factor of each loss, which broadcasts.
    pub weight: Option<Tensor>,
    /// A factor of the part `-t ln σ(x)` of positive labels, which broadcasts.
    pub pos_weight: Option<Tensor>,
    /// What is done with the losses.
    pub reduction: Reduction,
}

impl BceWithLogits {
    /// The loss `w (-p t ln σ(x) - (1 - t) ln(1 - σ(x)))` with the weight `w` and the positive weight `p`. See
    /// [`Var::bce_with_logits`], which is faster where no option is needed.
    ///
    /// # Errors
    /// As for [`Var::bce_with_logits`], and `ShapeMismatch` for weights that do not broadcast to the losses.
    pub fn loss(&self, logits: &Var, target: &Var) -> Result<Var> {
        const OP: &str = "bce_with_logits";
        autocast!(OP, [logits, target], |x, target| self.loss(&x, &target));
        loss_by_element(OP, logits, target, self.reduction, |x, target| {
            let factor = |weight: &Tensor| -> Result<Var> {
                Ok(Var::constant(weight.to_dtype(x.dtype())?.expand(x.shape())?))
            };
            let mut losses = match &self.pos_weight {
                None => losses(x, target)?,
                Some(weight) => {
                    // A part whose label has the weight 0 is not read.
                    let part = |share: &Var, x: &Var| -> Result<Var> {
                        let unread = share.value().eq(0.0)?;
                        share.mul(&x.log_sigmoid()?.masked_fill(&unread, 0.0)?)
                    };
                    let negative = part(&target.neg()?.add_scalar(1.0)?, &x.neg()?)?;
                    negative.add(&part(&target.mul(&factor(weight)?)?, x)?)?.neg()?
                }
            };
            if let Some(weight) = &self.weight {
                losses = losses.mul(&factor(weight)?)?;
            }
            Ok(losses)
        })
    }
}

pub(super) fn option_samples(d: &Draw) -> Result<Vec<Sample>> {
    let (weight, pos_weight) = (d.positive(&[2, 1])?, d.positive(&[3])?);
    let of = |name, options: BceWithLogits| -> Result<Sample> {
        let inputs = [d.normal(&[2, 3])?, d.positive(&[2, 3])?.mul_scalar(0.4)?];
        Ok(sample(name, inputs, move |v| options.loss(&v[0], &v[1])))
    };
    Ok(vec![
        of("weight", BceWithLogits { weight: Some(weight.clone()), ..BceWithLogits::default() })?,
        of("pos_weight", BceWithLogits { pos_weight: Some(pos_weight.clone()), ..BceWithLogits::default() })?,
        of(
            "both",
            BceWithLogits { weight: Some(weight), pos_weight: Some(pos_weight), reduction: Reduction::None },
        )?,
    ])
}

fn losses(x: &Var, target: &Var) -> Result<Var> {
    let (x_value, t_value) = (x.value(), target.value());
    // max(x, 0) - x t = |x| w with the weight w of the label that x speaks against. Where w is 0, x may be infinite.
    let weight = t_value.neg()?.add_scalar(1.0)?;
    let weight = Tensor::where_cond(&x_value.gt(0.0)?, &weight, t_value)?;
    let size = x_value.abs()?;
    let zero = Tensor::full(&[], 0.0, size.dtype(), size.device())?;
    let against = Tensor::where_cond(&weight.eq(&zero)?, &zero, &size.mul(&weight)?)?;
    let value = against.add(&size.neg()?.softplus(1.0, f64::INFINITY)?)?;
    let saved = [Save::Input(0), Save::Input(1)];
    Ok(record("bce_with_logits", &[x, target], &saved, value, |ctx, g| {
        let (x, t) = (ctx.saved(0), ctx.saved(1));
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || binary_slope(BinaryGradOp::BceLogit, &x, &t, g))?,
            if_needed(ctx, 1, || x.mul(g)?.neg())?,
        ]))
    }))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let (x, target) = (vector(&[0.0, 3.0_f64.ln()])?, vector(&[1.0, 0.0])?);
        let losses = x.bce_with_logits(&target, Reduction::None)?;
        close(&losses, &[2.0_f64.ln(), 4.0_f64.ln()])?;
        close_values(&gradient(&losses, &x)?, &[-0.5, 0.75]);
        let mean = x.bce_with_logits(&target, Reduction::Mean)?;
        close_values(&gradient(&mean, &target)?, &[0.0, -3.0_f64.ln() / 2.0]);
        Ok(())
    }

    #[test]
    fn large_logits_keep_their_precision() -> Result<()> {
        let (x, target) = (vector(&[800.0, -800.0, 40.0])?, vector(&[1.0, 1.0, 1.0])?);
        let losses = x.bce_with_logits(&target, Reduction::None)?.value().to_vec::<f64>()?;
        assert_eq!(losses[..2], [0.0, 800.0]);
        assert!((losses[2] / (-40.0_f64).exp() - 1.0).abs() < 1e-12);
        Ok(())
    }

    #[test]
    fn a_label_with_the_weight_zero_is_not_read() -> Result<()> {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let (x, target) = (vector(&[inf, inf, -inf, -inf, nan])?, vector(&[0.0, 1.0, 0.0, 1.0, 0.0])?);
        let losses = x.bce_with_logits(&target, Reduction::None)?;
        close(&losses, &[inf, 0.0, 0.0, inf, nan])?;
        let pos_weight = Some(Tensor::scalar(2.0_f64, x.device())?);
        let weighted = BceWithLogits { pos_weight, reduction: Reduction::None, ..BceWithLogits::default() };
        close(&weighted.loss(&x, &target)?, &[inf, 0.0, 0.0, inf, nan])?;
        close_values(&gradient(&losses, &x)?, &[1.0, 0.0, 0.0, -1.0, nan]);
        Ok(())
    }
}
