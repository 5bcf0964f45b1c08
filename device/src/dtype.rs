//! Element types: the vocabulary that every crate, and every error, shares.

use std::fmt;

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
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether gradients can flow through elements of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64)
    }

    /// The lower-case name, as in `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of a [`DType`].
///
/// `bool` is stored as one byte that is 0 or 1. The trait is sealed: kernels rely on the layouts named here.
pub trait Element: sealed::Sealed + Copy + Send + Sync + PartialEq + fmt::Debug + Default + 'static {
    /// The type that names this one at run time.
    const DTYPE: DType;
}

impl sealed::Sealed for f32 {}
impl sealed::Sealed for f64 {}
impl sealed::Sealed for i64 {}
impl sealed::Sealed for u8 {}
impl sealed::Sealed for bool {}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for f64 {
    const DTYPE: DType = DType::F64;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
}
