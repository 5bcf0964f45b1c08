// bfloat16: the types, conversions, and arithmetic by way of float.
#pragma once

#include "halves.hpp"

struct EmulatorBfloatFormat {
    static unsigned short narrow(float v) {
        unsigned bits = __float_as_uint(v);
        if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
        return (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
    static float widen(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }
};
EMULATOR_HALF(__nv_bfloat16, __nv_bfloat162, bfloat16, EmulatorBfloatFormat)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return emulator_bits<__nv_bfloat16>(bits); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
