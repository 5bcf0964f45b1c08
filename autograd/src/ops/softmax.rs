//! `y = e^x / Σ e^x` along an axis, `x' = y (g - Σ g y)`; and its logarithm, `x' = g - e^y Σ g`.

use tensor::{Result, grad};

use super::{Draw, Sample, if_needed, record_one};
use crate::{Grads, Save, Var, record};

const BOTH: &[Save<'static>] = &[Save::Input(0), Save::Input(1)];

#[derive::located]
impl Var {
    /// The softmax along `axis`. See [`Tensor::softmax`](tensor::Tensor::softmax).
    ///
    /// # Errors
    /// As for [`Tensor::softmax`](tensor::Tensor::softmax).
    pub fn softmax(&self, axis: isize) -> Result<Var> {
        autocast!("softmax", [self], |x| x.softmax(axis));
        let value = self.value().softmax(axis)?;
        record_one("softmax", self, &[Save::Output], value, move |ctx, g| {
            softmax_grad(&ctx.saved(0), g, axis)
        })
    }

    /// The logarithm of the softmax along `axis`. See [`Tensor::log_softmax`](tensor::Tensor::log_softmax).
    ///
    /// # Errors
    /// As for [`Tensor::log_softmax`](tensor::Tensor::log_softmax).
    pub fn log_softmax(&self, axis: isize) -> Result<Var> {
        autocast!("log_softmax", [self], |x| x.log_softmax(axis));
        let value = self.value().log_softmax(axis)?;
        record_one("log_softmax", self, &[Save::Output], value, move |ctx, g| {
            log_softmax_grad(&ctx.saved(0), g, axis)
        })
    }
}

/// `y (g - Σ g y)` in one kernel; `y' = h (g - Σ g y) - g Σ h y` and `g' = y (h - Σ h y)` for its own
/// gradient `h`.
fn softmax_grad(y: &Var, g: &Var, axis: isize) -> Result<Var> {
    let value = grad::softmax(y.value(), g.value(), axis)?;
    Ok(record("softmax_grad", &[y, g], BOTH, value, move |ctx, h| {
        let (y, g) = (ctx.saved(0), ctx.saved(1));
        let weighted = |v: &Var| v.mul(&y)?.sum(&[axis], true);
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || h.mul(&g.sub(&weighted(&g)?)?)?.sub(&g.mul(&weighted(h)?)?))?,
            if_needed(ctx, 1, || softmax_grad(&y, h, axis))?,
        ]))
    }))
}

/// `g - e^y Σ g` in one kernel; `y' = -h e^y Σ g` and `g' = h - Σ h e^y` for its own gradient `h`.
fn log_softmax_grad(y: &Var, g: &Var, axis: isize) -> Result<Var> {
    let value = grad::log_softmax(y.value(), g.value(), axis)?;
    Ok(record("log_softmax_grad", &[y, g], BOTH, value, move |ctx, h| {
        let (y, g) = (ctx.saved(0), ctx.saved(1));
        let weighted = h.mul(&y.exp()?)?;
        Ok(Grads::from_buf([
            if_needed(ctx, 0, || weighted.mul(&g.sum(&[axis], true)?)?.neg())?,
            if_needed(ctx, 1, || h.sub(&weighted.sum(&[axis], true)?))?,
        ]))
    }))
}

pub(super) fn along_axes(d: &Draw, f: fn(&Var, isize) -> Result<Var>) -> Result<Vec<Sample>> {
    let along = |name, shape, axis| d.sample(name, &[shape], move |v| f(&v[0], axis));
    Ok(vec![
        along("last", &[2, 3], -1)?,
        along("vector", &[5], 0)?,
        along("first", &[3, 2], 0)?,
        along("middle", &[2, 3, 2], 1)?,
        along("odd", &[3, 17], 1)?,
        along("one", &[2, 1], 1)?,
        along("scalar", &[], -1)?,
        d.sample("used_twice", &[&[2, 3]], move |v| f(&v[0], 1)?.mul(&v[0]))?,
        d.sample("expanded_gradient", &[&[2, 3]], move |v| f(&v[0], 1)?.narrow(1, 0, 2)?.sum(&[1], false))?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let x = leaf(&[0.0, 3.0_f64.ln()], &[1, 2])?;
        let first = x.softmax(1)?.narrow(1, 0, 1)?;
        close(&x.softmax(-1)?, &[0.25, 0.75])?;
        close_values(&gradient(&first, &x)?, &[0.1875, -0.1875]);
        let first = x.log_softmax(1)?.narrow(1, 0, 1)?;
        close(&x.log_softmax(-1)?, &[0.25_f64.ln(), 0.75_f64.ln()])?;
        close_values(&gradient(&first, &x)?, &[0.75, -0.75]);
        Ok(())
    }
}
