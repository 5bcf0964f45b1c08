// Normalization of contiguous rows and its gradients: each row is read once, kept in registers as far as it fits, folded, and
// written. The gradients of weights and biases are folds along the other axes. Elements are stored as S, and all else as what is
// computed in.

// Threads of a block, at most: few enough that the elements they hold stay in registers.
constexpr int THREADS = 256;

// A contiguous tensor `[rows / groups, groups, channels, inner]`.
struct Norm {
    u64 rows;
    u64 groups;
    u64 channels;
    u64 inner;
    // Whether packs of elements can be read and written, and packs of weights read.
    u64 packed;

    __device__ u64 len() const { return channels * inner; }
    template <class O> __device__ Line<O> line(O* at, u64 row) const { return {at + row * len(), {1}, packed != 0}; }
    // The first weight of a row.
    __device__ u64 weights(u64 row) const { return groups == 1 ? 0 : row % groups * channels; }
};

// Where the weight of an element of a row lies.
struct Channel {
    u64 inner;

    __device__ i64 operator()(u64 i) const { return (i64)quotient(i, inner); }
};
// The weights of a row's elements, or the biases; `none` if there are none.
struct Weights {
    const T* at;
    u64 inner;
    bool packed;
    T none;

    __device__ Weights(const T* all, const Norm& norm, u64 row, T none)
        : at(all ? all + norm.weights(row) : all), inner(norm.inner), packed(norm.packed != 0), none(none) {}
    // Those of the pack of a slot.
    __device__ Pack<T, PACK> read(const BlockLane& block, int slot) const {
        Pack<T, PACK> weights = {none, none, none, none};
        if (at) {
            weights = inner == 1 ? Line<const T>{at, {1}, packed}.read(block, slot / PACK, T())
                                 : Line<const T, Channel>{at, {inner}, false}.read(block, slot / PACK, T());
        }
        return weights;
    }
};

// out = (x - mean) rstd weight + bias; `mean`, `weight` and `bias` may be missing
template <class Group>
__device__ inline void normalize(S* out, const S* x, const T* weight, const T* bias, T* mean, T* rstd, const Norm& norm,
                                 f64 eps, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<const S> from = norm.line(x, row);
        Line<S> to = norm.line(out, row);
        RowOf<Group, S> xs(group, from, len);
        T centre = 0;
        if (mean) {
            T sum = group.template fold_blocks<Sum<T>>(all, len, [&](const BlockLane& block) {
                const Held<S>& x = xs.read(block);
                return fold_slots<Sum<T>>(block.count, [&](int slot) -> T { return x[slot]; });
            });
            centre = sum / (T)all;
        }
        T squares = group.template fold_blocks<Sum<T>>(all, len, [&](const BlockLane& block) {
            const Held<S>& x = xs.read(block);
            return fold_slots<Sum<T>>(block.count, [&](int slot) {
                return slot < block.count ? mul_rounded(x[slot] - centre, x[slot] - centre) : (T)0;
            });
        });
        T scale = 1 / sqrt_of(squares / (T)all + (T)eps);
        if (exists && group.leads()) {
            rstd[row] = scale;
            if (mean) {
                mean[row] = centre;
            }
        }
        Weights weights(weight, norm, row, 1), biases(bias, norm, row, 0);
        group.each_block(len, [&](const BlockLane& block) {
            const Held<S>& x = xs.read(block);
            Pack<T, PACK> w, b;
            to.write(block, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights.read(block, slot), b = biases.read(block, slot);
                }
                return (x[slot] - centre) * scale * w.at[slot % PACK] + b.at[slot % PACK];
            });
        });
    });
}

// dx = rstd (d - mean(d) - h mean(d h)), h = (x - mean) rstd, d = g weight; without a mean the first mean(d) is left out
template <class Group>
__device__ inline void gradient(S* dx, const S* g, const S* x, const T* weight, const T* mean, const T* rstd,
                                const Norm& norm, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        Line<const S> from_x = norm.line(x, row), from_g = norm.line(g, row);
        Line<S> to = norm.line(dx, row);
        T centre = mean ? mean[row] : 0, scale = rstd[row];
        Weights weights(weight, norm, row, 1);
        RowOf<Group, S> row_x(group, from_x, len), row_g(group, from_g, len);
        Two<T> sums = group.template fold_blocks<TwoSums<T>>(all, len, [&](const BlockLane& block) {
            const Held<S>&x = row_x.read(block), &g = row_g.read(block);
            Pack<T, PACK> w;
            return fold_slots<TwoSums<T>>(block.count, [&](int slot) {
                if (slot % PACK == 0) {
                    w = weights.read(block, slot);
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
                    w = weights.read(block, slot);
                }
                return (g[slot] * w.at[slot % PACK] - shift - (x[slot] - centre) * scale * slope) * scale;
            });
        });
    });
}

// Where element `i` of those that share a weight lies, and in which of all `[rows / groups]` stretches of rows: side by side in
// each stretch, or, across them, one in each.
template <class Group> struct Shared {
    u64 weight, weights, inner;

    __device__ Shared(const Norm& norm, u64 weight) : weight(weight), weights(norm.groups * norm.channels), inner(norm.inner) {}
    __device__ u64 stretch(u64 i) const { return quotient(i, inner); }
    __device__ i64 operator()(u64 i) const {
        u64 n = stretch(i);
        return (i64)((n * weights + weight) * inner + (i - n * inner));
    }
};
template <> struct Shared<ColumnGroup> {
    u64 weight, weights;

    __device__ Shared(const Norm& norm, u64 weight) : weight(weight), weights(norm.groups * norm.channels) {}
    __device__ u64 stretch(u64 i) const { return i; }
    __device__ i64 operator()(u64 i) const { return (i64)(i * weights + weight); }
};

// dweight = sum(g h), dbias = sum(g), over the rows and inner elements of each weight; either may be missing.
struct ToWeights {
    T* dweight;
    T* dbias;

    __device__ void operator()(u64 weight, Two<T> sums) const {
        if (dweight) {
            dweight[weight] = sums.first;
        }
        if (dbias) {
            dbias[weight] = sums.second;
        }
    }
};
template <class Group>
__device__ inline void weights(ToWeights to, const S* g, const S* x, const T* mean, const T* rstd, const Norm& norm,
                               Two<T>* states, const Units& cut, u32 lanes) {
    u64 all = norm.rows / norm.groups * norm.inner;
    auto of = [&](u64 weight, const BlockLane& block) {
        u64 own = norm.groups == 1 ? 0 : weight / norm.channels;
        Shared<Group> place(norm, weight);
        bool packed = norm.packed != 0 && norm.inner % PACK == 0;
        Held<S> xs = Line<const S, Shared<Group>>{x, place, packed}.read(block);
        Held<S> gs = Line<const S, Shared<Group>>{g, place, packed}.read(block);
        return fold_slots<TwoSums<T>>(block.count, [&](int slot) {
            // What is behind the last element has a gradient of 0.
            u64 row = place.stretch(block.at(slot < block.count ? slot : 0)) * norm.groups + own;
            T h = (xs[slot] - (mean ? mean[row] : 0)) * rstd[row];
            return Two<T>{mul_rounded(gs[slot], h), gs[slot]};
        });
    };
    fold_units<Group, TwoSums<T>>(norm.groups * norm.channels, all, cut, lanes, states, of, to);
}

// The same of weights whose elements lie side by side, one in each row.
extern "C" __global__ void __launch_bounds__(THREADS, blocks_of<T>) NAMED(normalize_weights_columns, DTYPE)(
    T* dweight, T* dbias, const S* g, const S* x, const T* mean, const T* rstd, u64 channels, u64 rows, Two<T>* states,
    const __grid_constant__ Units cut) {
    auto of = [&](u64 first, const BlockLane& block) {
        const S* operands[2] = {x + first, g + first};
        auto sums = Beside<TwoSums<T>>::empty();
        for_elements<2>(operands, channels, block, [&](u64 row, const Pack<S, PACK>* packs) {
            T centre = mean ? mean[row] : 0, scale = rstd[row];
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                T h = ((T)packs[0].at[v] - centre) * scale;
                sums.at[v] = TwoSums<T>::join(sums.at[v], {mul_rounded(packs[1].at[v], h), packs[1].at[v]});
            }
        });
        return sums;
    };
    fold_columns<TwoSums<T>>(channels, rows, states, cut, of, ToWeights{dweight, dbias});
}

// Rows lie along memory; those of a weight may lie across it.
ROW_KERNELS(normalize,
            (S* out, const S* x, const T* weight, const T* bias, T* mean, T* rstd, const __grid_constant__ Norm norm,
             f64 eps, u32 lanes),
            normalize<Group>(out, x, weight, bias, mean, rstd, norm, eps, lanes))
ROW_KERNELS(normalize_grad,
            (S* dx, const S* g, const S* x, const T* weight, const T* mean, const T* rstd,
             const __grid_constant__ Norm norm, u32 lanes),
            gradient<Group>(dx, g, x, weight, mean, rstd, norm, lanes))
WEIGHT_KERNELS(normalize_weights,
             (T* dweight, T* dbias, const S* g, const S* x, const T* mean, const T* rstd,
              const __grid_constant__ Norm norm, Two<T>* states, const __grid_constant__ Units cut, u32 lanes),
             weights<Group>({dweight, dbias}, g, x, mean, rstd, norm, states, cut, lanes))
extern "C" __global__ void NAMED(normalize_weights_join, DTYPE)(T* dweight, T* dbias, const Two<T>* states, u64 weights,
                                                                const __grid_constant__ Units cut, u32 lanes) {
    join_units<TwoSums<T>>(weights, cut, lanes, states, ToWeights{dweight, dbias});
}
