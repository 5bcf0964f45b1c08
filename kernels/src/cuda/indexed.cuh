// index_add and relatives: out[row] = base[row] + the values of all entries whose index is this row; a null base stands for zeros. The first RUN
// values are added to base[row] in order. Further values are summed in runs of RUN, and these sums are added in order, so that the bits of a
// row depend on its own entries only.
//
// A thread block owns some rows. It searches all entries for its own if there are few; otherwise entries are sorted by row first.

constexpr u32 RUN = 32;
// Columns of a vector, limited by registers.
constexpr int LANES_OF_RUN = sizeof(Opmath<S>) == 8 ? 2 : 4;
constexpr u32 ALL_LANES = 0xffffffff;

// Values or sums of V neighbouring columns.
template <int V> using Sums = Pack<Opmath<S>, V>;

template <int V> __device__ inline Sums<V> widened_pack(const Pack<S, V>& pack) {
    return pack_of<Opmath<S>, V>([&](int v) { return pack.at[v]; });
}
// The neutral element of addition: -0, since -0 + -0 = -0.
template <int V> __device__ inline Sums<V> nothing() {
    return pack_of<Opmath<S>, V>([](int) { return -0.0; });
}
template <int V> __device__ inline Sums<V> add_packs(const Sums<V>& a, const Sums<V>& b) {
    return pack_of<Opmath<S>, V>([&](int v) { return add(a.at[v], b.at[v]); });
}
// Adds `value(n)` for n in `from..end` in order. Several values are loaded before the first is added.
template <int V, class Value> __device__ inline void add_values(Sums<V>& sums, u32 from, u32 end, Value value) {
    constexpr u32 EACH = AHEAD / 2;
    for (; from < end; from += EACH) {
        Sums<V> values[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) {
            values[k] = from + k < end ? value(from + k) : nothing<V>();
        }
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) {
            sums = add_packs(sums, values[k]);
        }
    }
}

// A thread block owns at most OWNED rows and searches at most MOST entries. WIDTH threads or more work on neighbouring vectors of a run.
constexpr u32 OWNED = 256, MOST = 12288, WIDTH = 4;

// Sums the rows of a thread block. Row n has the entries `starts[n]..starts[n + 1]` of `order`; its key is `keys[starts[n]]`, or `first_key + n`
// if `keys` is null.
// Each run has at least `width` threads for neighbouring vectors of columns; `parts` has an element for each thread of the block.
template <int V, class Source, class N>
__device__ inline void sum_rows(S* out, const S* base, u32 first_key, u32 owned, u32 width, const u32* starts, const N* order,
                                const u32* keys, Sums<V>* parts, const Walk<2>& columns, const Source& source) {
    __shared__ u32 first_runs[OWNED + 1];
    __shared__ Sums<V> carried[WIDTH];
    const Entries& entries = source.entries;
    bool several = false;
    for (u32 row = threadIdx.x; row < owned; row += blockDim.x) {
        u32 count = starts[row + 1] - starts[row];
        first_runs[row] = (count + RUN - 1) / RUN;
        several |= count > RUN;
    }
    several = __syncthreads_or(several);
    sum_all_before(first_runs, owned);
    u32 runs = first_runs[owned];
    // If there are few runs, each gets more threads. All runs still fit into one round.
    while (width * (u64)gridDim.y * V < columns.elements && 2 * width * max(runs, 1u) <= blockDim.x) {
        width *= 2;
    }
    u32 groups = blockDim.x / width, group = threadIdx.x / width, lane = threadIdx.x % width;
    for (u64 slice = blockIdx.y; slice * width * V < columns.elements; slice += gridDim.y) {
        u64 column = (slice * width + lane) * V;
        Offsets<2> offset = offsets(columns, column < columns.elements ? column : 0);
        for (u32 first = 0; first < runs; first += groups) {
            u32 run = first + group, row = 0, number = 0, of = 0;
            bool exists = run < runs && column < columns.elements;
            Sums<V> sums = nothing<V>(), before = sums;
            i64 to = 0;
            if (exists) {
                row = first_of(1u, owned, [&](u32 row) { return first_runs[row] > run; }) - 1;
                number = run - first_runs[row], of = first_runs[row + 1] - first_runs[row];
                u32 from = starts[row] + number * RUN, end = min(from + RUN, starts[row + 1]);
                u32 key = keys ? keys[starts[row]] : first_key + row;
                i64 line = offsets(entries.lines, entries.line_of(key)).at[0];
                to = entries.row(key) + offset.at[1];
                before = number > 0 && group == 0 ? carried[lane] : before;
                sums = number > 0 ? sums : base ? widened_pack(load<V>(base + to, true)) : Sums<V>{};
                add_values<V>(sums, from, end, [&](u32 n) {
                    return source.template load<V>(source.place(line, entries.entry(order[n]).place), offset.at[0]);
                });
            }
            if (of == 1) {
                store<V>(out + to, pack_of<S, V>([&](int v) { return sums.at[v]; }));
            }
            // The first run of a row in this round adds the others.
            if (!several) {
                continue;
            }
            parts[threadIdx.x] = sums;
            __syncthreads();
            if (of > 1 && (number == 0 || group == 0)) {
                u32 end = min(groups - group, of - number);
                sums = number > 0 ? add_packs(before, sums) : sums;
#pragma unroll 8
                for (u32 next = 1; next < end; ++next) {
                    sums = add_packs(sums, parts[threadIdx.x + next * width]);
                }
                if (number + end == of) {
                    store<V>(out + to, pack_of<S, V>([&](int v) { return sums.at[v]; }));
                } else {
                    carried[lane] = sums;
                }
            }
            __syncthreads();
        }
    }
}

// Each warp searches a contiguous range of all entries; the entries of the block's rows are put into order by row.
template <int V, class Source>
__device__ inline void sum_few(S* out, const S* base, u32 share, u32 width, const Walk<2>& columns, const Source& source, Fault fault) {
    __shared__ u16 order[MOST];
    __shared__ u32 starts[OWNED + 1];
    // Entries of each row that a warp has; then the number of entries in warps before it.
    __shared__ union {
        u16 counts[WARPS][OWNED];
        Sums<V> parts[THREADS];
    } memory;
    const Entries& entries = source.entries;
    u32 first_key = blockIdx.x * share, owned = min(share, entries.none() - first_key), count = entries.count();
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, part = (count + THREADS - 1) / THREADS * WARP;
    u32 first = warp * part + lane, end = min(warp * part + part, count);
    for (u32 n = threadIdx.x; n < WARPS * OWNED; n += THREADS) {
        memory.counts[n / OWNED][n % OWNED] = 0;
    }
    __syncthreads();
    // Bit mask of the turns in which the warp found entries: MOST / THREADS bits.
    u32 turns = 0;
    for (u32 turn = 0; first - lane + turn * WARP < end; turn += AHEAD) {
        i64 indices[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            indices[k] = entries.index_of(min(first + (turn + k) * WARP, count - 1));
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            u32 n = first + (turn + k) * WARP, row = n < end ? entries.key(n, indices[k], &fault) - first_key : OWNED;
            if (__any_sync(ALL_LANES, row < owned)) {
                turns |= 1u << (turn + k);
                count_entry(memory.counts[warp], row, row < owned);
            }
        }
    }
    __syncthreads();
    sum_warps(memory.counts, owned, starts);
    sum_all_before(starts, owned);
    for (; turns != 0; turns &= turns - 1) {
        u32 n = first + (__ffs((int)turns) - 1) * WARP, row = n < end ? entries.key(n, entries.index_of(n)) - first_key : OWNED;
        u32 before = count_entry(memory.counts[warp], row, row < owned);
        if (row < owned) {
            order[starts[row] + before] = (u16)n;
        }
    }
    // Write rows without entries.
    u64 vectors = columns.elements / V;
    for (u64 n = blockIdx.y * THREADS + threadIdx.x; base != out && n < owned * vectors; n += gridDim.y * THREADS) {
        u32 row = (u32)quotient(n, vectors);
        if (starts[row] == starts[row + 1]) {
            i64 to = entries.row(first_key + row) + offsets(columns, (n - row * vectors) * V).at[1];
            store<V>(out + to, base ? load<V>(base + to, true) : Pack<S, V>{});
        }
    }
    __syncthreads();
    sum_rows<V>(out, base, first_key, owned, width, starts, order, nullptr, memory.parts, columns, source);
}

// For sorted entries: a thread block sums the rows whose first entry is among its OWNED positions. Rows without entries are not written.
template <int V, class Source>
__device__ inline void sum_sorted(S* out, const S* base, u32 width, const Walk<2>& columns, const Source& source, const u32* order,
                                  const u32* keys) {
    __shared__ u32 starts[OWNED + 1], before[OWNED + 1];
    __shared__ Sums<V> parts[THREADS];
    u32 count = source.entries.count(), first = blockIdx.x * OWNED;
    for (u32 n = threadIdx.x, at = first + n; n < OWNED; n += blockDim.x, at += blockDim.x) {
        before[n] = at < count && keys[at] != source.entries.none() && (at == 0 || keys[at] != keys[at - 1]);
    }
    sum_all_before(before, OWNED);
    for (u32 n = threadIdx.x; n < OWNED; n += blockDim.x) {
        if (before[n] != before[n + 1]) {
            starts[before[n]] = first + n;
        }
    }
    u32 owned = before[OWNED];
    __syncthreads();
    if (owned > 0 && threadIdx.x == 0) {
        u32 last = keys[starts[owned - 1]];
        starts[owned] = first_of(starts[owned - 1], count, [&](u32 n) { return keys[n] > last; });
    }
    __syncthreads();
    sum_rows<V>(out, base, 0, owned, width, starts, order, keys, parts, columns, source);
}

// Kernels for a source of values, constructed by `SOURCE()` from the arguments `ARGS()`; `blocks` thread blocks per multiprocessor. `order` is
// null if there are few entries.
#define INDEXED_KERNEL(name, blocks, V, ARGS, SOURCE)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks) NAMED(name, DTYPE)(                                             \
        S * out, const S* base, const u32* order, const u32* keys, u32 share, u32 width, const __grid_constant__ Walk<2> columns, \
        ARGS()) {                                                                                                                 \
        order ? sum_sorted<V>(out, base, width, columns, SOURCE(), order, keys)                                                   \
              : sum_few<V>(out, base, share, width, columns, SOURCE(), fault);                                                    \
    }
#define INDEXED_SUMS(name, blocks, ARGS, SOURCE)  \
    INDEXED_KERNEL(name, blocks, 1, ARGS, SOURCE) \
    INDEXED_KERNEL(name##_vector, blocks, LANES_OF_RUN, ARGS, SOURCE)
