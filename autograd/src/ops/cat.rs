//! `cat` and `stack`: values side by side; each gets its part of the gradient.

use smallvec::SmallVec;
use tensor::{DType, Result, Tensor};

use super::{Draw, Sample, if_needed, position};
use crate::{Var, record};

#[derive::located]
impl Var {
    /// Joins values along an existing axis. The gradient of each has its own type. See [`Tensor::cat`].
    ///
    /// # Errors
    /// As for [`Tensor::cat`].
    pub fn cat(vars: &[&Var], axis: isize) -> Result<Var> {
        let value = Tensor::cat(&tensors(vars), axis)?;
        let at = position(axis, value.rank());
        let parts: SmallVec<[(usize, DType); 4]> = vars.iter().map(|v| (v.shape()[at], v.dtype())).collect();
        Ok(record("cat", vars, &[], value, move |ctx, g| {
            let mut start = 0;
            let mut part = |(index, &(size, dtype)): (usize, &(usize, DType))| {
                let from = start;
                start += size;
                if_needed(ctx, index, || g.narrow(axis, from, size)?.to_dtype(dtype))
            };
            parts.iter().enumerate().map(&mut part).collect()
        }))
    }

    /// Joins values of one shape along a new axis. The gradient of each has its own type. See [`Tensor::stack`].
    ///
    /// # Errors
    /// As for [`Tensor::stack`].
    pub fn stack(vars: &[&Var], axis: isize) -> Result<Var> {
        let value = Tensor::stack(&tensors(vars), axis)?;
        let dtypes: SmallVec<[DType; 4]> = vars.iter().map(|v| v.dtype()).collect();
        Ok(record("stack", vars, &[], value, move |ctx, g| {
            let part = |(index, &dtype)| if_needed(ctx, index, || g.select(axis, index)?.to_dtype(dtype));
            dtypes.iter().enumerate().map(part).collect()
        }))
    }
}

fn tensors<'a>(vars: &[&'a Var]) -> SmallVec<[&'a Tensor; 4]> {
    vars.iter().map(|v| v.value()).collect()
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("rows", &[&[2, 3], &[1, 3]], |v| Var::cat(&[&v[0], &v[1]], 0)?.square()),
        ("columns", &[&[2, 1], &[2, 3], &[2, 2]], |v| Var::cat(&[&v[0], &v[1], &v[2]], -1)),
        ("one", &[&[3]], |v| Var::cat(&[&v[0]], 0)),
        ("same_twice", &[&[3]], |v| Var::cat(&[&v[0], &v[0].square()?, &v[0]], 0)?.square()),
        ("between_constants", &[&[3]], |v| {
            let constant = Var::constant(v[0].value().ones_like()?);
            Var::cat(&[&constant, &v[0], &constant], 0)?.square()
        }),
    ])
}

pub(super) fn stack_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("first", &[&[2, 3], &[2, 3]], |v| Var::stack(&[&v[0], &v[1]], 0)),
        ("last", &[&[2, 3], &[2, 3]], |v| Var::stack(&[&v[0], &v[1]], -1)),
        ("scalars", &[&[], &[]], |v| Var::stack(&[&v[0], &v[1], &v[0]], 0)),
        ("middle", &[&[2, 3], &[2, 3]], |v| Var::stack(&[&v[0], &v[1]], 1)?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use tensor::Device;

    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn gradients_of_parts_have_their_types() -> Result<()> {
        let (wide, narrow) =
            (leaf(&[1.0, 2.0], &[2])?, Var::leaf(Tensor::ones(&[2], DType::BF16, &Device::cpu())?));
        for join in [Var::cat, Var::stack] {
            let y = join(&[&narrow, &wide], 0)?;
            assert_eq!(y.dtype(), DType::F64);
            close(&y.flatten(0, -1)?, &[1.0, 1.0, 1.0, 2.0])?;
            let gradients = y.sum_all()?.backward()?;
            let dtypes = [&narrow, &wide].map(|x| gradients.get(x).map(|g| g.dtype()));
            assert_eq!(dtypes, [Some(DType::BF16), Some(DType::F64)]);
        }
        Ok(())
    }

    #[test]
    fn side_by_side() -> Result<()> {
        let (a, b) = (leaf(&[1.0, 2.0], &[2, 1])?, leaf(&[3.0, 4.0, 5.0, 6.0], &[2, 2])?);
        let y = Var::cat(&[&a, &b], 1)?;
        close(&y, &[1.0, 3.0, 4.0, 2.0, 5.0, 6.0])?;
        close_values(&gradient(&y.square()?, &b)?, &[6.0, 8.0, 10.0, 12.0]);
        let stacked = Var::stack(&[&a, &a], -1)?;
        assert_eq!(stacked.shape(), [2, 1, 2]);
        close(&stacked, &[1.0, 1.0, 2.0, 2.0])?;
        close_values(&gradient(&stacked, &a)?, &[2.0, 2.0]);
        assert!(Var::cat(&[], 0).is_err());
        Ok(())
    }
}
