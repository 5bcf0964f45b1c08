//! Launchers that fill and copy.

use device::{DType, Error, Result, Stream, bf16, f16};

use crate::command::{Command, Raw, no_scalars};
use crate::cpu::copy as cpu;
use crate::cuda::copy as cuda;
use crate::elementwise::launch;
use crate::functions::Function;
use crate::fuse::Fusible;
use crate::half::{Half, odd_from_f64, odd_from_i64};
use crate::layout::View;
use crate::loops::Places;

/// One value of any element type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A floating-point number.
    Float(f64),
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// The value as `f64`; truth values are 0 and 1.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Float(value) => value,
            Scalar::Int(value) => value as f64,
            Scalar::Bool(value) => f64::from(u8::from(value)),
        }
    }

    /// The value as `i64`: rounded towards 0, saturated; NaN is 0.
    pub fn to_i64(self) -> i64 {
        match self {
            Scalar::Float(value) => value as i64,
            Scalar::Int(value) => value,
            Scalar::Bool(value) => i64::from(value),
        }
    }

    /// Whether the value differs from 0; NaN does.
    pub fn to_bool(self) -> bool {
        match self {
            Scalar::Float(value) => value != 0.0,
            Scalar::Int(value) => value != 0,
            Scalar::Bool(value) => value,
        }
    }

    fn to_half<H: Half>(self) -> H {
        match self {
            Scalar::Int(value) => H::round(odd_from_i64(value)),
            _ => H::round(odd_from_f64(self.to_f64())),
        }
    }

    /// The bits of the value as an element of `dtype`, converted as by [`copy`].
    fn bits(self, op: &'static str, dtype: DType) -> Result<u64> {
        match (dtype, self) {
            // One rounding, not two.
            (DType::F32, Scalar::Int(value)) => Ok(u64::from((value as f32).to_bits())),
            (DType::F32, _) => Ok(u64::from((self.to_f64() as f32).to_bits())),
            (DType::F64, _) => Ok(self.to_f64().to_bits()),
            (DType::I64, _) => Ok(self.to_i64() as u64),
            (DType::U8, Scalar::Float(value)) => Ok(u64::from(value as u8)),
            (DType::U8, _) => Ok(u64::from(self.to_i64() as u8)),
            (DType::Bool, _) => Ok(u64::from(self.to_bool())),
            (DType::BF16, _) => Ok(u64::from(self.to_half::<bf16>().to_bits())),
            (DType::F16, _) => Ok(u64::from(self.to_half::<f16>().to_bits())),
            _ => Err(Error::dtype_unsupported(op, dtype, "floats, i64, u8 and bool")),
        }
    }
}

macro_rules! from {
    ($number:ty, $scalar:ident) => {
        impl From<$number> for Scalar {
            fn from(value: $number) -> Self {
                Scalar::$scalar(value.into())
            }
        }
    };
}
from!(f64, Float);
from!(f32, Float);
from!(i64, Int);
from!(i32, Int);
from!(u8, Int);
from!(bool, Bool);

/// `out = value`, in every element; the value is converted as by [`copy`].
///
/// Shapes: any. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `InvalidArgument` for an `out` that is expanded; the errors of [`Stream::launch`].
pub fn fill(stream: &Stream, value: Scalar, out: View<'_>) -> Result<()> {
    const OP: &str = "fill";
    let (bits, size) = (value.bits(OP, out.dtype)?, out.dtype.size_bytes());
    Command::new(OP, (out.write::<Raw>(),)).cost(out.layout.elements(), 1).launch(
        stream,
        Places::of([out.layout]),
        no_scalars,
        // It always writes the same, which is all that fusing has to know.
        |_, _| Fusible::of(()),
        // SAFETY: `places` was made from the layout of the output; see `Command::launch`.
        move |places, workers, (out,)| unsafe { cpu::fill(size, bits, places, workers, out) },
        move |places, queue, (out,)| cuda::fill(queue, size, bits, places, out),
    )
}

/// `out = x`, element by element, converted to the type of `out`.
///
/// What becomes a float of fewer bits is rounded once, to nearest even, F64 and I64 included, which become BF16 and F16
/// without a stop at F32.
///
/// Floating-point numbers become integers by rounding towards 0 and saturating, NaN becomes 0; integers become
/// smaller ones by wrapping around; what is not 0 becomes `true`.
///
/// Shapes: any, `x` and `out` alike; expand the layout of `x` first to broadcast. Asynchronous, ordered by the buffers.
///
/// # Errors
/// `ShapeMismatch`; `InvalidArgument` for an `out` that is expanded or overlaps `x` otherwise than
/// element for element; the errors of [`Stream::launch`].
pub fn copy(stream: &Stream, x: View<'_>, out: View<'_>) -> Result<()> {
    let (from, to) = (x.dtype, out.dtype);
    let op = if from == to { "copy" } else { "cast" };
    launch(stream, op, Function::Copy { to, from }, [out, x])
}

#[cfg(test)]
mod tests;
