// cumsum and rotary embedding of elements of type DTYPE. FLOATS is 1 for floating-point types.

// out[i] = x[0] + .. + x[i] along rows, or from the end, in the order of `ScanOrder`: a warp scans a tile, a lane scans a run of it.
// Sums start at 0 and are never -0, so adding 0 changes no bit.
struct Scan {
    u64 len;
    i64 steps[2];
    u64 reverse;
    u64 groups;  // groups of tiles in a row
    u64 tiles;   // tiles in a group, a power of two
    u64 warps;   // warps per group
};

// Elements of a run and of a tile; maximum of tiles in a group and of warps in a block.
constexpr u32 RUN = 16, TILE = LANES * RUN, GROUP = 64, WARPS = 16;

// Adds the sum of the first `count` elements to `sum`. nodes[i] is the sum of the largest aligned power-of-two range that ends with element i;
// for each bit of `count`, from the lowest on, one node is added. The lanes of a warp load the nodes at once.
template <class T> __device__ inline T with_blocks(const T* nodes, u32 count, T sum) {
    u32 lane = threadIdx.x % LANES;
    T own = count >> lane & 1 ? nodes[(count >> lane << lane) - 1] : (T)0;
    for (; count != 0; count &= count - 1) {
        sum = add(shuffle(own, __ffs((int)count) - 1), sum);
    }
    return sum;
}

// A lane's run of a tile.
struct Run {
    T elements[RUN];
    // Sum of the tile, and of the tile's runs before this one.
    T all, before;

    // `at(i)` loads element i. Elements behind the end of the row load the last one and count as 0. All lanes have loaded their elements when the
    // constructor returns, so `out` may alias `x`.
    template <class At> __device__ Run(u64 first, u64 len, At at) {
#pragma unroll
        for (u32 k = 0; k < RUN; ++k) {
            elements[k] = at(min(first + k, len - 1));
        }
#pragma unroll
        for (u32 k = 0; k < RUN; ++k) {
            elements[k] = first + k < len ? elements[k] : (T)0;
        }
        u32 lane = threadIdx.x % LANES;
        T sum = 0;
#pragma unroll
        for (u32 k = 0; k < RUN; ++k) {
            sum = add(sum, elements[k]);
        }
        for (u32 by = 1; by < LANES; by *= 2) {
            T lower = shuffle(sum, (lane | (2 * by - 1)) - by);
            sum = lane & by ? add(lower, sum) : sum;
        }
        all = shuffle(sum, LANES - 1);
        before = shuffle(sum, lane > 0 ? lane - 1 : 0);
        before = lane > 0 ? before : (T)0;
    }
};

// Writes the results or, if `only_sums`, the sum of each complete group. Results behind the first group add the nodes of `groups`.
extern "C" __global__ void __launch_bounds__(WARPS * LANES) NAMED(cumsum, DTYPE)(
    S* out, const S* x, T* groups, u32 only_sums, const __grid_constant__ Walk<2> kept, const __grid_constant__ Scan scan) {
    __shared__ T all_nodes[WARPS][GROUP];
    u32 warps = (u32)scan.warps, slot = threadIdx.x / LANES / warps, rank = threadIdx.x / LANES % warps;
    u32 thread = threadIdx.x % (warps * LANES), slots = blockDim.x / LANES / warps, each = (u32)scan.tiles;
    T* nodes = all_nodes[slot];
    u64 tiles = (scan.len + TILE - 1) / TILE, items = kept.elements * scan.groups;
    for (u64 start = (u64)blockIdx.x * slots; start < items; start += (u64)gridDim.x * slots) {
        bool exists = start + slot < items;
        u64 item = exists ? start + slot : 0, row = item / scan.groups, group = item - row * scan.groups;
        u32 count = exists ? (u32)min((u64)each, tiles - group * each) : 0;
        Offsets<2> at = offsets(kept, row);
        auto place_of = [&](u64 i, int operand) {
            return at.at[operand] + (i64)(scan.reverse ? scan.len - 1 - i : i) * scan.steps[operand];
        };
        auto run_of = [&](u32 t) {
            return Run((group * each + t) * TILE + threadIdx.x % LANES * RUN, scan.len, [&](u64 i) { return x[place_of(i, 1)]; });
        };
        if (tiles > 1 && (warps > 1 || only_sums)) {
            for (u32 t = rank; t < count; t += warps) {
                nodes[t] = run_of(t).all;
            }
            __syncthreads();
            for (u32 half = 1; half < each; half *= 2) {
                u32 end = (thread + 1) * 2 * half;
                if (end <= count) {
                    nodes[end - 1] = add(nodes[end - half - 1], nodes[end - 1]);
                }
                __syncthreads();
            }
        }
        if (only_sums && count == each && thread == 0) {
            groups[item] = nodes[each - 1];
        }
        for (u32 t = rank; !only_sums && t < count; t += warps) {
            Run run = run_of(t);
            T before = with_blocks(groups + row * scan.groups, (u32)group, with_blocks(nodes, t, (T)0));
            T base = add(before, run.before), next = 0;
            u64 first = (group * each + t) * TILE + threadIdx.x % LANES * RUN;
#pragma unroll
            for (u32 k = 0; k < RUN; ++k) {
                next = add(next, run.elements[k]);
                if (first + k < scan.len) {
                    out[place_of(first + k, 0)] = add(base, next);
                }
            }
            if (warps == 1) {
                for (u32 half = 1; t & half; half *= 2) {
                    run.all = add(nodes[t - half], run.all);
                }
                nodes[t] = run.all;
                __syncwarp();
            }
        }
        __syncthreads();
    }
}
// Turns the sums of a row's groups into nodes.
extern "C" __global__ void NAMED(cumsum_groups, DTYPE)(T* groups, u64 rows, u64 count) {
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        T* nodes = groups + row * count;
        for (u64 half = 1; half < count; half *= 2) {
            for (u64 end = (threadIdx.x + 1) * 2 * half; end < count; end += blockDim.x * 2 * half) {
                nodes[end - 1] = add(nodes[end - half - 1], nodes[end - 1]);
            }
            __syncthreads();
        }
    }
}

#if FLOATS
// (a, b) -> (a cos - b sin, b cos + a sin); the second element of a pair is `apart` elements behind the first
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
