//! `erf`, `softplus`, `leaky_relu` and `masked_fill`.

use std::f64::consts::FRAC_2_SQRT_PI;

use tensor::{CompareOp, Device, Result, Tensor};

use super::bce_with_logits::log_one_plus;
use super::samples::{Draw, Sample, sample, unary};
use super::{one, scalar_like};
use crate::{Save, Var, record};

impl Var {
    /// The error function `2 / √π ∫₀ˣ e^(-t²) dt`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn erf(&self) -> Result<Var> {
        let value = self.value().erf()?;
        Ok(record("erf", &[self], &[Save::Input(0)], value, |ctx, g| {
            let slope = ctx.saved(0).square()?.neg()?.exp()?.mul_scalar(FRAC_2_SQRT_PI)?;
            Ok(one(g.mul(&slope)?))
        }))
    }

    /// `ln(1 + e^(β x)) / β`, and `x` where `β x` is above `threshold`. The usual `beta` is 1, the usual `threshold` 20.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn softplus(&self, beta: f64, threshold: f64) -> Result<Var> {
        let x = self.value();
        let scaled = x.mul_scalar(beta)?;
        let straight = scaled.compare_scalar(CompareOp::Gt, threshold)?;
        // Without overflow: max(z, 0) + ln(1 + e^-|z|).
        let soft =
            scaled.relu()?.add(&log_one_plus(&scaled.abs()?.neg()?.exp()?)?)?.mul_scalar(1.0 / beta)?;
        let value = Tensor::where_cond(&straight, x, &soft)?;
        let saved = [Save::Input(0), Save::Tensor(&straight)];
        Ok(record("softplus", &[self], &saved, value, move |ctx, g| {
            let bent = g.mul(&ctx.saved(0).mul_scalar(beta)?.sigmoid()?)?;
            Ok(one(Var::where_cond(ctx.saved(1).value(), g, &bent)?))
        }))
    }

    /// `x` where it is positive, `slope · x` elsewhere. The usual `slope` is 0.01.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the elements are floats.
    pub fn leaky_relu(&self, slope: f64) -> Result<Var> {
        let positive = self.value().compare_scalar(CompareOp::Gt, 0.0)?;
        Var::where_cond(&positive, self, &self.mul_scalar(slope)?)
    }

    /// `value` where the mask, of Bool, holds; it broadcasts. The gradient is 0 there.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; `DTypeMismatch` unless the mask is Bool.
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Var> {
        Var::where_cond(mask, &scalar_like(self.value(), value)?, self)
    }
}

pub(super) fn erf_samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::normal, Var::erf)
}

pub(super) fn softplus_samples(device: &Device) -> Result<Vec<Sample>> {
    let mut samples = unary(device, Draw::normal, |x| x.softplus(1.0, 20.0))?;
    let d = Draw::new(device);
    samples.push(sample("steep", [d.nonzero(&[7])?], |v| v[0].softplus(-2.5, 20.0)));
    // The value jumps a little at the threshold, which no sample is near.
    samples.push(sample("straight", [d.distinct(&[40])?], |v| v[0].softplus(3.0, 1.0)?.mul(&v[0])));
    Ok(samples)
}

pub(super) fn leaky_relu_samples(device: &Device) -> Result<Vec<Sample>> {
    unary(device, Draw::nonzero, |x| x.leaky_relu(0.1))
}

pub(super) fn masked_fill_samples(device: &Device) -> Result<Vec<Sample>> {
    let d = Draw::new(device);
    let mask = |shape: &[usize]| d.normal(shape)?.compare_scalar(CompareOp::Gt, 0.0);
    let (same, row) = (mask(&[2, 5])?, mask(&[5])?);
    Ok(vec![
        sample("same_shape", [d.normal(&[2, 5])?], move |v| v[0].masked_fill(&same, -1.5)?.square()),
        sample("row", [d.normal(&[5, 2])?.transpose(0, 1)?], move |v| {
            v[0].masked_fill(&row, 2.0)?.mul(&v[0])
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, tensor, vector};
    use super::*;

    #[test]
    fn erf_at_known_points() -> Result<()> {
        let x = vector(&[0.0, 1.0, -1.0])?;
        let y = x.erf()?;
        let one = 0.842_700_792_949_714_9;
        close(&y, &[0.0, one, -one])?;
        let slope = FRAC_2_SQRT_PI / std::f64::consts::E;
        close_values(&gradient(&y, &x)?, &[FRAC_2_SQRT_PI, slope, slope]);
        Ok(())
    }

    #[test]
    fn softplus_is_soft_below_the_threshold() -> Result<()> {
        let x = vector(&[0.0, 3.0_f64.ln(), 1000.0, -1000.0])?;
        let y = x.softplus(1.0, 20.0)?;
        close(&y, &[2.0_f64.ln(), 4.0_f64.ln(), 1000.0, 0.0])?;
        close_values(&gradient(&y, &x)?, &[0.5, 0.75, 1.0, 0.0]);
        close(&x.softplus(2.0, 1.0)?, &[2.0_f64.ln() / 2.0, 3.0_f64.ln(), 1000.0, 0.0])
    }

    #[test]
    fn leaky_relu_lets_a_little_through() -> Result<()> {
        let x = vector(&[-2.0, 0.0, 3.0])?;
        let y = x.leaky_relu(0.01)?;
        close(&y, &[-0.02, 0.0, 3.0])?;
        close_values(&gradient(&y, &x)?, &[0.01, 0.01, 1.0]);
        Ok(())
    }

    #[test]
    fn masked_elements_have_no_gradient() -> Result<()> {
        let x = vector(&[1.0, 2.0, 3.0])?;
        let y = x.masked_fill(&tensor(&[false, true, false], &[3])?, -9.0)?;
        close(&y, &[1.0, -9.0, 3.0])?;
        close_values(&gradient(&y, &x)?, &[1.0, 0.0, 1.0]);
        assert!(x.masked_fill(&tensor(&[1_i64, 0, 0], &[3])?, 0.0).is_err());
        Ok(())
    }
}
