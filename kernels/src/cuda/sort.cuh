// Entries whose indices name rows of sums, and stable sorts of them by row. Several lines of entries may have rows of their own.

constexpr u32 THREADS = 256;
constexpr u32 WARP = 32;
constexpr u32 WARPS = THREADS / WARP;

struct EntryCounts {
    u64 entries;  // of all lines, fewer than 2^31
    u64 each;     // of a line
    i64 steps[3]; // along a line, of the source, the sums and the indices
    i64 size;     // rows of a line
    i64 padding;  // an index that is left out, or -1
};

struct Entries {
    const i64* index;
    const EntryCounts& counts;
    const Walk<3>& lines;

    __device__ u32 count() const { return (u32)counts.entries; }
    // The key of entries that are left out: one more than the last row of all lines.
    __device__ u32 none() const { return (u32)(lines.elements * counts.size); }
    // An index out of range is a fault if there is somewhere to report it.
    __device__ u32 key(u32 entry, const Fault* fault = nullptr) const {
        i64 i = index[at<2>(entry)];
        bool is_in = in_range(i, counts.size);
        if (!is_in && fault) {
            raise(*fault, i, counts.size);
        }
        return is_in && i != counts.padding ? entry / (u32)counts.each * (u32)counts.size + (u32)i : none();
    }
    // Where an entry lies in the source (0) or among the indices (2).
    template <int K> __device__ i64 at(u32 entry) const {
        u32 line = entry / (u32)counts.each;
        return offsets(lines, line).at[K] + (i64)(entry - line * (u32)counts.each) * counts.steps[K];
    }
    // Where a row of sums begins.
    __device__ i64 row(u32 key) const {
        u32 line = key / (u32)counts.size;
        return offsets(lines, line).at[1] + (i64)(key - line * (u32)counts.size) * counts.steps[1];
    }
};

// The first number from `low` on that is `end` or beyond a bound, where those beyond it follow the others.
template <class N, class F> __device__ inline N first_of(N low, N end, F is_beyond) {
    while (low < end) {
        N middle = low + (end - low) / 2;
        is_beyond(middle) ? end = middle : low = middle + 1;
    }
    return low;
}

// A pass of a sort orders by so many bits, at most.
constexpr u32 BITS = 10;
constexpr u32 DIGITS = 1 << BITS;

// For EACH entries of each thread, of which a warp has neighbours: how many entries of the block with the same digit of `bits` bits come
// before. `counts` then has, for each warp, those of the warps before, and `totals`, if wanted, those of all.
template <u32 EACH> __device__ inline void rank_entries(u16 (*counts)[DIGITS], u32 bits, const u32 (&digits)[EACH], u32 (&ranks)[EACH],
                                                         u32* totals = nullptr) {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (u32 d = threadIdx.x; d < WARPS << bits; d += THREADS) {
        counts[d >> bits][d & (1 << bits) - 1] = 0;
    }
    __syncthreads();
    for (u32 k = 0; k < EACH; ++k) {
        u32 same = __match_any_sync(0xffffffff, digits[k]), before = counts[warp][digits[k]];
        ranks[k] = before + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (__ffs((int)same) - 1 == (int)lane) {
            counts[warp][digits[k]] = (u16)(before + __popc(same));
        }
        __syncwarp();
    }
    __syncthreads();
    for (u32 d = threadIdx.x; d >> bits == 0; d += THREADS) {
        u32 sum = 0;
        for (u32 w = 0; w < WARPS; ++w) {
            u32 count = counts[w][d];
            counts[w][d] = (u16)sum;
            sum += count;
        }
        if (totals) {
            totals[d] = sum;
        }
    }
    __syncthreads();
    for (u32 k = 0; k < EACH; ++k) {
        ranks[k] += counts[warp][digits[k]];
    }
}

// The sum of a warp's numbers up to this lane's.
__device__ inline u32 sum_of_lanes(u32 number) {
    for (u32 delta = 1; delta < WARP; delta *= 2) {
        u32 other = __shfl_up_sync(0xffffffff, number, delta);
        number += threadIdx.x % WARP >= delta ? other : 0;
    }
    return number;
}

// Replaces each of up to DIGITS numbers in shared memory by the sum of those before. All threads of the block come here.
__device__ inline void sum_before(u32* numbers, u32 count) {
    constexpr u32 EACH = DIGITS / THREADS;
    __shared__ u32 sums[WARPS];
    __syncthreads();
    u32 first = threadIdx.x * EACH, own = 0, before[EACH];
    for (u32 k = 0; k < EACH; ++k) {
        u32 number = first + k < count ? numbers[first + k] : 0;
        before[k] = own;
        own += number;
    }
    u32 all = sum_of_lanes(own);
    if (threadIdx.x % WARP == WARP - 1) {
        sums[threadIdx.x / WARP] = all;
    }
    __syncthreads();
    u32 others = all - own;
    for (u32 w = 0; w < threadIdx.x / WARP; ++w) {
        others += sums[w];
    }
    for (u32 k = 0; k < EACH; ++k) {
        if (first + k < count) {
            numbers[first + k] = others + before[k];
        }
    }
    __syncthreads();
}
