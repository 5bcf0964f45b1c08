//! `tril`, `triu`: a triangle of matrices, 0 elsewhere; so is the gradient.

use tensor::Result;

use super::{Draw, Sample, record_one};
use crate::Var;

#[derive::located]
impl Var {
    /// The lower triangle of matrices; 0 elsewhere. See [`Tensor::tril`](tensor::Tensor::tril).
    ///
    /// # Errors
    /// As for [`Tensor::tril`](tensor::Tensor::tril).
    pub fn tril(&self, diagonal: i64) -> Result<Var> {
        let value = self.value().tril(diagonal)?;
        record_one("tril", self, &[], value, move |_, g| g.tril(diagonal))
    }

    /// The upper triangle of matrices; 0 elsewhere. See [`Tensor::triu`](tensor::Tensor::triu).
    ///
    /// # Errors
    /// As for [`Tensor::triu`](tensor::Tensor::triu).
    pub fn triu(&self, diagonal: i64) -> Result<Var> {
        let value = self.value().triu(diagonal)?;
        record_one("triu", self, &[], value, move |_, g| g.triu(diagonal))
    }
}

pub(super) fn both(d: &Draw, f: fn(&Var, i64) -> Result<Var>) -> Result<Vec<Sample>> {
    let of = |name, shape, diagonal| d.sample(name, &[shape], move |v| f(&v[0], diagonal)?.square());
    [of("square", &[3, 3], 0), of("above", &[3, 4], 1), of("below", &[2, 4, 3], -1)].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn triangles() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, f64::NAN, 5.0, 6.0], &[2, 3])?;
        close(&x.triu(0)?, &[1.0, 2.0, 3.0, 0.0, 5.0, 6.0])?;
        close(&x.triu(1)?, &[0.0, 2.0, 3.0, 0.0, 0.0, 6.0])?;
        close(&x.tril(-1)?, &[0.0, 0.0, 0.0, f64::NAN, 0.0, 0.0])?;
        close(&x.triu(i64::MAX)?, &[0.0; 6])?;
        close_values(&gradient(&x.tril(0)?, &x)?, &[1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        assert!(vector(&[1.0])?.tril(0).is_err());
        Ok(())
    }
}
