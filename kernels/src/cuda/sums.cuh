// Sums in memory, each of which is one thread's.

constexpr u32 THREADS = 256;
constexpr u32 WARP = 32;

// How many hits are read ahead, as registers allow.
constexpr u32 AHEAD = HALF ? 4 : 8;

// Calls `take(n, read(n))` for the number `n` of each thread of the block that has a hit, in their order, on every thread that
// `exists`; some are read before the first of them is taken. What the hits left in shared memory is there by then, and may be
// written again afterwards. All threads of the block come here.
template <class T, class Read, class Take>
__device__ inline void follow_hits(bool hit, bool exists, Read read, Take take) {
    __shared__ u32 hits[THREADS / WARP];
    u32 mask = __ballot_sync(0xffffffff, hit);
    if (threadIdx.x % WARP == 0) {
        hits[threadIdx.x / WARP] = mask;
    }
    __syncthreads();
    for (u32 warp = 0; exists && warp < THREADS / WARP; ++warp) {
        for (u32 mask = hits[warp]; mask != 0;) {
            u32 numbers[AHEAD], count = 0;
            T values[AHEAD];
#pragma unroll
            for (u32 k = 0; k < AHEAD; ++k) {
                if (mask != 0) {
                    numbers[k] = warp * WARP + (u32)__ffs((int)mask) - 1;
                    mask &= mask - 1;
                    values[k] = read(numbers[k]);
                    count = k + 1;
                }
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; ++k) {
                if (k < count) {
                    take(numbers[k], values[k]);
                }
            }
        }
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
