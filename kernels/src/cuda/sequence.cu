// Cumulative sums and rotations of elements of the type DTYPE. FLOATS is 1 for the floating-point types.

// out[i] = x[0] + .. + x[i] along rows, or from the end. A warp takes a row, 32 elements at a time.
struct Scan {
    u64 len;
    i64 steps[2];
    u64 reverse;
};

extern "C" __global__ void NAMED(cumsum, DTYPE)(S* out, const S* x, const __grid_constant__ Walk<2> kept,
                                                const __grid_constant__ Scan scan) {
    u32 lane = threadIdx.x % LANES;
    u64 warps = thread_count() / LANES;
    for (u64 row = thread_index() / LANES; row < kept.elements; row += warps) {
        Offsets<2> at = offsets(kept, row);
        T total = 0;
        for (u64 start = 0; start < scan.len; start += LANES) {
            u64 place = start + lane;
            bool exists = place < scan.len;
            i64 i = (i64)(scan.reverse ? scan.len - 1 - place : place);
            T sum = exists ? (T)x[at.at[1] + i * scan.steps[1]] : (T)0;
            for (u32 by = 1; by < LANES; by *= 2) {
                T before = shuffle(sum, lane >= by ? lane - by : lane);
                sum = lane >= by ? add(before, sum) : sum;
            }
            sum = add(total, sum);
            total = shuffle(sum, LANES - 1);
            if (exists) {
                out[at.at[0] + i * scan.steps[0]] = sum;
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
