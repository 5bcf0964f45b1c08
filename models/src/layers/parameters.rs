//! First values of parameters.

use autograd::Var;
use device::{DType, Device, Error, Result};
use tensor::{RandomKey, Tensor};

use crate::random;

/// A float type, or an error that names the layer.
pub(super) fn expect_float(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() { Ok(()) } else { Err(Error::DTypeUnsupported { op, dtype }) }
}

/// A parameter whose elements are all `value`.
pub(super) fn filled(shape: &[usize], value: f64, dtype: DType, device: &Device) -> Result<Var> {
    Ok(Var::leaf(Tensor::full(shape, value, dtype, device)?))
}

/// Key number `part` of those that follow from a layer's key.
pub(crate) fn part_of(key: RandomKey, part: u64) -> RandomKey {
    RandomKey { seed: random::mix(&[key.seed, key.op, part]), op: key.op }
}
