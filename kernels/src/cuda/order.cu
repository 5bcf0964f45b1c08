// Keys and results of a sort of elements of type DTYPE along rows; see `sort.cu`. FLOATS is 1 for floating-point types.

// Unsigned integers in the order of the elements. Zeros are equal, and NaN is the largest.
__device__ inline u32 ordered(u32 bits) { return bits >> 31 ? ~bits : bits | 0x80000000; }
__device__ inline u64 ordered(u64 bits) { return bits >> 63 ? ~bits : bits | 0x8000000000000000; }
__device__ inline u64 key_of(f32 x) { return is_nan(x) ? 0xffffffff : ordered(x == 0 ? 0u : __float_as_uint(x)); }
__device__ inline u64 key_of(f64 x) { return is_nan(x) ? ~0ull : ordered(x == 0 ? 0ull : (u64)__double_as_longlong(x)); }
__device__ inline u64 key_of(i64 x) { return (u64)x ^ 0x8000000000000000; }
__device__ inline u64 key_of(u8 x) { return x; }

// 32 bits from bit `shift` on of the key of each element, in the given order, or all bits inverted; 64 stands for the element's row.
extern "C" __global__ void NAMED(sort_keys, DTYPE)(u32* keys, const u32* order, const S* x, const __grid_constant__ Walk<2> kept,
                                                   u64 len, i64 step, u32 flip, u32 shift) {
    for (u64 i = thread_index(); i < kept.elements * len; i += thread_count()) {
        u32 at = order ? order[i] : (u32)i, row = at / (u32)len;
        if (shift == 64) {
            keys[i] = row;
        } else {
            T element = x[offsets(kept, row).at[1] + (i64)(at - row * (u32)len) * step];
            keys[i] = (u32)(key_of(element) >> shift) ^ (flip ? 0xffffffff : 0);
        }
    }
}

// The indices of the first `count` elements of each row.
extern "C" __global__ void NAMED(sorted_indices, DTYPE)(i64* out, const u32* order, const __grid_constant__ Walk<2> kept, u64 len,
                                                        u64 count, i64 step) {
    for (u64 i = thread_index(); i < kept.elements * count; i += thread_count()) {
        u64 row = quotient(i, count), place = i - row * count;
        out[offsets(kept, row).at[0] + (i64)place * step] = order[row * len + place] - row * len;
    }
}

// The same for rows of at most SHORT elements, one thread block a row: a bitonic sort of keys and places, which differ, so that it is stable.
// `size` is the power of two from `len` on.
constexpr u32 SHORT = 2048;
extern "C" __global__ void __launch_bounds__(SHORT / 4) NAMED(sort_rows, DTYPE)(i64* out, const S* x, const __grid_constant__ Walk<2> kept,
                                                                               u32 len, u32 size, u32 count, i64 out_step, i64 x_step,
                                                                               u32 flip) {
    __shared__ u64 keys[SHORT];
    __shared__ u16 places[SHORT];
    for (u64 row = blockIdx.x; row < kept.elements; row += gridDim.x) {
        Offsets<2> at = offsets(kept, row);
        for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
            u64 key = i < len ? key_of((T)x[at.at[1] + (i64)i * x_step]) : 0;
            keys[i] = i >= len ? ~0ull : flip ? ~key : key;
            places[i] = (u16)i;
        }
        __syncthreads();
        for (u32 run = 2; run <= size; run *= 2) {
            for (u32 apart = run / 2; apart > 0; apart /= 2) {
                for (u32 pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
                    u32 a = 2 * pair - (pair & (apart - 1)), b = a + apart;
                    bool later = keys[a] > keys[b] || (keys[a] == keys[b] && places[a] > places[b]);
                    if (later == ((a & run) == 0)) {
                        u64 key = keys[a];
                        u16 place = places[a];
                        keys[a] = keys[b], places[a] = places[b];
                        keys[b] = key, places[b] = place;
                    }
                }
                __syncthreads();
            }
        }
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            out[at.at[0] + (i64)i * out_step] = places[i];
        }
        __syncthreads();
    }
}
