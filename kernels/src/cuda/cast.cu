// Conversions between DTYPE, which has 16 bits, and other types.
#define ALL(T)   \
    CAST_BOTH(T, f32) \
    CAST_BOTH(T, f64) \
    CAST_BOTH(T, i64) \
    CAST_BOTH(T, u8)  \
    CAST_BOTH(T, bool)
ALL(DTYPE)
CAST_BOTH(bf16, f16)
