// Filter gradients of convolutions with few channels and filters, stride 1 and dilation 1.

// The pitch of planes in shared memory: odd, so that neighbouring rows are in different banks.
__device__ inline u32 pitch(u32 columns) { return columns | 1; }

// Tiling of the output positions, and the tiles per thread block.
struct Cut {
    u32 rows, columns;
    u32 each;
    u32 splits;
};

// parts[e, block] = sum for filter element e over the thread block's tiles. Input pixels and output gradients of a tile are in shared memory. A
// thread computes one filter row of at most W elements for one filter and channel, over every `splits`th row of a tile.
template <u32 W>
__device__ inline void few_weight_grad(T* parts, const S* x, const S* g, u32 images, u32 channels, const Cut& cut, const Conv& conv) {
    extern __shared__ __align__(16) unsigned char memory[];
    u32 high = cut.rows + conv.kernel_h - 1, seen = cut.columns + conv.kernel_w - 1;
    u32 wide = pitch(seen), across = pitch(cut.columns), pairs = conv.each * channels * conv.kernel_h;
    u32 tiles_across = (conv.columns + cut.columns - 1) / cut.columns, of_image = (conv.rows + cut.rows - 1) / cut.rows * tiles_across;
    T* image = (T*)memory;
    T* slopes = image + channels * high * wide + W;
    u32 pair = threadIdx.x % pairs, split = threadIdx.x / pairs;
    u32 row = pair % conv.kernel_h, channel = pair / conv.kernel_h % channels, filter = pair / conv.kernel_h / channels;
    T sums[W] = {};
    u64 tiles = (u64)images * of_image, first = (u64)blockIdx.x * cut.each;
    for (u64 t = first; t < tiles && t < first + cut.each; ++t) {
        u64 n = t / of_image;
        u32 top = (u32)(t % of_image) / tiles_across * cut.rows, left = (u32)(t % of_image) % tiles_across * cut.columns;
        u32 rows = min(cut.rows, conv.rows - top), columns = min(cut.columns, conv.columns - left);
        for (u32 e = threadIdx.x; e < channels * high * seen; e += blockDim.x) {
            u32 line = e / seen, w = e - line * seen, plane = line / high;
            i64 h = (i64)top + (line - plane * high) - conv.padding_h, at = (i64)left + w - conv.padding_w;
            bool inside = h >= 0 && h < conv.height && at >= 0 && at < conv.width;
            image[line * wide + w] = inside ? (T)x[(n * channels + plane) * conv.pixels() + h * conv.width + at] : (T)0;
        }
        for (u32 e = threadIdx.x; e < conv.each * rows * columns; e += blockDim.x) {
            u32 line = e / columns, at = e - line * columns, f = line / rows, y = line - f * rows;
            slopes[(f * cut.rows + y) * across + at] = g[(n * conv.each + f) * conv.places() + (top + y) * conv.columns + left + at];
        }
        __syncthreads();
        for (u32 y = split; y < rows; y += cut.splits) {
            const T* from = image + (channel * high + y + row) * wide;
            const T* slope = slopes + (filter * cut.rows + y) * across;
            T window[W];
#pragma unroll
            for (u32 j = 0; j + 1 < W; ++j) {
                window[j + 1] = from[j];
            }
#pragma unroll 4
            for (u32 x = 0; x < columns; ++x) {
#pragma unroll
                for (u32 j = 0; j + 1 < W; ++j) {
                    window[j] = window[j + 1];
                }
                window[W - 1] = from[x + W - 1];
#pragma unroll
                for (u32 j = 0; j < W; ++j) {
                    sums[j] += slope[x] * window[j];
                }
            }
        }
        __syncthreads();
    }
    T* shared = (T*)memory;
    u32 size = pairs * conv.kernel_w;
#pragma unroll
    for (u32 j = 0; j < W; ++j) {
        if (j < conv.kernel_w) {
            shared[split * size + pair * conv.kernel_w + j] = sums[j];
        }
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < size; e += blockDim.x) {
        T sum = shared[e];
        for (u32 s = 1; s < cut.splits; ++s) {
            sum += shared[s * size + e];
        }
        parts[(u64)e * gridDim.x + blockIdx.x] = sum;
    }
}
#define FEW_WEIGHT_GRAD(W)                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1) NAMED(few_weight_grad_##W, DTYPE)(                             \
        T * parts, const S* x, const S* g, u32 images, u32 channels, Cut cut, const __grid_constant__ Conv conv) {      \
        few_weight_grad<W>(parts, x, g, images, channels, cut, conv);                                                   \
    }
FEW_WEIGHT_GRAD(3)
FEW_WEIGHT_GRAD(5)
FEW_WEIGHT_GRAD(8)
// Sums the parts of each filter element.
extern "C" __global__ void NAMED(few_weight_grad_join, DTYPE)(S* out, const T* parts, u64 count, u64 size, u32 lanes) {
    for_rows<WarpGroup>(size, lanes, [&](const WarpGroup& group, u64 row, bool exists) {
        const T* own = parts + (exists ? row : 0) * count;
        T sum = group.fold_blocks<Sum<T>>(count, exists ? count : 0, [&](const BlockLane& block) {
            return fold_slots<Sum<T>>(block, [&](int slot) { return slot < block.count ? own[block.at(slot)] : (T)0; });
        });
        if (exists && group.leads()) {
            out[row] = sum;
        }
    });
}
