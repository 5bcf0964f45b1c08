//! `y = min(max(x, low), high)`; `x' = g` where `low < x < high`, else 0.

use tensor::{CompareOp, Result};

use super::{Draw, Sample, record_one, scalar_like, unary};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// Limits `x` to `low..=high`. The gradient is 0 at both bounds, as that of [`relu`](Self::relu) is at 0; an infinite bound does not
    /// count. NaN stays NaN without a gradient, and a NaN bound makes every element NaN.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values; `InvalidArgument` for bounds that the tensor op does not accept.
    pub fn clamp(&self, low: f64, high: f64) -> Result<Var> {
        let value = self.value().clamp(low, high)?;
        record_one("clamp", self, &[Save::Input(0)], value, move |ctx, g| {
            let x = ctx.saved(0);
            let zero = scalar_like(g.value(), 0.0)?;
            let above = if low == f64::NEG_INFINITY { CompareOp::Ge } else { CompareOp::Gt };
            let below = if high == f64::INFINITY { CompareOp::Le } else { CompareOp::Lt };
            let g = Var::where_cond(&x.value().compare(above, low)?, g, &zero)?;
            Var::where_cond(&x.value().compare(below, high)?, &g, &zero)
        })
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let mut samples = unary(d, Draw::distinct, |x| x.clamp(-0.11, 0.17))?;
    for (name, low, high) in [("below_only", 0.0, f64::INFINITY), ("above_only", f64::NEG_INFINITY, 0.0)] {
        let clamped = move |v: &[Var]| v[0].clamp(low, high)?.mul(&v[0]);
        samples.push(d.sample_of(Draw::nonzero, name, &[&[7]], clamped)?);
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn the_gradient_at_a_bound_is_zero() -> Result<()> {
        let x = vector(&[-2.0, -1.0, 0.5, 1.0, 2.0])?;
        let y = x.clamp(-1.0, 1.0)?;
        close(&y, &[-1.0, -1.0, 0.5, 1.0, 1.0])?;
        close_values(&gradient(&y, &x)?, &[0.0, 0.0, 1.0, 0.0, 0.0]);
        let x = vector(&[f64::NEG_INFINITY, f64::INFINITY])?;
        close_values(&gradient(&x.clamp(f64::NEG_INFINITY, 0.0)?, &x)?, &[1.0, 0.0]);
        close_values(&gradient(&x.clamp(0.0, f64::INFINITY)?, &x)?, &[0.0, 1.0]);
        Ok(())
    }

    #[test]
    fn keeps_nan_without_gradient() -> Result<()> {
        let x = vector(&[f64::NAN])?;
        let y = x.clamp(-1.0, 1.0)?;
        close(&y, &[f64::NAN])?;
        close_values(&gradient(&y, &x)?, &[0.0]);
        let x = vector(&[0.5, -2.0])?;
        for (low, high) in [(f64::NAN, 1.0), (-1.0, f64::NAN)] {
            let y = x.clamp(low, high)?;
            close(&y, &[f64::NAN; 2])?;
            close_values(&gradient(&y, &x)?, &[0.0; 2]);
        }
        Ok(())
    }
}
