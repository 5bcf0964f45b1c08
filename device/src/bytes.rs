//! Elements as bytes and back, so that crates without `unsafe` can move data.

use crate::Element;

/// The bytes of a slice of elements, in the host's byte order.
pub fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers or truth values, all of whose bytes are initialised; the lifetime is kept.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), std::mem::size_of_val(elements)) }
}

/// The elements whose bytes these are; a rest shorter than an element is left out. A truth value is whether its
/// byte differs from 0.
pub fn from_bytes<T: Element>(bytes: &[u8]) -> Vec<T> {
    let count = bytes.len() / size_of::<T>();
    let mut elements = vec![T::default(); count];
    // SAFETY: the vector owns `count` initialised elements, and any bytes are valid for a number; truth values are
    // made valid below before they are written, by reading them as bytes.
    unsafe {
        let to: *mut u8 = elements.as_mut_ptr().cast();
        if T::DTYPE == crate::DType::Bool {
            bytes.iter().enumerate().for_each(|(index, &byte)| to.add(index).write(u8::from(byte != 0)));
        } else {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count * size_of::<T>());
        }
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        assert_eq!(from_bytes::<f32>(as_bytes(&[1.5f32, -0.0, f32::MAX])), [1.5, -0.0, f32::MAX]);
        assert_eq!(from_bytes::<i64>(as_bytes(&[i64::MIN, 7])), [i64::MIN, 7]);
        assert_eq!(from_bytes::<bool>(&[0, 1, 7]), [false, true, true]);
        assert_eq!(from_bytes::<f32>(&[0; 7]).len(), 1);
    }
}
