// One pass of a stable LSD radix sort of entries by key: digit counts per tile, their exclusive scan, and scatter. In the first pass `order` and
// `keys` are null.

// Maximum of bits per pass.
constexpr u32 BITS = 10, DIGITS = 1 << BITS, EACH = 8;
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

// The tile's entries are put in order in shared memory first, so that those of a digit are written as a run.
extern "C" __global__ void __launch_bounds__(THREADS) sort_place(const i64* index, const __grid_constant__ EntryCounts counts,
                                                                 const __grid_constant__ Walk<3> lines, const u32* order,
                                                                 const u32* keys, u32* sorted, u32* sorted_keys, const u32* found,
                                                                 u32 shift, u32 bits) {
    __shared__ union {
        u16 ranked[WARPS][DIGITS];
        struct {
            u32 order[TILE], keys[TILE];
        } tile;
    } room;
    // Where the entries of each digit begin: of all, and of the tile.
    __shared__ u32 starts[DIGITS + 1], own_starts[DIGITS + 1];
    Entries entries{index, counts, lines};
    u32 first = blockIdx.x * TILE + threadIdx.x / WARP * WARP * EACH + threadIdx.x % WARP, mask = (1 << bits) - 1;
    u32 own[EACH], own_keys[EACH], places[EACH];
    for (u32 d = threadIdx.x; d <= mask; d += THREADS) {
        starts[d] = found[(gridDim.x << bits) + d];
    }
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        u32 at = first + k * WARP;
        bool exists = at < entries.count();
        own[k] = exists && order ? order[at] : at;
        own_keys[k] = !exists ? 0xffffffff : keys ? keys[at] : entries.key(at, entries.index_of(at));
    }
    for (u32 d = threadIdx.x; d < WARPS << bits; d += THREADS) {
        room.ranked[d >> bits][d & mask] = 0;
    }
    sum_all_before(starts, 1 << bits);
    u16* own_counts = room.ranked[threadIdx.x / WARP];
    for (u32 k = 0; k < EACH; ++k) {
        places[k] = count_entry(own_counts, own_keys[k] >> shift & mask, true);
    }
    __syncthreads();
    sum_warps(room.ranked, 1 << bits, own_starts);
    sum_all_before(own_starts, 1 << bits);
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        u32 digit = own_keys[k] >> shift & mask;
        places[k] += own_starts[digit] + own_counts[digit];
    }
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        room.tile.order[places[k]] = own[k], room.tile.keys[places[k]] = own_keys[k];
    }
    for (u32 d = threadIdx.x; d <= mask; d += THREADS) {
        starts[d] += found[d * gridDim.x + blockIdx.x] - own_starts[d];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILE && blockIdx.x * TILE + i < entries.count(); i += THREADS) {
        u32 key = room.tile.keys[i], to = starts[key >> shift & mask] + i;
        sorted[to] = room.tile.order[i], sorted_keys[to] = key;
    }
}
