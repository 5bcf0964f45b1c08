// Entries of index_add and scatter_add, and helpers for their stable sort by row. Each line of entries has rows of its own.

constexpr u32 THREADS = 512, WARP = 32, WARPS = THREADS / WARP;

struct EntryCounts {
    u64 entries;  // of all lines, fewer than 2^31
    u64 each;     // entries per line
    i64 steps[3]; // strides along a line of the source, the sums and the indices
    i64 size;     // rows per line
    i64 padding;  // an index to skip, or -1
    i64 beside;   // whether consecutive entries belong to consecutive lines
};

// An entry's line and its position in the line.
struct Entry {
    u32 line;
    u32 place;
};

struct Entries {
    const i64* index;
    const EntryCounts& counts;
    const Walk<3>& lines;

    __device__ u32 count() const { return (u32)counts.entries; }
    // Key of skipped entries: one more than the largest row.
    __device__ u32 none() const { return (u32)(lines.elements * counts.size); }
    __device__ Entry entry(u32 n) const {
        if (lines.elements == 1) {
            return {0, n};
        }
        u32 by = (u32)(counts.beside ? lines.elements : counts.each), high = n / by, low = n - high * by;
        return counts.beside ? Entry{low, high} : Entry{high, low};
    }
    __device__ i64 index_of(u32 n) const {
        Entry entry = this->entry(n);
        return index[offsets(lines, entry.line).at[2] + (i64)entry.place * counts.steps[2]];
    }
    // Key of an entry with index `i`. An index out of range raises a fault if `fault` is not null.
    __device__ u32 key(u32 n, i64 i, const Fault* fault = nullptr) const {
        bool is_in = in_range(i, counts.size);
        if (!is_in && fault) {
            raise(*fault, i, counts.size);
        }
        return is_in && i != counts.padding ? entry(n).line * (u32)counts.size + (u32)i : none();
    }
    // The line of a key, and the offset of its row in the sums.
    __device__ u32 line_of(u32 key) const { return lines.elements == 1 ? 0 : key / (u32)counts.size; }
    __device__ i64 row(u32 key) const {
        u32 line = line_of(key);
        return offsets(lines, line).at[1] + (i64)(key - line * (u32)counts.size) * counts.steps[1];
    }
};

// Binary search: the first number in `low..end` for which `is_beyond` holds, or `end`.
template <class N, class F> __device__ inline N first_of(N low, N end, F is_beyond) {
    while (low < end) {
        N middle = low + (end - low) / 2;
        is_beyond(middle) ? end = middle : low = middle + 1;
    }
    return low;
}

// Loads in flight per thread.
constexpr u32 AHEAD = 8;

// Returns how many entries with this digit the warp has counted before this lane's, and counts the lane's entry if it `exists`.
__device__ inline u32 count_entry(u16* counts, u32 digit, bool exists) {
    u32 same = __match_any_sync(0xffffffff, digit), before = exists ? counts[digit] : 0, lane = threadIdx.x % WARP;
    __syncwarp();
    if (exists && __ffs((int)same) - 1 == (int)lane) {
        counts[digit] = (u16)(before + __popc(same));
    }
    __syncwarp();
    return before + __popc(same & ((1u << lane) - 1));
}

// Exclusive scan of the counts over warps; writes the totals if `totals` is not null.
template <u32 N> __device__ inline void sum_warps(u16 (*counts)[N], u32 digits, u32* totals = nullptr) {
    for (u32 d = threadIdx.x; d < digits; d += THREADS) {
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
}

// Inclusive scan over the lanes of a warp.
__device__ inline u32 sum_of_lanes(u32 number) {
    for (u32 delta = 1; delta < WARP; delta *= 2) {
        u32 other = __shfl_up_sync(0xffffffff, number, delta);
        number += threadIdx.x % WARP >= delta ? other : 0;
    }
    return number;
}

// Exclusive scan in place by one warp; returns the total.
__device__ inline u32 sum_before(u32* numbers, u32 count) {
    u32 lane = threadIdx.x % WARP, sum = 0;
    for (u32 first = lane; first - lane < count; first += WARP * AHEAD) {
        u32 own[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            own[k] = first + k * WARP < count ? numbers[first + k * WARP] : 0;
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            u32 all = sum_of_lanes(own[k]);
            if (first + k * WARP < count) {
                numbers[first + k * WARP] = sum + all - own[k];
            }
            sum += __shfl_sync(0xffffffff, all, WARP - 1);
        }
    }
    return sum;
}
// The same in shared memory for a thread block; writes the total behind the numbers.
__device__ inline void sum_all_before(u32* numbers, u32 count) {
    __syncthreads();
    if (threadIdx.x < WARP) {
        numbers[count] = sum_before(numbers, count);
    }
    __syncthreads();
}
