// Sums in memory, each of which is one thread's.

constexpr u32 THREADS = 256;
constexpr u32 WARP = 32;

// How many hits are read ahead, as registers allow.
constexpr u32 AHEAD = HALF ? 4 : 16;
// No thread, no group.
constexpr u32 NONE = 0xffffffff;

// Groups of neighbouring threads follow hits, one of which each thread of the block may have: `owner` is the group that it is for,
// or NONE. Calls `take(n, read(n))` on every thread of a group that `exists` for the threads n whose hits are the group's, in
// their order; some are read before the first of them is taken. What the hits left in shared memory is there by then, and may
// be written again afterwards. All threads of the block come here.
template <class T, class Read, class Take>
__device__ inline void follow_hits(u32 owner, u32 groups, bool exists, Read read, Take take) {
    constexpr u32 WARPS = THREADS / WARP;
    __shared__ u32 owners[THREADS];
    // For each warp that may have hits, and each group, those of the warp that are the group's.
    __shared__ u32 hits[WARPS][THREADS];
    u32 width = THREADS / groups, group = threadIdx.x / width;
    owners[threadIdx.x] = owner;
    __syncthreads();
    u32 lane = threadIdx.x % WARP, first = (threadIdx.x - lane) / width;
    for (u32 warp = 0; warp < WARPS; ++warp) {
        u32 other = owners[warp * WARP + lane];
        // A warp has several groups, or a part of one.
        for (u32 g = first; g == first || g * width < threadIdx.x - lane + WARP; ++g) {
            u32 mask = __ballot_sync(0xffffffff, other == g);
            if (threadIdx.x == g * width) {
                hits[warp][g] = mask;
            }
        }
    }
    __syncthreads();
    u32 warp = 0, mask = hits[0][group];
    auto next = [&]() -> u32 {
        while (mask == 0) {
            if (warp + 1 == WARPS) {
                return NONE;
            }
            mask = hits[++warp][group];
        }
        u32 number = warp * WARP + (u32)__ffs((int)mask) - 1;
        mask &= mask - 1;
        return number;
    };
    for (bool more = exists; more;) {
        u32 numbers[AHEAD];
        T values[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            numbers[k] = next();
            if (numbers[k] != NONE) {
                values[k] = read(numbers[k]);
            }
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            if (numbers[k] != NONE) {
                take(numbers[k], values[k]);
            }
        }
        more = numbers[AHEAD - 1] != NONE;
    }
    __syncthreads();
}

// The sums that are one thread's: places p of the output along the axis with p % groups == group, `groups` a power of two.
template <class S, bool HELD = sizeof(S) == 2> struct Sums {
    S* to;
    i64 step;
    // The place whose sum is at hand, -1 for none.
    i64 held;
    S sum;

    __device__ Sums(S* to, i64 step, u32, u32) : to(to), step(step), held(-1), sum() {}
    __device__ void take(i64 place, Opmath<S> x) {
        if (place != held) {
            finish();
            held = place;
            sum = to[place * step];
        }
        sum = add(sum, x);
    }
    __device__ void finish() {
        if (held >= 0) {
            to[held * step] = sum;
        }
    }
};
// 16 bits would round each addition, so sums are held in shared memory until they are whole: up to 32 of a thread.
template <class S> struct Sums<S, true> {
    S* to;
    i64 step;
    f32* held;
    u32 shift;
    u32 group;
    u32 touched;

    __device__ Sums(S* to, i64 step, u32 groups, u32 group)
        : to(to), step(step), shift(__ffs((int)groups) - 1), group(group), touched(0) {
        __shared__ f32 all[32 * THREADS];
        held = all + threadIdx.x;
    }
    __device__ void take(i64 place, f32 x) {
        u32 slot = (u32)(place >> shift);
        f32& sum = held[slot * THREADS];
        if (!(touched >> slot & 1)) {
            sum = to[place * step];
            touched |= 1u << slot;
        }
        sum += x;
    }
    __device__ void finish() {
        for (; touched != 0; touched &= touched - 1) {
            u32 slot = (u32)__ffs((int)touched) - 1;
            to[(((i64)slot << shift) + group) * step] = held[slot * THREADS];
        }
    }
};
