//! Images in other sizes: the nearest pixel, or the weighted mean of four; the gradient goes back by the same weights.

use tensor::{DType, Error, Result, Tensor};

use super::{Draw, Sample, last_two, widened};
use crate::Var;

#[derive::located]
impl Var {
    /// The nearest pixel for each of `size`, torch's `nearest`: pixel `floor(i n / size)` of `n`.
    ///
    /// Shapes: `[.., h, w] -> [.., size..]`.
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than two axes, no pixels, or a size of 0.
    pub fn upsample_nearest2d(&self, size: [usize; 2]) -> Result<Var> {
        autocast!("upsample", [self], |x| x.upsample_nearest2d(size));
        check("upsample_nearest2d", self, size)?;
        let mut x = self.clone();
        for (axis, (n, wanted)) in (-2..).zip(last_two(self).into_iter().zip(size)) {
            if n == wanted {
                continue;
            }
            let places: Vec<i64> = (0..wanted).map(|at| nearest(at, n, wanted, x.dtype())).collect();
            x = x.index_select(axis, &Tensor::from_slice(&places, &[wanted], x.device())?)?;
        }
        Ok(x)
    }

    /// The mean of the four pixels around each place, weighted by how near they are.
    ///
    /// With `align_corners` the centres of the corner pixels fall together, so that place `i` lies at
    /// `i (n - 1) / (size - 1)`; without, the corners do, and it lies at `(i + 1/2) n / size - 1/2`, or at 0 if that is
    /// less. Shapes: `[.., h, w] -> [.., size..]`.
    ///
    /// # Errors
    /// As for [`Var::upsample_nearest2d`]; `DTypeUnsupported` unless the elements are floats.
    pub fn upsample_bilinear2d(&self, size: [usize; 2], align_corners: bool) -> Result<Var> {
        const OP: &str = "upsample_bilinear2d";
        autocast!("upsample", [self], |x| x.upsample_bilinear2d(size, align_corners));
        check(OP, self, size)?;
        self.dtype().require_float(OP)?;
        if self.dtype().is_half() {
            // Rounded once, not once along each axis.
            return widened(self, |x| x.upsample_bilinear2d(size, align_corners));
        }
        // Along rows first.
        let image = last_two(self);
        let x = interpolated(self, -1, image[1], size[1], align_corners)?;
        interpolated(&x, -2, image[0], size[0], align_corners)
    }
}

fn check(op: &'static str, x: &Var, size: [usize; 2]) -> Result<()> {
    let has_pixels = x.shape().len() >= 2 && !last_two(x).contains(&0);
    let shape = format_args!("shape {:?}", x.shape());
    Error::require(has_pixels, op, "input", "[.., h, w] with pixels", shape)?;
    Error::require(!size.contains(&0), op, "size", "not 0", format_args!("{size:?}"))
}

/// The pixel of `n` for place `at` of `wanted`; the product is rounded as elements of the type are.
fn nearest(at: usize, n: usize, wanted: usize, dtype: DType) -> i64 {
    let place = match dtype {
        DType::F64 => (at as f64 * (n as f64 / wanted as f64)).floor(),
        _ => f64::from((at as f32 * (n as f32 / wanted as f32)).floor()),
    };
    (place as usize).min(n - 1) as i64
}

fn interpolated(x: &Var, axis: isize, n: usize, wanted: usize, align_corners: bool) -> Result<Var> {
    if n == wanted {
        return Ok(x.clone());
    }
    let place = |at: usize| match align_corners {
        true if wanted == 1 => 0.0,
        true => at as f64 * ((n - 1) as f64 / (wanted - 1) as f64),
        false => ((at as f64 + 0.5) * (n as f64 / wanted as f64) - 0.5).max(0.0),
    };
    let (mut low, mut high, mut weights) = (vec![], vec![], vec![]);
    for at in 0..wanted {
        let first = (place(at) as usize).min(n - 1);
        low.push(first as i64);
        high.push((first + 1).min(n - 1) as i64);
        weights.push(place(at) - first as f64);
    }
    let indices = |places: &[i64]| Tensor::from_slice(places, &[wanted], x.device());
    let mut shape = vec![wanted];
    if axis == -2 {
        shape.push(1);
    }
    let weight = |of: &dyn Fn(f64) -> f64| -> Result<Var> {
        let values: Vec<f64> = weights.iter().map(|&w| of(w)).collect();
        Ok(Var::constant(Tensor::from_slice(&values, &shape, x.device())?.to_dtype(x.dtype())?))
    };
    let low = x.index_select(axis, &indices(&low)?)?.mul(&weight(&|w| 1.0 - w)?)?;
    low.add(&x.index_select(axis, &indices(&high)?)?.mul(&weight(&|w| w)?)?)
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("nearest", &[&[1, 2, 2, 3]], |v| v[0].upsample_nearest2d([4, 5])?.square()),
        ("nearest_smaller", &[&[5, 4]], |v| v[0].upsample_nearest2d([2, 3])?.square()),
        ("bilinear", &[&[1, 2, 2, 3]], |v| v[0].upsample_bilinear2d([4, 5], false)?.square()),
        ("bilinear_corners", &[&[2, 2, 3]], |v| v[0].upsample_bilinear2d([3, 7], true)?.square()),
        ("bilinear_smaller", &[&[4, 5]], |v| v[0].upsample_bilinear2d([1, 3], false)?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn sizes() -> Result<()> {
        let x = leaf(&[0.0, 4.0], &[1, 2])?;
        let y = x.upsample_nearest2d([2, 4])?;
        close(&y, &[0.0, 0.0, 4.0, 4.0, 0.0, 0.0, 4.0, 4.0])?;
        close_values(&gradient(&y, &x)?, &[4.0, 4.0]);
        close(&x.upsample_bilinear2d([1, 4], false)?, &[0.0, 1.0, 3.0, 4.0])?;
        close(&x.upsample_bilinear2d([1, 5], true)?, &[0.0, 1.0, 2.0, 3.0, 4.0])?;
        close(&x.upsample_bilinear2d([1, 1], true)?, &[0.0])?;
        close(&x.upsample_bilinear2d([1, 1], false)?, &[2.0])?;
        assert!(x.upsample_nearest2d([0, 1]).is_err());
        Ok(())
    }
}
