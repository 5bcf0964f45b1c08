//! `(a, b) -> (a cos θ - b sin θ, b cos θ + a sin θ)` for pairs of the last axis; the gradient turns back.

use tensor::{DType, Device, Error, Result, Tensor};

use super::{Draw, Sample, record_pair};
use crate::Var;

/// Which elements of the last axis are turned together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `(i, i + d / 2)`, as in GPT-NeoX and Hugging Face's Llama; the default.
    #[default]
    Halves,
    /// `(2 i, 2 i + 1)`, as in the RoFormer paper and torchtune.
    Neighbours,
}

#[derive::located]
impl Var {
    /// Rotates pairs of the last axis by the angles of [`rotary_angles`], to which no gradients flow. Unlike for
    /// [`Tensor::rotary_embedding`], values and angles may differ in type: they are rotated in the type to which they
    /// promote.
    ///
    /// # Errors
    /// As for [`Tensor::rotary_embedding`], but for `DTypeMismatch`.
    pub fn rotary_embedding(&self, cos: &Tensor, sin: &Tensor, pairs: RotaryPairs) -> Result<Var> {
        let dtype = self.value().result_type(cos);
        let interleaved = pairs == RotaryPairs::Neighbours;
        let turned = move |back| {
            move |x: &Tensor, angles: &[&Tensor]| x.rotary_embedding(angles[0], angles[1], interleaved, back)
        };
        let (x, cos, sin) = (self.to_dtype(dtype)?, cos.to_dtype(dtype)?, sin.to_dtype(dtype)?);
        record_pair(["rotary_embedding"; 2], &x, &[&cos, &sin], turned(false), turned(true))
    }
}

/// The cosines and sines of `p · base^(-2 i / d)` for the places `p` in `0..s` and `i` in `0..d / 2`, both `[s, d / 2]`.
///
/// The usual `base` is 10,000.
///
/// # Errors
/// `InvalidArgument` for an odd `width`; `DTypeUnsupported` unless `dtype` is a float type.
pub fn rotary_angles(
    places: usize,
    width: usize,
    base: f64,
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    const OP: &str = "rotary_angles";
    Error::require(width.is_multiple_of(2), OP, "width", "even", width)?;
    dtype.require_float(OP)?;
    // On the host in double precision: large places lose their angle in single precision.
    let angle = |at: usize| {
        let (place, i) = (at / (width / 2), at % (width / 2));
        place as f64 * base.powf(-2.0 * i as f64 / width as f64)
    };
    let of = |f: fn(f64) -> f64| -> Result<Tensor> {
        let values: Vec<f64> = (0..places * (width / 2)).map(|at| f(angle(at))).collect();
        Tensor::from_slice(&values, &[places, width / 2], device)?.to_dtype(dtype)
    };
    Ok((of(f64::cos)?, of(f64::sin)?))
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    let of = |name, shape: &[usize], pairs| {
        let [places, width] = [2, 1].map(|last| shape[shape.len() - last]);
        let (cos, sin) = rotary_angles(places, width, 10_000.0, DType::F64, &d.device)?;
        d.sample(name, &[shape], move |v| v[0].rotary_embedding(&cos, &sin, pairs)?.mul(&v[0]))
    };
    Ok(vec![
        of("halves", &[2, 3, 4], RotaryPairs::Halves)?,
        of("neighbours", &[2, 3, 4], RotaryPairs::Neighbours)?,
        of("odd", &[5, 34], RotaryPairs::Halves)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, leaf};
    use super::*;

    #[test]
    fn a_quarter_turn() -> Result<()> {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0], &[1, 4])?;
        let (cos, sin) = (leaf(&[0.0, 1.0], &[1, 2])?, leaf(&[1.0, 0.0], &[1, 2])?);
        let turn = |pairs| x.rotary_embedding(cos.value(), sin.value(), pairs);
        close(&turn(RotaryPairs::Halves)?, &[-3.0, 2.0, 1.0, 4.0])?;
        close(&turn(RotaryPairs::Neighbours)?, &[-2.0, 1.0, 3.0, 4.0])?;
        close_values(&gradient(&turn(RotaryPairs::Halves)?, &x)?, &[1.0, 1.0, -1.0, 1.0]);
        Ok(())
    }

    #[test]
    fn products_depend_on_the_distance_only() -> Result<()> {
        let (cos, sin) = rotary_angles(10, 8, 10_000.0, DType::F64, &Device::cpu())?;
        let x: Vec<f64> = (0..8).map(|i| f64::from(i * i % 5) - 2.0).collect();
        let rows = leaf(&x, &[1, 8])?.expand(&[10, 8])?;
        let turned = rows.rotary_embedding(&cos, &sin, RotaryPairs::Halves)?;
        let products = turned.matmul(&turned.t()?)?.value().to_vec::<f64>()?;
        // Row 0 with 3, and rows 4 and 6 with those three places on.
        close_values(&[products[3], products[3]], &[products[47], products[69]]);
        Ok(())
    }

    #[test]
    fn odd_widths_are_errors() -> Result<()> {
        let x = leaf(&[0.0; 3], &[1, 3])?;
        assert!(x.rotary_embedding(x.value(), x.value(), RotaryPairs::Halves).is_err());
        assert!(rotary_angles(1, 3, 10.0, DType::F64, &Device::cpu()).is_err());
        assert!(rotary_angles(1, 2, 10.0, DType::I64, &Device::cpu()).is_err());
        Ok(())
    }
}
