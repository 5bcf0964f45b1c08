//! Elements in the types and byte orders that other programs write.

use device::DType;

/// The element type of a file: kind (`b`, `f`, `i` or `u`), bytes and byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    kind: char,
    pub(super) size: usize,
    is_big_endian: bool,
    /// The type that elements have in memory. Integers of other widths become I64.
    pub(super) dtype: DType,
}

impl Stored {
    pub(super) fn new(kind: char, size: usize, is_big_endian: bool) -> Option<Stored> {
        let dtype = match (kind, size) {
            ('b', 1) => DType::Bool,
            ('u', 1) => DType::U8,
            ('i' | 'u', 1 | 2 | 4 | 8) => DType::I64,
            ('f', 2) => DType::F16,
            ('f', 4) => DType::F32,
            ('f', 8) => DType::F64,
            _ => return None,
        };
        Some(Stored { kind, size, is_big_endian, dtype })
    }

    /// The elements in the host's memory. Fails for an unsigned integer that I64 does not hold.
    pub(super) fn decode(self, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        if self.dtype == DType::I64 && (self.kind, self.size) != ('i', 8) {
            let mut wide = Vec::with_capacity(bytes.len() / self.size * 8);
            for (element, chunk) in bytes.chunks_exact(self.size).enumerate() {
                let value = self.integer(chunk);
                let value = i64::try_from(value)
                    .map_err(|_| format!("element {element} is {value}, beyond the range of i64"))?;
                wide.extend(value.to_ne_bytes());
            }
            return Ok(wide);
        }
        if self.is_big_endian != cfg!(target_endian = "big") {
            bytes.chunks_exact_mut(self.size).for_each(<[u8]>::reverse);
        }
        Ok(bytes)
    }

    fn integer(self, bytes: &[u8]) -> i128 {
        let last = bytes.len() - 1;
        // Most significant byte first.
        let byte = |at: usize| bytes[if self.is_big_endian { at } else { last - at }];
        let sign = if self.kind == 'i' && byte(0) >= 0x80 { -1 } else { 0 };
        (0..=last).fold(sign, |value, at| (value << 8) | i128::from(byte(at)))
    }
}
