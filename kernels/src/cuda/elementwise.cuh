// Functions of elements, of the type T that they compute in. Each operation is rounded by itself: programs that use them are
// compiled without fused multiply-adds, so that a function gives the same bits whatever is computed beside it.
// FLOATS is 1 if the floating-point types are among the program's.

template <class T> __device__ inline T tanh_of(T x) { return tanh(x); }
template <class T> __device__ inline T erf_of(T x) { return erf(x); }
template <class T> __device__ inline T sin_of(T x) { return sin(x); }
template <class T> __device__ inline T cos_of(T x) { return cos(x); }
template <class T> __device__ inline T tan_of(T x) { return tan(x); }
template <class T> __device__ inline T log2_of(T x) { return log2(x); }
template <class T> __device__ inline T power(T x, T y) { return pow(x, y); }
template <class T> __device__ inline T remainder_of(T x, T y) { return fmod(x, y); }
template <class T> __device__ inline T angle_of(T x, T y) { return atan2(x, y); }
template <class T> __device__ inline T expm1_of(T x) { return expm1(x); }
template <class T> __device__ inline T log1p_of(T x) { return log1p(x); }
template <class T> __device__ inline T erfc_of(T x) { return erfc(x); }
// x y + z, rounded once.
template <class T> __device__ inline T mul_add(T x, T y, T z) { return fma(x, y, z); }

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
__device__ inline u8 remainder_of(u8 x, u8 y) { return y == 0 ? x : x % y; }
__device__ inline i64 remainder_of(i64 x, i64 y) { return y == 0 ? x : y == -1 ? 0 : x % y; }

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
// The formulas are those of the CPU, see cpu/activations.rs and cpu/real.rs. What a number lacks of a constant is `.._LOW`.
[[maybe_unused]] constexpr f64 INV_SQRT_2 = 0.70710678118654752;
[[maybe_unused]] constexpr f64 INV_SQRT_2_LOW = -4.833646656726457e-17;
[[maybe_unused]] constexpr f64 INV_SQRT_TAU = 0.3989422804014327;
[[maybe_unused]] constexpr f64 INV_SQRT_TAU_LOW = -2.49232720227773e-17;
[[maybe_unused]] constexpr f64 TWO_OVER_SQRT_PI = 1.1283791670955126;
[[maybe_unused]] constexpr f64 TWO_OVER_SQRT_PI_LOW = 1.533545961316588e-17;
[[maybe_unused]] constexpr f64 TWO_SQRT_2_OVER_PI = 1.5957691216057308;
[[maybe_unused]] constexpr f64 TWO_SQRT_2_OVER_PI_LOW = -9.96930880911092e-17;
// 2 sqrt(2 / pi) 0.044715, and three times that.
[[maybe_unused]] constexpr f64 GELU_CUBIC = 0.07135481627260025, GELU_CUBIC_LOW = -6.175149918155315e-19;
[[maybe_unused]] constexpr f64 GELU_CUBIC_SLOPE = 0.21406444881780073, GELU_CUBIC_SLOPE_LOW = 1.2025242832367862e-17;

// A number as the sum of two, of which the second is below the last digit of the first.
template <class T> struct Pair {
    T high, low;

    static __device__ Pair constant(f64 value, f64 low) { return {(T)value, (T)(value - (f64)(T)value + low)}; }
    // a + b and a b, exactly.
    static __device__ Pair sum(T a, T b) {
        T sum = a + b, of_b = sum - a;
        return {sum, a - (sum - of_b) + (b - of_b)};
    }
    static __device__ Pair product(T a, T b) {
        T product = a * b;
        return {product, mul_add(a, b, -product)};
    }
    __device__ Pair operator+(Pair other) const {
        Pair all = sum(high, other.high);
        return {all.high, all.low + (low + other.low)};
    }
    __device__ Pair operator*(Pair other) const {
        Pair all = product(high, other.high);
        return {all.high, all.low + (high * other.low + low * other.high)};
    }
    __device__ Pair recip() const {
        T nearest = 1 / high;
        return {nearest, nearest * (mul_add(-nearest, high, (T)1) - nearest * low)};
    }
    // The quotient, rounded about once.
    __device__ T over(Pair other) const {
        T inverse = 1 / other.high, quotient = high * inverse;
        return mul_add(mul_add(-quotient, other.high, high) + (low - quotient * other.low), inverse, quotient);
    }
    __device__ T value() const { return high + low; }
};

// e^(x + low), where `low` is below the last digit of x.
template <class T> __device__ inline Pair<T> exp_pair(T x, T low) {
    T e = exp_of(x);
    return {e, e * low};
}
template <class T> __device__ inline T sigmoid_of(T x) {
    // e^-|x| never overflows, and keeps the precision of small results.
    T e = exp_of(-abs_of(x));
    return (x < 0 ? e : (T)1) / (1 + e);
}
// The derivative of the sigmoid function, e / (1 + e)^2 with e = e^-|x|.
template <class T> __device__ inline T sigmoid_slope(T x) {
    Pair<T> e = {exp_of(-abs_of(x)), 0}, d = Pair<T>{1, 0} + e;
    return e.over(d * d);
}
// sigmoid(x) - y, without cancellation where y is 1.
template <class T> __device__ inline T sigmoid_less(T x, T y) {
    T s = sigmoid_of(-abs_of(x));
    return x > 0 ? 1 - y - s : s - y;
}
// The derivative 1 / (1 + |x|)^2 of x / (1 + |x|). The parts of infinity are not numbers.
template <class T> __device__ inline T softsign_slope(T x) {
    T limit = sizeof(T) == 4 ? (T)8e37 : (T)4e307, a = abs_of(x);
    Pair<T> y = Pair<T>::sum(1, a > limit ? limit : a).recip();
    return (y * y).value();
}
// The derivative of the error function. Where it underflows, the square must not overflow.
template <class T> __device__ inline T erf_slope(T all) {
    T x = clamp_of(all, (T)-28, (T)28);
    Pair<T> square = Pair<T>::product(x, x);
    return (exp_pair(-square.high, -square.low) * Pair<T>::constant(TWO_OVER_SQRT_PI, TWO_OVER_SQRT_PI_LOW)).value();
}
// The distribution function of the normal distribution.
template <class T> __device__ inline T normal_cdf(T x) {
    T z = -x * (T)INV_SQRT_2;
    T tail = erfc_of(z);
    if (abs_of(z) > 26) {
        return (T)0.5 * tail;
    }
    // The rounding error of z, times the slope.
    T low = -mul_add(x, (T)INV_SQRT_2, z) - x * Pair<T>::constant(INV_SQRT_2, INV_SQRT_2_LOW).low;
    return (T)0.5 * (tail - low * erf_slope(z));
}
// The derivative of x normal_cdf(x).
template <class T> __device__ inline T gelu_erf_slope(T all) {
    T x = clamp_of(all, (T)-39, (T)39);
    Pair<T> square = Pair<T>::product(x, x);
    Pair<T> density = exp_pair((T)-0.5 * square.high, (T)-0.5 * square.low) * Pair<T>::constant(INV_SQRT_TAU, INV_SQRT_TAU_LOW);
    return mul_add(x, density.high, mul_add(x, density.low, normal_cdf(x)));
}
// x sigmoid(u)
template <class T> __device__ inline T gated(T x, Pair<T> u) {
    bool below = u.high < 0;
    Pair<T> e = exp_pair(-abs_of(u.high), below ? u.low : -u.low);
    return (below ? mul_add(x, e.high, x * e.low) : x) / (1 + e.high);
}
// An exponential far below 0, which may be subnormal where its product with the exponent is not: e^(u + shift), with an exact sum, and
// the unit that it is multiplied with in turn.
template <class T> struct Tail {
    T shift, unit;

    __device__ Tail(T u) : shift(u < -80 ? (T)64 : (T)0), unit(u < -80 ? (T)1.6038108905486379e-28 : (T)1) {}
};
// s + s (1 - s) slope with s = sigmoid(u): the derivative of x sigmoid(u) for a slope of x u'.
template <class T> __device__ inline T gated_slope(Pair<T> u, Pair<T> slope) {
    bool below = u.high < 0;
    Tail<T> tail(u.high);
    Pair<T> raised = exp_pair(tail.shift - abs_of(u.high), below ? u.low : -u.low);
    Pair<T> one = {1, 0}, e = {raised.high * tail.unit, raised.low * tail.unit}, d = one + e;
    // For u < 0 it is e (1 + e + slope) / d^2, where 1 + slope may cancel, else (1 + e + e slope) / d^2.
    Pair<T> top = below ? (one + slope + e) * raised : Pair<T>{mul_add(slope.high, e.high, d.high), d.low};
    return top.over(d * d) * tail.unit;
}
// x factor, which is exact where exponentials of it are neither 0 nor infinite.
template <class T> __device__ inline Pair<T> scaled(T x, T factor) {
    Pair<T> product = Pair<T>::product(x, factor);
    return {product.high, abs_of(product.high) > 1024 ? (T)0 : product.low};
}
// ln(1 + e^z) / beta for z = beta x, and x where that is above a threshold.
template <class T> __device__ inline T softplus_of(T x, T beta, T threshold) {
    Pair<T> z = scaled(x, beta);
    T soft = log1p_of(exp_pair(-abs_of(z.high), z.high > 0 ? -z.low : z.low).value());
    return z.high > threshold ? x : (z.high > 0 ? z.high + soft : soft) / beta;
}
template <class T> __device__ inline T softplus_slope(T x, T beta, T threshold) {
    Pair<T> z = scaled(x, beta);
    return z.high > threshold ? (T)1 : gated((T)1, z);
}
template <class T> __device__ inline T silu_of(T x) { return gated(x, Pair<T>{x, 0}); }
template <class T> __device__ inline T silu_slope(T all) {
    // Beyond it, 0 and 1.
    Pair<T> x = {clamp_of(all, (T)-800, (T)750), 0};
    return gated_slope(x, x);
}
// u = 2 sqrt(2 / pi) x + cubic x^3, for x limited to where its sigmoid is 0 or 1; or x u'.
template <class T> __device__ inline Pair<T> gelu_tanh_part(T all, f64 cubic, f64 low) {
    T x = clamp_of(all, (T)-23, (T)23);
    Pair<T> linear = Pair<T>::constant(TWO_SQRT_2_OVER_PI, TWO_SQRT_2_OVER_PI_LOW);
    return (Pair<T>::product(x, x) * Pair<T>::constant(cubic, low) + linear) * Pair<T>{x, 0};
}
template <class T> __device__ inline Pair<T> gelu_tanh_argument(T x) { return gelu_tanh_part(x, GELU_CUBIC, GELU_CUBIC_LOW); }
template <class T> __device__ inline T gelu_tanh_of(T x) { return gated(x, gelu_tanh_argument(x)); }
template <class T> __device__ inline T gelu_tanh_slope(T x) {
    return gated_slope(gelu_tanh_argument(x), gelu_tanh_part(x, GELU_CUBIC_SLOPE, GELU_CUBIC_SLOPE_LOW));
}
template <class T> __device__ inline T hard_sigmoid_of(T x) { return clamp_of(x + 3, (T)0, (T)6) / 6; }
// x tanh(log(1 + e^x)) = x n y with n = e (e + 2), e = e^x, y = 1 / (n + 2), for x limited to where n y is 1.
template <class T> struct Mish {
    Pair<T> e, y;

    __device__ Mish(T x) : Mish(Pair<T>{exp_of(x), 0}) {}
    __device__ Mish(Pair<T> e) : e(e) {
        y = (e * (e + Pair<T>{2, 0}) + Pair<T>{2, 0}).recip();
    }
};
template <class T> __device__ inline T mish_of(T x) {
    Mish<T> of(x > 25 ? (T)25 : x);
    return x * (of.e * (of.e + Pair<T>{2, 0}) * of.y).value();
}
// e y ((e + 2) + 4 x (1 + e) y), the exponential last, as it may be subnormal.
template <class T> __device__ inline T mish_slope(T all) {
    T x = clamp_of(all, (T)-800, (T)25);
    Tail<T> tail(x);
    T raised = exp_of(x + tail.shift);
    Mish<T> of(Pair<T>{raised * tail.unit, 0});
    Pair<T> bend = (of.e + Pair<T>{1, 0}) * of.y * Pair<T>{4 * x, 0};
    return (Pair<T>{raised, 0} * (of.y * (of.e + Pair<T>{2, 0} + bend))).value() * tail.unit;
}
// x^(y + rest), where the rest is below the last digit of y.
template <class T> __device__ inline T power_parts(T x, T y, T rest) {
    T whole = power(x, y);
    if (rest == 0) {
        return whole;
    }
    // x^rest is 1 + rest ln x.
    T better = rest * log_of(abs_of(x)) * whole + whole;
    return is_nan(better) ? whole : better;
}
// factor x^y, without overflow or underflow of the power.
template <class T> __device__ inline T times_power(T x, T y, T factor) {
    T whole = power(x, y), small = sizeof(T) == 4 ? (T)1e-35 : (T)1e-305;
    if (is_nan(whole) || (abs_of(whole) >= small && abs_of(whole) <= 1 / small)) {
        return factor * whole;
    }
    T root = power(abs_of(x), y * (T)0.5), product = factor * root * root;
    return whole < 0 || 1 / whole < 0 ? -product : product;
}
// g times the derivative of x^(y + rest); 0 where y is 0.
template <class T> __device__ inline T power_slope(T x, T y, T rest, T g) {
    if (y == 0) {
        return 0;
    }
    T less = y - 1, one = y - less, low = rest + (y - (less + one) + (one - 1));
    T slope = times_power(x, less, g * y);
    if (low == 0 && rest == 0) {
        return slope;
    }
    T better = mul_add(slope, low * log_of(abs_of(x)) + rest / y, slope);
    return is_nan(better) ? slope : better;
}
template <class T> __device__ inline T pow_exponent_slope(T x, T y, T g) {
    return x == 0 && y >= 0 ? (T)0 : times_power(x, y, g * log_of(x));
}
// -g x / y^2, without overflow or underflow of a part of it.
__device__ inline f32 div_slope(f32 x, f32 y, f32 g) { return (f32)(-((f64)g * x) / ((f64)y * y)); }
__device__ inline f64 div_slope(f64 x, f64 y, f64 g) {
    if (x == 0 || y == 0 || g == 0 || !is_finite(x) || !is_finite(y) || !is_finite(g)) {
        return -g * (x / y / y);
    }
    int of_x, of_y, of_g;
    f64 a = frexp(x, &of_x), b = frexp(y, &of_y), c = frexp(g, &of_g);
    return ldexp(-(c * a) / (b * b), of_x + of_g - 2 * of_y);
}
// g y / (x^2 + y^2), likewise.
__device__ inline f32 angle_slope(f32 x, f32 y, f32 g) { return (f32)((f64)g * y / ((f64)x * x + (f64)y * y)); }
__device__ inline f64 angle_slope(f64 x, f64 y, f64 g) {
    if (y == 0 || g == 0 || !is_finite(x) || !is_finite(y) || !is_finite(g)) {
        f64 distance = hypot(x, y);
        return g * (y / distance) / distance;
    }
    int of_x, of_y, of_g;
    f64 a = frexp(x, &of_x), b = frexp(y, &of_y), c = frexp(g, &of_g);
    int larger = x == 0 || of_x < of_y ? of_y : of_x;
    f64 across = ldexp(a, of_x - larger), along = ldexp(b, of_y - larger);
    return ldexp(c * b / mul_add(across, across, along * along), of_y + of_g - 2 * larger);
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
#define BINARY_GRADIENT(name, expression)                                 \
    template <class T> struct name##_gradient {                           \
        __device__ T operator()(T x, T y, T g) const { return (expression); } \
    };
#define COMPARISON(name, comparison)                                  \
    template <class T> struct name##_function {                       \
        __device__ u8 operator()(T x, T y) const { return x comparison y; } \
    };
