//! Numbers of 16 bits, BF16 and F16: conversions without branches, so that loops over them become vector code.

use device::{Element, bf16, f16};

/// A float of 16 bits, which is computed with in F32.
pub(crate) trait Half: Element {
    /// The same number.
    fn widen(self) -> f32;
    /// The nearest number, the even one of two; NaN stays NaN.
    fn round(value: f32) -> Self;
    /// The next smaller number.
    fn next_down(self) -> Self;
}

/// The largest half below `value`.
pub(crate) fn below<H: Half>(value: f64) -> f32 {
    let nearest = H::round(odd_from_f64(value));
    if f64::from(nearest.widen()) < value { nearest.widen() } else { nearest.next_down().widen() }
}

/// The bits of the next smaller number: those of one sign are ordered like their bits.
fn bits_down(bits: u16) -> u16 {
    match bits {
        0 => 0x8001,
        0x8000.. => bits + 1,
        _ => bits - 1,
    }
}

impl Half for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn round(value: f32) -> bf16 {
        let bits = value.to_bits();
        // A carry goes on into the exponent, and from the largest number to infinity.
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // The bits of a NaN that are kept may all be 0.
        let nan = bits >> 16 | 0x40;
        bf16::from_bits((if value.is_nan() { nan } else { nearest }) as u16)
    }

    fn next_down(self) -> bf16 {
        bf16::from_bits(bits_down(self.to_bits()))
    }
}

impl Half for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        /// 2^112, by which the exponents differ.
        const SCALE: f32 = f32::from_bits((112 + 127) << 23);
        let bits = u32::from(self.to_bits());
        let magnitude = bits & 0x7fff;
        // The product makes subnormal numbers normal, too.
        let number = (f32::from_bits(magnitude << 13) * SCALE).to_bits();
        // Infinity and NaN have the largest exponent here and there.
        let special = if magnitude >= 0x7c00 { 0xff << 23 } else { 0 };
        f32::from_bits((bits & 0x8000) << 16 | number | special)
    }

    #[inline(always)]
    fn round(value: f32) -> f16 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let nearest = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
        // Numbers next to a half are as far apart as F16's subnormal ones: the sum rounds to one of them.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let finite = if magnitude < (127 - 14) << 23 { subnormal } else { nearest };
        // 65520 lies between the largest number and what would be the next.
        let number = if magnitude >= 65520_f32.to_bits() { 0x7c00 } else { finite };
        let nan = 0x7e00 | magnitude >> 13 & 0x3ff;
        let number = if value.is_nan() { nan } else { number };
        f16::from_bits((bits >> 16 & 0x8000 | number) as u16)
    }

    fn next_down(self) -> f16 {
        f16::from_bits(bits_down(self.to_bits()))
    }
}

/// `value` rounded to one of its neighbours, the odd one if neither is equal. What is rounded to fewer bits next comes
/// out as if it had been rounded once.
#[inline(always)]
pub(crate) fn odd_from_f64(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let towards_zero = nearest.to_bits() - u32::from(back.abs() > value.abs());
    f32::from_bits(towards_zero | 1)
}

/// As [`odd_from_f64`].
#[inline(always)]
pub(crate) fn odd_from_i64(value: i64) -> f32 {
    const LOW: i64 = (1 << 12) - 1;
    // Of a number that F64 cannot hold, the low bits only say on which side of a boundary it lies.
    let folded = if value.unsigned_abs() >> 53 == 0 {
        value
    } else {
        value & !LOW | i64::from(value & LOW != 0) << LOW.count_ones()
    };
    odd_from_f64(folded as f64)
}
