// Sliding windows over planes. Output positions (places), pixels and window elements (taps) have 32-bit indices.

// Output positions `first..end` along an axis whose window of `extent` elements may contain element `at`.
struct Places {
    u32 first, end;
};
__device__ inline Places places_that_see(u32 at, u32 extent, u32 stride, u32 padding, u32 places) {
    u32 ahead = at + padding, first = ahead < extent ? 0 : (ahead - extent) / stride + 1;
    return {min(first, places), min(ahead / stride + 1, places)};
}
// The window element at distance `ahead` from the first one; out of range if dilation skips that distance.
__device__ inline u32 tap_of(u32 ahead, u32 dilation) {
    return dilation == 1 ? ahead : ahead % dilation == 0 ? ahead / dilation : ~0u;
}

struct Window {
    u32 height, width;        // of a plane
    u32 rows, columns;        // of the output
    u32 kernel_h, kernel_w;
    u32 stride_h, stride_w;
    u32 padding_h, padding_w;
    u32 dilation_h, dilation_w;

    __device__ u32 pixels() const { return height * width; }
    __device__ u32 places() const { return rows * columns; }
    __device__ u32 taps() const { return kernel_h * kernel_w; }
    // The pixel under window element `tap` at an output position; -1 in the padding.
    __device__ i64 seen(u32 place, u32 tap) const {
        i64 h = (i64)(place / columns) * stride_h + (i64)(tap / kernel_w) * dilation_h - padding_h;
        i64 w = (i64)(place % columns) * stride_w + (i64)(tap % kernel_w) * dilation_w - padding_w;
        bool inside = h >= 0 && h < height && w >= 0 && w < width;
        return inside ? h * width + w : -1;
    }
    // Calls `body(tap, pixel)` for the window elements that are not in the padding at an output position.
    template <class Body> __device__ void for_seen(u32 place, Body body) const {
        u32 row = place / columns, column = place - row * columns;
        // Negative positions wrap around to large numbers and fail the bounds check.
        u32 h = row * stride_h - padding_h, left = column * stride_w - padding_w;
        for (u32 i = 0, tap = 0; i < kernel_h; ++i, h += dilation_h) {
            u32 w = left;
            for (u32 j = 0; j < kernel_w; ++j, ++tap, w += dilation_w) {
                if (h < height && w < width) {
                    body(tap, h * width + w);
                }
            }
        }
    }
    // Calls `body(tap, place)` for each output position whose window contains the pixel, in order of positions.
    template <class Body> __device__ void for_places(u32 pixel, Body body) const {
        u32 h = pixel / width, w = pixel - h * width;
        Places ys = places_that_see(h, (kernel_h - 1) * dilation_h + 1, stride_h, padding_h, rows);
        Places xs = places_that_see(w, (kernel_w - 1) * dilation_w + 1, stride_w, padding_w, columns);
        for (u32 y = ys.first; y < ys.end; ++y) {
            u32 i = tap_of(h + padding_h - y * stride_h, dilation_h);
            for (u32 x = xs.first; x < xs.end; ++x) {
                u32 j = tap_of(w + padding_w - x * stride_w, dilation_w);
                if (i < kernel_h && j < kernel_w) {
                    body(i * kernel_w + j, y * columns + x);
                }
            }
        }
    }
};

// Calls `body(plane, element)` for this thread's elements: a grid-stride loop with planes along y and the `size` elements of a plane along x.
template <class Body> __device__ inline void for_planes(u64 planes, u32 size, Body body) {
    for (u64 plane = blockIdx.y * blockDim.y + threadIdx.y; plane < planes; plane += gridDim.y * blockDim.y) {
        for (u32 e = (u32)thread_index(); e < size; e += (u32)thread_count()) {
            body(plane, e);
        }
    }
}
