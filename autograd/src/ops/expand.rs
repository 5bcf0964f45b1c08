//! `expand`: repeats along axes; the gradient is summed back over them.

use tensor::Result;

use super::{Dims, Draw, Sample, record_one};
use crate::Var;

#[derive::located]
impl Var {
    /// Broadcasts to `shape`, as a view. The gradient is summed over the repeated axes. See
    /// [`Tensor::expand`](tensor::Tensor::expand).
    ///
    /// # Errors
    /// As for [`Tensor::expand`](tensor::Tensor::expand).
    pub fn expand(&self, shape: &[usize]) -> Result<Var> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let value = self.value().expand(shape)?;
        let from = Dims::from_slice(self.shape());
        record_one("expand", self, &[], value, move |_, g| g.sum_to(&from))
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[3]], |v| v[0].expand(&[2, 3])),
        ("columns", &[&[2, 1]], |v| v[0].expand(&[2, 3])),
        ("scalar", &[&[]], |v| v[0].expand(&[2, 3])?.mul(&v[0])),
        ("middle", &[&[2, 1, 2]], |v| v[0].expand(&[3, 2, 4, 2])),
        ("same", &[&[2, 3]], |v| v[0].expand(&[2, 3])),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn repeats() -> Result<()> {
        let x = vector(&[1.0, 2.0])?;
        let y = x.expand(&[3, 2])?;
        close(&y, &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0])?;
        close_values(&gradient(&y, &x)?, &[3.0, 3.0]);
        Ok(())
    }
}
