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

/// The elements whose bytes these are, in place; a rest shorter than an element is left out. A truth value becomes whether its
/// byte differs from 0. `None` for bytes that do not begin where an element may.
pub fn from_bytes_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    if T::DTYPE == crate::DType::Bool {
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
    let (count, start) = (bytes.len() / size_of::<T>(), bytes.as_mut_ptr().cast::<T>());
    // SAFETY: the bytes are borrowed exclusively, begin where an element may, and are those of `count` elements; any are valid
    // for a number, and truth values were made valid above.
    start.is_aligned().then(|| unsafe { std::slice::from_raw_parts_mut(start, count) })
}

/// Memory that a command will write.
#[derive(Clone, Copy)]
pub(crate) struct SendPtr(pub(crate) *mut u8);

// SAFETY: an address is a number; its functions that follow it are unsafe, so their callers answer for that on any thread.
unsafe impl Send for SendPtr {}
// SAFETY: likewise, and nothing changes it through a shared reference.
unsafe impl Sync for SendPtr {}

impl SendPtr {
    /// # Safety
    /// `bytes` bytes from here on may be written.
    pub(crate) unsafe fn fill(self, value: u8, bytes: usize) {
        // SAFETY: the caller promises that `bytes` bytes from here on may be written.
        unsafe { std::ptr::write_bytes(self.0, value, bytes) }
    }

    /// # Safety
    /// `bytes.len()` bytes from here on may be written, and `bytes` is not among them.
    pub(crate) unsafe fn copy_from(self, bytes: &[u8]) {
        // SAFETY: the caller promises that as many bytes may be written, and that `bytes` does not overlap them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) }
    }
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
        let mut bytes = [0, 1, 7];
        from_bytes_mut::<bool>(&mut bytes).into_iter().flatten().for_each(|truth| *truth = !*truth);
        assert_eq!(bytes, [1, 0, 0]);
        let mut words = [0u64; 2];
        // SAFETY: any bytes are valid words.
        let (_, bytes, _) = unsafe { words.align_to_mut::<u8>() };
        from_bytes_mut::<i64>(bytes).into_iter().flatten().for_each(|word| *word = -1);
        assert!(from_bytes_mut::<i64>(&mut bytes[1..]).is_none());
        assert_eq!(words, [u64::MAX; 2]);
    }
}
