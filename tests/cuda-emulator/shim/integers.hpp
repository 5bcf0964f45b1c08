// Integer intrinsics and reinterpretations.
#pragma once

template <class To, class From> inline To emulator_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float v) { return emulator_bits<int>(v); }
inline unsigned __float_as_uint(float v) { return emulator_bits<unsigned>(v); }
inline float __int_as_float(int v) { return emulator_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return emulator_bits<float>(v); }
inline long long __double_as_longlong(double v) { return emulator_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return emulator_bits<double>(v); }
inline int __double2hiint(double v) { return int(emulator_bits<long long>(v) >> 32); }
inline int __double2loint(double v) { return int(emulator_bits<long long>(v)); }
inline double __hiloint2double(int hi, int lo) { return emulator_bits<double>((long long)((unsigned long long)(unsigned)hi << 32 | (unsigned)lo)); }

inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline int __mul24(int a, int b) { return int((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (v >> i & 1u) << (31 - i);
    return reversed;
}
inline unsigned long long __brevll(unsigned long long v) { return (unsigned long long)__brev(unsigned(v)) << 32 | __brev(unsigned(v >> 32)); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned byte = unsigned(bytes >> (8 * (select >> (4 * i) & 7))) & 0xFF;
        if (select >> (4 * i) & 8) byte = byte & 0x80 ? 0xFF : 0;
        result |= byte << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) { return unsigned((((unsigned long long)hi << 32 | lo) << (shift & 31)) >> 32); }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) { return unsigned(((unsigned long long)hi << 32 | lo) >> (shift & 31)); }
inline int __hadd(int a, int b) { return int(((long long)a + b) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b) >> 1); }
inline unsigned __sad(int a, int b, unsigned c) { return unsigned(a > b ? (long long)a - b : (long long)b - a) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }

// min and max, with the mixed forms that the device has.
#define EMULATOR_MIN_MAX(R, A, B)                                              \
    inline R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; }               \
    inline R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
EMULATOR_MIN_MAX(int, int, int)
EMULATOR_MIN_MAX(unsigned, unsigned, unsigned)
EMULATOR_MIN_MAX(unsigned, int, unsigned)
EMULATOR_MIN_MAX(unsigned, unsigned, int)
EMULATOR_MIN_MAX(long, long, long)
EMULATOR_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMULATOR_MIN_MAX(unsigned long, long, unsigned long)
EMULATOR_MIN_MAX(unsigned long, unsigned long, long)
EMULATOR_MIN_MAX(long long, long long, long long)
EMULATOR_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
EMULATOR_MIN_MAX(unsigned long long, long long, unsigned long long)
EMULATOR_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef EMULATOR_MIN_MAX
extern "C" {
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
}
inline long abs(long v) { return v < 0 ? -v : v; }
inline long long abs(long long v) { return v < 0 ? -v : v; }
