// Conversions between DTYPE, which has 16 bits, and other types.
#define BOTH(T, other) CAST(T, other) CAST(other, T)
#define ALL(T)   \
    BOTH(T, f32) \
    BOTH(T, f64) \
    BOTH(T, i64) \
    BOTH(T, u8)  \
    BOTH(T, bool)
ALL(DTYPE)
BOTH(bf16, f16)
