// Cumulative sums and rotations of elements of the type DTYPE. FLOATS is 1 for the floating-point types.

// out[i] = x[0] + .. + x[i] along rows, or from the end, in the order of `ScanOrder`. A warp takes a row, a tile at a time, of which
// each lane has a run. A sum never is -0, since each begins at 0: adding 0 changes no bit.
struct Scan {
    u64 len;
    i64 steps[2];
    u64 reverse;
    u64 run;  // elements of a run
};

extern "C" __global__ void NAMED(cumsum, DTYPE)(S* out, const S* x, const __grid_constant__ Walk<2> kept,
                                                const __grid_constant__ Scan scan) {
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 row = thread_index() / LANES; row < kept.elements; row += warps) {
        Offsets<2> at = offsets(kept, row);
        // Of lane k: where bit k of `tiles` is set, the sum of the newest block of 2^k tiles that begins at a multiple of as many.
        T block = 0;
        T before = 0;  // the sum of all tiles before this one
        for (u64 tiles = 0; tiles * LANES * scan.run < scan.len; ++tiles) {
            u64 first = (tiles * LANES + lane) * scan.run;
            u64 end = first + scan.run < scan.len ? first + scan.run : scan.len;
            auto index = [&](u64 place) { return (i64)(scan.reverse ? scan.len - 1 - place : place); };
            auto element = [&](u64 place) -> T { return x[at.at[1] + index(place) * scan.steps[1]]; };
            T sum = 0;
            for (u64 place = first; place < end; ++place) {
                sum = add(sum, element(place));
            }
            for (u32 by = 1; by < LANES; by *= 2) {
                T lower = shuffle(sum, (lane | (2 * by - 1)) - by);
                sum = lane & by ? add(lower, sum) : sum;
            }
            T own = shuffle(sum, lane > 0 ? lane - 1 : 0);
            T base = add(before, lane > 0 ? own : (T)0);
            T next = 0;
            for (u64 place = first; place < end; ++place) {
                next = add(next, element(place));
                out[at.at[0] + index(place) * scan.steps[0]] = add(base, next);
            }
            sum = shuffle(sum, LANES - 1);
            u32 level = 0;
            for (; tiles >> level & 1; ++level) {
                sum = add(shuffle(block, level), sum);
            }
            block = lane == level ? sum : block;
            before = 0;
            for (; (tiles + 1) >> level != 0; ++level) {
                T larger = shuffle(block, level);
                before = (tiles + 1) >> level & 1 ? add(larger, before) : before;
            }
        }
    }
}

#if FLOATS
// (a, b) -> (a cos - b sin, b cos + a sin) for pairs whose second element is `apart` from the first
extern "C" __global__ void NAMED(rotary, DTYPE)(S* out, const S* x, const S* cos, const S* sin,
                                                const __grid_constant__ Walk<4> pairs, i64 out_apart, i64 x_apart,
                                                u32 inverse) {
    for_each(pairs, [&](const Offsets<4>& offsets) {
        T a = x[offsets.at[1]], b = x[offsets.at[1] + x_apart];
        T c = cos[offsets.at[2]], s = sin[offsets.at[3]];
        s = inverse ? -s : s;
        out[offsets.at[0]] = a * c - b * s;
        out[offsets.at[0] + out_apart] = b * c + a * s;
    });
}
#endif
