//! `y = Σ (x - mean)² / (n - correction)` over axes; `x' = 2 g (x - mean) / (n - correction)`.

use smallvec::SmallVec;
use tensor::{Device, Result};

use super::samples::{Draw, Sample, sample};
use super::sum::reductions;
use super::{kept_shape, one, reduced_elements};
use crate::{Save, Var, record};

impl Var {
    /// The variance over `axes`, divided by `n - correction`; no axes means all of them.
    ///
    /// `correction` is 1 for the unbiased estimate (the usual default) and 0 for the mean square deviation.
    /// Shapes: `[m, n]` over axis 1 gives `[m]`, or `[m, 1]` with `keepdim`.
    ///
    /// # Errors
    /// `AxisOutOfRange`; `InvalidArgument` for an axis given twice; `DTypeUnsupported` unless the elements are
    /// floats.
    pub fn var(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Var> {
        let value = self.value().var(axes, correction, keepdim)?;
        let kept = kept_shape(self.shape(), axes);
        let scale = 2.0 / (reduced_elements(self.shape(), axes) as f64 - correction);
        let axes: SmallVec<[isize; 4]> = SmallVec::from_slice(axes);
        Ok(record("var", &[self], &[Save::Input(0)], value, move |ctx, g| {
            let x = ctx.saved(0);
            let deviation = x.sub(&x.mean(&axes, true)?)?;
            Ok(one(deviation.mul(&g.reshape(&kept)?.mul_scalar(scale)?)?))
        }))
    }
}

impl Var {
    /// The standard deviation over `axes`: the root of [`Var::var`].
    ///
    /// # Errors
    /// As [`Var::var`].
    pub fn std(&self, axes: &[isize], correction: f64, keepdim: bool) -> Result<Var> {
        self.var(axes, correction, keepdim)?.sqrt()
    }
}

pub(super) fn std_samples(device: &Device) -> Result<Vec<Sample>> {
    let d = Draw::new(device);
    Ok(vec![
        sample("all", [d.normal(&[3, 4])?], |v| v[0].std(&[], 1.0, false)),
        sample("last", [d.normal(&[3, 5])?], |v| v[0].std(&[-1], 0.0, true)),
        sample("transposed", [d.normal(&[4, 3])?.transpose(0, 1)?], |v| v[0].std(&[1], 1.0, false)),
    ])
}

pub(super) fn samples(device: &Device) -> Result<Vec<Sample>> {
    let mut samples = reductions(device, Draw::normal, |x, axes, keepdim| x.var(axes, 0.0, keepdim))?;
    let d = Draw::new(device);
    samples.push(sample("unbiased", [d.normal(&[3, 4])?], |v| v[0].var(&[1], 1.0, false)));
    samples.push(sample("unbiased_all", [d.normal(&[3, 4])?], |v| v[0].var(&[], 1.0, false)));
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn biased_and_unbiased() -> Result<()> {
        let x = leaf(&[1.0, 3.0, 2.0, 2.0], &[2, 2])?;
        close(&x.var(&[1], 1.0, false)?, &[2.0, 0.0])?;
        close(&x.var(&[1], 0.0, true)?, &[1.0, 0.0])?;
        close(&x.std(&[1], 1.0, false)?, &[2.0_f64.sqrt(), 0.0])?;
        close_values(&gradient(&x.var(&[1], 1.0, false)?, &x)?, &[-2.0, 2.0, 0.0, 0.0]);
        Ok(())
    }
}
