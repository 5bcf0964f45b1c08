// fill, copy, where, and casts between types of 8, 32 and 64 bits. Kernels that only move values exist once per element size.

template <class T> struct Fill {
    T* out;
    T value;

    template <int V> __device__ void at(const Offsets<1>& offsets) const {
        Pack<T, V> pack = load<V>(&value, false);
        store<V>(out + offsets.at[0], pack);
    }
};

// Transposing copy: `out` is contiguous along j, `x` along i. Tiles go through shared memory, so that loads and stores are coalesced. blockIdx.x
// selects the tile, blockIdx.y the outer position.
constexpr int TILE = 32;
constexpr int TILE_ROWS = 8;
template <class T>
__device__ inline void transpose(T* out, const T* x, u32 rows, u32 columns, i64 out_row, i64 x_column, const Walk<2>& outer) {
    __shared__ T tile[TILE][TILE + 1];
    u32 across = (columns + TILE - 1) / TILE;
    u32 i0 = blockIdx.x / across * TILE, j0 = blockIdx.x % across * TILE;
    for (u64 plane = blockIdx.y; plane < outer.elements; plane += gridDim.y) {
        Offsets<2> at = offsets(outer, plane);
        for (u32 j = threadIdx.y; j < TILE; j += TILE_ROWS) {
            if (i0 + threadIdx.x < rows && j0 + j < columns) {
                tile[j][threadIdx.x] = x[at.at[1] + (j0 + j) * x_column + i0 + threadIdx.x];
            }
        }
        __syncthreads();
        for (u32 i = threadIdx.y; i < TILE; i += TILE_ROWS) {
            if (i0 + i < rows && j0 + threadIdx.x < columns) {
                out[at.at[0] + (i0 + i) * out_row + j0 + threadIdx.x] = tile[threadIdx.x][i];
            }
        }
        __syncthreads();
    }
}

#define FOR_BITS(bits, T)                                                                                             \
    extern "C" __global__ void fill_##bits(T* out, u64 value, const __grid_constant__ Walk<1> walk) {                 \
        for_vectors<lanes_of<T, T>>(walk, Fill<T>{out, (T)value});                                                       \
    }                                                                                                                 \
    extern "C" __global__ void copy_##bits(T* out, const T* x, const __grid_constant__ Walk<2> walk) {                \
        map(out, walk, [](T x) -> T { return x; }, x);                                                                \
    }                                                                                                                 \
    extern "C" __global__ void transpose_##bits(T* out, const T* x, u32 rows, u32 columns, i64 out_row, i64 x_column, \
                                                const __grid_constant__ Walk<2> outer) {                              \
        transpose(out, x, rows, columns, out_row, x_column, outer);                                                   \
    }                                                                                                                 \
    extern "C" __global__ void where_cond_##bits(T* out, const u8* condition, const T* x, const T* y,                 \
                                                 const __grid_constant__ Walk<4> walk) {                              \
        map(out, walk, [](u8 c, T a, T b) -> T { return c ? a : b; }, condition, x, y);                                  \
    }
FOR_BITS(b8, u8)
FOR_BITS(b16, u16)
FOR_BITS(b32, u32)
FOR_BITS(b64, u64)

CAST_BOTH(f32, f64)
CAST_BOTH(f32, i64)
CAST_BOTH(f32, u8)
CAST_BOTH(f32, bool)
CAST_BOTH(f64, i64)
CAST_BOTH(f64, u8)
CAST_BOTH(f64, bool)
CAST_BOTH(i64, u8)
CAST_BOTH(i64, bool)
CAST_BOTH(u8, bool)

extern "C" __global__ void logical_not_bool(u8* out, const u8* x, const __grid_constant__ Walk<2> walk) {
    map(out, walk, [](u8 x) -> u8 { return x == 0; }, x);
}
