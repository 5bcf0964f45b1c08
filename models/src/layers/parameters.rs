//! First values of parameters.

use autograd::Var;
use device::{DType, Device, Result};
use tensor::{RandomKey, Tensor};

use crate::random;

/// A parameter whose elements are all `value`.
pub(super) fn filled(shape: &[usize], value: f64, dtype: DType, device: &Device) -> Result<Var> {
    Ok(Var::leaf(Tensor::full(shape, value, dtype, device)?))
}

/// Key number `part` of those that follow from a layer's key.
pub fn part_of(key: RandomKey, part: u64) -> RandomKey {
    RandomKey { seed: random::mix(&[key.seed, key.op, part]), op: key.op }
}

/// Weights and biases that are uniform in `±1/sqrt(fan_in)`: torch's default for linear layers and convolutions, which is
/// that of He et al. 2015 with `a = sqrt(5)`.
pub(super) struct FirstValues {
    bound: f64,
    key: RandomKey,
    dtype: DType,
}

impl FirstValues {
    /// For weights that sum over `fan_in` elements; without a key, the thread's next one.
    pub(super) fn new(fan_in: usize, key: Option<RandomKey>, dtype: DType) -> FirstValues {
        let bound = if fan_in == 0 { 0.0 } else { 1.0 / (fan_in as f64).sqrt() };
        FirstValues { bound, key: key.unwrap_or_else(tensor::next_key), dtype }
    }

    pub(super) fn weight(&self, shape: &[usize], device: &Device) -> Result<Tensor> {
        self.uniform(shape, 0, device)
    }

    pub(super) fn bias(&self, len: usize, device: &Device) -> Result<Tensor> {
        self.uniform(&[len], 1, device)
    }

    fn uniform(&self, shape: &[usize], part: u64, device: &Device) -> Result<Tensor> {
        Tensor::uniform(shape, -self.bound, self.bound, self.dtype, part_of(self.key, part), device)
    }
}
