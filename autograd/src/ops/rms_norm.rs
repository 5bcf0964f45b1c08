//! `rms_norm`: rows over the last axes divided by the root of their mean square, times a weight.

use tensor::{Norm, Result};

use super::normalize::normalize;
use super::{Draw, Program, Sample};
use crate::Var;

#[derive::located]
impl Var {
    /// Divides each row over the last axes by its root mean square. See [`Tensor::rms_norm`](tensor::Tensor::rms_norm).
    ///
    /// # Errors
    /// As for [`Tensor::rms_norm`](tensor::Tensor::rms_norm).
    pub fn rms_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Var>,
        eps: Option<f64>,
    ) -> Result<Var> {
        autocast!("rms_norm", [self, weight], |x, weight| x.rms_norm(normalized_shape, weight.as_ref(), eps));
        normalize(Norm::rms(self.value(), normalized_shape, eps)?, self, weight, None)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of: Program = |v| v[0].rms_norm(v[1].shape(), Some(&v[1]), None);
    d.samples(&[
        ("rows", &[&[3, 5], &[5]], of),
        ("odd", &[&[2, 37], &[37]], of),
        ("two_axes", &[&[2, 3, 2], &[3, 2]], of),
        ("plain", &[&[3, 4]], |v| v[0].rms_norm(&[4], None, Some(1e-3))),
        ("used_twice", &[&[3, 4]], |v| v[0].rms_norm(&[4], None, None)?.mul(&v[0])),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let x = leaf(&[3.0, 4.0], &[1, 2])?;
        let weight = vector(&[1.0, 2.0])?;
        let root = 12.5_f64.sqrt();
        let y = x.rms_norm(&[2], Some(&weight), Some(0.0))?;
        close(&y, &[3.0 / root, 8.0 / root])?;
        close_values(&gradient(&y, &weight)?, &[3.0 / root, 4.0 / root]);
        let (along, scale) = ((3.0 + 8.0) / 25.0, 1.0 / root);
        let y = x.rms_norm(&[2], Some(&weight), Some(0.0))?;
        close_values(&gradient(&y, &x)?, &[scale * (1.0 - 3.0 * along), scale * (2.0 - 4.0 * along)]);
        Ok(())
    }

    #[test]
    fn the_default_eps_is_that_of_the_type() -> Result<()> {
        let x = leaf(&[0.0, 1e-8], &[1, 2])?;
        let expected = 1e-8 / (0.5e-16 + f64::EPSILON).sqrt();
        close(&x.rms_norm(&[2], None, None)?, &[0.0, expected])
    }
}
