//! Results that are rounded differently, which shows how far rounding moves what follows from them.

use tensor::Tensor;

use super::numbers;
use super::slope::unit;
use crate::mode::perturbation;

/// How many of the last bits of a number are drawn.
const BITS: u32 = 3;
/// How many times as far as a result's own rounding they move it.
pub(super) const FACTOR: f64 = 8.0;

/// What to take for `value` under the thread's perturbation, if it has one.
#[inline]
pub(crate) fn perturbed(value: &Tensor) -> Option<Tensor> {
    match perturbation() {
        0 => None,
        perturbation => moved(value, perturbation),
    }
}

/// Of a float, the nearest number whose last bits are those that are drawn for its other bits. It is not moved again, and order
/// remains: what an op selects stays equal to where it comes from. Zeros, infinities and integers stay as they are.
#[cold]
fn moved(value: &Tensor, perturbation: u64) -> Option<Tensor> {
    if !value.dtype().is_float() {
        return None;
    }
    let last = (unit(value.dtype()) / f64::EPSILON).log2() as u32;
    let half = 1 << (last + BITS - 1);
    let mut elements = numbers(value).ok()?;
    for x in elements.iter_mut().filter(|x| x.is_normal()) {
        let kept = (x.abs().to_bits() + half) >> (last + BITS);
        // SplitMix64.
        let z = (kept ^ (kept >> 30) ^ (perturbation << 40)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let drawn = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> (64 - BITS);
        *x = f64::from_bits((kept << (last + BITS)) + (drawn << last) - half).copysign(*x);
    }
    Tensor::from_slice(&elements, value.shape(), value.device())
        .and_then(|moved| moved.to_dtype(value.dtype()))
        .ok()
}
