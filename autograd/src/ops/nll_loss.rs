//! `loss = -x[label]` of each row of log-probabilities; the gradient is `-g` there.

use tensor::{Result, Tensor};

use super::Reduction;
use super::cross_entropy::{not_empty, rows};
use crate::Var;

#[derive::located]
impl Var {
    /// The negative log-likelihood of the labels, for log-probabilities such as [`Var::log_softmax`] gives.
    ///
    /// Shapes: `[n, c]` and labels `[n]` of I64, or `[c]` and `[]`, or `[n, c, ..]` and `[n, ..]`; the result is a
    /// scalar, or has the labels' shape with [`Reduction::None`].
    ///
    /// # Errors
    /// As [`Var::cross_entropy`].
    pub fn nll_loss(&self, labels: &Tensor, reduction: Reduction) -> Result<Var> {
        autocast!("nll_loss", [self], |x| x.nll_loss(labels, reduction));
        const OP: &str = "nll_loss";
        let (log_probs, flat) = rows(OP, self, labels)?;
        not_empty(OP, "labels", labels, reduction)?;
        tensor::check_picked(OP, "label", log_probs.value(), &flat, log_probs.shape()[1])?;
        let losses = log_probs.gather_of(OP, 1, &flat.unsqueeze(1)?, true)?.neg()?.reshape(labels.shape())?;
        reduction.apply(losses)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, tensor};
    use super::*;

    #[test]
    fn picks_the_label() -> Result<()> {
        let x = leaf(&[-1.0, -2.0, -3.0, -4.0], &[2, 2])?;
        let labels = tensor(&[1_i64, 0], &[2])?;
        close(&x.nll_loss(&labels, Reduction::None)?, &[2.0, 3.0])?;
        let mean = x.nll_loss(&labels, Reduction::Mean)?;
        close(&mean, &[2.5])?;
        close_values(&gradient(&mean, &x)?, &[0.0, -0.5, -0.5, 0.0]);
        assert!(x.nll_loss(&tensor(&[2_i64, 0], &[2])?, Reduction::Mean).is_err());
        Ok(())
    }

    #[test]
    fn equals_cross_entropy_after_log_softmax() -> Result<()> {
        let x = leaf(&[0.3, -1.0, 2.0, 0.5, 0.1, -0.7], &[2, 3])?;
        let labels = tensor(&[2_i64, 0], &[2])?;
        let expected = x.cross_entropy(&labels, Reduction::Sum)?.value().to_vec::<f64>()?;
        close(&x.log_softmax(1)?.nll_loss(&labels, Reduction::Sum)?, &expected)
    }
}
