//! `gather`: one element of an axis for each index; the gradient is added back there. `scatter_add` adds to them.

use tensor::{Result, Tensor, grad};

use super::{Dims, Draw, Sample, if_needed, record_pair};
use crate::{Grads, Save, Var, record};

#[derive::located]
impl Var {
    /// The elements at `indices` along `axis`. The gradient is added back at the indices, in a fixed order. See
    /// [`Tensor::gather`].
    ///
    /// # Errors
    /// As for [`Tensor::gather`].
    pub fn gather(&self, axis: isize, indices: &Tensor) -> Result<Var> {
        self.gather_of("gather", axis, indices, false)
    }

    /// [`gather`](Self::gather) as a part of another op, whose name errors have; `distinct` if no index comes twice in a line.
    pub(super) fn gather_of(
        &self,
        op: &'static str,
        axis: isize,
        indices: &Tensor,
        distinct: bool,
    ) -> Result<Var> {
        let shape = Dims::from_slice(self.shape());
        let gather = move |x: &Tensor, indices: &[&Tensor]| x.gather_of(op, axis, indices[0]);
        let add = move |g: &Tensor, indices: &[&Tensor]| grad::gather(g, axis, indices[0], &shape, distinct);
        record_pair(["gather", "gather_grad"], self, &[indices], gather, add)
    }

    /// A copy with `src` added at `indices` along `axis`, in a fixed order. Operands of different types are
    /// [promoted](Tensor::result_type). See [`Tensor::scatter_add`].
    ///
    /// # Errors
    /// As for [`Tensor::scatter_add`], but for `DTypeMismatch` of `src`.
    pub fn scatter_add(&self, axis: isize, indices: &Tensor, src: &Var) -> Result<Var> {
        promote!(self, src, |x, src| x.scatter_add(axis, indices, src));
        let value = self.value().scatter_add(axis, indices, src.value())?;
        let shape = Dims::from_slice(src.shape());
        Ok(record("scatter_add", &[self, src], &[Save::Tensor(indices)], value, move |ctx, g| {
            Ok(Grads::from_buf([
                ctx.needs(0).then(|| g.clone()),
                if_needed(ctx, 1, || pad_to(g.gather(axis, ctx.saved(0).value())?, &shape))?,
            ]))
        }))
    }

    /// A copy with the elements of `src` at `indices` along `axis`; a place that is named several times gets the sum. Operands of
    /// different types are [promoted](Tensor::result_type). See [`Tensor::scatter`].
    ///
    /// # Errors
    /// As for [`Var::scatter_add`].
    pub fn scatter(&self, axis: isize, indices: &Tensor, src: &Var) -> Result<Var> {
        let mask = self.value().index_mask(axis, indices)?;
        self.masked_fill(&mask, 0.0)?.scatter_add(axis, indices, src)
    }
}

/// Zeros behind each axis up to the size in `shape`: the elements of `src` that no index names.
fn pad_to(mut g: Var, shape: &[usize]) -> Result<Var> {
    // Rank 0 counts as rank 1.
    if g.shape().is_empty() && !shape.is_empty() {
        g = g.unsqueeze(0)?;
    }
    let sizes = if shape.is_empty() && !g.shape().is_empty() { &[1] } else { shape };
    for (axis, &size) in (0..).zip(sizes) {
        if g.shape()[axis as usize] < size {
            g = g.pad_narrow(axis, 0, size)?;
        }
    }
    g.reshape(shape)
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let along = |name, shape, axis, indices: &[i64], indices_shape: &[usize]| {
        let indices = d.indices(indices, indices_shape)?;
        d.sample(name, &[shape], move |v| v[0].gather(axis, &indices)?.square())
    };
    Ok(vec![
        along("labels", &[3, 4], 1, &[2, 0, 3], &[3, 1])?,
        along("rows", &[3, 2], 0, &[2, 0, 1, 1], &[2, 2])?,
        along("repeated", &[2, 3], -1, &[0, 0, 2, 1, 1, 1, 0, 2], &[2, 4])?,
        along("fewer_rows", &[4, 3], 1, &[2, 1], &[1, 2])?,
        along("vector", &[5], 0, &[4, 1, 4], &[3])?,
        along("scalar", &[], 0, &[0], &[])?,
        along("scalar_by_vector", &[], -1, &[0, 0], &[2])?,
        along("vector_by_scalar", &[3], 0, &[2], &[])?,
    ])
}

/// Those of [`Var::scatter_add`] and [`Var::scatter`].
pub(super) fn scatter_samples(
    d: &Draw,
    scatter: fn(&Var, isize, &Tensor, &Var) -> Result<Var>,
) -> Result<Vec<Sample>> {
    let to = |name, shape, axis, indices: &[i64], indices_shape: &[usize], src| {
        let indices = d.indices(indices, indices_shape)?;
        d.sample(name, &[shape, src], move |v| scatter(&v[0], axis, &indices, &v[1])?.square())
    };
    [
        to("rows", &[3, 2], 0, &[2, 0, 2, 1], &[2, 2], &[2, 2]),
        to("columns", &[2, 3], 1, &[2, 0, 2, 1], &[2, 2], &[2, 2]),
        to("larger_source", &[3, 2], 0, &[2, 1, 2], &[3, 1], &[4, 2]),
        to("vector", &[3], 0, &[1, 1], &[2], &[2]),
        to("scalar", &[], 0, &[0], &[], &[]),
        to("vector_to_scalar", &[], 0, &[0, 0], &[2], &[2]),
    ]
    .into_iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, tensor, vector};
    use super::*;

    #[test]
    fn takes_and_adds() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        let y = x.gather(1, &tensor(&[2_i64, 2, 0, 1], &[2, 2])?)?;
        close(&y, &[3.0, 3.0, 4.0, 5.0])?;
        close_values(&gradient(&y, &x)?, &[0.0, 0.0, 2.0, 1.0, 1.0, 0.0]);
        let (base, src) = (vector(&[0.0, 10.0])?, vector(&[1.0, 2.0, 3.0])?);
        let sum = base.scatter_add(0, &tensor(&[1_i64, 1], &[2])?, &src)?;
        close(&sum, &[0.0, 13.0])?;
        close_values(&gradient(&sum, &src)?, &[1.0, 1.0, 0.0]);
        let (full, places) = (leaf(&[5.0, f64::INFINITY, 7.0], &[3])?, tensor(&[1_i64, 1], &[2])?);
        let set = full.scatter(0, &places, &src)?;
        close(&set, &[5.0, 3.0, 7.0])?;
        close_values(
            &set.value().to_vec::<f64>()?,
            &full.value().scatter(0, &places, src.value())?.to_vec::<f64>()?,
        );
        close_values(&gradient(&set, &full)?, &[1.0, 0.0, 1.0]);
        close_values(&gradient(&set, &src)?, &[1.0, 1.0, 0.0]);
        let none = x.gather(0, &tensor::<i64>(&[], &[2, 0])?)?;
        close_values(&gradient(&none, &x)?, &[0.0; 6]);
        Ok(())
    }

    #[test]
    fn rank_0_counts_as_rank_1() -> Result<()> {
        let (scalar, vector) = (leaf(&[7.0], &[])?, vector(&[1.0, 2.0, 3.0])?);
        let y = scalar.gather(0, &tensor(&[0_i64], &[])?)?;
        assert!(y.shape().is_empty());
        close(&y, &[7.0])?;
        close_values(&gradient(&y, &scalar)?, &[1.0]);
        let y = scalar.gather(-1, &tensor(&[0_i64, 0], &[2])?)?;
        close(&y, &[7.0, 7.0])?;
        close_values(&gradient(&y, &scalar)?, &[2.0]);
        let y = vector.gather(0, &tensor(&[2_i64], &[])?)?;
        assert!(y.shape().is_empty());
        close_values(&gradient(&y, &vector)?, &[0.0, 0.0, 1.0]);
        let sum = scalar.scatter_add(0, &tensor(&[0_i64], &[])?, &vector)?;
        assert!(sum.shape().is_empty());
        close(&sum, &[8.0])?;
        close_values(&gradient(&sum, &vector)?, &[1.0, 0.0, 0.0]);
        assert!(scalar.gather(1, &tensor(&[0_i64], &[])?).is_err());
        assert!(scalar.gather(0, &tensor(&[1_i64], &[])?).is_err());
        assert!(scalar.gather(0, &tensor(&[0_i64], &[1, 1])?).is_err());
        Ok(())
    }
}
