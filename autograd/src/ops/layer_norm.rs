//! `layer_norm`: rows over the last axes with mean 0 and variance 1, times a weight, plus a bias.

use tensor::{Norm, Result};

use super::normalize::normalize;
use super::samples::{Draw, Sample, sample};
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
    let of = |name, shape: &[usize], normalized: &'static [usize]| -> Result<Sample> {
        let inputs = [d.normal(shape)?, d.normal(normalized)?, d.normal(normalized)?];
        Ok(sample(name, inputs, |v| v[0].layer_norm(normalized, Some(&v[1]), Some(&v[2]), 1e-5)))
    };
    let still = Var::constant(d.normal(&[3, 4])?);
    let weight = Var::constant(d.normal(&[4])?);
    Ok(vec![
        of("rows", &[3, 5], &[5])?,
        of("odd", &[2, 37], &[37])?,
        of("two_axes", &[2, 3, 4], &[3, 4])?,
        of("vector", &[6], &[6])?,
        sample("plain", [d.normal(&[3, 4])?], |v| v[0].layer_norm(&[4], None, None, 1e-5)),
        sample("only_a_bias", [d.normal(&[3, 4])?, d.normal(&[4])?], |v| {
            v[0].layer_norm(&[4], None, Some(&v[1]), 1e-5)
        }),
        sample("large_eps", [d.normal(&[3, 4])?], |v| v[0].layer_norm(&[4], None, None, 0.5)),
        sample("transposed", [d.normal(&[4, 3])?.transpose(0, 1)?], |v| {
            v[0].layer_norm(&[4], None, None, 1e-5)?.mul(&v[0])
        }),
        sample("constant_input", [d.normal(&[4])?, d.normal(&[4])?], move |v| {
            still.layer_norm(&[4], Some(&v[0]), Some(&v[1]), 1e-5)?.square()
        }),
        sample("constant_weight", [d.normal(&[3, 4])?], move |v| {
            v[0].layer_norm(&[4], Some(&weight), None, 1e-5)
        }),
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
