// One pass of a stable LSD radix sort of entries by key: digit counts per tile, their exclusive scan, and scatter. In the first pass `order` and
// `keys` are null.

// Maximum of bits per pass.
constexpr u32 BITS = 10, DIGITS = 1 << BITS, EACH = 4;
constexpr u32 TILE = THREADS * EACH;

extern "C" __global__ void __launch_bounds__(THREADS) sort_count(const i64* index, const __grid_constant__ EntryCounts counts,
                                                                 const __grid_constant__ Walk<3> lines, const u32* keys, u32* found,
                                                                 u32 shift, u32 bits, Fault fault) {
    __shared__ u32 digits[DIGITS];
    Entries entries{index, counts, lines};
    for (u32 d = threadIdx.x; d >> bits == 0; d += THREADS) {
        digits[d] = 0;
    }
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        u32 at = blockIdx.x * TILE + k * THREADS + threadIdx.x;
        if (at < entries.count()) {
            u32 key = keys ? keys[at] : entries.key(at, entries.index_of(at), &fault);
            atomicAdd(&digits[key >> shift & (1 << bits) - 1], 1);
        }
    }
    __syncthreads();
    for (u32 d = threadIdx.x; d >> bits == 0; d += THREADS) {
        found[d * gridDim.x + blockIdx.x] = digits[d];
    }
}

// Exclusive scan of found[digit, tile] over tiles, with the totals of each digit behind. One warp per digit.
extern "C" __global__ void __launch_bounds__(THREADS) sort_offsets(u32* found, u32 tiles, u32 digits) {
    u32 digit = thread_index() / WARP;
    if (digit < digits) {
        found[digits * tiles + digit] = sum_before(found + digit * tiles, tiles);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sort_place(const i64* index, const __grid_constant__ EntryCounts counts,
                                                                 const __grid_constant__ Walk<3> lines, const u32* order,
                                                                 const u32* keys, u32* sorted, u32* sorted_keys, const u32* found,
                                                                 u32 shift, u32 bits) {
    __shared__ u16 ranked[WARPS][DIGITS];
    __shared__ u32 starts[DIGITS + 1];
    Entries entries{index, counts, lines};
    u32 first = blockIdx.x * TILE + threadIdx.x / WARP * WARP * EACH + threadIdx.x % WARP;
    u32 own[EACH], own_keys[EACH], digits[EACH], ranks[EACH];
    for (u32 d = threadIdx.x; d >> bits == 0; d += THREADS) {
        starts[d] = found[(gridDim.x << bits) + d];
    }
    sum_all_before(starts, 1 << bits);
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        u32 at = first + k * WARP;
        bool exists = at < entries.count();
        own[k] = exists && order ? order[at] : at;
        own_keys[k] = !exists ? 0xffffffff : keys ? keys[at] : entries.key(at, entries.index_of(at));
        digits[k] = own_keys[k] >> shift & (1 << bits) - 1;
    }
    for (u32 d = threadIdx.x; d < WARPS << bits; d += THREADS) {
        ranked[d >> bits][d & (1 << bits) - 1] = 0;
    }
    __syncthreads();
    u16* own_counts = ranked[threadIdx.x / WARP];
    for (u32 k = 0; k < EACH; ++k) {
        ranks[k] = count_entry(own_counts, digits[k], true);
    }
    __syncthreads();
    sum_warps(ranked, 1 << bits);
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        if (first + k * WARP < entries.count()) {
            u32 to = starts[digits[k]] + found[digits[k] * gridDim.x + blockIdx.x] + own_counts[digits[k]] + ranks[k];
            sorted[to] = own[k], sorted_keys[to] = own_keys[k];
        }
    }
}
