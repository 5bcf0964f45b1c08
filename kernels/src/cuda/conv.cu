// Convolutions: patches as the columns of a matrix, for products by BLAS, and direct kernels for filters of one channel.
// Operands and patches are stored as S, sums that are not whole as what they are computed in.

// columns[plane, i, j, y, x] = what element (i, j) of the window sees in the plane at place (y, x)
extern "C" __global__ void NAMED(patches, DTYPE)(S* columns, const S* planes, const __grid_constant__ Conv conv) {
    u32 size = conv.taps() * conv.places();
    for_planes(conv.planes, size, [&](u64 plane, u32 e) {
        i64 pixel = conv.seen(e % conv.places(), e / conv.places());
        columns[plane * size + e] = pixel < 0 ? S{} : planes[plane * conv.pixels() + pixel];
    });
}

// planes[plane, h, w] = bias of its channel + sum of columns[plane, i, j, y, x] over all that see the pixel
extern "C" __global__ void NAMED(add_patches, DTYPE)(S* planes, const T* columns, const S* bias, u32 channels, u64 first,
                                                     const __grid_constant__ Conv conv) {
    for_planes(conv.planes, conv.pixels(), [&](u64 plane, u32 pixel) {
        T sum = bias ? (T)bias[(first + plane) % channels] : (T)0;
        u32 h = pixel / conv.width, w = pixel % conv.width;
        const T* tap = columns + plane * conv.taps() * conv.places();
        for (u32 i = 0; i < conv.kernel_h; ++i) {
            i64 y = conv.row_of(h, i);
            // Several are read before the first of them is added.
#pragma unroll 8
            for (u32 j = 0; j < conv.kernel_w; ++j, tap += conv.places()) {
                i64 x = conv.column_of(w, j);
                bool seen = y >= 0 && x >= 0;
                T value = seen ? tap[y * conv.columns + x] : (T)0;
                sum = seen ? sum + value : sum;
            }
        }
        planes[plane * conv.pixels() + pixel] = sum;
    });
}

// out[e] = sum of parts[n, e] in the order of n; `out` may be the first part
template <class O> __device__ inline void add_parts(O* out, const T* parts, u64 count, u64 size) {
    for (u64 e = thread_index(); e < size; e += thread_count()) {
        T sum = 0;
        for (u64 n = 0; n < count; ++n) {
            sum += parts[n * size + e];
        }
        out[e] = sum;
    }
}

// Planes are results here: image, channel, filter of the channel.
extern "C" __global__ void NAMED(depthwise, DTYPE)(S* out, const S* x, const S* weight, const S* bias, u32 channels,
                                                   const __grid_constant__ Conv conv) {
    for_planes(conv.planes, conv.places(), [&](u64 plane, u32 place) {
        const S* from = x + plane / conv.each * conv.pixels();
        u64 filter = plane % ((u64)channels * conv.each);
        T sum = bias ? (T)bias[filter] : (T)0;
        for (u32 tap = 0; tap < conv.taps(); ++tap) {
            i64 pixel = conv.seen(place, tap);
            if (pixel >= 0) {
                sum += (T)weight[filter * conv.taps() + tap] * (T)from[pixel];
            }
        }
        out[plane * conv.places() + place] = sum;
    });
}

// Planes are channels of images.
extern "C" __global__ void NAMED(depthwise_input_grad, DTYPE)(S* out, const S* g, const S* weight, const S* bias,
                                                              u32 channels, const __grid_constant__ Conv conv) {
    for_planes(conv.planes, conv.pixels(), [&](u64 plane, u32 pixel) {
        u64 channel = plane % channels;
        T sum = bias ? (T)bias[channel] : (T)0;
        for (u32 f = 0; f < conv.each; ++f) {
            const S* from = g + (plane * conv.each + f) * conv.places();
            const S* weights = weight + (channel * conv.each + f) * conv.taps();
            for (u32 tap = 0; tap < conv.taps(); ++tap) {
                i64 place = conv.place_of(pixel, tap);
                if (place >= 0) {
                    sum += (T)weights[tap] * (T)from[place];
                }
            }
        }
        out[plane * conv.pixels() + pixel] = sum;
    });
}

// One sum for each element of each filter, over all images and places.
extern "C" __global__ void __launch_bounds__(256, 1) NAMED(depthwise_weight_grad, DTYPE)(
    S* out, const S* x, const S* g, u32 channels, u32 images, const __grid_constant__ Conv conv) {
    u64 filters = (u64)channels * conv.each;
    u64 len = (u64)images * conv.places();
    for_rows<BlockGroup>(filters * conv.taps(), LANES, [&](const BlockGroup& group, u64 row, bool exists) {
        u64 filter = exists ? row / conv.taps() : 0;
        u32 tap = exists ? (u32)(row % conv.taps()) : 0;
        auto term = [&](u64 e) {
            u64 image = e / conv.places();
            u32 place = (u32)(e % conv.places());
            i64 pixel = conv.seen(place, tap);
            if (pixel < 0) {
                return (T)0;
            }
            u64 channel = image * channels + filter / conv.each;
            return mul_rounded((T)x[channel * conv.pixels() + pixel], (T)g[(image * filters + filter) * conv.places() + place]);
        };
        T sum = fold_elements<Sum<T>>(group, len, exists ? len : 0, term);
        if (exists && group.leads()) {
            out[row] = sum;
        }
    });
}

#define ADD_PARTS(O)                                                                        \
    extern "C" __global__ void add_parts_##O(O* out, const T* parts, u64 count, u64 size) { \
        add_parts(out, parts, count, size);                                                 \
    }
#define SUMS(O) ADD_PARTS(O)
SUMS(DTYPE)
#if HALF
SUMS(f32)  // that are parts themselves
#endif
