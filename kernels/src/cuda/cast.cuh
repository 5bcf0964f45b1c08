// Conversions: values of 16-bit floats are those of f32.

// Floats become integers by rounding towards 0 and saturating, NaN becomes 0; integers wrap around; what is not 0 is true.
template <class To, class From> struct Cast {
    __device__ static To of(From x) { return (To)x; }
};
template <class From> struct Cast<bool, From> {
    __device__ static u8 of(From x) { return x != 0; }
};
template <class To> struct Cast<To, bool> {
    __device__ static To of(u8 x) { return (To)(x != 0); }
};
template <class From> __device__ inline i64 saturated_i64(From x) {
    const From limit = (From)9223372036854775808.0;
    return is_nan(x) ? 0 : x >= limit ? highest<i64>() : x < -limit ? lowest<i64>() : (i64)x;
}
template <class From> __device__ inline u8 saturated_u8(From x) { return !(x > 0) ? 0 : x >= 255 ? 255 : (u8)x; }
template <> struct Cast<i64, f32> {
    __device__ static i64 of(f32 x) { return saturated_i64(x); }
};
template <> struct Cast<i64, f64> {
    __device__ static i64 of(f64 x) { return saturated_i64(x); }
};
template <> struct Cast<u8, f32> {
    __device__ static u8 of(f32 x) { return saturated_u8(x); }
};
template <> struct Cast<u8, f64> {
    __device__ static u8 of(f64 x) { return saturated_u8(x); }
};

// The f32 that rounds to 16 bits as the number itself would: rounded towards 0, and made odd if that was not exact.
__device__ inline f32 rounded_to_odd(f32 towards_0, bool exact) {
    return exact ? towards_0 : __uint_as_float(__float_as_uint(towards_0) | 1);
}
template <class From> struct ToHalf {
    __device__ static f32 of(From x) { return Cast<f32, From>::of(x); }
};
template <> struct ToHalf<f64> {
    __device__ static f32 of(f64 x) {
        f32 near = __double2float_rz(x);
        return rounded_to_odd(near, near == x || is_nan(x));
    }
};
template <> struct ToHalf<i64> {
    __device__ static f32 of(i64 x) {
        f32 near = __ll2float_rz(x);
        return rounded_to_odd(near, (i64)near == x);
    }
};
template <class From> struct Cast<bf16, From> : ToHalf<From> {};
template <class From> struct Cast<f16, From> : ToHalf<From> {};
template <> struct Cast<bf16, bool> : Cast<f32, bool> {};
template <> struct Cast<f16, bool> : Cast<f32, bool> {};

#define CAST(from, to)                                                                                \
    extern "C" __global__ void cast_##from##_##to(Type<to>::Stored* out, const Type<from>::Stored* x, \
                                                  const __grid_constant__ Walk<2> walk) {             \
        auto cast = [](Opmath<Type<from>::Stored> x) -> Opmath<Type<to>::Stored> {                    \
            return Cast<to, Opmath<from>>::of(x);                                                     \
        };                                                                                            \
        map(out, walk, cast, x);                                                                      \
    }
#define CAST_BOTH(a, b) CAST(a, b) CAST(b, a)
