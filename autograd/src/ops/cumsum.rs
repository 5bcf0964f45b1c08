//! `y[i] = x[0] + .. + x[i]` along an axis; `x'[i] = g[i] + .. + g[n - 1]`.

use tensor::{Result, Tensor};

use super::{Draw, Sample, record_pair};
use crate::Var;

#[derive::located]
impl Var {
    /// The sums of the elements up to each position of `axis`. The gradient's sums are in the same order from the end.
    /// See [`Tensor::cumsum`](tensor::Tensor::cumsum).
    ///
    /// # Errors
    /// As for [`Tensor::cumsum`](tensor::Tensor::cumsum).
    pub fn cumsum(&self, axis: isize) -> Result<Var> {
        autocast!("cumsum", [self], |x| x.cumsum(axis));
        let (sum, back) = (
            move |x: &Tensor, _: &[&Tensor]| x.cumsum(axis),
            move |g: &Tensor, _: &[&Tensor]| g.cumsum_from_end(axis),
        );
        record_pair(["cumsum", "cumsum_from_end"], self, &[], sum, back)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("first", &[&[3, 2]], |v| v[0].cumsum(0)),
        ("vector", &[&[5]], |v| v[0].cumsum(0)),
        ("last", &[&[2, 35]], |v| v[0].cumsum(-1)),
        ("middle", &[&[2, 3, 2]], |v| v[0].cumsum(1)),
        ("scalar", &[&[]], |v| v[0].cumsum(0)),
        ("used_twice", &[&[2, 3]], |v| v[0].cumsum(1)?.mul(&v[0])),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn sums_forward_and_their_gradient_backward() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        let y = x.cumsum(1)?;
        close(&y, &[1.0, 3.0, 6.0, 4.0, 9.0, 15.0])?;
        close_values(&gradient(&y, &x)?, &[3.0, 2.0, 1.0, 3.0, 2.0, 1.0]);
        assert!(x.cumsum(2).is_err());
        Ok(())
    }
}
