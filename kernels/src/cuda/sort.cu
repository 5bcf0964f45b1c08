// A pass of a stable sort of entries by key, from the lowest digit on: counts of each tile, the sums before them, and the entries in
// their new order. The first pass has no order yet.

constexpr u32 EACH = 4;
constexpr u32 TILE = THREADS * EACH;

extern "C" __global__ void __launch_bounds__(THREADS) sort_count(const i64* index, const __grid_constant__ EntryCounts counts,
                                                                 const __grid_constant__ Walk<3> lines, const u32* order,
                                                                 u32* found, u32 shift, u32 bits, Fault fault) {
    __shared__ u32 digits[DIGITS];
    Entries entries{index, counts, lines};
    for (u32 d = threadIdx.x; d >> bits == 0; d += THREADS) {
        digits[d] = 0;
    }
    __syncthreads();
    for (u32 k = 0; k < EACH; ++k) {
        u32 at = blockIdx.x * TILE + k * THREADS + threadIdx.x;
        if (at < entries.count()) {
            u32 key = order ? entries.key(order[at]) : entries.key(at, &fault);
            atomicAdd(&digits[key >> shift & (1 << bits) - 1], 1);
        }
    }
    __syncthreads();
    for (u32 d = threadIdx.x; d >> bits == 0; d += THREADS) {
        found[d * gridDim.x + blockIdx.x] = digits[d];
    }
}

// found[digit, tile] becomes the number of entries with this digit in the tiles before, and what follows for each digit that of all tiles.
// A warp has a digit.
extern "C" __global__ void __launch_bounds__(THREADS) sort_offsets(u32* found, u32 tiles, u32 digits) {
    u32 digit = thread_index() / WARP, sum = 0;
    for (u32 tile = threadIdx.x % WARP; tile - threadIdx.x % WARP < tiles; tile += WARP) {
        u32 count = tile < tiles && digit < digits ? found[digit * tiles + tile] : 0, all = sum_of_lanes(count);
        if (tile < tiles && digit < digits) {
            found[digit * tiles + tile] = sum + all - count;
        }
        sum += __shfl_sync(0xffffffff, all, WARP - 1);
    }
    if (digit < digits) {
        found[digits * tiles + digit] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sort_place(const i64* index, const __grid_constant__ EntryCounts counts,
                                                                 const __grid_constant__ Walk<3> lines, const u32* order, u32* sorted,
                                                                 const u32* found, u32 shift, u32 bits) {
    __shared__ u16 ranked[WARPS][DIGITS];
    __shared__ u32 starts[DIGITS];
    Entries entries{index, counts, lines};
    u32 first = blockIdx.x * TILE + threadIdx.x / WARP * WARP * EACH + threadIdx.x % WARP;
    u32 own[EACH], digits[EACH], ranks[EACH];
    for (u32 d = threadIdx.x; d >> bits == 0; d += THREADS) {
        starts[d] = found[(gridDim.x << bits) + d];
    }
    sum_before(starts, 1 << bits);
    for (u32 k = 0; k < EACH; ++k) {
        u32 at = first + k * WARP;
        own[k] = at < entries.count() && order ? order[at] : at;
        digits[k] = at < entries.count() ? entries.key(own[k]) >> shift & (1 << bits) - 1 : (1 << bits) - 1;
    }
    rank_entries<EACH>(ranked, bits, digits, ranks);
    for (u32 k = 0; k < EACH; ++k) {
        if (first + k * WARP < entries.count()) {
            sorted[starts[digits[k]] + found[digits[k] * gridDim.x + blockIdx.x] + ranks[k]] = own[k];
        }
    }
}
