// Indexed sums: out[row] += the values of all entries with this row, in order. The first RUN values are added to out[row] one by one.
// The rest are summed in runs of RUN, and these sums are added in order, so the bits of a row depend on its own entries only.

// FEW entries are sorted by every block. A block has up to SPAN positions, and a run more.
constexpr u32 RUN = 128, FEW = 1024, SPAN = 512 + RUN;

// The first position of those with the key of a position. A warp's threads look at positions in between together.
__device__ inline u32 first_with_key(const Entries& entries, const u32* order, u32 position) {
    u32 key = entries.key(order[position]), low = 0, high = position;
    while (low < high) {
        u32 step = (high - low) / WARP + 1, at = low + threadIdx.x % WARP * step;
        u32 is_before = __ballot_sync(0xffffffff, at < high && entries.key(order[at]) < key);
        // Those before the key come first.
        u32 before = __popc(is_before);
        high = before < WARP && low + before * step < high ? low + before * step : high;
        low = before > 0 ? low + (before - 1) * step + 1 : high;
    }
    return high;
}

// Runs of sorted entries that begin at one of `tile` positions, up to RUN: sums that are whole, and parts of others. Threads side by
// side have columns, `width` of them, a power of two.
template <int V, class Source>
__device__ inline void sum_runs(S* out, Opmath<S>* parts, const u32* order, u32 tile, u32 width, const Walk<2>& columns,
                                const Source& source) {
    // Entries and keys from the tile's first position on, and bits for the positions at which runs and sums begin.
    __shared__ u32 own[SPAN], keys[SPAN], runs[SPAN / WARP], sums[SPAN / WARP], start_of_first;
    // How many are read before the first is added, as registers allow.
    using Item = typename Source::template Item<V>;
    constexpr u32 AHEAD = sizeof(Item) <= 32 && V <= 8 ? 16 : V > 4 ? 4 : 8;
    const Entries& entries = source.entries;
    u32 count = entries.count(), lane = threadIdx.x % width;
    auto key_at = [&](u32 at) { return entries.key(order[at]); };
    for (u32 first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
        // Whole warps.
        u32 span = (tile + RUN + WARP - 1) / WARP * WARP;
        for (u32 n = threadIdx.x; n < span; n += THREADS) {
            bool exists = first + n < count;
            own[n] = exists ? order[first + n] : 0;
            keys[n] = exists ? entries.key(own[n]) : entries.none();
        }
        if (threadIdx.x < WARP) {
            start_of_first = first_with_key(entries, order, first);
        }
        __syncthreads();
        // Where keys change; the position before the first has been looked at.
        for (u32 n = threadIdx.x; n < span; n += THREADS) {
            bool is_first = n > 0 ? keys[n] != keys[n - 1] : start_of_first == first;
            u32 mask = __ballot_sync(0xffffffff, is_first);
            if (n % WARP == 0) {
                sums[n / WARP] = mask;
            }
        }
        __syncthreads();
        for (u32 n = threadIdx.x; n < span; n += THREADS) {
            u32 word = n / WARP, mask = sums[word] & 0xffffffff >> (WARP - 1 - n % WARP);
            while (mask == 0 && word > 0) {
                mask = sums[--word];
            }
            u32 start = mask != 0 ? first + word * WARP + (WARP - 1 - (u32)__clz((int)mask)) : start_of_first;
            u32 run_mask = __ballot_sync(0xffffffff, first + n >= count || (first + n - start) % RUN == 0);
            if (n % WARP == 0) {
                runs[n / WARP] = run_mask;
            }
        }
        __syncthreads();
        auto has = [&](const u32* masks, u32 n) { return masks[n / WARP] >> n % WARP & 1; };
        for (u32 n = threadIdx.x / width; n < tile; n += THREADS / width) {
            u32 at = first + n, is_first = has(sums, n), end = n + 1;
            if (!has(runs, n) || keys[n] == entries.none()) {
                continue;
            }
            while (end < n + RUN && !has(runs, end)) { ++end; }
            bool is_whole = is_first && !(first + end < count && key_at(first + end) == keys[n]);
            for (u64 vector = (u64)blockIdx.y * width + lane; vector * V < columns.elements; vector += (u64)gridDim.y * width) {
                Offsets<2> column = offsets(columns, vector * V);
                S* to = out + entries.row(keys[n]) + column.at[1];
                Pack<S, V> held = load<V>(to, true);
                Opmath<S> sum[V];
                for (int v = 0; v < V; ++v) {
                    // -0 adds nothing, not even to -0.
                    sum[v] = is_first ? (Opmath<S>)held.at[v] : (Opmath<S>)-0.0;
                }
                for (u32 from = n; from < end; from += AHEAD) {
                    Item items[AHEAD];
                    for (u32 k = 0; k < AHEAD; ++k) {
                        items[k].counts = from + k < end;
                        if (items[k].counts) {
                            source.load(items[k], own[from + k], column.at[0]);
                        }
                    }
                    for (u32 k = 0; k < AHEAD; ++k) {
                        for (int v = 0; v < V; ++v) {
                            sum[v] = items[k].counts ? items[k].added(sum[v], v) : sum[v];
                        }
                    }
                }
                for (int v = 0; v < V; ++v) {
                    held.at[v] = sum[v];
                    if (!is_whole) {
                        parts[(u64)(at / RUN * 2 + is_first) * columns.elements + vector * V + v] = sum[v];
                    }
                }
                if (is_whole) {
                    store<V>(to, held);
                }
            }
        }
        __syncthreads();
    }
}

// Sums of up to FEW entries. A block keeps their order for what follows.
template <int V, class Source>
__device__ inline void sum_few(S* out, Opmath<S>* parts, u32* kept, u32 tile, u32 width, u32 bits, const Walk<2>& columns,
                               const Source& source, Fault fault) {
    constexpr u32 OWN = FEW / THREADS;
    __shared__ u16 ranked[WARPS][DIGITS];
    __shared__ u32 starts[DIGITS], orders[2][FEW];
    u32 *order = orders[0], *sorted = orders[1], first = threadIdx.x / WARP * WARP * OWN + threadIdx.x % WARP;
    for (u32 shift = 0; shift < 32 && source.entries.none() >> shift != 0; shift += bits) {
        u32 own[OWN], digits[OWN], ranks[OWN];
        __syncthreads();
        for (u32 k = 0; k < OWN; ++k) {
            // Positions without an entry come last.
            own[k] = shift > 0 ? order[first + k * WARP] : first + k * WARP;
            u32 key = own[k] < source.entries.count() ? source.entries.key(own[k], &fault) : 0xffffffff;
            digits[k] = key >> shift & (1 << bits) - 1;
        }
        rank_entries<OWN>(ranked, bits, digits, ranks, starts);
        sum_before(starts, 1 << bits);
        for (u32 k = 0; k < OWN; ++k) {
            sorted[starts[digits[k]] + ranks[k]] = own[k];
        }
        u32* swapped = order;
        order = sorted, sorted = swapped;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; kept && blockIdx.x + blockIdx.y == 0 && at < source.entries.count(); at += THREADS) {
        kept[at] = order[at];
    }
    sum_runs<V>(out, parts, order, tile, width, columns, source);
}

// Adds the parts of sums of more than RUN entries. A block has the sum that begins among its RUN positions, if one does.
template <class Source>
__device__ inline void join_runs(S* out, const Opmath<S>* parts, const u32* order, const Walk<2>& columns, const Source& source) {
    __shared__ u32 start;
    const Entries& entries = source.entries;
    u32 count = entries.count();
    auto key_at = [&](u32 at) { return entries.key(order[at]); };
    if (threadIdx.x == 0) {
        start = count;
    }
    __syncthreads();
    u32 at = blockIdx.x * RUN + threadIdx.x;
    if (threadIdx.x < RUN && at + RUN < count) {
        u32 key = key_at(at);
        if (key != entries.none() && key_at(at + RUN) == key && (at == 0 || key_at(at - 1) != key)) {
            start = at;
        }
    }
    __syncthreads();
    if (start == count) {
        return;
    }
    u32 key = key_at(start), runs = first_of(1u, (count - start - 1) / RUN + 1, [&](u32 n) { return key_at(start + n * RUN) != key; });
    for (u64 column = (u64)blockIdx.y * THREADS + threadIdx.x; column < columns.elements; column += (u64)gridDim.y * THREADS) {
        const Opmath<S>* part = parts + (u64)(start / RUN) * 2 * columns.elements + column;
        Opmath<S> sum = part[columns.elements];
#pragma unroll 16
        for (u64 n = 1; n < runs; ++n) {
            sum = add(sum, part[n * 2 * columns.elements]);
        }
        out[entries.row(key) + offsets(columns, column).at[1]] = sum;
    }
}

// A kernel of a source, of which `BODY` makes what the arguments `ARGS` are for.
#define INDEXED_KERNEL(name, ARGS, BODY)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAMED(name, DTYPE)(                                     \
        S * out, Opmath<S>* parts, u32* order, u32 tile, u32 width, u32 bits,                                        \
        const __grid_constant__ Walk<2> columns, ARGS) {                                                             \
        BODY;                                                                                                        \
    }
#define INDEXED_SUMS(name, ARGS, SOURCE)                                                                                               \
    INDEXED_KERNEL(name, ARGS(), sum_runs<1>(out, parts, order, tile, width, columns, SOURCE()))                                       \
    INDEXED_KERNEL(name##_vector, ARGS(), sum_runs<16 / sizeof(S)>(out, parts, order, tile, width, columns, SOURCE()))                 \
    INDEXED_KERNEL(name##_few, ARGS(), sum_few<1>(out, parts, order, tile, width, bits, columns, SOURCE(), fault))                     \
    INDEXED_KERNEL(name##_few_vector, ARGS(), sum_few<16 / sizeof(S)>(out, parts, order, tile, width, bits, columns, SOURCE(), fault)) \
    INDEXED_KERNEL(name##_join, ARGS(), join_runs(out, parts, order, columns, SOURCE()))
