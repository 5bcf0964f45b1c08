// Direct convolution for few channels and filters, stride 1 and dilation 1. Input tiles are staged in shared memory; no im2col.

// Rows and columns of an output tile, neighbouring outputs per thread, and channels per step.
enum : u32 { TILE_ROWS = 8, TILE_COLUMNS = 64, ACROSS = 4, TAKEN = 4 };
enum : u32 { TILE_THREADS = TILE_ROWS * TILE_COLUMNS / ACROSS };
using Across = Pack<T, ACROSS>;

// out[n, o, y, x] = bias[o] + sum of w[o, c, i, j] in[n, c, y + i - padding, x + j - padding], then ReLU if `relu`. Filters have at most
// WIDE x WIDE elements. `groups` groups of FILTERS filters each are computed one after the other; a plane is one group of an image. If `is_grad`,
// `in` is the output gradient, `out` the input gradient, and filters are rotated: w[c, o, kh - 1 - i, kw - 1 - j].
template <u32 WIDE, u32 FILTERS>
__device__ inline void direct(S* out, const S* in, const S* w, const S* bias, u32 channels, u32 filters, u32 groups, u32 is_grad,
                              u32 relu, const Conv& conv) {
    constexpr u32 HIGH = TILE_ROWS + WIDE - 1, LINES = TILE_COLUMNS / ACROSS + 1, PITCH = LINES * ACROSS;
    static_assert(WIDE <= ACROSS + 1 && FILTERS % ACROSS == 0, "what a thread reads at once");
    __shared__ Across seen[TAKEN][HIGH][LINES];
    __shared__ Across weights[TAKEN][WIDE][WIDE][FILTERS / ACROSS];
    u32 kh = conv.kernel_h;
    u32 in_rows = is_grad ? conv.rows : conv.height, in_columns = is_grad ? conv.columns : conv.width;
    u32 rows = is_grad ? conv.height : conv.rows, columns = is_grad ? conv.width : conv.columns;
    u32 across = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    u32 top = blockIdx.x / across * TILE_ROWS, left = blockIdx.x % across * TILE_COLUMNS;
    i64 first_row = (i64)top - (is_grad ? (i64)kh - 1 - conv.padding_h : conv.padding_h);
    i64 first_column = (i64)left - (is_grad ? (i64)WIDE - 1 - conv.padding_w : conv.padding_w);
    u32 line = threadIdx.x % (TILE_COLUMNS / ACROSS), row = threadIdx.x / (TILE_COLUMNS / ACROSS);
    u32 y = top + row, x = left + line * ACROSS;
    for (u64 plane = blockIdx.y; plane < conv.planes; plane += gridDim.y) {
        u64 image = plane / groups;
        u32 first = (u32)(plane % groups) * FILTERS;
        T sums[FILTERS][ACROSS];
#pragma unroll
        for (u32 f = 0; f < FILTERS; ++f) {
            T start = bias && first + f < filters ? (T)bias[first + f] : (T)0;
#pragma unroll
            for (u32 v = 0; v < ACROSS; ++v) {
                sums[f][v] = start;
            }
        }
        for (u32 taken = 0; taken < channels; taken += TAKEN) {
            for (u32 e = threadIdx.x; e < TAKEN * HIGH * PITCH; e += TILE_THREADS) {
                u32 channel = taken + e / (HIGH * PITCH);
                i64 h = first_row + e / PITCH % HIGH, at = first_column + e % PITCH;
                bool inside = channel < channels && h >= 0 && h < in_rows && at >= 0 && at < in_columns;
                u64 of_channel = (image * channels + channel) * in_rows;
                ((T*)seen)[e] = inside ? (T)in[(of_channel + h) * in_columns + at] : (T)0;
            }
            for (u32 e = threadIdx.x; e < TAKEN * WIDE * WIDE * FILTERS; e += TILE_THREADS) {
                u32 f = first + e % FILTERS, j = e / FILTERS % WIDE, i = e / (FILTERS * WIDE) % WIDE;
                u32 channel = taken + e / (FILTERS * WIDE * WIDE);
                bool exists = channel < channels && f < filters && i < kh;
                u64 at = is_grad ? (((u64)channel * filters + f) * kh + (kh - 1 - i)) * WIDE + (WIDE - 1 - j)
                                 : (((u64)f * channels + channel) * kh + i) * WIDE + j;
                ((T*)weights)[e] = exists ? (T)w[at] : (T)0;
            }
            __syncthreads();
            for (u32 c = 0; c < TAKEN; ++c) {
                for (u32 i = 0; i < kh; ++i) {
                    Across own = seen[c][row + i][line], next = seen[c][row + i][line + 1];
#pragma unroll
                    for (u32 j = 0; j < WIDE; ++j) {
#pragma unroll
                        for (u32 f = 0; f < FILTERS; ++f) {
                            T weight = weights[c][i][j][f / ACROSS].at[f % ACROSS];
#pragma unroll
                            for (u32 v = 0; v < ACROSS; ++v) {
                                sums[f][v] += weight * (v + j < ACROSS ? own.at[(v + j) % ACROSS] : next.at[(v + j) % ACROSS]);
                            }
                        }
                    }
                }
            }
            __syncthreads();
        }
        bool whole = columns % ACROSS == 0 && (u64)out % sizeof(Pack<S, ACROSS>) == 0;
#pragma unroll
        for (u32 f = 0; f < FILTERS; ++f) {
            Pack<S, ACROSS> made;
#pragma unroll
            for (u32 v = 0; v < ACROSS; ++v) {
                made.at[v] = relu && sums[f][v] <= 0 ? (T)0 : sums[f][v];
            }
            S* to = out + ((image * filters + first + f) * rows + y) * columns + x;
            if (first + f < filters && y < rows) {
                if (whole && x < columns) {
                    store<ACROSS>(to, made);
                } else {
                    for (u32 v = 0; v < ACROSS && x + v < columns; ++v) {
                        to[v] = made.at[v];
                    }
                }
            }
        }
    }
}
#define DIRECT(W, F)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2) NAMED(direct_##W##_##F, DTYPE)(                         \
        S * out, const S* in, const S* w, const S* bias, u32 channels, u32 filters, u32 groups, u32 is_grad, u32 relu,     \
        const __grid_constant__ Conv conv) {                                                                               \
        direct<W, F>(out, in, w, bias, channels, filters, groups, is_grad, relu, conv);                                    \
    }
#define DIRECTS(W) DIRECT(W, 4) DIRECT(W, 8) DIRECT(W, 12) DIRECT(W, 16)
DIRECTS(1)
DIRECTS(3)
DIRECTS(5)
