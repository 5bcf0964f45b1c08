// Sums at indices: out[row] += the values of all entries with this row, in order. The first RUN of them are added to what is there
// one by one. Others are summed in runs of as many, and the runs are added in order. So a sum's bits depend on nothing but its own
// entries.

constexpr u32 RUN = 1024;

// Adds the values of the entries with this key among those from `at` to `end` of an order.
template <int V, class Source>
__device__ inline void add_entries(Opmath<S> (&sum)[V], const u32* order, u32 at, u32 end, u32 key, const Source& source, i64 column) {
    // How many are read before the first is added, as registers allow.
    constexpr u32 AHEAD = V > 4 ? 32 / V : V > 1 ? 8 : 16;
    for (bool more = true; more && at < end; at += AHEAD) {
        u32 own[AHEAD];
        typename Source::template Item<V> items[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            own[k] = at + k < end ? order[at + k] : 0;
            more = at + k < end && source.entries.key(own[k]) == key;
            items[k].counts = more;
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            if (items[k].counts) {
                source.load(items[k], own[k], column);
            }
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            for (int v = 0; v < V; ++v) {
                sum[v] = items[k].counts ? items[k].added(sum[v], v) : sum[v];
            }
        }
    }
}

// Runs of sorted entries, `tile` positions at a time: sums that are whole, and parts of others. Threads side by side have columns,
// `width` of them, a power of two.
template <int V, class Source>
__device__ inline void sum_runs(S* out, Opmath<S>* parts, const u32* order, u32 tile, u32 width, const Walk<2>& columns,
                                const Source& source) {
    __shared__ u32 leads[THREADS];
    __shared__ u32 found;
    const Entries& entries = source.entries;
    u32 count = entries.count(), lane = threadIdx.x % width;
    auto key_at = [&](u32 at) { return entries.key(order[at]); };
    for (u32 first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
        if (threadIdx.x == 0) {
            found = 0;
        }
        __syncthreads();
        // The positions at which runs begin.
        u32 position = first + threadIdx.x;
        if (threadIdx.x < tile && position < count) {
            u32 key = key_at(position), start = position;
            if (position > 0 && key_at(position - 1) == key) {
                // The sum's first position, if it can be a multiple of RUN away.
                bool is_far = position >= RUN && key_at(position - RUN) == key;
                start = is_far ? first_of(0u, position - RUN, [&](u32 at) { return key_at(at) >= key; }) : position - 1;
            }
            if (key != entries.none() && (position - start) % RUN == 0) {
                leads[atomicAdd(&found, 1)] = position * 2 + (start == position);
            }
        }
        __syncthreads();
        for (u32 n = threadIdx.x / width; n < found; n += THREADS / width) {
            u32 at = leads[n] / 2, is_first = leads[n] % 2, key = key_at(at);
            bool is_whole = is_first && !(at + RUN < count && key_at(at + RUN) == key);
            for (u64 vector = (u64)blockIdx.y * width + lane; vector * V < columns.elements; vector += (u64)gridDim.y * width) {
                Offsets<2> column = offsets(columns, vector * V);
                S* to = out + entries.row(key) + column.at[1];
                Pack<S, V> held = load<V>(to, true);
                Opmath<S> sum[V];
                for (int v = 0; v < V; ++v) {
                    // -0 adds nothing, not even to -0.
                    sum[v] = is_first ? (Opmath<S>)held.at[v] : (Opmath<S>)-0.0;
                }
                add_entries<V>(sum, order, at, min(at + RUN, count), key, source, column.at[0]);
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

// Sums of up to RUN entries, which every block sorts for itself.
template <int V, class Source>
__device__ inline void sum_few(S* out, u32 tile, u32 width, const Walk<2>& columns, const Source& source, Fault fault) {
    constexpr u32 OWN = RUN / THREADS;
    __shared__ u16 ranked[WARPS][DIGITS];
    __shared__ u32 starts[DIGITS], orders[2][RUN];
    u32 *order = orders[0], *sorted = orders[1], first = threadIdx.x / WARP * WARP * OWN + threadIdx.x % WARP;
    for (u32 shift = 0; shift < 32 && source.entries.none() >> shift != 0; shift += BITS) {
        u32 own[OWN], digits[OWN], ranks[OWN];
        __syncthreads();
        for (u32 k = 0; k < OWN; ++k) {
            // Positions without an entry come last.
            own[k] = shift > 0 ? order[first + k * WARP] : first + k * WARP;
            u32 key = own[k] < source.entries.count() ? source.entries.key(own[k], &fault) : 0xffffffff;
            digits[k] = key >> shift & (DIGITS - 1);
        }
        rank_entries<OWN>(ranked, digits, ranks, starts);
        sum_before(starts);
        for (u32 k = 0; k < OWN; ++k) {
            sorted[starts[digits[k]] + ranks[k]] = own[k];
        }
        u32* swapped = order;
        order = sorted, sorted = swapped;
    }
    __syncthreads();
    sum_runs<V>(out, nullptr, order, tile, width, columns, source);
}

// Adds the parts of sums of more than RUN entries. A block has the sum that begins among its RUN positions, if one does.
template <class Source>
__device__ inline void join_runs(S* out, const Opmath<S>* parts, const u32* order, const Walk<2>& columns, const Source& source) {
    __shared__ u32 start;
    const Entries& entries = source.entries;
    u32 count = entries.count();
    auto has_key = [&](u64 at, u32 key) { return at < count && entries.key(order[at]) == key; };
    if (threadIdx.x == 0) {
        start = count;
    }
    __syncthreads();
    for (u32 at = blockIdx.x * RUN + threadIdx.x; at < min((blockIdx.x + 1) * RUN, count); at += THREADS) {
        u32 key = entries.key(order[at]);
        if (key != entries.none() && has_key(at + RUN, key) && (at == 0 || !has_key(at - 1, key))) {
            start = at;
        }
    }
    __syncthreads();
    u64 first = (u64)blockIdx.y * THREADS + threadIdx.x;
    for (u64 column = start < count ? first : columns.elements; column < columns.elements; column += (u64)gridDim.y * THREADS) {
        u32 key = entries.key(order[start]);
        Opmath<S> sum = parts[(u64)(start / RUN * 2 + 1) * columns.elements + column];
        for (u64 at = start + (u64)RUN; has_key(at, key); at += RUN) {
            sum = add(sum, parts[at / RUN * 2 * columns.elements + column]);
        }
        out[entries.row(key) + offsets(columns, column).at[1]] = sum;
    }
}

// A kernel of a source, of which `BODY` makes what the arguments `ARGS` are for.
#define INDEXED_KERNEL(name, ARGS, BODY)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAMED(name, DTYPE)(                                           \
        S * out, Opmath<S>* parts, const u32* order, u32 tile, u32 width, const __grid_constant__ Walk<2> columns, ARGS) { \
        BODY;                                                                                                              \
    }
#define INDEXED_SUMS(name, ARGS, SOURCE)                                                                                        \
    INDEXED_KERNEL(name, ARGS(), sum_runs<1>(out, parts, order, tile, width, columns, SOURCE()))                                \
    INDEXED_KERNEL(name##_vector, ARGS(), sum_runs<16 / sizeof(S)>(out, parts, order, tile, width, columns, SOURCE()))          \
    INDEXED_KERNEL(name##_few, ARGS(), sum_few<1>(out, tile, width, columns, SOURCE(), fault))                                  \
    INDEXED_KERNEL(name##_few_vector, ARGS(), sum_few<16 / sizeof(S)>(out, tile, width, columns, SOURCE(), fault))              \
    INDEXED_KERNEL(name##_join, ARGS(), join_runs(out, parts, order, columns, SOURCE()))
