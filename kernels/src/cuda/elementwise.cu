// Elementwise functions of elements of the type DTYPE, one program a type: a program that computes in F32 compiles no other.
// FLOATS is 1 for the floating-point types. Numbers that a function holds are of the type that it computes in.
using Computed = Opmath<DTYPE>;

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

// Functions of one element; some hold one or two numbers.
template <class T> struct Unary {
    T a, b;
};
#define FUNCTION1(Name, expression)                                 \
    template <class T> struct Name : Unary<T> {                     \
        __device__ T operator()(T x) const { return (expression); } \
    };
FUNCTION1(Neg, negate(x))
FUNCTION1(Abs, is_negative(x) ? sub((T)0, x) : x)
FUNCTION1(Sign, (T)((x > 0) - is_negative(x)))
FUNCTION1(Square, mul(x, x))
FUNCTION1(AddScalar, add(x, this->a))
FUNCTION1(MulScalar, mul(x, this->a))
template <> struct Abs<f32> : Unary<f32> {
    __device__ f32 operator()(f32 x) const { return abs_of(x); }
};
template <> struct Abs<f64> : Unary<f64> {
    __device__ f64 operator()(f64 x) const { return abs_of(x); }
};
template <class T> struct Clamp : Unary<T> {
    __device__ T operator()(T x) const {
        T raised = x < this->a ? this->a : x;
        return raised > this->b ? this->b : raised;
    }
};

// Functions of two elements; gradients take (x or y, g).
#define FUNCTION2(Name, expression)                                      \
    template <class T> struct Name {                                     \
        __device__ T operator()(T x, T y) const { return (expression); } \
    };
FUNCTION2(Add, add(x, y))
FUNCTION2(Sub, sub(x, y))
FUNCTION2(Mul, mul(x, y))
FUNCTION2(Div, divide(x, y))
FUNCTION2(Pow, power(x, y))
FUNCTION2(Maximum, maximum(x, y))
FUNCTION2(Minimum, minimum(x, y))

#if FLOATS
constexpr f64 INV_SQRT_2 = 0.70710678118654752;
constexpr f64 INV_SQRT_TAU = 0.3989422804014327;
constexpr f64 TWO_SQRT_2_OVER_PI = 1.5957691216057308;
constexpr f64 GELU_CUBIC = 0.044715;

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

FUNCTION1(Cube, x * x * x)
FUNCTION1(Exp, exp_of(x))
FUNCTION1(Log, log_of(x))
FUNCTION1(Sqrt, sqrt_of(x))
FUNCTION1(Rsqrt, 1 / sqrt_of(x))
FUNCTION1(Reciprocal, 1 / x)
FUNCTION1(Sin, sin_of(x))
FUNCTION1(Cos, cos_of(x))
FUNCTION1(Tanh, tanh_of(x))
FUNCTION1(Sigmoid, sigmoid_of(x))
FUNCTION1(Erf, erf_of(x))
FUNCTION1(Relu, x < 0 ? (T)0 : x)
FUNCTION1(Silu, x* sigmoid_of(x))
FUNCTION1(Gelu, x* normal_cdf(x))
FUNCTION1(GeluTanh, x* gelu_gate(x))
FUNCTION1(PowScalar, power(x, this->a))

FUNCTION2(ReluGrad, x > 0 ? y : (T)0)
FUNCTION2(TanhGrad, y*(1 - x * x))
FUNCTION2(SigmoidGrad, y* x*(1 - x))
FUNCTION2(GeluGrad, y*(normal_cdf(x) + x * (exp_of(x * x * (T)-0.5) * (T)INV_SQRT_TAU)))
template <class T> struct GeluTanhGrad {
    __device__ T operator()(T x, T g) const {
        T s = gelu_gate(x);
        T slope = (T)TWO_SQRT_2_OVER_PI * (1 + (T)(3 * GELU_CUBIC) * x * x);
        return g * (s + x * (s * (1 - s)) * slope);
    }
};
template <class T> struct SiluGrad {
    __device__ T operator()(T x, T g) const {
        T s = sigmoid_of(x);
        return g * (s * (1 + x * (1 - s)));
    }
};
#endif

#define JOINED(name, dtype) name##_##dtype
#define NAMED(name, dtype) JOINED(name, dtype)
#define UNARY(name, Name)                                                                                            \
    extern "C" __global__ void NAMED(name, DTYPE)(DTYPE * out, const DTYPE* x, const __grid_constant__ Walk<2> walk, \
                                                  u64 a, u64 b) {                                                    \
        map1(out, x, walk, Name<Computed>{from_bits<Computed>(a), from_bits<Computed>(b)});                          \
    }
#define BINARY(name, Name)                                                                     \
    extern "C" __global__ void NAMED(name, DTYPE)(DTYPE * out, const DTYPE* x, const DTYPE* y, \
                                                  const __grid_constant__ Walk<3> walk) {      \
        map2(out, x, y, walk, Name<Computed>());                                               \
    }
#define COMPARE(name, comparison)                                                           \
    extern "C" __global__ void NAMED(name, DTYPE)(u8 * out, const DTYPE* x, const DTYPE* y, \
                                                  const __grid_constant__ Walk<3> walk) {   \
        map2(out, x, y, walk, [](Computed x, Computed y) -> u8 { return x comparison y; }); \
    }

UNARY(neg, Neg)
UNARY(abs, Abs)
UNARY(sign, Sign)
UNARY(square, Square)
UNARY(add_scalar, AddScalar)
UNARY(mul_scalar, MulScalar)
UNARY(clamp, Clamp)
BINARY(add, Add)
BINARY(sub, Sub)
BINARY(mul, Mul)
BINARY(div, Div)
BINARY(pow, Pow)
BINARY(maximum, Maximum)
BINARY(minimum, Minimum)
COMPARE(eq, ==)
COMPARE(ne, !=)
COMPARE(lt, <)
COMPARE(le, <=)
COMPARE(gt, >)
COMPARE(ge, >=)
#if FLOATS
UNARY(cube, Cube)
UNARY(exp, Exp)
UNARY(log, Log)
UNARY(sqrt, Sqrt)
UNARY(rsqrt, Rsqrt)
UNARY(reciprocal, Reciprocal)
UNARY(sin, Sin)
UNARY(cos, Cos)
UNARY(tanh, Tanh)
UNARY(sigmoid, Sigmoid)
UNARY(erf, Erf)
UNARY(relu, Relu)
UNARY(silu, Silu)
UNARY(gelu, Gelu)
UNARY(gelu_tanh, GeluTanh)
UNARY(pow_scalar, PowScalar)
BINARY(relu_grad, ReluGrad)
BINARY(tanh_grad, TanhGrad)
BINARY(sigmoid_grad, SigmoidGrad)
BINARY(gelu_grad, GeluGrad)
BINARY(gelu_tanh_grad, GeluTanhGrad)
BINARY(silu_grad, SiluGrad)
#endif
