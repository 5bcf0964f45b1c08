// Max pooling, average pooling and upsampling of elements stored as S.

enum Means : u32 { SLIDING, ADAPTIVE, NEAREST, BILINEAR };
struct Pool : Window {
    u32 means, count_padding;
    u32 divisor;  // 0 for the number of elements
    u32 group;    // planes that a thread averages together, sharing index arithmetic
    u64 planes, groups;
    // Resizing, along rows and columns: input pixels per output position, its inverse, and the offset of pixel centres.
    f64 scale[2], density[2], offset;
};

// The first maximum of the window or the last NaN, and its index in the window.
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

template <class I> __device__ inline void max_pool_grad(S* out, const S* g, const I* index, const Pool& pool) {
    for_planes(pool.planes, pool.pixels(), [&](u64 plane, u32 pixel) {
        u64 first = plane * pool.places();
        T sum = 0;
        pool.for_places(pixel, [&](u32 tap, u32 place) {
            sum += (u64)index[first + place] == tap ? (T)g[first + place] : (T)0;
        });
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

// One of the two spatial axes.
struct Along {
    u32 size, places, kernel, stride, padding;
    f64 scale, density;
};
__device__ inline Along along_rows(const Pool& p) {
    return {p.height, p.rows, p.kernel_h, p.stride_h, p.padding_h, p.scale[0], p.density[0]};
}
__device__ inline Along along_columns(const Pool& p) {
    return {p.width, p.columns, p.kernel_w, p.stride_w, p.padding_w, p.scale[1], p.density[1]};
}

// Input range of an output position along an axis, its contribution to the divisor, and the weights of the first and of further elements.
struct Seen {
    u32 start, end, counted;
    T first, rest;

    __device__ bool sees(u32 at) const { return start <= at && at < end; }
    __device__ T weight(u32 at) const { return at == start ? first : rest; }
};
__device__ inline Seen seen_along(const Along& axis, u32 at, const Pool& pool) {
    if (pool.means == BILINEAR) {
        f64 position = fmax(add_rounded(mul_rounded(at + pool.offset, axis.scale), -pool.offset), 0.0);
        u32 start = min((u32)position, axis.size - 1);
        f64 share = position - start;
        bool is_one = share == 0 || start + 1 == axis.size;
        return {start, start + (is_one ? 1 : 2), 1, is_one ? (T)1 : (T)(1 - share), (T)share};
    }
    if (pool.means == NEAREST) {
        u32 start = axis.size == axis.places ? at : min((u32)mul_rounded((T)at, (T)axis.scale), axis.size - 1);
        return {start, start + 1, 1, 1, 1};
    }
    if (pool.means == ADAPTIVE) {
        u64 start = (u64)at * axis.size / axis.places, end = (((u64)at + 1) * axis.size + axis.places - 1) / axis.places;
        return {(u32)start, (u32)end, (u32)(end - start), 1, 1};
    }
    // Positions on the padded axis.
    i64 first = (i64)at * axis.stride, last = min(first + axis.kernel, (i64)axis.size + 2 * (i64)axis.padding);
    i64 start = max(first - axis.padding, (i64)0), end = min(last - axis.padding, (i64)axis.size);
    return {(u32)start, (u32)max(start, end), (u32)max(pool.count_padding ? last - first : end - start, (i64)0), 1, 1};
}
__device__ inline T divided(T sum, const Seen& rows, const Seen& columns, const Pool& pool) {
    T divisor = pool.divisor ? (T)pool.divisor : (T)((u64)rows.counted * columns.counted);
    return divisor == 1 ? sum : sum / divisor;
}

// Output positions whose input range may contain element `at` of an axis.
__device__ inline Places places_of(const Along& axis, u32 at, const Pool& pool) {
    if (pool.means >= NEAREST) {
        // Positions are rounded, so the range is widened and its ends are checked.
        f64 centre = at + pool.offset, rounded = 1.0 / (1 << 22);
        f64 low = ((centre - (pool.means == BILINEAR)) * axis.density - pool.offset) * (1 - rounded);
        f64 high = ceil(((centre + 1) * axis.density - pool.offset) * (1 + rounded));
        u32 first = at > 0 && low > 0 ? (u32)low : 0, end = at + 1 < axis.size && high < axis.places ? (u32)high : axis.places;
        return {first + !seen_along(axis, first, pool).sees(at), end - (end > 0 && !seen_along(axis, end - 1, pool).sees(at))};
    }
    if (pool.means == ADAPTIVE) {
        u64 places = axis.places;
        return {(u32)(at * places / axis.size), (u32)(((at + 1) * places + axis.size - 1) / axis.size)};
    }
    return places_that_see(at, axis.kernel, axis.stride, axis.padding, axis.places);
}

// Maximum of planes in a group.
constexpr u32 GROUP = 4;
template <class Body> __device__ inline void each(const Pool& p, Body body) {
#pragma unroll
    for (u32 k = 0; k < GROUP && k < p.group; ++k) {
        body(k);
    }
}
// Plane `k` of a group; the last plane is repeated where there is none.
__device__ inline u64 plane_of(u64 group, u32 k, const Pool& p) { return min(group * p.group + k, p.planes - 1); }

// Sums along rows first, then along columns; each product and sum is rounded as on the CPU.
extern "C" __global__ void NAMED(avg_pool, DTYPE)(S* out, const S* x, const __grid_constant__ Pool pool) {
    for_planes(pool.groups, pool.places(), [&](u64 group, u32 place) {
        Seen rows = seen_along(along_rows(pool), place / pool.columns, pool);
        Seen columns = seen_along(along_columns(pool), place % pool.columns, pool);
        if (pool.means == NEAREST) {
            const S* from = x + (u64)rows.start * pool.width + columns.start;
            each(pool, [&](u32 k) { out[plane_of(group, k, pool) * pool.places() + place] = from[plane_of(group, k, pool) * pool.pixels()]; });
            return;
        }
        T sums[GROUP] = {};
        for (u32 w = columns.start; w < columns.end; ++w) {
            T lines[GROUP] = {};
            for (u32 h = rows.start; h < rows.end; ++h) {
                each(pool, [&](u32 k) {
                    T term = mul_rounded(rows.weight(h), (T)x[plane_of(group, k, pool) * pool.pixels() + h * pool.width + w]);
                    lines[k] = h == rows.start ? term : add_rounded(lines[k], term);
                });
            }
            each(pool, [&](u32 k) {
                T term = mul_rounded(columns.weight(w), lines[k]);
                sums[k] = w == columns.start ? term : add_rounded(sums[k], term);
            });
        }
        each(pool, [&](u32 k) {
            out[plane_of(group, k, pool) * pool.places() + place] = divided(sums[k], rows, columns, pool);
        });
    });
}

extern "C" __global__ void NAMED(avg_pool_grad, DTYPE)(S* out, const S* g, const __grid_constant__ Pool pool) {
    Along down = along_rows(pool), across = along_columns(pool);
    for_planes(pool.groups, pool.pixels(), [&](u64 group, u32 pixel) {
        u32 h = pixel / pool.width, w = pixel - h * pool.width;
        Places ys = places_of(down, h, pool), xs = places_of(across, w, pool);
        T sums[GROUP] = {};
        for (u32 y = ys.first; y < ys.end; ++y) {
            // `places_of` is exact for nearest: each output position has one input pixel.
            Seen rows = pool.means == NEAREST ? Seen{h, h + 1, 1, 1, 1} : seen_along(down, y, pool);
            T lines[GROUP] = {};
            for (u32 x = xs.first; x < xs.end && rows.sees(h); ++x) {
                Seen columns = pool.means == NEAREST ? Seen{w, w + 1, 1, 1, 1} : seen_along(across, x, pool);
                each(pool, [&](u32 k) {
                    const S* from = g + plane_of(group, k, pool) * pool.places();
                    T slope = columns.sees(w) ? divided((T)from[y * pool.columns + x], rows, columns, pool) : (T)0;
                    lines[k] = add_rounded(lines[k], mul_rounded(columns.weight(w), slope));
                });
            }
            each(pool, [&](u32 k) { sums[k] = add_rounded(sums[k], mul_rounded(rows.weight(h), lines[k])); });
        }
        each(pool, [&](u32 k) { out[plane_of(group, k, pool) * pool.pixels() + pixel] = sums[k]; });
    });
}

#define MAX_POOL(NAME, I, A, B, C)                                                                                   \
    extern "C" __global__ void NAMED(NAME##_##I, DTYPE)(A * a, B * b, const C* c, const __grid_constant__ Pool pool) { \
        NAME(a, b, c, pool);                                                                                         \
    }
MAX_POOL(max_pool, u8, S, u8, S)
MAX_POOL(max_pool, i64, S, i64, S)
MAX_POOL(max_pool_grad, u8, S, const S, u8)
MAX_POOL(max_pool_grad, i64, S, const S, i64)
MAX_POOL(max_pool_pick, u8, S, const S, u8)
MAX_POOL(max_pool_pick, i64, S, const S, i64)
