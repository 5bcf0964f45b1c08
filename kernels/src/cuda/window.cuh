// Windows that slide over planes. Places, pixels and elements of a window are counted in 32 bits.

struct Window {
    u32 height, width;        // of a plane
    u32 rows, columns;        // places
    u32 kernel_h, kernel_w;
    u32 stride_h, stride_w;
    u32 padding_h, padding_w;
    u32 dilation_h, dilation_w;

    __device__ u32 pixels() const { return height * width; }
    __device__ u32 places() const { return rows * columns; }
    __device__ u32 taps() const { return kernel_h * kernel_w; }
    // The pixel that element `tap` of the window sees at a place; -1 in the padding.
    __device__ i64 seen(u32 place, u32 tap) const {
        i64 h = (i64)(place / columns) * stride_h + (i64)(tap / kernel_w) * dilation_h - padding_h;
        i64 w = (i64)(place % columns) * stride_w + (i64)(tap % kernel_w) * dilation_w - padding_w;
        bool inside = h >= 0 && h < height && w >= 0 && w < width;
        return inside ? h * width + w : -1;
    }
    // The place along an axis at which element `tap` of the window sees `at`; -1 for none.
    __device__ static i64 place(u32 at, u32 tap, u32 stride, u32 padding, u32 dilation, u32 places) {
        i64 ahead = (i64)at + padding - (i64)tap * dilation;
        if (stride == 1) {
            return ahead >= 0 && ahead < places ? ahead : -1;
        }
        // What lies ahead of a pixel fits in 32 bits.
        u32 steps = ahead >= 0 ? (u32)ahead / stride : 0;
        return ahead >= 0 && steps * stride == (u32)ahead && steps < places ? (i64)steps : -1;
    }
    // The row, and the column, of the places at which element (i, j) sees pixel (h, w); -1 for none.
    __device__ i64 row_of(u32 h, u32 i) const { return place(h, i, stride_h, padding_h, dilation_h, rows); }
    __device__ i64 column_of(u32 w, u32 j) const { return place(w, j, stride_w, padding_w, dilation_w, columns); }
    // Calls `body(tap, pixel)` for the elements of the window that see a pixel at a place.
    template <class Body> __device__ void for_seen(u32 place, Body body) const {
        u32 row = place / columns, column = place - row * columns;
        // What lies before the image is beyond its end, as are all negative numbers.
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
    // Calls `body(tap, place)` for the elements of the window that see a pixel, with the place at which they do.
    template <class Body> __device__ void for_places(u32 pixel, Body body) const {
        u32 h = pixel / width, w = pixel - h * width;
        for (u32 i = 0, tap = 0; i < kernel_h; ++i) {
            i64 y = row_of(h, i);
            for (u32 j = 0; j < kernel_w; ++j, ++tap) {
                i64 x = column_of(w, j);
                if (y >= 0 && x >= 0) {
                    body(tap, (u32)(y * columns + x));
                }
            }
        }
    }
};

// Calls `body(plane, element)` for the elements of planes of `size` that are this thread's. Planes are blocks y, or go round in
// them.
template <class Body> __device__ inline void for_planes(u64 planes, u32 size, Body body) {
    for (u64 plane = blockIdx.y; plane < planes; plane += gridDim.y) {
        for (u32 e = (u32)thread_index(); e < size; e += (u32)thread_count()) {
            body(plane, e);
        }
    }
}
