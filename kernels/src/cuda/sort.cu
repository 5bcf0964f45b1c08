// A pass of a stable sort of entries by key, from the lowest digit on: counts of each tile, the sums before them, and the entries in
// their new order. The first pass has no order yet.

constexpr u32 EACH = 16;
constexpr u32 TILE = THREADS * EACH;

extern "C" __global__ void __launch_bounds__(THREADS) sort_count(const i64* index, const __grid_constant__ EntryCounts counts,
                                                                 const __grid_constant__ Walk<3> lines, const u32* order,
                                                                 u32* found, u32 shift, Fault fault) {
    __shared__ u32 digits[DIGITS];
    Entries entries{index, counts, lines};
    for (u32 d = threadIdx.x; d < DIGITS; d += THREADS) {
        digits[d] = 0;
    }
    __syncthreads();
    for (u32 k = 0; k < EACH; ++k) {
        u32 at = blockIdx.x * TILE + k * THREADS + threadIdx.x;
        if (at < entries.count()) {
            u32 key = order ? entries.key(order[at]) : entries.key(at, &fault);
            atomicAdd(&digits[key >> shift & (DIGITS - 1)], 1);
        }
    }
    __syncthreads();
    for (u32 d = threadIdx.x; d < DIGITS; d += THREADS) {
        found[blockIdx.x * DIGITS + d] = digits[d];
    }
}

// found[tile, digit] becomes the number of entries with this digit in the tiles before, found[tiles, digit] that of all tiles.
extern "C" __global__ void __launch_bounds__(THREADS) sort_offsets(u32* found, u32 tiles) {
    u32 digit = thread_index(), sum = 0;
#pragma unroll 8
    for (u32 tile = 0; tile < tiles; ++tile) {
        u32 count = found[tile * DIGITS + digit];
        found[tile * DIGITS + digit] = sum;
        sum += count;
    }
    found[tiles * DIGITS + digit] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) sort_place(const i64* index, const __grid_constant__ EntryCounts counts,
                                                                 const __grid_constant__ Walk<3> lines, const u32* order, u32* sorted,
                                                                 const u32* found, u32 shift) {
    __shared__ u16 ranked[WARPS][DIGITS];
    __shared__ u32 starts[DIGITS];
    Entries entries{index, counts, lines};
    u32 first = blockIdx.x * TILE + threadIdx.x / WARP * WARP * EACH + threadIdx.x % WARP;
    u32 own[EACH], digits[EACH], ranks[EACH];
    for (u32 d = threadIdx.x; d < DIGITS; d += THREADS) {
        starts[d] = found[gridDim.x * DIGITS + d];
    }
    sum_before(starts);
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        u32 at = first + k * WARP;
        own[k] = at < entries.count() && order ? order[at] : at;
        digits[k] = at < entries.count() ? entries.key(own[k]) >> shift & (DIGITS - 1) : DIGITS - 1;
    }
    rank_entries<EACH>(ranked, digits, ranks);
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        if (first + k * WARP < entries.count()) {
            sorted[starts[digits[k]] + found[blockIdx.x * DIGITS + digits[k]] + ranks[k]] = own[k];
        }
    }
}
