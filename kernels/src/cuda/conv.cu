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
        const T* taps = columns + plane * conv.taps() * conv.places();
        conv.for_places(pixel, [&](u32 tap, u32 place) { sum += taps[tap * conv.places() + place]; });
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

// Images that a thread goes through at a time, so that weights and places are found once for all of them.
constexpr u32 TOGETHER = 4;

// The sums of so many images from one on, whose factors lie `step` apart.
struct ImageSums {
    T sums[TOGETHER];
    u32 image, images;
    u64 step;

    // Adds a weight times the factor of each image, of which that of image 0 lies at `first`.
    __device__ void add(T weight, const S* first) {
        for (u32 n = 0; n < TOGETHER; ++n) {
            sums[n] += weight * (T)first[min(image + n, images - 1) * step];
        }
    }
};

// out[image, channel, e] = bias[channel] + sum of what `terms(channel, e, sums)` adds
template <class Terms>
__device__ inline void depthwise_sums(S* out, const S* bias, u32 images, u32 channels, u32 size, u64 step, Terms terms) {
    for_planes((u64)(images + TOGETHER - 1) / TOGETHER * channels, size, [&](u64 plane, u32 e) {
        u32 channel = (u32)(plane % channels);
        T start = bias ? (T)bias[channel] : (T)0;
        ImageSums all = {{start, start, start, start}, (u32)(plane / channels) * TOGETHER, images, step};
        terms(channel, e, all);
        for (u32 n = 0; n < TOGETHER; ++n) {
            if (all.image + n < images) {
                out[((u64)(all.image + n) * channels + channel) * size + e] = all.sums[n];
            }
        }
    });
}

// Filters of one channel: `filters` results of each image.
extern "C" __global__ void NAMED(depthwise, DTYPE)(S* out, const S* x, const S* weight, const S* bias, u32 images, u32 filters,
                                                   const __grid_constant__ Conv conv) {
    u64 step = (u64)filters / conv.each * conv.pixels();
    depthwise_sums(out, bias, images, filters, conv.places(), step, [&](u32 filter, u32 place, ImageSums& sums) {
        const S *from = x + (u64)(filter / conv.each) * conv.pixels(), *weights = weight + (u64)filter * conv.taps();
        conv.for_seen(place, [&](u32 tap, u32 pixel) { sums.add((T)weights[tap], from + pixel); });
    });
}

extern "C" __global__ void NAMED(depthwise_input_grad, DTYPE)(S* out, const S* g, const S* weight, const S* bias, u32 images,
                                                              u32 channels, const __grid_constant__ Conv conv) {
    u64 step = (u64)channels * conv.each * conv.places();
    depthwise_sums(out, bias, images, channels, conv.pixels(), step, [&](u32 channel, u32 pixel, ImageSums& sums) {
        for (u32 filter = channel * conv.each; filter < (channel + 1) * conv.each; ++filter) {
            const S *from = g + (u64)filter * conv.places(), *weights = weight + (u64)filter * conv.taps();
            conv.for_places(pixel, [&](u32 tap, u32 place) { sums.add((T)weights[tap], from + place); });
        }
    });
}

// One sum for each element of each filter, over all images and places.
extern "C" __global__ void __launch_bounds__(256, 1) NAMED(depthwise_weight_grad, DTYPE)(
    S* out, const S* x, const S* g, u32 channels, u32 images, const __grid_constant__ Conv conv) {
    u64 filters = (u64)channels * conv.each, len = (u64)images * conv.places();
    for_rows<BlockGroup>(filters * conv.taps(), LANES, [&](const BlockGroup& group, u64 row, bool exists) {
        u64 filter = exists ? row / conv.taps() : 0;
        u32 tap = exists ? (u32)(row % conv.taps()) : 0;
        auto term = [&](u64 e) {
            u64 image = quotient(e, conv.places());
            u32 place = (u32)(e - image * conv.places());
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
