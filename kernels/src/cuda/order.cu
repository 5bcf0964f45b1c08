// Keys and results of a sort of elements of type DTYPE along rows; see `sort.cu`. FLOATS is 1 for floating-point types.

// Unsigned integers in the order of the elements. Zeros are equal, and NaN is the largest.
__device__ inline u32 ordered(u32 bits) { return bits >> 31 ? ~bits : bits | 0x80000000; }
__device__ inline u64 ordered(u64 bits) { return bits >> 63 ? ~bits : bits | 0x8000000000000000; }
__device__ inline u32 key_of(f32 x) { return is_nan(x) ? 0xffffffff : ordered(x == 0 ? 0u : __float_as_uint(x)); }
__device__ inline u64 key_of(f64 x) { return is_nan(x) ? ~0ull : ordered(x == 0 ? 0ull : (u64)__double_as_longlong(x)); }
__device__ inline u64 key_of(i64 x) { return (u64)x ^ 0x8000000000000000; }
__device__ inline u32 key_of(u8 x) { return x; }
using Key = decltype(key_of(T()));

// The elements of all rows: their first, the distance along a row, and whether they are in descending order.
struct Elements {
    const S* x;
    const Walk<2>& kept;
    i64 step;
    u32 flip;

    __device__ Key key(u64 row, u64 place) const {
        Key key = key_of((T)x[offsets(kept, row).at[1] + (i64)place * step]);
        return flip ? ~key : key;
    }
};

// 32 bits from bit `shift` on of the key of each element, in the given order; 64 stands for the element's row.
extern "C" __global__ void NAMED(sort_keys, DTYPE)(u32* keys, const u32* order, const S* x, const __grid_constant__ Walk<2> kept,
                                                   u64 len, i64 step, u32 flip, u32 shift) {
    Elements elements{x, kept, step, flip};
    for (u64 i = thread_index(); i < kept.elements * len; i += thread_count()) {
        u32 at = order ? order[i] : (u32)i, row = at / (u32)len;
        keys[i] = shift == 64 ? row : (u32)(elements.key(row, at - row * (u32)len) >> shift);
    }
}

// The indices of the first `count` elements of each row.
extern "C" __global__ void NAMED(sorted_indices, DTYPE)(i64* out, const u32* order, const __grid_constant__ Walk<2> kept, u64 len,
                                                        u64 count, i64 step) {
    for (u64 i = thread_index(); i < kept.elements * count; i += thread_count()) {
        u64 row = quotient(i, count), place = i - row * count;
        out[offsets(kept, row).at[0] + (i64)place * step] = order[row * len + place] - row * len;
    }
}

// Elements of a row that are sorted or chosen from: all, or those at the places in a list, of which each row has `len`.
struct Candidates {
    Elements elements;
    const u32* list;
    u32 len;

    __device__ u32 place(u64 row, u32 i) const { return list ? list[row * len + i] : i; }
};

// A key and a place. Places differ, so that a sort of items is stable.
template <class K> struct Item;
template <> struct Item<u32> {
    u64 bits;

    __device__ static Item of(u32 key, u32 place) { return {(u64)key << 32 | place}; }
    __device__ u32 place() const { return (u32)bits; }
    __device__ bool operator<(const Item& other) const { return bits < other.bits; }
    __device__ Item across(u32 lanes) const { return {__shfl_xor_sync(0xffffffff, bits, (int)lanes)}; }
};
template <> struct Item<u64> {
    u64 key;
    u32 own;

    __device__ static Item of(u64 key, u32 place) { return {key, place}; }
    __device__ u32 place() const { return own; }
    __device__ bool operator<(const Item& other) const { return key < other.key || (key == other.key && own < other.own); }
    __device__ Item across(u32 lanes) const {
        return {__shfl_xor_sync(0xffffffff, key, (int)lanes), __shfl_xor_sync(0xffffffff, own, (int)lanes)};
    }
};

// Items of a thread, and most items of a row of `sort_rows`.
constexpr u32 ITEMS = 8, SHORT = 2048, ROW_THREADS = SHORT / ITEMS;

// Compares the thread's items that are APART, and exchanges them unless they are in order. Runs of `run` items ascend and descend in turn.
template <u32 APART, class I> __device__ inline void exchange(I (&own)[ITEMS], u32 first, u32 run, u32 size) {
#pragma unroll
    for (u32 e = 0; e < ITEMS; ++e) {
        if ((e & APART) == 0) {
            bool ascends = run == size || ((first + e) & run) == 0;
            I low = own[e], high = own[e | APART];
            if ((high < low) == ascends) {
                own[e] = high, own[e | APART] = low;
            }
        }
    }
}

// The indices of the first `count` candidates of each row of at most SHORT: a bitonic sort of items in registers, exchanged between lanes, and
// between warps through shared memory. A row has `size` items, the power of two from `len` and ITEMS on; a thread block has several rows
// if they are shorter than its items.
extern "C" __global__ void __launch_bounds__(ROW_THREADS) NAMED(sort_rows, DTYPE)(i64* out, const S* x, const u32* list,
                                                                                 const __grid_constant__ Walk<2> kept, u32 len, u32 size,
                                                                                 u32 count, i64 out_step, i64 x_step, u32 flip) {
    using I = Item<Key>;
    __shared__ I shared[ITEMS][ROW_THREADS];
    Candidates candidates{{x, kept, x_step, flip}, list, len};
    u32 first = threadIdx.x * ITEMS, rows = blockDim.x * ITEMS / size;
    for (u64 block = blockIdx.x; block * rows < kept.elements; block += gridDim.x) {
        u64 row = block * rows + first / size;
        I own[ITEMS];
#pragma unroll
        for (u32 e = 0; e < ITEMS; ++e) {
            // Neighbouring lanes load neighbours if a warp's items belong to one row.
            u32 i = (size < WARP * ITEMS ? first + e : first / (WARP * ITEMS) * WARP * ITEMS + e * WARP + threadIdx.x % WARP) & (size - 1);
            bool exists = i < len && row < kept.elements;
            u32 place = exists ? candidates.place(row, i) : ~0u;
            own[e] = I::of(exists ? candidates.elements.key(row, place) : ~(Key)0, place);
        }
        for (u32 run = 2; run <= size; run *= 2) {
            for (u32 apart = run / 2; apart >= WARP * ITEMS; apart /= 2) {
                bool is_low = ((first & apart) == 0) == (run == size || (first & run) == 0);
#pragma unroll
                for (u32 e = 0; e < ITEMS; ++e) {
                    shared[e][threadIdx.x] = own[e];
                }
                __syncthreads();
#pragma unroll
                for (u32 e = 0; e < ITEMS; ++e) {
                    I other = shared[e][threadIdx.x ^ apart / ITEMS];
                    own[e] = (other < own[e]) == is_low ? other : own[e];
                }
                __syncthreads();
            }
            for (u32 apart = min(run / 2, WARP * ITEMS / 2); apart >= ITEMS; apart /= 2) {
                bool is_low = ((first & apart) == 0) == (run == size || (first & run) == 0);
#pragma unroll
                for (u32 e = 0; e < ITEMS; ++e) {
                    I other = own[e].across(apart / ITEMS);
                    own[e] = (other < own[e]) == is_low ? other : own[e];
                }
            }
            if (run >= 8) {
                exchange<4>(own, first, run, size);
            }
            if (run >= 4) {
                exchange<2>(own, first, run, size);
            }
            exchange<1>(own, first, run, size);
        }
        if (row < kept.elements) {
            i64 to = offsets(kept, row).at[0];
#pragma unroll
            for (u32 e = 0; e < ITEMS; ++e) {
                u32 i = first + e & size - 1;
                if (i < count) {
                    out[to + (i64)i * out_step] = own[e].place();
                }
            }
        }
    }
}

// Candidates of a part of a row, and of one thread.
constexpr u32 PART_THREADS = THREADS / 2, EACH = 16, PART = PART_THREADS * EACH, PART_WARPS = WARPS / 2;

// The sum of a number over the thread block, for all threads.
__device__ inline u32 sum_of_block(u32 number, u32* shared) {
    for (u32 lanes = WARP / 2; lanes > 0; lanes /= 2) {
        number += __shfl_xor_sync(0xffffffff, number, (int)lanes);
    }
    if (threadIdx.x % WARP == 0) {
        shared[threadIdx.x / WARP] = number;
    }
    __syncthreads();
    u32 sum = 0;
#pragma unroll
    for (u32 w = 0; w < PART_WARPS; ++w) {
        sum += shared[w];
    }
    __syncthreads();
    return sum;
}

// The places of the first `count` of each part of PART candidates, in the order of their places, one thread block a part: the bits of the last
// one's key are found from the highest on.
extern "C" __global__ void __launch_bounds__(PART_THREADS) NAMED(select_parts, DTYPE)(u32* chosen, const S* x, const u32* list,
                                                                                     const __grid_constant__ Walk<2> kept, u32 len,
                                                                                     u32 parts, u32 count, u32 chosen_len, i64 x_step,
                                                                                     u32 flip) {
    __shared__ u32 sums[EACH * PART_WARPS + 1];
    Candidates candidates{{x, kept, x_step, flip}, list, len};
    for (u64 block = blockIdx.x; block < kept.elements * parts; block += gridDim.x) {
        u64 row = block / parts;
        u32 part = (u32)(block - row * parts), first = part * PART, own = min(len - first, PART);
        Key keys[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) {
            u32 i = k * PART_THREADS + threadIdx.x;
            keys[k] = i < own ? candidates.elements.key(row, candidates.place(row, first + i)) : 0;
        }
        // Keys that begin with fewer bits than `limit` are chosen, and of those that begin with its bits the first `left`.
        Key limit = 0, bits = 0;
        u32 left = min(count, own), equal = own;
        for (u32 shift = 8 * sizeof(T); shift-- > 0 && left < equal;) {
            Key bit = (Key)1 << shift;
            u32 zeros = 0;
#pragma unroll
            for (u32 k = 0; k < EACH; ++k) {
                bool exists = k * PART_THREADS + threadIdx.x < own;
                zeros += exists && (keys[k] & (bits | bit)) == limit;
            }
            zeros = sum_of_block(zeros, sums);
            bits |= bit;
            bool is_one = left > zeros;
            limit |= is_one ? bit : 0;
            left -= is_one ? zeros : 0;
            equal = is_one ? equal - zeros : zeros;
        }
        // Numbers of chosen candidates before each warp's, those with the limit's bits in the high half.
        u32 below[EACH], same[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) {
            bool exists = k * PART_THREADS + threadIdx.x < own;
            below[k] = __ballot_sync(0xffffffff, exists && (keys[k] & bits) < limit);
            same[k] = __ballot_sync(0xffffffff, exists && (keys[k] & bits) == limit);
            if (threadIdx.x % WARP == 0) {
                sums[k * PART_WARPS + threadIdx.x / WARP] = __popc(below[k]) | __popc(same[k]) << 16;
            }
        }
        sum_all_before(sums, EACH * PART_WARPS);
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) {
            u32 lane = threadIdx.x % WARP, before = (1u << lane) - 1, sum = sums[k * PART_WARPS + threadIdx.x / WARP];
            u32 smaller = (sum & 0xffff) + __popc(below[k] & before), equals = (sum >> 16) + __popc(same[k] & before);
            bool is_same = same[k] >> lane & 1;
            if (below[k] >> lane & 1 || (is_same && equals < left)) {
                u32 to = part * count + smaller + min(equals, left);
                chosen[row * chosen_len + to] = candidates.place(row, first + k * PART_THREADS + threadIdx.x);
            }
        }
        __syncthreads();
    }
}
