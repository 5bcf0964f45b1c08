// The mathematics library of the device, by the host's.
#pragma once

// double f(double), float ff(float), and float f(float)
#define EMULATOR_UNARY(X)                                                                                      \
    X(sqrt) X(cbrt) X(exp) X(exp2) X(exp10) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan)     \
    X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh) X(erf) X(erfc) X(lgamma)        \
    X(tgamma) X(floor) X(ceil) X(round) X(rint) X(trunc) X(nearbyint) X(fabs) X(logb)
#define EMULATOR_BINARY(X) X(pow) X(fmod) X(remainder) X(copysign) X(hypot) X(atan2) X(fmin) X(fmax) X(fdim) X(nextafter)

#define X(name)                                               \
    extern "C" double name(double) noexcept;                  \
    extern "C" float name##f(float) noexcept;                 \
    inline float name(float v) { return name##f(v); }
EMULATOR_UNARY(X)
#undef X
#define X(name)                                               \
    extern "C" double name(double, double) noexcept;          \
    extern "C" float name##f(float, float) noexcept;          \
    inline float name(float a, float b) { return name##f(a, b); }
EMULATOR_BINARY(X)
#undef X

extern "C" {
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double scalbn(double, int) noexcept;
float scalbnf(float, int) noexcept;
double frexp(double, int*) noexcept;
float frexpf(float, int*) noexcept;
double modf(double, double*) noexcept;
float modff(float, float*) noexcept;
int ilogb(double) noexcept;
int ilogbf(float) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long long llrint(double) noexcept;
long long llrintf(float) noexcept;
long lround(double) noexcept;
long lroundf(float) noexcept;
long long llround(double) noexcept;
long long llroundf(float) noexcept;
void sincos(double, double*, double*) noexcept;
void sincosf(float, float*, float*) noexcept;
}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float ldexp(float v, int e) { return ldexpf(v, e); }
inline float abs(float v) { return __builtin_fabsf(v); }
inline double abs(double v) { return __builtin_fabs(v); }
inline float pow(float a, int b) { return powf(a, float(b)); }
inline double pow(double a, int b) { return pow(a, double(b)); }
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
inline double min(float a, double b) { return __builtin_fmin(a, b); }
inline double max(float a, double b) { return __builtin_fmax(a, b); }
inline double min(double a, float b) { return __builtin_fmin(a, b); }
inline double max(double a, float b) { return __builtin_fmax(a, b); }

inline bool isnan(float v) { return __builtin_isnan(v); }
inline bool isnan(double v) { return __builtin_isnan(v); }
inline bool isinf(float v) { return __builtin_isinf(v) != 0; }
inline bool isinf(double v) { return __builtin_isinf(v) != 0; }
inline bool isfinite(float v) { return __builtin_isfinite(v); }
inline bool isfinite(double v) { return __builtin_isfinite(v); }
inline bool signbit(float v) { return __builtin_signbit(v) != 0; }
inline bool signbit(double v) { return __builtin_signbit(v) != 0; }

inline float rsqrtf(float v) { return 1.0f / __builtin_sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / __builtin_sqrt(v); }
inline float rsqrt(float v) { return rsqrtf(v); }
inline float rcbrtf(float v) { return 1.0f / cbrtf(v); }
inline double rcbrt(double v) { return 1.0 / cbrt(v); }
inline float normcdff(float v) { return 0.5f * erfcf(v * -0.70710678f); }
inline double normcdf(double v) { return 0.5 * erfc(v * -0.70710678118654752440); }
inline float sinpif(float v) { return float(sin(double(v) * 3.14159265358979323846)); }
inline float cospif(float v) { return float(cos(double(v) * 3.14159265358979323846)); }
inline double sinpi(double v) { return sin(v * 3.14159265358979323846); }
inline double cospi(double v) { return cos(v * 3.14159265358979323846); }
inline void sincospif(float v, float* s, float* c) { *s = sinpif(v), *c = cospif(v); }
inline void sincospi(double v, double* s, double* c) { *s = sinpi(v), *c = cospi(v); }

// The fast forms are as exact as the others here.
inline float __expf(float v) { return expf(v); }
inline float __exp10f(float v) { return exp10f(v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __log10f(float v) { return log10f(v); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __tanf(float v) { return tanf(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline void __sincosf(float v, float* s, float* c) { *s = sinf(v), *c = cosf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __saturatef(float v) { return v > 0.0f ? v < 1.0f ? v : 1.0f : 0.0f; }
inline float __frsqrt_rn(float v) { return float(1.0 / __builtin_sqrt(double(v))); }

// Operations that are never contracted: the compiler does not see through them.
#if defined(__x86_64__)
#define EMULATOR_OPAQUE(v) asm("" : "+x"(v))
#elif defined(__aarch64__)
#define EMULATOR_OPAQUE(v) asm("" : "+w"(v))
#else
#define EMULATOR_OPAQUE(v) asm("" : "+m"(v))
#endif
#define EMULATOR_EXACT(name, T, op)           \
    inline T name(T a, T b) {                 \
        T result = a op b;                    \
        EMULATOR_OPAQUE(result);              \
        return result;                        \
    }
EMULATOR_EXACT(__fadd_rn, float, +)
EMULATOR_EXACT(__fsub_rn, float, -)
EMULATOR_EXACT(__fmul_rn, float, *)
EMULATOR_EXACT(__fdiv_rn, float, /)
EMULATOR_EXACT(__dadd_rn, double, +)
EMULATOR_EXACT(__dsub_rn, double, -)
EMULATOR_EXACT(__dmul_rn, double, *)
EMULATOR_EXACT(__ddiv_rn, double, /)
#undef EMULATOR_EXACT
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fsqrt_rn(float v) { return __builtin_sqrtf(v); }
inline double __dsqrt_rn(double v) { return __builtin_sqrt(v); }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline double __drcp_rn(double v) { return 1.0 / v; }

// Conversions clamp to the target's range, and NaN becomes 0 (the smallest value for 64 bits).
template <class To> inline To emulator_clamped(double v, To smallest, To largest, To nan) {
    if (v != v) return nan;
    if (v <= double(smallest)) return smallest;
    if (v >= double(largest)) return largest;
    return To(v);
}
inline int emulator_int(double v) { return emulator_clamped<int>(v, -__INT_MAX__ - 1, __INT_MAX__, 0); }
inline unsigned emulator_uint(double v) { return emulator_clamped<unsigned>(v, 0, ~0u, 0); }
inline long long emulator_ll(double v) { return emulator_clamped<long long>(v, -__LONG_LONG_MAX__ - 1, __LONG_LONG_MAX__, -__LONG_LONG_MAX__ - 1); }
inline unsigned long long emulator_ull(double v) { return emulator_clamped<unsigned long long>(v, 0, ~0ull, 1ull << 63); }
#define EMULATOR_ROUNDINGS(from, From, to, To, convert)                                 \
    inline To __##from##2##to##_rn(From v) { return convert(rint(double(v))); }         \
    inline To __##from##2##to##_rz(From v) { return convert(trunc(double(v))); }        \
    inline To __##from##2##to##_rd(From v) { return convert(floor(double(v))); }        \
    inline To __##from##2##to##_ru(From v) { return convert(ceil(double(v))); }
EMULATOR_ROUNDINGS(float, float, int, int, emulator_int)
EMULATOR_ROUNDINGS(float, float, uint, unsigned, emulator_uint)
EMULATOR_ROUNDINGS(float, float, ll, long long, emulator_ll)
EMULATOR_ROUNDINGS(float, float, ull, unsigned long long, emulator_ull)
EMULATOR_ROUNDINGS(double, double, int, int, emulator_int)
EMULATOR_ROUNDINGS(double, double, uint, unsigned, emulator_uint)
EMULATOR_ROUNDINGS(double, double, ll, long long, emulator_ll)
EMULATOR_ROUNDINGS(double, double, ull, unsigned long long, emulator_ull)
#undef EMULATOR_ROUNDINGS
inline float __int2float_rn(int v) { return float(v); }
inline float __uint2float_rn(unsigned v) { return float(v); }
inline float __ll2float_rn(long long v) { return float(v); }
inline float __ull2float_rn(unsigned long long v) { return float(v); }
inline double __int2double_rn(int v) { return double(v); }
inline double __uint2double_rn(unsigned v) { return double(v); }
inline double __ll2double_rn(long long v) { return double(v); }
inline double __ull2double_rn(unsigned long long v) { return double(v); }
inline float __double2float_rn(double v) { return float(v); }
// Towards 0: the nearest one, or the one before it. A long double holds every value of either type.
inline float emulator_towards_0(float nearest, long double v) {
    bool beyond = v < 0 ? nearest < v : nearest > v;
    return beyond ? __uint_as_float(__float_as_uint(nearest) - 1) : nearest;
}
inline float __double2float_rz(double v) { return emulator_towards_0(float(v), v); }
inline float __ll2float_rz(long long v) { return emulator_towards_0(float(v), v); }
