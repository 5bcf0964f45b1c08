// Row normalization (layer, RMS and group norm) and its gradient with respect to the elements. Each row is loaded once if it fits into
// registers. Elements are stored as S; weights, biases and their gradients as S or T; statistics as T, the compute type.

// Thread block size of WarpGroup and ColumnGroup kernels; more threads would spill the elements they hold.
constexpr int THREADS = 256;

// Whether weights are stored as S and S is narrower than T; `stored` is the flag of `RowNorm`.
__device__ inline bool are_narrow(u32 stored) { return sizeof(S) < sizeof(T) && stored; }
struct Weights {
    const void* all;
    u32 stored;

    __device__ T at(u64 i) const { return are_narrow(stored) ? (T)((const S*)all)[i] : ((const T*)all)[i]; }
};
// A contiguous tensor of shape [rows / groups, groups, channels, inner].
struct RowNorm {
    u64 rows;
    u64 groups;
    u64 channels;
    u64 inner;
    // Whether elements and weights allow loads and stores of packs.
    u64 packed;
    // Divides by `inner`; see `divided`.
    u32 magic, shift;
    // Whether weights, biases and their gradients are stored as S.
    u64 stored;

    __device__ u64 len() const { return channels * inner; }
    template <class O> __device__ Line<O> line(O* at, u64 row) const { return {at + row * len(), {}, packed != 0}; }
    // Weights of a row.
    __device__ Weights weights(const void* all, u64 row) const {
        u64 size = are_narrow((u32)stored) ? sizeof(S) : sizeof(T);
        return {all && groups > 1 ? (const char*)all + row % groups * channels * size : all, (u32)stored};
    }
};

// Weights (or biases) for the lane's pack `k`; `none` if the norm has no weights.
__device__ inline Pack<T, PACK> weights_of(const Weights& from, const RowNorm& norm, const BlockLane& block, int k, T none) {
    u64 first = block.at(k * PACK);
    if (from.all && norm.inner == 1 && norm.packed != 0 && k * PACK + PACK <= block.count) {
        if (!are_narrow(from.stored)) {
            return load<PACK>((const T*)from.all + first, true);
        }
        Pack<S, PACK> stored = load<PACK>((const S*)from.all + first, true);
        return pack_of<T, PACK>([&](int v) { return stored.at[v]; });
    }
    auto weight = [&](int v) {
        u64 channel = norm.inner == 1 ? first + v : divided((u32)first + v, norm.magic, norm.shift);
        return from.all && k * PACK + v < block.count ? from.at(channel) : none;
    };
    // Whole packs of a channel have one weight.
    T all = norm.inner % PACK == 0 ? weight(0) : none;
    return pack_of<T, PACK>([&](int v) { return norm.inner % PACK == 0 ? all : weight(v); });
}

// out = (x - mean) rstd weight + bias; `mean`, `weight` and `bias` may be null.
template <class Group>
__device__ inline void normalize(S* out, const S* x, const void* weight, const void* bias, T* mean, T* rstd,
                                 const RowNorm& norm, f64 eps, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<S> to = norm.line(out, row);
        RowOf<Group, S> xs(group, norm.line(x, row), len);
        T centre = 0;
        // F64, since squares of large F32 numbers overflow F32.
        f64 squares = 0;
        if (mean && !Group::HOLDS) {
            // Mean and squares in one pass over memory.
            Deviation<T> state = group.template fold_blocks<Deviations<T>>(all, len, [&](const BlockLane& block) {
                const Held<S>& x = xs.read(block);
                return deviation_of<T>(block, [&](int slot) -> T { return x[slot]; });
            });
            centre = state.mean, squares = state.squares;
        } else {
            if (mean) {
                centre = group.template fold_blocks<Sum<T>>(all, len, [&](const BlockLane& block) {
                    const Held<S>& x = xs.read(block);
                    return fold_slots<Sum<T>>(block, [&](int slot) -> T { return x[slot]; });
                }) / (T)all;
            }
            squares = group.template fold_blocks<Sum<f64>>(all, len, [&](const BlockLane& block) {
                const Held<S>& x = xs.read(block);
                return fold_slots<Sum<f64>>(block, [&](int slot) { return slot < block.count ? square_of(x[slot] - centre) : 0; });
            });
        }
        // The shuffle keeps the compiler from recomputing rsqrt for each element.
        T scale = shuffle((T)rsqrt(squares / (f64)all + eps), threadIdx.x % LANES);
        if (exists && group.leads()) {
            rstd[row] = scale;
            if (mean) {
                mean[row] = centre;
            }
        }
        Weights weights = norm.weights(weight, row), biases = norm.weights(bias, row);
        group.each_block(len, [&](const BlockLane& block) {
            const Held<S>& x = xs.read(block);
            Pack<T, PACK> w, b;
            to.write(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights_of(weights, norm, block, slot / PACK, 1), b = weights_of(biases, norm, block, slot / PACK, 0);
                }
                return (x[slot] - centre) * scale * w.at[slot % PACK] + b.at[slot % PACK];
            });
        });
    });
}

// dx = rstd (d - mean(d) - h mean(d h)) with h = (x - mean) rstd and d = g weight; the term mean(d) is dropped if `mean` is null.
template <class Group>
__device__ inline void gradient(S* dx, const S* g, const S* x, const void* weight, const T* mean, const T* rstd,
                                const RowNorm& norm, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<const S> from_x = norm.line(x, row), from_g = norm.line(g, row);
        Line<S> to = norm.line(dx, row);
        T centre = mean ? mean[row] : 0, scale = rstd[row];
        Weights weights = norm.weights(weight, row);
        RowOf<Group, S> row_x(group, from_x, len), row_g(group, from_g, len);
        Two<T> sums = group.template fold_blocks<TwoSums<T>>(all, len, [&](const BlockLane& block) {
            const Held<S>&x = row_x.read(block), &g = row_g.read(block);
            Pack<T, PACK> w;
            return fold_slots<TwoSums<T>>(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights_of(weights, norm, block, slot / PACK, 1);
                }
                T d = g[slot] * w.at[slot % PACK];
                return Two<T>{d, mul_rounded(d, (x[slot] - centre) * scale)};
            });
        });
        T shift = mean ? sums.first / (T)all : 0, slope = sums.second / (T)all;
        group.each_block(len, [&](const BlockLane& block) {
            const Held<S>&x = row_x.read(block), &g = row_g.read(block);
            Pack<T, PACK> w;
            to.write(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights_of(weights, norm, block, slot / PACK, 1);
                }
                return mul_rounded(g[slot] * w.at[slot % PACK] - shift - (x[slot] - centre) * scale * slope, scale);
            });
        });
    });
}
