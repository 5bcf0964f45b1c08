// Image augmentation, one thread per pixel. Every product and sum is rounded separately, in the CPU's order, so the bits equal the CPU's.

struct Images {
    u32 samples, channels, rows, columns;
};

__device__ inline f32 nearest(const f32* pixels, const Images& from, f32 y, f32 x) {
    y = rintf(y);
    x = rintf(x);
    // False for NaN.
    bool inside = y >= 0 && y < (f32)from.rows && x >= 0 && x < (f32)from.columns;
    return inside ? pixels[(u64)y * from.columns + (u64)x] : 0.0f;
}

// The two pixels around a position clamped to 0..size, and the weight of the second one.
struct Between {
    u32 first, second;
    f32 share;

    __device__ Between(f32 at, u32 size) {
        f32 last = (f32)(size - 1);
        // NaN becomes 0.
        at = at > 0 ? (at < last ? at : last) : 0.0f;
        first = (u32)at < size - 1 ? (u32)at : size - 1;
        second = first + 1 < size - 1 ? first + 1 : size - 1;
        share = add_rounded(at, -(f32)first);
    }
    __device__ f32 mix(f32 a, f32 b) const {
        return add_rounded(mul_rounded(add_rounded(1.0f, -share), a), mul_rounded(share, b));
    }
};

__device__ inline f32 bilinear(const f32* pixels, const Images& from, f32 y, f32 x) {
    Between down(y, from.rows), right(x, from.columns);
    const f32* upper = pixels + (u64)down.first * from.columns;
    const f32* lower = pixels + (u64)down.second * from.columns;
    return down.mix(right.mix(upper[right.first], upper[right.second]),
                    right.mix(lower[right.first], lower[right.second]));
}

// Affine warp: out[n, c, i, j] = x[n, c] at position matrices[n] (i, j, 1)
#define WARP(sample)                                                                                             \
    extern "C" __global__ void warp_##sample(const f32* x, const f32* matrices, f32* out,                        \
                                             const __grid_constant__ Images from,                                \
                                             const __grid_constant__ Images to) {                                \
        u32 all = to.samples * to.channels * to.rows * to.columns;                                               \
        for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < all; at += gridDim.x * blockDim.x) {           \
            u32 row = at / to.columns, image = row / to.rows;                                                    \
            f32 i = (f32)(row % to.rows), j = (f32)(at % to.columns);                                            \
            const f32* m = matrices + image / to.channels * 6;                                                   \
            f32 y = add_rounded(add_rounded(mul_rounded(m[0], i), m[2]), mul_rounded(m[1], j));                  \
            f32 x_at = add_rounded(add_rounded(mul_rounded(m[3], i), m[5]), mul_rounded(m[4], j));               \
            out[at] = sample(x + (u64)image * from.rows * from.columns, from, y, x_at);                          \
        }                                                                                                        \
    }
WARP(nearest)
WARP(bilinear)

// Reflects a position at most size - 1 outside of 0..size into it.
__device__ inline u32 reflected(int at, u32 size) {
    int last = (int)size - 1;
    at = at < 0 ? -at : at;
    return (u32)(at > last ? 2 * last - at : at);
}

// Columns of a thread block's tile.
constexpr u32 BLUR_COLUMNS = 64;
// Separable blur and normalization. A tile has `high` rows; columns, including the halo, are summed vertically first, then rows horizontally.
extern "C" __global__ void __launch_bounds__(256) blur(const f32* x, const f32* weights, f32* out,
                                                       const __grid_constant__ Images images, u32 taps, u32 high, f32 mean,
                                                       f32 std) {
    extern __shared__ f32 lines[];
    u32 pitch = BLUR_COLUMNS + taps - 1, across = (images.columns + BLUR_COLUMNS - 1) / BLUR_COLUMNS;
    u32 down = (images.rows + high - 1) / high, tiles = images.samples * images.channels * down * across;
    int reach = (int)taps / 2;
    for (u32 t = blockIdx.x; t < tiles; t += gridDim.x) {
        u32 image = t / (down * across), top = t / across % down * high, left = t % across * BLUR_COLUMNS;
        u32 rows = min(high, images.rows - top), columns = min(BLUR_COLUMNS, images.columns - left), wide = columns + taps - 1;
        const f32* w = weights + image / images.channels * taps;
        const f32* pixels = x + (u64)image * images.rows * images.columns;
        for (u32 e = threadIdx.x; e < rows * wide; e += blockDim.x) {
            u32 row = e / wide, at = e - row * wide;
            int i = (int)(top + row) - reach;
            const f32* column = pixels + reflected((int)(left + at) - reach, images.columns);
            f32 line = 0;
            for (u32 a = 0; a < taps; ++a) {
                f32 term = mul_rounded(w[a], column[(u64)reflected(i + (int)a, images.rows) * images.columns]);
                line = a == 0 ? term : add_rounded(line, term);
            }
            lines[row * pitch + at] = line;
        }
        __syncthreads();
        for (u32 e = threadIdx.x; e < rows * columns; e += blockDim.x) {
            u32 row = e / columns, at = e - row * columns;
            f32 sum = 0;
            for (u32 b = 0; b < taps; ++b) {
                f32 term = mul_rounded(w[b], lines[row * pitch + at + b]);
                sum = b == 0 ? term : add_rounded(sum, term);
            }
            out[((u64)image * images.rows + top + row) * images.columns + left + at] = add_rounded(sum, -mean) / std;
        }
        __syncthreads();
    }
}
