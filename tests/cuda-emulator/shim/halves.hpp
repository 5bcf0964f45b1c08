// What the two 16-bit types have in common. `name` is as in __float2half and __float2bfloat16.
#pragma once

#define EMULATOR_HALF(H, H2, name, Format)                                                          \
    struct H {                                                                                      \
        unsigned short bits;                                                                        \
        H() = default;                                                                              \
        H(float v) : bits(Format::narrow(v)) {}                                                     \
        H(double v) : bits(Format::narrow(float(v))) {}                                             \
        H(int v) : bits(Format::narrow(float(v))) {}                                                \
        operator float() const { return Format::widen(bits); }                                      \
    };                                                                                              \
    struct alignas(4) H2 {                                                                          \
        H x, y;                                                                                     \
    };                                                                                              \
    inline H __float2##name(float v) { return H(v); }                                               \
    inline H __float2##name##_rn(float v) { return H(v); }                                          \
    inline H __double2##name(double v) { return H(v); }                                             \
    inline float __##name##2float(H v) { return float(v); }                                         \
    inline H operator+(H a, H b) { return H(float(a) + float(b)); }                                 \
    inline H operator-(H a, H b) { return H(float(a) - float(b)); }                                 \
    inline H operator*(H a, H b) { return H(float(a) * float(b)); }                                 \
    inline H operator/(H a, H b) { return H(float(a) / float(b)); }                                 \
    inline H operator-(H a) { return H(-float(a)); }                                                \
    inline H& operator+=(H& a, H b) { return a = a + b; }                                           \
    inline H& operator-=(H& a, H b) { return a = a - b; }                                           \
    inline H& operator*=(H& a, H b) { return a = a * b; }                                           \
    inline bool operator==(H a, H b) { return float(a) == float(b); }                               \
    inline bool operator!=(H a, H b) { return float(a) != float(b); }                               \
    inline bool operator<(H a, H b) { return float(a) < float(b); }                                 \
    inline bool operator>(H a, H b) { return float(a) > float(b); }                                 \
    inline bool operator<=(H a, H b) { return float(a) <= float(b); }                               \
    inline bool operator>=(H a, H b) { return float(a) >= float(b); }                               \
    inline H __hadd(H a, H b) { return a + b; }                                                     \
    inline H __hsub(H a, H b) { return a - b; }                                                     \
    inline H __hmul(H a, H b) { return a * b; }                                                     \
    inline H __hdiv(H a, H b) { return a / b; }                                                     \
    inline H __hneg(H a) { return -a; }                                                             \
    inline H __hfma(H a, H b, H c) { return H(fmaf(float(a), float(b), float(c))); }                \
    inline bool __hisnan(H a) { return isnan(float(a)); }                                           \
    inline H2 make_##name##2(H x, H y) { return {x, y}; }                                           \
    inline H2 __floats2##name##2_rn(float x, float y) { return {H(x), H(y)}; }                      \
    inline float __low2float(H2 v) { return float(v.x); }                                           \
    inline float __high2float(H2 v) { return float(v.y); }                                          \
    inline float2 __##name##22float2(H2 v) { return make_float2(float(v.x), float(v.y)); }
