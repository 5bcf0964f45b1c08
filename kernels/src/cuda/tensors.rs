//! Many tensors per launch; see `tensors.cuh`.

use super::walk::ByValue;
use crate::command::Address;
use crate::norms::PART;

/// `Tensor` of the program, with `N` operands.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Tensor<const N: usize> {
    operands: [u64; N],
    elements: u64,
}

// SAFETY: all fields are words of 64 bits, so `repr(C)` adds no padding.
unsafe impl<const N: usize> ByValue for Tensor<N> {}

impl<const N: usize> Tensor<N> {
    /// A tensor with its number of elements, split into parts.
    pub(super) fn with_parts(operands: [Address; N], elements: usize) -> (Tensor<N>, usize) {
        let operands = operands.map(|at| at.0.addr() as u64);
        (Tensor { operands, elements: elements as u64 }, elements.div_ceil(PART))
    }
}
