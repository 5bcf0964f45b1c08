// Normalization of contiguous rows and their gradient: each row is read once, kept in registers as far as it fits, folded, and
// written. Elements are stored as S, weights, biases and their gradients as S or T, and all else as what is computed in.

// Threads of a block of warps with rows of their own, or of columns: few enough that the elements they hold stay in registers.
constexpr int THREADS = 256;

// Whether weights are narrower than what is computed in, as elements are, and one of them.
__device__ inline bool are_narrow(u32 stored) { return sizeof(S) < sizeof(T) && stored; }
struct Weights {
    const void* all;
    u32 stored;

    __device__ T at(u64 i) const { return are_narrow(stored) ? (T)((const S*)all)[i] : ((const T*)all)[i]; }
};
// A contiguous tensor `[rows / groups, groups, channels, inner]`.
struct RowNorm {
    u64 rows;
    u64 groups;
    u64 channels;
    u64 inner;
    // Whether packs of elements can be read and written, and packs of weights read.
    u64 packed;
    // What divides by `inner`, if that is not 1.
    u32 magic, shift;
    // Whether weights, biases and their gradients are stored as elements are.
    u64 stored;

    __device__ u64 len() const { return channels * inner; }
    template <class O> __device__ Line<O> line(O* at, u64 row) const { return {at + row * len(), {}, packed != 0}; }
    // Weights from a row's first on; none of none.
    __device__ Weights weights(const void* all, u64 row) const {
        u64 size = are_narrow((u32)stored) ? sizeof(S) : sizeof(T);
        return {all && groups > 1 ? (const char*)all + row % groups * channels * size : all, (u32)stored};
    }
};

// The weights of a lane's pack `k`, or the biases, of which `all` are a row's; `none` if there are none.
__device__ inline Pack<T, PACK> weights_of(const Weights& from, const RowNorm& norm, const BlockLane& block, int k, T none) {
    u64 first = block.at(k * PACK);
    if (from.all && norm.inner == 1 && norm.packed != 0 && k * PACK + PACK <= block.count) {
        if (!are_narrow(from.stored)) {
            return load<PACK>((const T*)from.all + first, true);
        }
        Pack<S, PACK> stored = load<PACK>((const S*)from.all + first, true);
        return pack_of<T, PACK>([&](int v) { return stored.at[v]; });
    }
    return pack_of<T, PACK>([&](int v) {
        u64 channel = norm.inner == 1 ? first + v : divided((u32)first + v, norm.magic, norm.shift);
        return from.all && k * PACK + v < block.count ? from.at(channel) : none;
    });
}

__device__ inline u64 remainder(u64 a, u64 b) { return a - quotient(a, b) * b; }

// Rows in memory, or if there is a second term sums of two, rounded as if they went through memory, which are written to `sum`, unless
// that is missing. The terms begin again behind so many rows. What a thread writes it has read before, so the sum may lie where a term does.
struct Terms {
    const S* first;
    const S* second;
    u64 first_rows;
    u64 second_rows;
    S* sum;

    struct Row {
        Line<const S> first, second;

        __device__ Held<S> read(const BlockLane& block, S) const {
            Held<S> sums = first.read(block);
            if (second.at) {
                Held<S> others = second.read(block);
#pragma unroll
                for (int slot = 0; slot < EACH; ++slot) {
                    S sum;
                    sum = add_rounded(sums[slot], others[slot]);
                    sums[slot] = sum;
                }
            }
            return sums;
        }
    };
    __device__ Row row(const RowNorm& norm, u64 row) const {
        u64 first_row = second ? remainder(row, first_rows) : row, second_row = second ? remainder(row, second_rows) : 0;
        return {norm.line(first, first_row), norm.line(second, second_row)};
    }
    __device__ void write(const RowNorm& norm, u64 row, const BlockLane& block, const Held<S>& x) const {
        if (sum) {
            norm.line(sum, row).write(block, [&](int slot) { return x[slot]; });
        }
    }
};

// out = (x - mean) rstd weight + bias; `mean`, `weight` and `bias` may be missing.
template <class Group>
__device__ inline void normalize(S* out, const Terms& from, const void* weight, const void* bias, T* mean, T* rstd,
                                 const RowNorm& norm, f64 eps, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<S> to = norm.line(out, row);
        RowOf<Group, S, Terms::Row> xs(group, from.row(norm, row), len);
        T centre = 0;
        if (mean && Group::HOLDS) {
            T sum = group.template fold_blocks<Sum<T>>(all, len, [&](const BlockLane& block) {
                const Held<S>& x = xs.read(block);
                return fold_slots<Sum<T>>(block, [&](int slot) -> T { return x[slot]; });
            });
            centre = sum / (T)all;
        }
        // In F64, which holds the squares of all numbers of F32.
        f64 squares = 0;
        if (mean && !Group::HOLDS) {
            // At once, as memory is read for each.
            Deviation<T> state = group.template fold_blocks<Deviations<T>>(all, len, [&](const BlockLane& block) {
                const Held<S>& x = xs.read(block);
                return deviation_of<T>(block, [&](int slot) -> T { return x[slot]; });
            });
            centre = state.mean, squares = state.squares;
        } else {
            squares = group.template fold_blocks<Sum<f64>>(all, len, [&](const BlockLane& block) {
                const Held<S>& x = xs.read(block);
                return fold_slots<Sum<f64>>(
                    block, [&](int slot) { return slot < block.count ? square_of(x[slot] - centre) : 0.0; });
            });
        }
        // Through a shuffle, so that the compiler does not compute it again for each element.
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
            from.write(norm, row, block, x);
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

// dx = rstd (d - mean(d) - h mean(d h)), h = (x - mean) rstd, d = g weight; without a mean the first mean(d) is left out. If there is an
// `other`, where dx may go, it is added, to dx rounded as if it went through memory.
template <class Group>
__device__ inline void gradient(S* dx, const S* other, const S* g, const S* x, const void* weight, const T* mean, const T* rstd,
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
            Pack<S, PACK> others;
            to.write(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights_of(weights, norm, block, slot / PACK, 1);
                    others = other ? norm.line(other, row).read(block, slot / PACK, S()) : others;
                }
                S dx;
                dx = mul_rounded(g[slot] * w.at[slot % PACK] - shift - (x[slot] - centre) * scale * slope, scale);
                return other ? add_rounded((T)dx, (T)others.at[slot % PACK]) : (T)dx;
            });
        });
    });
}
