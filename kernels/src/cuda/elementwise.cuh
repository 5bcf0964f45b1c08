// Functions of elements, of the type T that they compute in. Each operation is rounded by itself: programs that use them are
// compiled without fused multiply-adds, so that a function gives the same bits whatever is computed beside it.
// FLOATS is 1 if the floating-point types are among the program's.

__device__ inline f32 tanh_of(f32 x) { return tanhf(x); }
__device__ inline f64 tanh_of(f64 x) { return tanh(x); }
__device__ inline f32 erf_of(f32 x) { return erff(x); }
__device__ inline f64 erf_of(f64 x) { return erf(x); }
__device__ inline f32 sin_of(f32 x) { return sinf(x); }
__device__ inline f64 sin_of(f64 x) { return sin(x); }
__device__ inline f32 cos_of(f32 x) { return cosf(x); }
__device__ inline f64 cos_of(f64 x) { return cos(x); }
__device__ inline f32 power(f32 x, f32 y) { return powf(x, y); }
__device__ inline f64 power(f64 x, f64 y) { return pow(x, y); }

// By squaring; wraps around.
__device__ inline u64 whole_power(u64 base, u64 exponent) {
    u64 result = 1;
    for (; exponent > 0; exponent >>= 1) {
        result = exponent & 1 ? result * base : result;
        base *= base;
    }
    return result;
}
__device__ inline u8 power(u8 x, u8 y) { return (u8)whole_power(x, y); }
// A negative power is that of the exact result rounded towards 0.
__device__ inline i64 power(i64 x, i64 y) {
    if (y >= 0) {
        return (i64)whole_power((u64)x, (u64)y);
    }
    return x == 1 || (x == -1 && y % 2 == 0) ? 1 : x == -1 ? -1 : 0;
}

__device__ inline f32 divide(f32 x, f32 y) { return x / y; }
__device__ inline f64 divide(f64 x, f64 y) { return x / y; }
__device__ inline u8 divide(u8 x, u8 y) { return y == 0 ? 0 : x / y; }
__device__ inline i64 divide(i64 x, i64 y) { return y == 0 ? 0 : y == -1 ? sub(0LL, x) : x / y; }

__device__ inline f32 negate(f32 x) { return -x; }
__device__ inline f64 negate(f64 x) { return -x; }
__device__ inline u8 negate(u8 x) { return sub((u8)0, x); }
__device__ inline i64 negate(i64 x) { return sub(0LL, x); }

__device__ inline u8 abs_of(u8 x) { return x; }
__device__ inline i64 abs_of(i64 x) { return x < 0 ? sub(0LL, x) : x; }

template <class T> __device__ inline T clamp_of(T x, T low, T high) {
    T raised = x < low || is_nan(low) ? low : x;
    return raised > high || is_nan(high) ? high : raised;
}

#if FLOATS
[[maybe_unused]] constexpr f64 INV_SQRT_2 = 0.70710678118654752;
[[maybe_unused]] constexpr f64 INV_SQRT_TAU = 0.3989422804014327;
[[maybe_unused]] constexpr f64 TWO_SQRT_2_OVER_PI = 1.5957691216057308;
[[maybe_unused]] constexpr f64 GELU_CUBIC = 0.044715;

template <class T> __device__ inline T sigmoid_of(T x) {
    // e^-|x| never overflows, and keeps the precision of small results.
    T e = exp_of(-abs_of(x));
    return (x < 0 ? e : (T)1) / (1 + e);
}
template <class T> __device__ inline T normal_cdf(T x) { return (T)0.5 * (1 + erf_of(x * (T)INV_SQRT_2)); }
// sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
template <class T> __device__ inline T gelu_gate(T x) {
    return sigmoid_of((T)TWO_SQRT_2_OVER_PI * x * (1 + (T)GELU_CUBIC * x * x));
}
template <class T> __device__ inline T normal_density(T x) { return exp_of(x * x * (T)-0.5) * (T)INV_SQRT_TAU; }
template <class T> __device__ inline T gelu_tanh_slope(T x) {
    T s = gelu_gate(x);
    T slope = (T)TWO_SQRT_2_OVER_PI * (1 + (T)(3 * GELU_CUBIC) * x * x);
    return s + x * (s * (1 - s)) * slope;
}
template <class T> __device__ inline T hard_sigmoid_of(T x) { return clamp_of(x + 3, (T)0, (T)6) / 6; }
// tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2), which is 1 where that overflows.
template <class T> __device__ inline T mish_gate(T x) {
    T e = exp_of(x > 20 ? (T)20 : x);
    T n = e * (e + 2);
    return n / (n + 2);
}
#endif

// What the line of a function in the table becomes: an object that holds its numbers, if it has some.
#define UNARY_FUNCTION(name, expression)                        \
    template <class T> struct name##_function {                 \
        T a, b;                                                 \
        __device__ T operator()(T x) const { return (expression); } \
    };
#define UNARY_GRADIENT(name, saved, expression)                     \
    template <class T> struct name##_gradient {                     \
        T a, b;                                                     \
        __device__ T operator()(T saved, T g) const { return (expression); } \
    };
#define BINARY_FUNCTION(name, expression)                            \
    template <class T> struct name##_function {                      \
        __device__ T operator()(T x, T y) const { return (expression); } \
    };
#define COMPARISON(name, comparison)                                  \
    template <class T> struct name##_function {                       \
        __device__ u8 operator()(T x, T y) const { return x comparison y; } \
    };
