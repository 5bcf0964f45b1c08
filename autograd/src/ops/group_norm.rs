//! `group_norm`: groups of channels with mean 0 and variance 1, times a weight, plus a bias for each channel.

use tensor::{Norm, Result};

use super::normalize::normalize;
use super::{Draw, Sample};
use crate::Var;

#[derive::located]
impl Var {
    /// Normalizes each group of channels of each element of axis 0. See
    /// [`Tensor::group_norm`](tensor::Tensor::group_norm).
    ///
    /// # Errors
    /// As for [`Tensor::group_norm`](tensor::Tensor::group_norm).
    pub fn group_norm(
        &self,
        num_groups: usize,
        weight: Option<&Var>,
        bias: Option<&Var>,
        eps: f64,
    ) -> Result<Var> {
        autocast!("group_norm", [self, weight, bias], |x, weight, bias| {
            x.group_norm(num_groups, weight.as_ref(), bias.as_ref(), eps)
        });
        normalize(Norm::group(self.value(), num_groups, eps)?, self, weight, bias)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("images", &[&[2, 4, 3, 2], &[4], &[4]], |v| v[0].group_norm(2, Some(&v[1]), Some(&v[2]), 1e-5)),
        ("one_group", &[&[2, 2, 3], &[2], &[2]], |v| v[0].group_norm(1, Some(&v[1]), Some(&v[2]), 1e-5)),
        ("group_of_one_channel", &[&[2, 3, 5], &[3]], |v| v[0].group_norm(3, Some(&v[1]), None, 1e-5)),
        ("no_inner_axes", &[&[3, 6], &[6], &[6]], |v| v[0].group_norm(2, Some(&v[1]), Some(&v[2]), 1e-5)),
        ("plain", &[&[2, 4, 2]], |v| v[0].group_norm(2, None, None, 1e-5)),
        ("used_twice", &[&[2, 4, 3]], |v| v[0].group_norm(2, None, None, 1e-5)?.mul(&v[0])),
    ])
}

#[cfg(test)]
mod tests {
    use tensor::{Error, ErrorKind};

    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn closed_form() -> Result<()> {
        // Two groups of two channels of one element.
        let x = leaf(&[1.0, 3.0, 10.0, 0.0], &[1, 4, 1])?;
        let (weight, bias) = (vector(&[1.0, 2.0, 3.0, 4.0])?, vector(&[0.0, 0.0, 0.0, 1.0])?);
        let norm = || x.group_norm(2, Some(&weight), Some(&bias), 0.0);
        close(&norm()?, &[-1.0, 2.0, 3.0, -3.0])?;
        close_values(&gradient(&norm()?, &weight)?, &[-1.0, 1.0, 1.0, -1.0]);
        Ok(())
    }

    #[test]
    fn one_group_is_the_layer_norm_of_all_channels() -> Result<()> {
        let x = leaf(&(0..12).map(|i| f64::from(i * i)).collect::<Vec<_>>(), &[2, 3, 2])?;
        let layer = x.layer_norm(&[3, 2], None, None, 1e-5)?.value().to_vec::<f64>()?;
        close(&x.group_norm(1, None, None, 1e-5)?, &layer)
    }

    #[test]
    fn bad_groups_are_errors() -> Result<()> {
        let x = leaf(&[0.0; 6], &[1, 3, 2])?;
        for groups in [0, 2] {
            assert!(matches!(
                x.group_norm(groups, None, None, 1e-5).as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { .. })
            ));
        }
        assert!(vector(&[1.0])?.group_norm(1, None, None, 1e-5).is_err());
        Ok(())
    }
}
