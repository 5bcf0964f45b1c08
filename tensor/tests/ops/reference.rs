//! A tensor as slow as it is simple: a shape and all elements in row-major order.

use device::{Device, Result};
use proptest::prelude::*;
use tensor::{DType, Tensor};

use crate::on::device;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plain {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f64>,
}

/// Every index of a shape, in row-major order.
pub(crate) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![Vec::new()], |heads, &size| {
        heads.iter().flat_map(|head| (0..size).map(|i| [&head[..], &[i]].concat())).collect()
    })
}

impl Plain {
    pub(crate) fn from_fn(shape: &[usize], f: impl FnMut(&[usize]) -> f64) -> Plain {
        let mut f = f;
        Plain { shape: shape.to_vec(), data: indices(shape).iter().map(|index| f(index)).collect() }
    }

    /// Values that differ from place to place, some negative, none of them 0.
    pub(crate) fn numbered(shape: &[usize], salt: u64) -> Plain {
        let mut n = salt;
        Plain::from_fn(shape, |_| {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((n >> 33) % 2000) as f64 / 100.0 - 9.995
        })
    }

    pub(crate) fn at(&self, index: &[usize]) -> f64 {
        let place = index.iter().zip(&self.shape).fold(0, |place, (&i, &size)| place * size + i);
        self.data[place]
    }

    /// The element that broadcasting puts at `index` of a shape of the same or higher rank.
    pub(crate) fn broadcast_at(&self, index: &[usize]) -> f64 {
        let skip = index.len() - self.shape.len();
        let own: Vec<usize> =
            index[skip..].iter().zip(&self.shape).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect();
        self.at(&own)
    }

    /// A tensor of these values: 0 contiguous, 1 axes stored in reverse, 2 cut out of a larger one, 3 both.
    pub(crate) fn tensor(&self, how: u8, dtype: DType, device: &Device) -> Result<Tensor> {
        let rank = self.shape.len();
        let reversed = how % 2 == 1;
        let pad = usize::from(how >= 2);
        let order: Vec<usize> = if reversed { (0..rank).rev().collect() } else { (0..rank).collect() };
        let stored: Vec<usize> = order.iter().map(|&axis| self.shape[axis] + 2 * pad).collect();
        let back = |index: &[usize]| {
            let mut own = vec![0; rank];
            for (at, &axis) in order.iter().enumerate() {
                own[axis] = index[at].checked_sub(pad).filter(|&i| i < self.shape[axis])?;
            }
            Some(self.at(&own))
        };
        let stored = Plain::from_fn(&stored, |index| back(index).unwrap_or(77.0));
        let mut x = Tensor::from_slice(&stored.data, &stored.shape, device)?.to_dtype(dtype)?;
        let axes: Vec<isize> = order.iter().map(|&axis| axis as isize).collect();
        x = x.permute(&axes)?;
        for axis in 0..rank {
            x = x.narrow(axis as isize, pad, self.shape[axis])?;
        }
        Ok(x)
    }

    pub(crate) fn f64(&self, how: u8) -> Result<Tensor> {
        self.tensor(how, DType::F64, &device())
    }

    /// Whether `x` has this shape and, up to `tolerance` relative to 1 or the value, these values; NaN is NaN.
    pub(crate) fn matches(&self, x: &Tensor, tolerance: f64) -> Result<bool> {
        let values = x.to_dtype(DType::F64)?.to_vec::<f64>()?;
        let near = |(&a, &b): (&f64, &f64)| {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * a.abs().max(1.0)
        };
        Ok(x.shape() == self.shape
            && self.data.iter().zip(&values).all(near)
            && self.data.len() == values.len())
    }
}

/// Shapes up to rank 4 with axes up to size 4, empty ones included.
pub(crate) fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1 => Just(0_usize), 4 => Just(1), 12 => 2_usize..5], 0..5)
}

/// A shape, and two that broadcast to it together.
pub(crate) fn broadcast_pairs() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, Vec<usize>)> {
    let axis = (prop_oneof![1 => Just(0_usize), 8 => 1_usize..5], 0_u8..5);
    (prop::collection::vec(axis, 0..4), 0_usize..3, any::<bool>()).prop_map(|(axes, cut, which)| {
        let full: Vec<usize> = axes.iter().map(|axis| axis.0).collect();
        let own =
            |one: u8| axes.iter().map(|&(size, kind)| if kind == one { 1 } else { size }).collect::<Vec<_>>();
        let (mut a, mut b) = (own(0), own(1));
        let short = if which { &mut a } else { &mut b };
        // Missing leading axes must be there in the other operand.
        let cut = cut.min(short.len());
        short.drain(..cut);
        let other = if which { &mut b } else { &mut a };
        other[..cut].copy_from_slice(&full[..cut]);
        let out = full
            .iter()
            .enumerate()
            .map(|(axis, &size)| {
                let at = |s: &[usize]| (axis + s.len()).checked_sub(full.len()).map(|i| s[i]);
                if at(&a).is_none_or(|n| n == 1) && at(&b).is_none_or(|n| n == 1) { 1 } else { size }
            })
            .collect();
        (a, b, out)
    })
}
