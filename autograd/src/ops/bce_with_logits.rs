//! `loss = max(x, 0) - x t + ln(1 + e^-|x|)`; `x' = g (σ(x) - t)`, `t' = -g x`.

use tensor::{BinaryGradOp, CompareOp, Result, Tensor};

use super::mse_loss::loss_by_element;
use super::{Reduction, binary_slope, if_needed};
use crate::{Grads, Save, Var, record};

#[derive::located]
impl Var {
    /// The binary cross-entropy between `σ(x)` and the target, `-t ln σ(x) - (1 - t) ln(1 - σ(x))`, without
    /// overflow.
    ///
    /// Shapes: both the same; the result is a scalar, or has that shape with [`Reduction::None`].
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `InvalidArgument` for the mean of no elements.
    pub fn bce_with_logits(&self, target: &Var, reduction: Reduction) -> Result<Var> {
        autocast!("bce_with_logits", [self, target], |x, target| x.bce_with_logits(&target, reduction));
        loss_by_element("bce_with_logits", self, target, reduction, losses)
    }
}

fn losses(x: &Var, target: &Var) -> Result<Var> {
    let (x_value, t_value) = (x.value(), target.value());
    // max(x, 0) - x t = |x| w with the weight w of the label that x speaks against. Where w is 0, x may be infinite.
    let weight = t_value.neg()?.add_scalar(1.0)?;
    let weight = Tensor::where_cond(&x_value.compare_scalar(CompareOp::Gt, 0.0)?, &weight, t_value)?;
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
        close_values(&gradient(&losses, &x)?, &[1.0, 0.0, 0.0, -1.0, nan]);
        Ok(())
    }
}
