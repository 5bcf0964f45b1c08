//! `y = ln Σ e^x` over axes; `x' = g e^(x - y)`.

use tensor::Result;

use super::{kept_shape, record_one, widened};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The logarithm of the sum of exponentials over `axes`. See [`Tensor::logsumexp`](tensor::Tensor::logsumexp).
    ///
    /// # Errors
    /// As for [`Tensor::logsumexp`](tensor::Tensor::logsumexp).
    pub fn logsumexp(&self, axes: &[isize], keepdim: bool) -> Result<Var> {
        autocast!("logsumexp", [self], |x| x.logsumexp(axes, keepdim));
        if self.dtype().is_half() {
            // The gradient needs the result unrounded.
            return widened(self, |x| x.logsumexp(axes, keepdim));
        }
        let value = self.value().logsumexp(axes, keepdim)?;
        let kept = kept_shape(self.shape(), axes);
        record_one("logsumexp", self, &[Save::Input(0), Save::Output], value, move |ctx, g| {
            let share = ctx.saved(0).sub(&ctx.saved(1).reshape(&kept)?)?.exp()?;
            share.mul(&g.reshape(&kept)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn closed_form_without_overflow() -> Result<()> {
        let x = leaf(&[0.0, 3.0_f64.ln(), 1000.0, 1000.0], &[2, 2])?;
        let y = x.logsumexp(&[1], false)?;
        close(&y, &[4.0_f64.ln(), 1000.0 + 2.0_f64.ln()])?;
        let tolerant: Vec<f64> = gradient(&y, &x)?.iter().map(|g| (g * 1e9).round() / 1e9).collect();
        close_values(&tolerant, &[0.25, 0.75, 0.5, 0.5]);
        Ok(())
    }
}
