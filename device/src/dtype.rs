//! Element types: the vocabulary that every crate, and every error, shares.

use std::fmt;

use half::{bf16, f16};

use crate::{Error, Result};

/// The type of a tensor's elements. A whole word: what holds it moves in large pieces, which a narrower field would stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit floating point, the default.
    F32,
    /// 64-bit floating point, for gradient checks.
    F64,
    /// 64-bit signed integer, for indices and labels.
    I64,
    /// 8-bit unsigned integer, for images.
    U8,
    /// Truth values, one byte each, 0 or 1.
    Bool,
    /// 16-bit floating point with the exponent of F32 and 8 bits of precision.
    BF16,
    /// IEEE 754's 16-bit floating point: 11 bits of precision, at most 65504.
    F16,
}

impl DType {
    /// Its name, the bytes of one element, and the place among types of which the later one wins.
    #[inline]
    const fn facts(self) -> (&'static str, usize, u8) {
        match self {
            DType::Bool => ("bool", 1, 0),
            DType::U8 => ("u8", 1, 1),
            DType::I64 => ("i64", 8, 2),
            DType::BF16 => ("bf16", 2, 3),
            DType::F16 => ("f16", 2, 3),
            DType::F32 => ("f32", 4, 4),
            DType::F64 => ("f64", 8, 5),
        }
    }

    /// Bytes of one element.
    #[inline]
    pub const fn size_bytes(self) -> usize {
        self.facts().1
    }

    /// Whether gradients can flow through elements of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64) || self.is_half()
    }

    /// Checks that it is `expected`.
    ///
    /// # Errors
    /// `DTypeMismatch` unless it is.
    #[inline]
    #[track_caller]
    pub fn require(self, op: &'static str, operand: &'static str, expected: DType) -> Result<()> {
        if self == expected { Ok(()) } else { Err(Error::dtype_mismatch(op, operand, expected, self)) }
    }

    /// Checks that it is a type of numbers.
    ///
    /// # Errors
    /// `DTypeUnsupported` for truth values.
    #[inline]
    #[track_caller]
    pub fn require_number(self, op: &'static str) -> Result<()> {
        if self == DType::Bool { Err(Error::dtype_unsupported(op, self, "numbers")) } else { Ok(()) }
    }

    /// Checks that it is a floating-point type.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless it is.
    #[inline]
    #[track_caller]
    pub fn require_float(self, op: &'static str) -> Result<()> {
        if self.is_float() { Ok(()) } else { Err(Error::dtype_unsupported(op, self, "floats")) }
    }

    /// Whether elements are floats of 16 bits.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::BF16 | DType::F16)
    }

    /// The type that ops on elements of this type compute in: F32 for BF16 and F16, whose results are rounded once, to
    /// nearest even, and this type for all others. What an op keeps beside its result is of this type, too: the mean and
    /// variance of a normalization, the logarithms of sums that attention keeps.
    ///
    /// ```
    /// # use device::DType;
    /// assert_eq!(DType::BF16.compute_dtype(), DType::F32);
    /// assert_eq!(DType::F64.compute_dtype(), DType::F64);
    /// ```
    pub const fn compute_dtype(self) -> DType {
        if self.is_half() { DType::F32 } else { self }
    }

    /// The type of the result of an op on elements of both types. A float wins over an integer, both over Bool, and the
    /// wider over the narrower of a kind; of BF16 and F16 neither holds the other, they give F32.
    ///
    /// ```
    /// # use device::DType;
    /// assert_eq!(DType::I64.promote(DType::F16), DType::F16);
    /// assert_eq!(DType::BF16.promote(DType::F16), DType::F32);
    /// ```
    pub const fn promote(self, other: DType) -> DType {
        if self as usize == other as usize {
            return self;
        }
        if self.is_half() && other.is_half() {
            return DType::F32;
        }
        if self.facts().2 > other.facts().2 { self } else { other }
    }

    /// The lower-case name, as in `f32`.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
}

/// A Rust type that is the element of a [`DType`].
///
/// `bool` is stored as one byte that is 0 or 1. The trait is sealed: kernels rely on the layouts named here.
pub trait Element: sealed::Sealed + Copy + Send + Sync + PartialEq + fmt::Debug + Default + 'static {
    /// The type that names this one at run time.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ident $dtype:ident)*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 F32
    f64 F64
    i64 I64
    u8 U8
    bool Bool
    bf16 BF16
    f16 F16
}

#[cfg(test)]
mod tests;
