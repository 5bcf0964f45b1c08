//! `narrow`, `select`, `split`, `unbind`: part of an axis; the gradient is 0 elsewhere.

use std::ops::RangeBounds;

use tensor::{Error, ErrorKind, Result};

use super::{Dims, Draw, Sample, position, record_one};
use crate::gradients::Sum;
use crate::place::on;
use crate::tape::one;
use crate::{Grads, Var, Vjp, record};

#[derive::located]
impl Var {
    /// `len` elements of one axis from `start`, as a view. See [`Tensor::narrow`](tensor::Tensor::narrow).
    ///
    /// # Errors
    /// As for [`Tensor::narrow`](tensor::Tensor::narrow).
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Var> {
        let value = self.value().narrow(axis, start, len)?;
        let size = self.shape()[position(axis, self.shape().len())];
        Ok(record("narrow", &[self], &[], value, move |ctx, g| gradient_of_places(ctx, g, axis, start, size)))
    }

    /// A range of one axis, as a view. See [`Tensor::slice`](tensor::Tensor::slice).
    ///
    /// # Errors
    /// As for [`Tensor::slice`](tensor::Tensor::slice).
    pub fn slice(&self, axis: isize, range: impl RangeBounds<usize>) -> Result<Var> {
        let (start, len) = self.value().bounds("slice", axis, range)?;
        self.narrow(axis, start, len)
    }

    /// `count` consecutive views along one axis. See [`Tensor::chunk`](tensor::Tensor::chunk).
    ///
    /// # Errors
    /// As for [`Tensor::chunk`](tensor::Tensor::chunk).
    pub fn chunk(&self, count: usize, axis: isize) -> Result<Vec<Var>> {
        self.split(&self.value().chunks(count, axis)?, axis)
    }

    /// One position of an axis, as a view without that axis. See [`Tensor::select`](tensor::Tensor::select).
    ///
    /// # Errors
    /// As for [`Tensor::select`](tensor::Tensor::select).
    pub fn select(&self, axis: isize, index: usize) -> Result<Var> {
        let value = self.value().select(axis, index)?;
        let mut kept = Dims::from_slice(self.shape());
        let at = position(axis, kept.len());
        let size = std::mem::replace(&mut kept[at], 1);
        Ok(record("select", &[self], &[], value, move |ctx, g| {
            gradient_of_places(ctx, &g.reshape(&kept)?, axis, index, size)
        }))
    }

    /// Consecutive views along one axis with these sizes. See [`Tensor::split`](tensor::Tensor::split).
    ///
    /// # Errors
    /// As for [`Tensor::split`](tensor::Tensor::split).
    pub fn split(&self, sizes: &[usize], axis: isize) -> Result<Vec<Var>> {
        // Checks the sizes.
        self.value().split(sizes, axis)?;
        let starts = sizes.iter().scan(0, |end, &len| Some(std::mem::replace(end, *end + len)));
        starts.zip(sizes).map(|(start, &len)| self.narrow(axis, start, len)).collect()
    }

    /// Every place of an axis, as views without that axis.
    ///
    /// # Errors
    /// `AxisOutOfRange`.
    pub fn unbind(&self, axis: isize) -> Result<Vec<Var>> {
        let rank = self.shape().len();
        let unknown = || Error::new(ErrorKind::AxisOutOfRange { op: "unbind", axis, rank });
        let size = *self.shape().get(position(axis, rank)).ok_or_else(unknown)?;
        (0..size).map(|index| self.select(axis, index)).collect()
    }

    /// Zeros of `size` along `axis` with this value from position `start` on. See
    /// [`Tensor::pad_narrow`](tensor::Tensor::pad_narrow).
    ///
    /// # Errors
    /// As for [`Tensor::pad_narrow`](tensor::Tensor::pad_narrow).
    pub fn pad_narrow(&self, axis: isize, start: usize, size: usize) -> Result<Var> {
        let value = self.value().pad_narrow(axis, start, size)?;
        let len = self.shape()[position(axis, self.shape().len())];
        record_one("pad_narrow", self, &[], value, move |_, g| g.narrow(axis, start, len))
    }
}

/// The gradient of an op's only input, of `size` places along `axis`, for the gradient `g` of those from `start` on. Unless the pass is
/// recorded, it goes straight into the input's sum of gradients.
fn gradient_of_places(ctx: &Vjp<'_>, g: &Var, axis: isize, start: usize, size: usize) -> Result<Grads> {
    let input = match &ctx.node.inputs[0] {
        Some(input) if !ctx.is_recorded() => input,
        _ => return g.pad_narrow(axis, start, size).map(one),
    };
    let (sums, at) = (ctx.sums.0, ctx.sums.1[0]);
    let range = start..start + g.shape()[position(axis, g.shape().len())];
    let sum = sums.lock().remove(&at);
    let sum = on(input.place.elsewhere(g.device()).as_ref(), || match sum {
        Some(mut sum) => sum.add_part(g, axis, range).map(|()| sum),
        None => Sum::of_part(&input.shape, g, axis, range),
    })?;
    sums.lock().insert(at, sum);
    Ok([None].into_iter().collect())
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("first_axis", &[&[4, 3]], |v| v[0].narrow(0, 1, 2)),
        ("last_axis", &[&[2, 5]], |v| v[0].narrow(-1, 2, 3)),
        ("whole", &[&[2, 3]], |v| v[0].narrow(1, 0, 3)?.mul(&v[0])),
        ("one_place", &[&[2, 3, 2]], |v| v[0].narrow(1, 2, 1)),
        ("overlapping", &[&[5]], |v| v[0].narrow(0, 0, 3)?.mul(&v[0].narrow(0, 2, 3)?)),
    ])
}

pub(super) fn select_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("row", &[&[3, 2]], |v| v[0].select(0, 1)),
        ("column", &[&[3, 2]], |v| v[0].select(-1, 0)?.mul(&v[0].select(1, 1)?)),
        ("to_scalar", &[&[3]], |v| v[0].select(0, 2)),
    ])
}

pub(super) fn unbind_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("product_of_rows", &[&[2, 3]], |v| v[0].unbind(0)?[0].mul(&v[0].unbind(0)?[1])),
        ("one_of_the_columns", &[&[2, 3]], |v| Ok(v[0].unbind(-1)?[1].clone())),
    ])
}

pub(super) fn split_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("product_of_parts", &[&[5, 2]], |v| {
            let parts = v[0].split(&[2, 1, 2], 0)?;
            parts[0].mul(&parts[1])?.mul(&parts[2])
        }),
        ("one_of_the_parts", &[&[2, 3]], |v| Ok(v[0].split(&[1, 2], -1)?[1].clone())),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;
    use crate::BackwardOptions;

    #[test]
    fn parts_of_a_matrix() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
        let middle = x.narrow(1, 1, 1)?;
        close(&middle, &[2.0, 5.0])?;
        close_values(&gradient(&middle, &x)?, &[0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
        close(&x.select(0, 1)?, &[4.0, 5.0, 6.0])?;
        close_values(&gradient(&x.select(0, 1)?, &x)?, &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let parts = x.split(&[1, 2], 1)?;
        close(&parts[1], &[2.0, 3.0, 5.0, 6.0])?;
        let columns = x.unbind(1)?;
        assert_eq!(columns.len(), 3);
        close(&columns[2], &[3.0, 6.0])?;
        assert!(x.unbind(2).is_err());
        assert!(x.split(&[1, 1], 1).is_err());
        assert!(x.split(&[1, 1], 2).is_err());
        Ok(())
    }

    #[test]
    fn gradients_of_parts_are_added_to_a_sum_that_nobody_else_sees() -> Result<()> {
        let (x, z) = (leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?, leaf(&[0.0; 4], &[2, 2])?);
        for recorded in [false, true] {
            let y = x.mul_scalar(2.0)?;
            let (rows, column) = (y.unbind(0)?, y.narrow(-1, 1, 1)?);
            // Newer than the parts, so its gradient, which both operands share, comes before theirs.
            let whole = y.add(&z)?.sum_all()?;
            let parts = rows[0].mul(&rows[1])?.sum_all()?.add(&column.square()?.sum_all()?)?;
            let total = whole.add(&parts)?;
            let gradients = total
                .backward_with(BackwardOptions { create_graph: recorded, ..BackwardOptions::default() })?;
            let of = |leaf| gradients.get(leaf).expect("a gradient").to_vec::<f64>();
            assert_eq!(of(&z)?, [1.0; 4]);
            assert_eq!(of(&x)?, [14.0, 34.0, 6.0, 42.0]);
        }
        Ok(())
    }
}
