//! Reading a tensor's bytes on the host.

use device::Result;

use crate::Tensor;

/// The i64 element at place `at` of a buffer, 0 outside it.
#[inline(always)]
fn i64_at(bytes: &[u8], at: usize) -> i64 {
    let place = at.checked_mul(8).and_then(|start| bytes.get(start..start.checked_add(8)?));
    place.and_then(|b| b.try_into().ok()).map_or(0, i64::from_ne_bytes)
}

/// The places in the buffer of a layout's elements, in row-major order.
pub(crate) fn places(x: &Tensor) -> impl Iterator<Item = usize> + '_ {
    let (shape, strides) = (x.shape(), x.strides());
    (0..x.elements()).map(move |mut index| {
        let mut place = x.layout.offset();
        for (&size, &stride) in shape.iter().zip(strides).rev() {
            place = place.wrapping_add_signed((index % size) as isize * stride);
            index /= size;
        }
        place
    })
}

/// The first index outside `0..size`, if the elements can be read without waiting for anything.
pub(crate) fn first_outside(indices: &Tensor, size: usize) -> Option<i64> {
    let outside = |&index: &i64| usize::try_from(index).map_or(true, |index| index >= size);
    let scan = |bytes: &[u8]| {
        if !indices.is_contiguous() {
            return places(indices).map(|place| i64_at(bytes, place)).find(outside);
        }
        let bytes = bytes.get(indices.byte_range())?;
        let values = || bytes.chunks_exact(8).map(|b| i64_at(b, 0));
        // Negative indices are large unsigned ones: one maximum says whether any is wrong.
        let largest = values().fold(0, |largest, index| largest.max(index as u64));
        if largest < size as u64 { None } else { values().find(outside) }
    };
    indices.storage.peek(scan).flatten()
}

/// The bytes of a contiguous tensor, after a wait for its last write only.
#[track_caller]
pub(crate) fn read<R>(x: &Tensor, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    if x.is_empty() {
        return Ok(f(&[]));
    }
    x.storage.download(|bytes| f(bytes.get(x.byte_range()).unwrap_or_default()))
}
