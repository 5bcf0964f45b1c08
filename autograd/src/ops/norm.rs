//! `norm`, `normalize`, `cosine_similarity`: lengths of vectors; gradients are 0 where a length is.

use tensor::{Result, Tensor};

use super::binary::computed;
use super::{Draw, Sample, sample, widened};
use crate::Var;

#[derive::located]
impl Var {
    /// The `p`-norm over `axes`, `(Σ |x|^p)^(1/p)`; no axes means all of them.
    ///
    /// `p` may be infinity, for the largest `|x|`, -infinity, for the smallest, or 0, for the number of elements that are not 0. The
    /// gradient is 0 where the norm is 0.
    ///
    /// # Errors
    /// As for [`Tensor::sum`], and `DTypeUnsupported` unless the elements are floats; for infinite `p` as for
    /// [`Tensor::max`].
    pub fn norm(&self, p: f64, axes: &[isize], keepdim: bool) -> Result<Var> {
        autocast!("norm", [self], |x| x.norm(p, axes, keepdim));
        self.dtype().require_float("norm")?;
        if self.dtype().is_half() {
            return widened(self, |x| x.norm(p, axes, keepdim));
        }
        if p == f64::INFINITY {
            return self.abs()?.max(axes, keepdim);
        }
        if p == f64::NEG_INFINITY {
            return self.abs()?.min(axes, keepdim);
        }
        if p == 0.0 {
            let count = self.value().ne(0.0)?.sum(axes, keepdim)?;
            return Ok(Var::constant(count.to_dtype(self.dtype())?));
        }
        if p == 1.0 {
            return self.abs()?.sum(axes, keepdim);
        }
        let powers = if p == 2.0 { self.square()? } else { self.abs()?.nonzero_pow(p)? };
        powers.sum(axes, keepdim)?.nonzero_pow(1.0 / p)
    }

    /// `x^p` for `x >= 0`, with a gradient of 0 where `x` is 0.
    fn nonzero_pow(&self, p: f64) -> Result<Var> {
        let zero = self.value().eq(0.0)?;
        let at_zero = if p < 0.0 { f64::INFINITY } else { 0.0 };
        self.masked_fill(&zero, 1.0)?.pow_scalar(p)?.masked_fill(&zero, at_zero)
    }

    /// The vectors along `axis`, divided by their `p`-norm, or by `eps` where that is smaller. The usual `p` is 2 and `eps` 1e-12.
    ///
    /// # Errors
    /// As for [`norm`](Self::norm).
    pub fn normalize(&self, p: f64, axis: isize, eps: f64) -> Result<Var> {
        autocast!("normalize", [self], |x| x.normalize(p, axis, eps));
        if self.dtype().is_half() {
            return widened(self, |x| x.normalize(p, axis, eps));
        }
        self.div(&self.norm(p, &[axis], true)?.clamp(eps, f64::INFINITY)?)
    }

    /// The cosine of the angle between the vectors along `axis`, `Σ x y / (max(|x|, eps) max(|y|, eps))`; they broadcast. The
    /// usual `eps` is 1e-8.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DeviceMismatch`; as for [`norm`](Self::norm).
    pub fn cosine_similarity(&self, rhs: &Var, axis: isize, eps: f64) -> Result<Var> {
        autocast!("cosine_similarity", [self, rhs], |x, y| x.cosine_similarity(&y, axis, eps));
        computed(self, rhs, |x, y| {
            let products = x.mul(y)?;
            let shape = products.shape();
            let length = |v: &Var| v.expand(shape)?.norm(2.0, &[axis], false)?.clamp(eps, f64::INFINITY);
            products.sum(&[axis], false)?.div(&length(x)?.mul(&length(y)?)?)
        })
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, p, axes: &'static [isize]| {
        d.sample_of(Draw::distinct, name, &[&[3, 5]], move |v| v[0].norm(p, axes, false))
    };
    let zeros = d.nonzero(&[2, 3])?.mul(&Tensor::from_slice(&[0.0, 1.0], &[2, 1], &d.device)?)?;
    Ok(vec![
        of("euclidean", 2.0, &[1])?,
        of("all", 2.0, &[])?,
        of("sum", 1.0, &[0])?,
        of("cubic", 3.0, &[-1])?,
        of("root", 0.5, &[0])?,
        of("negative", -1.5, &[1])?,
        of("largest", f64::INFINITY, &[1])?,
        of("smallest", f64::NEG_INFINITY, &[0])?,
        // At a length of 0 there is no slope.
        sample("beside_zeros", [zeros], |v| v[0].norm(2.0, &[1], false)?.narrow(0, 1, 1)),
    ])
}

pub(super) fn normalize_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[3, 5]], |v| v[0].normalize(2.0, 1, 1e-12)),
        ("columns", &[&[3, 5]], |v| v[0].normalize(1.0, 0, 1e-12)),
        ("short", &[&[2, 3]], |v| v[0].normalize(2.0, -1, 100.0)),
    ])
}

pub(super) fn cosine_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[3, 5], &[3, 5]], |v| v[0].cosine_similarity(&v[1], 1, 1e-8)),
        ("broadcast", &[&[3, 5], &[5]], |v| v[0].cosine_similarity(&v[1], -1, 1e-8)),
        ("columns", &[&[3, 5], &[3, 5]], |v| v[0].cosine_similarity(&v[1], 0, 1e-8)),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn lengths_of_rows() -> Result<()> {
        let x = leaf(&[3.0, -4.0, 0.0, 0.0], &[2, 2])?;
        let of = |p: f64| x.norm(p, &[1], false);
        close(&of(2.0)?, &[5.0, 0.0])?;
        close(&of(1.0)?, &[7.0, 0.0])?;
        close(&of(f64::INFINITY)?, &[4.0, 0.0])?;
        close(&of(f64::NEG_INFINITY)?, &[3.0, 0.0])?;
        close(&of(0.0)?, &[2.0, 0.0])?;
        close(&of(3.0)?, &[91.0_f64.cbrt(), 0.0])?;
        close(&of(-1.0)?, &[12.0 / 7.0, 0.0])?;
        close_values(&gradient(&of(2.0)?, &x)?, &[0.6, -0.8, 0.0, 0.0]);
        close(&x.normalize(2.0, 1, 1e-12)?, &[0.6, -0.8, 0.0, 0.0])?;
        let (a, b) = (leaf(&[1.0, 0.0, 2.0, 0.0], &[2, 2])?, leaf(&[1.0, 1.0, 0.0, 0.0], &[2, 2])?);
        let cosine = a.cosine_similarity(&b, 1, 1e-8)?;
        close(&cosine, &[0.5_f64.sqrt(), 0.0])?;
        assert!(gradient(&cosine, &b)?.iter().all(|g| g.is_finite()));
        Ok(())
    }
}
