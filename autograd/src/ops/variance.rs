//! `y = Σ (x - mean)² / (n - correction)` over axes; `x' = 2 g (x - mean) / (n - correction)`. Its root `s = √y`;
//! `x' = g (x - mean) / (s (n - correction))`, 0 where `s = 0`.

use smallvec::SmallVec;
use tensor::{Result, Tensor};

use super::sum::reductions;
use super::{Draw, Sample, kept_shape, record_one, reduced_elements, scalar_like, widened};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The variance over `axes`. See [`Tensor::var`].
    ///
    /// # Errors
    /// As for [`Tensor::var`].
    pub fn var(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Var> {
        let value = self.value().var(axes, correction, keepdim)?;
        let kept = kept_shape(self.shape(), axes);
        let freedom = reduced_elements(self.shape(), axes) as f64 - correction;
        let scale = 2.0 / freedom;
        let axes: SmallVec<[isize; 4]> = SmallVec::from_slice(axes);
        record_one("var", self, &[Save::Input(0)], value, move |ctx, g| {
            if axes.is_empty() && freedom <= 0.0 {
                return g.mul(&Var::constant(slopes_without_freedom(ctx.saved(0).value())?));
            }
            let x = ctx.saved(0);
            let [of, g] = [&x, g].map(|v| v.to_dtype(x.dtype().compute_dtype()));
            deviation(&of?, &axes)?.mul(&g?.reshape(&kept)?.mul_scalar(scale)?)?.to_dtype(x.dtype())
        })
    }

    /// The standard deviation over `axes`. Its gradient is 0 where it is 0, at equal elements. See [`Tensor::std`].
    ///
    /// # Errors
    /// As for [`Tensor::std`].
    pub fn std(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Var> {
        if self.dtype().is_half() {
            return widened(self, |x| x.std(axes, correction, keepdim));
        }
        let value = self.value().std(axes, correction, keepdim)?;
        let kept = kept_shape(self.shape(), axes);
        let divisor = reduced_elements(self.shape(), axes) as f64 - correction;
        let axes: SmallVec<[isize; 4]> = SmallVec::from_slice(axes);
        record_one("std", self, &[Save::Input(0), Save::Output], value, move |ctx, g| {
            let std = ctx.saved(1);
            // Divided by infinity the gradient is 0, and so are those of it.
            let flat = std.value().eq(0.0)?;
            let std = Var::where_cond(&flat, &scalar_like(std.value(), f64::INFINITY)?, &std)?;
            let slope = g.div(&std)?.div_scalar(divisor)?;
            deviation(&ctx.saved(0), &axes)?.mul(&slope.reshape(&kept)?)
        })
    }
}

/// Infinity, or NaN for an element at the mean: what torch makes of `2 (x - mean) / 0` over all elements.
fn slopes_without_freedom(x: &Tensor) -> Result<Tensor> {
    let scalar = |value| Tensor::full(&[], value, x.dtype(), x.device());
    Tensor::where_cond(&x.eq(&x.mean(&[], false)?)?, &scalar(f64::NAN)?, &scalar(f64::INFINITY)?)
}

/// `x - mean` over axes.
fn deviation(x: &Var, axes: &[isize]) -> Result<Var> {
    x.sub(&x.mean(axes, true)?)
}

pub(super) fn std_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("all", &[&[3, 4]], |v| v[0].std(&[], 1.0, false)),
        ("last", &[&[3, 5]], |v| v[0].std(&[-1], 0.0, true)),
    ])
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let mut samples = reductions(d, Draw::normal, |x, axes, keepdim| x.var(axes, 0.0, keepdim))?;
    samples.push(d.sample("unbiased", &[&[3, 4]], |v| v[0].var(&[1], 1.0, false))?);
    samples.push(d.sample("unbiased_all", &[&[3, 4]], |v| v[0].var(&[], 1.0, false))?);
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;
    use crate::{GradOptions, grad};

    #[test]
    fn biased_and_unbiased() -> Result<()> {
        let x = leaf(&[1.0, 3.0, 2.0, 2.0], &[2, 2])?;
        close(&x.var(&[1], 1.0, false)?, &[2.0, 0.0])?;
        close(&x.var(&[1], 0.0, true)?, &[1.0, 0.0])?;
        close(&x.std(&[1], 1.0, false)?, &[2.0_f64.sqrt(), 0.0])?;
        close_values(&gradient(&x.var(&[1], 1.0, false)?, &x)?, &[-2.0, 2.0, 0.0, 0.0]);
        Ok(())
    }

    #[test]
    fn without_freedom_the_variance_is_infinite_or_nan() -> Result<()> {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let x = leaf(&[1.0, 3.0, 2.0, 2.0], &[2, 2])?;
        for correction in [2.0, 3.0] {
            close(&x.var(&[1], correction, false)?, &[inf, nan])?;
        }
        let all = x.var(&[], 5.0, false)?;
        close(&all, &[inf])?;
        close_values(&gradient(&all, &x)?, &[inf, inf, nan, nan]);
        let one = leaf(&[2.0], &[1])?;
        let var = one.var(&[], 1.0, false)?;
        close(&var, &[nan])?;
        close_values(&gradient(&var, &one)?, &[nan]);
        Ok(())
    }

    /// As in torch, where the root alone would give 0 / 0.
    #[test]
    fn the_deviation_of_equal_elements_has_the_gradient_zero() -> Result<()> {
        let x = leaf(&[2.0, 2.0, 2.0, 1.0, 3.0, 2.0], &[2, 3])?;
        let std = x.std(&[1], 1.0, false)?;
        close(&std, &[0.0, 1.0])?;
        close_values(&gradient(&std, &x)?, &[0.0, 0.0, 0.0, -0.5, 0.5, 0.0]);
        let options = GradOptions { create_graph: true, ..GradOptions::default() };
        for first in grad(&[std.sum_all()?], std::slice::from_ref(&x), options)?.iter().flatten() {
            close_values(&gradient(&first.square()?, &x)?[..3], &[0.0; 3]);
        }
        let one = leaf(&[2.0], &[1])?;
        close_values(&gradient(&one.std(&[], 0.0, false)?, &one)?, &[0.0]);
        // Without degrees of freedom there is no deviation and no gradient.
        close_values(&gradient(&one.std(&[], 1.0, false)?, &one)?, &[f64::NAN]);
        Ok(())
    }
}
