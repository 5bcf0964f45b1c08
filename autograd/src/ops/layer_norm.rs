//! `layer_norm`: rows over the last axes with mean 0 and variance 1, times a weight, plus a bias.

use tensor::{Norm, Result};

use super::normalize::normalize;
use super::{Draw, Program, Sample};
use crate::Var;

#[derive::located]
impl Var {
    /// Normalizes each row over the last axes, whose sizes are `normalized_shape`. The gradients of weight and bias
    /// have the types of these. See [`Tensor::layer_norm`](tensor::Tensor::layer_norm).
    ///
    /// # Errors
    /// As for [`Tensor::layer_norm`](tensor::Tensor::layer_norm).
    pub fn layer_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Var>,
        bias: Option<&Var>,
        eps: f64,
    ) -> Result<Var> {
        autocast!("layer_norm", [self, weight, bias], |x, weight, bias| {
            x.layer_norm(normalized_shape, weight.as_ref(), bias.as_ref(), eps)
        });
        normalize(Norm::layer(self.value(), normalized_shape, eps)?, self, weight, bias)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of: Program = |v| v[0].layer_norm(v[1].shape(), Some(&v[1]), Some(&v[2]), 1e-5);
    d.samples(&[
        ("rows", &[&[3, 5], &[5], &[5]], of),
        ("odd", &[&[2, 37], &[37], &[37]], of),
        ("two_axes", &[&[2, 3, 4], &[3, 4], &[3, 4]], of),
        ("vector", &[&[6], &[6], &[6]], of),
        ("plain", &[&[3, 4]], |v| v[0].layer_norm(&[4], None, None, 1e-5)),
        ("only_a_bias", &[&[3, 4], &[4]], |v| v[0].layer_norm(&[4], None, Some(&v[1]), 1e-5)),
        ("large_eps", &[&[3, 4]], |v| v[0].layer_norm(&[4], None, None, 0.5)),
        ("used_twice", &[&[3, 4]], |v| v[0].layer_norm(&[4], None, None, 1e-5)?.mul(&v[0])),
    ])
}

#[cfg(test)]
mod tests {
    use tensor::{Error, ErrorKind};

    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        let x = leaf(&[1.0, 3.0, 2.0, 10.0], &[2, 2])?;
        let (weight, bias) = (vector(&[2.0, 3.0])?, vector(&[10.0, 20.0])?);
        let norm = || x.layer_norm(&[2], Some(&weight), Some(&bias), 0.0);
        close(&norm()?, &[8.0, 23.0, 8.0, 23.0])?;
        close_values(&gradient(&norm()?, &weight)?, &[-2.0, 2.0]);
        close_values(&gradient(&norm()?, &bias)?, &[2.0, 2.0]);
        // Two elements are always -1 and 1: the input has no say.
        close_values(&gradient(&norm()?, &x)?, &[0.0; 4]);
        Ok(())
    }

    #[test]
    fn bad_shapes_are_errors() -> Result<()> {
        let x = leaf(&[0.0; 6], &[2, 3])?;
        assert!(matches!(
            x.layer_norm(&[2], None, None, 1e-5).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { .. })
        ));
        assert!(matches!(
            x.layer_norm(&[], None, None, 1e-5).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
        let weight = vector(&[1.0, 2.0])?;
        assert!(matches!(
            x.layer_norm(&[3], Some(&weight), None, 1e-5).as_ref().map_err(Error::kind),
            Err(ErrorKind::ShapeMismatch { .. })
        ));
        Ok(())
    }
}
