// Half precision: the types, conversions, and arithmetic by way of float.
#pragma once

#include "halves.hpp"

struct EmulatorHalfFormat {
    static unsigned short narrow(float v) {
        unsigned bits = __float_as_uint(v), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
        if (magnitude > 0x7F800000) return 0x7FFF;
        if (magnitude >= 0x47800000) return (unsigned short)(sign | 0x7C00);
        if (magnitude < 0x38800000) {
            // Below the normal numbers: adding 0.5 leaves the bits, rounded, at the end of the word.
            float shifted = __uint_as_float(magnitude) + 0.5f;
            return (unsigned short)(sign | (__float_as_uint(shifted) - 0x3F000000));
        }
        unsigned rounded = magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1);
        return (unsigned short)(sign | rounded >> 13);
    }
    static float widen(unsigned short bits) {
        unsigned sign = unsigned(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
        if (exponent == 31) return __uint_as_float(sign | 0x7F800000 | fraction << 13);
        if (exponent == 0) {
            float magnitude = float(fraction) * 0x1p-24f;
            return sign ? -magnitude : magnitude;
        }
        return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    }
};
EMULATOR_HALF(__half, __half2, half, EmulatorHalfFormat)
typedef __half half;
typedef __half2 half2;
inline __half __ushort_as_half(unsigned short bits) { return emulator_bits<__half>(bits); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
