//! `y` = the mean at each place of a window, or over a fixed number of ranges; the gradient is shared by what was seen.

use tensor::grad::{self, Means};
use tensor::{AvgPool, Result, Tensor};

use super::{Draw, Sample, last_two, record_pair};
use crate::Var;

#[derive::located]
impl Var {
    /// The mean of the elements in each window. See [`Tensor::avg_pool2d`](tensor::Tensor::avg_pool2d).
    ///
    /// # Errors
    /// As for [`Tensor::avg_pool2d`](tensor::Tensor::avg_pool2d).
    pub fn avg_pool2d(&self, pool: &AvgPool) -> Result<Var> {
        let (pool, image) = (*pool, last_two(self));
        let mean = move |x: &Tensor, _: &[&Tensor]| x.avg_pool2d(&pool);
        let shared = move |g: &Tensor, _: &[&Tensor]| grad::avg_pool2d(g, &pool, image);
        record_pair(["avg_pool2d", "avg_pool2d_grad"], self, &[], mean, shared)
    }

    /// The means over `size[0]` by `size[1]` windows that cover the image. See
    /// [`Tensor::adaptive_avg_pool2d`](tensor::Tensor::adaptive_avg_pool2d).
    ///
    /// # Errors
    /// As for [`Tensor::adaptive_avg_pool2d`](tensor::Tensor::adaptive_avg_pool2d).
    pub fn adaptive_avg_pool2d(&self, size: [usize; 2]) -> Result<Var> {
        let image = last_two(self);
        let mean = move |x: &Tensor, _: &[&Tensor]| x.adaptive_avg_pool2d(size);
        const GRAD: &str = "adaptive_avg_pool2d_grad";
        let shared = move |g: &Tensor, _: &[&Tensor]| grad::resized(GRAD, g, Means::Adaptive, image);
        record_pair(["adaptive_avg_pool2d", GRAD], self, &[], mean, shared)
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shape, pool| d.sample(name, &[shape], move |v| v[0].avg_pool2d(&pool)?.square());
    let halves = AvgPool::new([2, 2]);
    let overlapping = AvgPool { stride: [1, 2], padding: [1, 1], ..AvgPool::new([3, 3]) };
    Ok(vec![
        of("halves", &[2, 2, 4, 4], halves)?,
        of("one_image", &[2, 5, 3], halves)?,
        of("ceil_mode", &[1, 1, 5, 3], AvgPool { ceil_mode: true, ..halves })?,
        of("overlapping", &[1, 2, 4, 5], overlapping)?,
        of("padding_left_out", &[1, 2, 4, 5], AvgPool { count_include_pad: false, ..overlapping })?,
        of("own_divisor", &[1, 1, 4, 4], AvgPool { divisor: Some(3), ..halves })?,
    ])
}

pub(super) fn adaptive_samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("whole", &[&[2, 3, 4, 5]], |v| v[0].adaptive_avg_pool2d([1, 1])?.square()),
        ("even", &[&[1, 1, 4, 6]], |v| v[0].adaptive_avg_pool2d([2, 3])?.square()),
        ("overlapping", &[&[1, 2, 5, 7]], |v| v[0].adaptive_avg_pool2d([3, 4])?.square()),
        ("enlarging", &[&[2, 2, 3]], |v| v[0].adaptive_avg_pool2d([3, 5])?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn means_divide_by_what_counts() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[1, 2, 3])?;
        let pool = AvgPool { padding: [1, 1], ..AvgPool::new([2, 2]) };
        close(&x.avg_pool2d(&pool)?, &[0.25, 1.25, 1.0, 2.75])?;
        let inside = AvgPool { count_include_pad: false, ..pool };
        close(&x.avg_pool2d(&inside)?, &[1.0, 2.5, 4.0, 5.5])?;
        // A last place that leaves the padded image counts what is within it.
        let ceil = AvgPool { ceil_mode: true, ..AvgPool::new([2, 2]) };
        close(&x.avg_pool2d(&ceil)?, &[3.0, 4.5])?;
        let y = x.adaptive_avg_pool2d([1, 2])?;
        close(&y, &[3.0, 4.0])?;
        close_values(&gradient(&y, &x)?, &[0.25, 0.5, 0.25, 0.25, 0.5, 0.25]);
        assert!(x.avg_pool2d(&AvgPool { divisor: Some(0), ..pool }).is_err());
        Ok(())
    }
}
