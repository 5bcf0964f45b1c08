// Convolutions: im2col and col2im for GEMMs, and direct kernels for depthwise convolutions. Operands and patches are stored as S, partial
// sums as T.

// im2col: columns[plane, i, j, y, x] = the pixel under element (i, j) of the window at output position (y, x)
extern "C" __global__ void NAMED(patches, DTYPE)(S* columns, const S* planes, const __grid_constant__ Conv conv) {
    u32 size = conv.taps() * conv.places();
    for_planes(conv.planes, size, [&](u64 plane, u32 e) {
        i64 pixel = conv.seen(e % conv.places(), e / conv.places());
        columns[plane * size + e] = pixel < 0 ? S{} : planes[plane * conv.pixels() + pixel];
    });
}

// col2im: planes[plane, h, w] = bias[channel] + sum of columns[plane, i, j, y, x] over all windows that contain the pixel
extern "C" __global__ void NAMED(add_patches, DTYPE)(S* planes, const T* columns, const S* bias, u32 channels, u64 first,
                                                     const __grid_constant__ Conv conv) {
    for_planes(conv.planes, conv.pixels(), [&](u64 plane, u32 pixel) {
        T sum = bias ? (T)bias[(first + plane) % channels] : (T)0;
        const T* taps = columns + plane * conv.taps() * conv.places();
        conv.for_places(pixel, [&](u32 tap, u32 place) { sum += taps[tap * conv.places() + place]; });
        planes[plane * conv.pixels() + pixel] = sum;
    });
}

// out[e] = sum of parts[n, e] in the order of n; `out` may alias the first part
template <class O> __device__ inline void add_parts(O* out, const T* parts, u64 count, u64 size) {
    for (u64 e = thread_index(); e < size; e += thread_count()) {
        T sum = 0;
        for (u64 n = 0; n < count; ++n) {
            sum += parts[n * size + e];
        }
        out[e] = sum;
    }
}

// Images that a thread processes together, sharing weights and index arithmetic.
constexpr u32 TOGETHER = 4;

// Sums for TOGETHER images from number `image` on; their operands are `step` elements apart.
struct ImageSums {
    T sums[TOGETHER];
    u32 image, images;
    u64 step;

    // Adds weight times the operand of each image; `first` is that of image 0.
    __device__ void add(T weight, const S* first) {
        for (u32 n = 0; n < TOGETHER; ++n) {
            sums[n] += weight * (T)first[min(image + n, images - 1) * step];
        }
    }
};

// out[image, channel, e] = bias[channel] + the terms that `terms(channel, e, sums)` adds
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

// Depthwise convolution with `filters` filters.
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

// Filter gradient: a sum over all images and output positions for each filter element. A thread block computes up to PACK neighbouring elements.
extern "C" __global__ void __launch_bounds__(512, 1) NAMED(depthwise_weight_grad, DTYPE)(
    S* out, const S* x, const S* g, u32 channels, u32 images, const __grid_constant__ Conv conv) {
    u32 strips = (conv.kernel_w + PACK - 1) / PACK, filters = channels * conv.each;
    u64 len = (u64)images * conv.places();
    for_rows<BlockGroup>((u64)filters * conv.kernel_h * strips, LANES, [&](const BlockGroup& group, u64 row, bool exists) {
        u32 line = (u32)(row / strips), first = (u32)row % strips * PACK, filter = line / conv.kernel_h, i = line % conv.kernel_h;
        auto of = [&](const BlockLane& block) {
            auto sums = Each<Sum<T>>::empty();
            for (u32 k = 0; k < block.count; k += PACK) {
                u64 image = quotient(block.at(k), conv.places());
                u32 place = (u32)(block.at(k) - image * conv.places()), y = place / conv.columns, column = place - y * conv.columns;
                const S* pixels = x + (image * channels + filter / conv.each) * conv.pixels();
                const S* slopes = g + (image * filters + filter) * conv.places();
#pragma unroll
                for (u32 v = 0; v < PACK; ++v) {
                    // Positions in the padding before the image wrap around to large numbers.
                    u32 h = y * conv.stride_h + i * conv.dilation_h - conv.padding_h;
                    u32 w = column * conv.stride_w + first * conv.dilation_w - conv.padding_w;
                    bool sees = k + v < block.count && h < conv.height;
                    T slope = sees ? (T)slopes[place] : (T)0;
#pragma unroll
                    for (u32 j = 0; j < PACK; ++j, w += conv.dilation_w) {
                        if (sees && first + j < conv.kernel_w && w < conv.width) {
                            sums.at[j] += slope * (T)pixels[h * conv.width + w];
                        }
                    }
                    if (++column == conv.columns) {
                        column = 0, ++y;
                    }
                    if (++place == conv.places()) {
                        place = 0, y = 0, pixels += (u64)channels * conv.pixels(), slopes += (u64)filters * conv.places();
                    }
                }
            }
            return sums;
        };
        auto sums = group.fold_blocks<Each<Sum<T>>>(len, exists ? len : 0, of);
        for (u32 j = 0; j < PACK; ++j) {
            if (exists && group.leads() && first + j < conv.kernel_w) {
                out[(u64)line * conv.kernel_w + first + j] = sums.at[j];
            }
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
