//! `index_select`: places of an axis by number; the gradient is added back there. `index_add` adds to places.

use tensor::{Result, Tensor, grad};

use super::{Draw, Sample, if_needed, indices, position, record_pair};
use crate::{Grads, Save, Var, record};

#[derive::located]
impl Var {
    /// Picks positions of one axis. The gradient is added back at the indices, in a fixed order. See
    /// [`Tensor::index_select`].
    ///
    /// # Errors
    /// As for [`Tensor::index_select`].
    pub fn index_select(&self, axis: isize, indices: &Tensor) -> Result<Var> {
        // Without such an axis, the selection is refused.
        let size = self.shape().get(position(axis, self.shape().len())).copied().unwrap_or(0);
        let select = move |x: &Tensor, indices: &[&Tensor]| x.index_select(axis, indices[0]);
        let add = move |g: &Tensor, indices: &[&Tensor]| grad::index_select(g, axis, indices[0], size);
        record_pair(["index_select", "index_select_grad"], self, &[indices], select, add)
    }

    /// A copy with `src` added at positions of one axis. Operands of different types are
    /// [promoted](Tensor::result_type). See [`Tensor::index_add`].
    ///
    /// # Errors
    /// As for [`Tensor::index_add`], but for `DTypeMismatch` of `src`.
    pub fn index_add(&self, axis: isize, indices: &Tensor, src: &Var) -> Result<Var> {
        promote!(self, src, |x, src| x.index_add(axis, indices, src));
        let value = self.value().index_add(axis, indices, src.value())?;
        Ok(record("index_add", &[self, src], &[Save::Tensor(indices)], value, move |ctx, g| {
            Ok(Grads::from_buf([
                ctx.needs(0).then(|| g.clone()),
                if_needed(ctx, 1, || g.index_select(axis, ctx.saved(0).value()))?,
            ]))
        }))
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[4, 3]], |v| v[0].index_select(0, &indices(v, &[2, 0], &[2])?)),
        ("repeated", &[&[3, 2]], |v| v[0].index_select(0, &indices(v, &[1, 1, 2, 1], &[4])?)?.square()),
        ("last_axis", &[&[2, 3]], |v| v[0].index_select(-1, &indices(v, &[2, 0, 2], &[3])?)),
        ("middle", &[&[2, 3, 2]], |v| v[0].index_select(1, &indices(v, &[0], &[1])?)),
        ("vector", &[&[5]], |v| v[0].index_select(0, &indices(v, &[4, 4, 1], &[3])?)),
    ])
}

pub(super) fn add_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[3, 2], &[3, 2]], |v| v[0].index_add(0, &indices(v, &[2, 0, 2], &[3])?, &v[1])),
        ("columns", &[&[2, 3], &[2, 1]], |v| v[0].index_add(1, &indices(v, &[1], &[1])?, &v[1])),
        ("both_used_twice", &[&[3]], |v| {
            v[0].index_add(0, &indices(v, &[2, 0, 2], &[3])?, &v[0])?.mul(&v[0])
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, tensor, vector};
    use super::*;

    #[test]
    fn picks_and_adds() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
        let indices = tensor(&[2_i64, 0, 2], &[3])?;
        let y = x.index_select(0, &indices)?;
        close(&y, &[5.0, 6.0, 1.0, 2.0, 5.0, 6.0])?;
        close_values(&gradient(&y, &x)?, &[1.0, 1.0, 0.0, 0.0, 2.0, 2.0]);
        let (base, src) = (vector(&[0.0, 10.0, 20.0])?, vector(&[1.0, 2.0, 3.0])?);
        close(&base.index_add(0, &indices, &src)?, &[2.0, 10.0, 24.0])?;
        assert!(x.index_select(0, &tensor(&[3_i64], &[1])?).is_err());
        Ok(())
    }
}
