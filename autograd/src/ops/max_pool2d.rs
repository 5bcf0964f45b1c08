//! `y` = the largest element at each place of a window; the gradient goes to the first of the largest.

use tensor::{MaxPool, Result, Tensor, grad};

use super::{Draw, Sample, last_two, record_one, record_pair};
use crate::{Save, Var};

#[derive::located]
impl Var {
    /// The largest element at each position of a window, without its index. The first of equal elements, row by row,
    /// gets the gradient. See [`Tensor::max_pool2d`].
    ///
    /// # Errors
    /// As for [`Tensor::max_pool2d`].
    pub fn max_pool2d(&self, pool: &MaxPool) -> Result<Var> {
        let (value, index) = self.value().max_pool2d(pool)?;
        let (pool, image) = (*pool, last_two(self));
        let scatter = move |g: &Tensor, index: &[&Tensor]| grad::max_pool2d(g, index[0], &pool, image);
        let pick = move |x: &Tensor, index: &[&Tensor]| grad::max_pool2d_pick(x, index[0], &pool);
        record_one("max_pool2d", self, &[Save::Tensor(&index)], value, move |ctx, g| {
            let index = ctx.saved(0);
            record_pair(["max_pool2d_grad", "max_pool2d_pick"], g, &[index.value()], scatter, pick)
        })
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shape, pool| {
        d.sample_of(Draw::distinct, name, &[shape], move |v| v[0].max_pool2d(&pool)?.square())
    };
    let halves = MaxPool::new([2, 2]);
    let overlapping = MaxPool { stride: [1, 2], padding: [1, 1], ..MaxPool::new([3, 3]) };
    let many = MaxPool { stride: [1, 1], padding: [8, 0], ..MaxPool::new([17, 17]) };
    Ok(vec![
        of("halves", &[2, 2, 4, 4], halves)?,
        of("one_image", &[2, 5, 3], halves)?,
        of("ceil_mode", &[1, 1, 5, 3], MaxPool { ceil_mode: true, ..halves })?,
        of("overlapping", &[1, 2, 4, 5], overlapping)?,
        of("dilated", &[1, 1, 6, 5], MaxPool { dilation: [2, 1], stride: [1, 1], ..halves })?,
        of("many_elements", &[1, 2, 18], many)?,
        of("one", &[1, 1, 1, 1], MaxPool::new([1, 1]))?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn the_first_of_equal_maxima_gets_the_gradient() -> Result<()> {
        let nan = f64::NAN;
        let x = leaf(&[3.0, 3.0, 1.0, nan, 3.0, 3.0, nan, 2.0], &[1, 2, 4])?;
        let y = x.max_pool2d(&MaxPool::new([2, 2]))?;
        close(&y, &[3.0, nan])?;
        close_values(&gradient(&y, &x)?, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        Ok(())
    }

    #[test]
    fn ceil_mode_adds_places_that_see_the_image_only() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0], &[1, 1, 3])?;
        let pool = MaxPool { ceil_mode: true, ..MaxPool::new([1, 2]) };
        close(&x.max_pool2d(&pool)?, &[2.0, 3.0])?;
        // A third place would begin behind the image.
        let padded = MaxPool { padding: [0, 1], stride: [1, 3], ..pool };
        close(&x.max_pool2d(&padded)?, &[1.0, 3.0])?;
        close(&x.max_pool2d(&MaxPool { ceil_mode: false, ..padded })?, &[1.0, 3.0])?;
        let wide = MaxPool { padding: [0, 1], stride: [1, 4], ..pool };
        close(&x.max_pool2d(&wide)?, &[1.0])
    }

    #[test]
    fn what_does_not_fit_is_an_error() -> Result<()> {
        let x = leaf(&[0.0; 6], &[1, 2, 3])?;
        let pool = MaxPool::new([2, 2]);
        assert!(x.max_pool2d(&MaxPool { padding: [2, 0], ..pool }).is_err());
        assert!(x.max_pool2d(&MaxPool { stride: [0, 1], ..pool }).is_err());
        assert!(x.max_pool2d(&MaxPool::new([3, 3])).is_err());
        assert!(leaf(&[], &[1, 0, 3])?.max_pool2d(&MaxPool::new([1, 1])).is_err());
        assert!(leaf(&[1.0], &[1])?.max_pool2d(&MaxPool::new([1, 1])).is_err());
        Ok(())
    }
}
