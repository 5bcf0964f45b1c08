//! `loss = t (ln t - x)` for the logarithm `x` of probabilities and the probabilities `t`, 0 where `t` is 0; or `e^t (t - x)` for
//! logarithms `t`.

use tensor::Result;

use super::mse_loss::loss_by_element;
use super::{Draw, Reduction, Sample, sample};
use crate::Var;

#[derive::located]
impl Var {
    /// The Kullback-Leibler divergence of probabilities from those whose logarithms are given, `t (ln t - x)`.
    ///
    /// With `log_target` the target holds logarithms, too. PyTorch's `batchmean` is [`Reduction::Sum`] divided by the batch size.
    ///
    /// Shapes: both the same; the result is a scalar, or has that shape with [`Reduction::None`].
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `InvalidArgument` for the mean of no elements.
    pub fn kl_div(&self, target: &Var, log_target: bool, reduction: Reduction) -> Result<Var> {
        autocast!("kl_div", [self, target], |x, target| x.kl_div(&target, log_target, reduction));
        loss_by_element("kl_div", self, target, reduction, |x, target| {
            if log_target {
                return target.exp()?.mul(&target.sub(x)?);
            }
            let zero = target.value().eq(0.0)?;
            let distance = target.masked_fill(&zero, 1.0)?.log()?.sub(x)?;
            target.mul(&distance)?.masked_fill(&zero, 0.0)
        })
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, log_target, reduction| -> Result<Sample> {
        let inputs = [d.normal(&[2, 3])?, d.positive(&[2, 3])?];
        Ok(sample(name, inputs, move |v| v[0].kl_div(&v[1], log_target, reduction)))
    };
    Ok(vec![
        of("mean", false, Reduction::Mean)?,
        of("none", false, Reduction::None)?,
        of("logarithms", true, Reduction::Sum)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let (x, target) = (vector(&[-1.0, -2.0])?, vector(&[0.5, 0.0])?);
        let losses = x.kl_div(&target, false, Reduction::None)?;
        close(&losses, &[0.5 * (0.5_f64.ln() + 1.0), 0.0])?;
        close_values(&gradient(&losses, &x)?, &[-0.5, 0.0]);
        let same = x.kl_div(&x, true, Reduction::Sum)?;
        close(&same, &[0.0])
    }
}
