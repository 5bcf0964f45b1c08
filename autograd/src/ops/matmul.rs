//! `Y = A B`; `A' = G Bᵀ`, `B' = Aᵀ G`, summed over the axes along which a stack was broadcast.

use tensor::Result;

use super::crossed::Crossed;
use super::{Dims, Draw, Program, Sample, if_needed};
use crate::{Grads, Var, record};

#[derive::located]
impl Var {
    /// The matrix product. See [`Tensor::matmul`](tensor::Tensor::matmul).
    ///
    /// # Errors
    /// As for [`Tensor::matmul`](tensor::Tensor::matmul).
    pub fn matmul(&self, rhs: &Var) -> Result<Var> {
        autocast!("matmul", [self, rhs], |x, rhs| x.matmul(&rhs));
        let value = self.value().matmul(rhs.value())?;
        let crossed = Crossed::new(self, rhs);
        if self.shape().len() == 2 && rhs.shape().len() == 2 {
            return Ok(record("matmul", &[self, rhs], crossed.saved(), value, move |ctx, g| {
                Ok(Grads::from_buf([
                    if_needed(ctx, 0, || g.matmul(&crossed.rhs(ctx).t()?))?,
                    if_needed(ctx, 1, || crossed.lhs(ctx).t()?.matmul(g))?,
                ]))
            }));
        }
        let shapes = Shapes::new(self, rhs);
        Ok(record("matmul", &[self, rhs], crossed.saved(), value, move |ctx, g| {
            let g = g.reshape(&shapes.product(g))?;
            Ok(Grads::from_buf([
                if_needed(ctx, 0, || shapes.lhs_gradient(&crossed.rhs(ctx), &g))?,
                if_needed(ctx, 1, || shapes.rhs_gradient(&crossed.lhs(ctx), &g))?,
            ]))
        }))
    }
}

/// The shapes of operands that are vectors or stacks.
struct Shapes {
    lhs: Dims,
    rhs: Dims,
}

impl Shapes {
    fn new(lhs: &Var, rhs: &Var) -> Self {
        Shapes { lhs: Dims::from_slice(lhs.shape()), rhs: Dims::from_slice(rhs.shape()) }
    }

    /// The left shape with a vector as one row.
    fn rows(&self) -> Dims {
        if let [k] = self.lhs[..] { Dims::from_slice(&[1, k]) } else { self.lhs.clone() }
    }

    /// The right shape with a vector as one column.
    fn columns(&self) -> Dims {
        if let [k] = self.rhs[..] { Dims::from_slice(&[k, 1]) } else { self.rhs.clone() }
    }

    /// The product's shape with the axes that vectors have removed.
    fn product(&self, g: &Var) -> Dims {
        let mut shape = Dims::from_slice(g.shape());
        if self.rhs.len() == 1 {
            shape.push(1);
        }
        if self.lhs.len() == 1 {
            shape.insert(shape.len() - 1, 1);
        }
        shape
    }

    fn lhs_gradient(&self, rhs: &Var, g: &Var) -> Result<Var> {
        let transposed = rhs.reshape(&self.columns())?.transpose(-2, -1)?;
        g.matmul(&transposed)?.sum_to(&self.rows())?.reshape(&self.lhs)
    }

    fn rhs_gradient(&self, lhs: &Var, g: &Var) -> Result<Var> {
        let (rows, columns) = (self.rows(), self.columns());
        let lhs = lhs.reshape(&rows)?;
        if let ([k, n], true) = (&columns[..], rows.len() > 2) {
            // One matrix for a whole stack: its gradient is one product of the stack's rows.
            let count = rows[..rows.len() - 1].iter().product();
            let (lhs, g) = (lhs.reshape(&[count, *k])?, g.reshape(&[count, *n])?);
            return lhs.t()?.matmul(&g)?.reshape(&self.rhs);
        }
        lhs.transpose(-2, -1)?.matmul(g)?.sum_to(&columns)?.reshape(&self.rhs)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of: Program = |v| v[0].matmul(&v[1]);
    d.samples(&[
        ("matrices", &[&[2, 3], &[3, 4]], of),
        ("one", &[&[1, 1], &[1, 1]], of),
        ("odd", &[&[3, 17], &[17, 1]], of),
        ("dot", &[&[3], &[3]], of),
        ("vector_matrix", &[&[3], &[3, 2]], of),
        ("matrix_vector", &[&[2, 3], &[3]], of),
        ("stacks", &[&[2, 2, 3], &[2, 3, 2]], of),
        ("stack_by_matrix", &[&[2, 2, 3], &[3, 2]], of),
        ("matrix_by_stack", &[&[2, 3], &[2, 3, 2]], of),
        ("stack_by_vector", &[&[2, 2, 3], &[3]], of),
        ("vector_by_stack", &[&[3], &[2, 3, 2]], of),
        ("stacks_broadcast", &[&[2, 1, 2, 3], &[3, 3, 1]], of),
        ("stack_of_one", &[&[1, 2, 3], &[2, 3, 2]], of),
        ("wide_stack_of_one", &[&[2, 2, 3], &[1, 3, 2]], of),
        ("transposed_inside", &[&[3, 2], &[4, 3]], |v| v[0].t()?.matmul(&v[1].t()?)),
        ("transposed_stack", &[&[2, 3, 2], &[3, 2]], |v| v[0].transpose(1, 2)?.matmul(&v[1])),
        ("squared", &[&[3, 3]], |v| v[0].matmul(&v[0])),
        ("gram", &[&[2, 3]], |v| v[0].matmul(&v[0].t()?)),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf, vector};
    use super::*;

    #[test]
    fn products() -> Result<()> {
        let a = leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?;
        let b = leaf(&[5.0, 6.0, 7.0, 8.0], &[2, 2])?;
        let y = a.matmul(&b)?;
        close(&y, &[19.0, 22.0, 43.0, 50.0])?;
        close_values(&gradient(&y, &a)?, &[11.0, 15.0, 11.0, 15.0]);
        close_values(&gradient(&a.matmul(&b)?, &b)?, &[4.0, 4.0, 6.0, 6.0]);
        let v = vector(&[1.0, -1.0])?;
        close(&a.matmul(&v)?, &[-1.0, -1.0])?;
        close(&v.matmul(&a)?, &[-2.0, -2.0])?;
        close(&v.matmul(&v)?, &[2.0])?;
        assert!(a.matmul(&vector(&[1.0])?).is_err());
        Ok(())
    }

    #[test]
    fn nothing_in_the_middle_gives_zeros() -> Result<()> {
        let (a, b) = (leaf(&[], &[2, 0])?, leaf(&[], &[0, 2])?);
        close(&a.matmul(&b)?, &[0.0; 4])
    }
}
