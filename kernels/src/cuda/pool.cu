// Pooling of elements that are stored as S.

struct Pool : Window {
    u32 adaptive;
    u32 count_padding;
    u32 divisor;  // 0 for the number of elements
    u32 apart;    // whether no pixel is seen from two places, and a window is what lies between two steps, or less
    u64 planes;
};

// The first of the largest elements, or the last NaN; and which element of the window it was.
template <class I> __device__ inline void max_pool(S* out, I* index, const S* x, const Pool& pool) {
    for_planes(pool.planes, pool.places(), [&](u64 plane, u32 place) {
        const S* from = x + plane * pool.pixels();
        T best = lowest<T>();
        i64 taken = -1;
        pool.for_seen(place, [&](u32 tap, u32 pixel) {
            T value = from[pixel];
            if (taken < 0 || value > best || is_nan(value)) {
                best = value;
                taken = tap;
            }
        });
        out[plane * pool.places() + place] = best;
        index[plane * pool.places() + place] = (I)(taken < 0 ? 0 : taken);
    });
}

// With windows apart a thread makes all pixels from one step to the next.
template <class I> __device__ inline void max_pool_grad_apart(S* out, const S* g, const I* index, const Pool& pool) {
    u32 across = (pool.width + pool.stride_w - 1) / pool.stride_w, down = (pool.height + pool.stride_h - 1) / pool.stride_h;
    for_planes(pool.planes, across * down, [&](u64 plane, u32 tile) {
        u32 y = tile / across, x = tile - y * across;
        bool is_place = y < pool.rows && x < pool.columns;
        u64 place = plane * pool.places() + y * pool.columns + x;
        u64 taken = is_place ? (u64)index[place] : 0;
        T slope = is_place ? 0 + (T)g[place] : (T)0;
        u64 first = plane * pool.pixels();
        u32 top = y * pool.stride_h, left = x * pool.stride_w;
        u32 high = min(pool.stride_h, pool.height - top), wide = min(pool.stride_w, pool.width - left);
        for (u32 i = 0; i < high; ++i) {
            for (u32 j = 0; j < wide; ++j) {
                bool is_taken = i < pool.kernel_h && j < pool.kernel_w && taken == i * pool.kernel_w + j;
                u64 pixel = first + (top + i) * pool.width + left + j;
                out[pixel] = is_taken ? slope : (T)0;
            }
        }
    });
}
template <class I>
__device__ inline void max_pool_grad(S* out, const S* g, const I* index, const Pool& pool) {
    if (pool.apart) {
        max_pool_grad_apart(out, g, index, pool);
        return;
    }
    for_planes(pool.planes, pool.pixels(), [&](u64 plane, u32 pixel) {
        u32 h = pixel / pool.width, w = pixel - h * pool.width;
        T sum = 0;
        // The last element of the window sees a pixel at the first place.
        for (u32 i = pool.kernel_h; i-- > 0;) {
            i64 y = pool.row_of(h, i);
            for (u32 j = pool.kernel_w; j-- > 0;) {
                i64 x = pool.column_of(w, j);
                u64 place = plane * pool.places() + y * pool.columns + x;
                if (y >= 0 && x >= 0 && (u64)index[place] == i * pool.kernel_w + j) {
                    sum += g[place];
                }
            }
        }
        out[plane * pool.pixels() + pixel] = sum;
    });
}

template <class I> __device__ inline void max_pool_pick(S* out, const S* x, const I* index, const Pool& pool) {
    for_planes(pool.planes, pool.places(), [&](u64 plane, u32 place) {
        u64 at = plane * pool.places() + place;
        u64 tap = (u64)index[at];
        i64 pixel = tap < pool.taps() ? pool.seen(place, (u32)tap) : -1;
        out[at] = pixel < 0 ? S{} : x[plane * pool.pixels() + pixel];
    });
}

// What a place sees along an axis, and how many elements count in the divisor.
struct Seen {
    u32 start, end, counted;
};
__device__ inline Seen seen_along(u32 at, u32 size, u32 places, u32 kernel, u32 stride, u32 padding, const Pool& pool) {
    if (pool.adaptive) {
        u32 start = (u32)((u64)at * size / places), end = (u32)((((u64)at + 1) * size + places - 1) / places);
        return {start, end, end - start};
    }
    u64 first = (u64)at * stride, padded = (u64)size + 2 * (u64)padding;
    u64 last = first + kernel < padded ? first + kernel : padded;
    u64 start = first < padding ? 0 : first - padding, end = last < padding ? 0 : last - padding;
    start = start < size ? start : size;
    end = end < start ? start : end < size ? end : size;
    return {(u32)start, (u32)end, (u32)(pool.count_padding ? (last > first ? last - first : 0) : end - start)};
}
__device__ inline Seen seen_rows(u32 y, const Pool& p) {
    return seen_along(y, p.height, p.rows, p.kernel_h, p.stride_h, p.padding_h, p);
}
__device__ inline Seen seen_columns(u32 x, const Pool& p) {
    return seen_along(x, p.width, p.columns, p.kernel_w, p.stride_w, p.padding_w, p);
}
__device__ inline T divisor(Seen rows, Seen columns, const Pool& pool) {
    return pool.divisor ? (T)pool.divisor : (T)((u64)rows.counted * columns.counted);
}

extern "C" __global__ void NAMED(avg_pool, DTYPE)(S* out, const S* x, const __grid_constant__ Pool pool) {
    for_planes(pool.planes, pool.places(), [&](u64 plane, u32 place) {
        Seen rows = seen_rows(place / pool.columns, pool), columns = seen_columns(place % pool.columns, pool);
        const S* from = x + plane * pool.pixels();
        T sum = 0;
        for (u32 h = rows.start; h < rows.end; ++h) {
            for (u32 w = columns.start; w < columns.end; ++w) {
                sum += from[h * pool.width + w];
            }
        }
        out[plane * pool.places() + place] = sum / divisor(rows, columns, pool);
    });
}

// The places `first..end` that see element `at` of an axis.
struct Places {
    u32 first, end;
};
__device__ inline Places places_of(u32 at, u32 size, u32 places, u32 kernel, u32 stride, u32 padding, const Pool& pool) {
    if (pool.adaptive) {
        return {(u32)((u64)at * places / size), (u32)((((u64)at + 1) * places + size - 1) / size)};
    }
    u64 ahead = (u64)at + padding;
    u64 first = ahead < kernel ? 0 : (ahead - kernel) / stride + 1, end = ahead / stride + 1;
    return {(u32)(first < places ? first : places), (u32)(end < places ? end : places)};
}

extern "C" __global__ void NAMED(avg_pool_grad, DTYPE)(S* out, const S* g, const __grid_constant__ Pool pool) {
    for_planes(pool.planes, pool.pixels(), [&](u64 plane, u32 pixel) {
        Places ys = places_of(pixel / pool.width, pool.height, pool.rows, pool.kernel_h, pool.stride_h, pool.padding_h, pool);
        Places xs = places_of(pixel % pool.width, pool.width, pool.columns, pool.kernel_w, pool.stride_w, pool.padding_w, pool);
        const S* from = g + plane * pool.places();
        T sum = 0;
        for (u32 y = ys.first; y < ys.end; ++y) {
            Seen rows = seen_rows(y, pool);
            for (u32 x = xs.first; x < xs.end; ++x) {
                sum += from[y * pool.columns + x] / divisor(rows, seen_columns(x, pool), pool);
            }
        }
        out[plane * pool.pixels() + pixel] = sum;
    });
}

#define MAX_POOL(I)                                                                                 \
    extern "C" __global__ void NAMED(max_pool_##I, DTYPE)(S * out, I * index, const S* x,           \
                                                          const __grid_constant__ Pool pool) {      \
        max_pool(out, index, x, pool);                                                              \
    }                                                                                               \
    extern "C" __global__ void NAMED(max_pool_grad_##I, DTYPE)(S * out, const S* g, const I* index, \
                                                               const __grid_constant__ Pool pool) { \
        max_pool_grad(out, g, index, pool);                                               \
    }                                                                                               \
    extern "C" __global__ void NAMED(max_pool_pick_##I, DTYPE)(S * out, const S* x, const I* index, \
                                                               const __grid_constant__ Pool pool) { \
        max_pool_pick(out, x, index, pool);                                                         \
    }
MAX_POOL(u8)
MAX_POOL(i64)
