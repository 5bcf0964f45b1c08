// Kernels of row normalization, and the gradients of weights and biases, which are reductions over the other axes.

// dweight = sum(g h), dbias = sum(g), over rows and inner elements; either may be null.
struct ToWeights {
    void* dweight;
    void* dbias;
    u32 stored;

    __device__ void put(void* to, u64 weight, T sum) const {
        if (to && are_narrow(stored)) {
            ((S*)to)[weight] = sum;
        } else if (to) {
            ((T*)to)[weight] = sum;
        }
    }
    __device__ void operator()(u64 weight, Two<T> sums) const {
        put(dweight, weight, sums.first), put(dbias, weight, sums.second);
    }
};
// Both sums of a lane's rows for a pack of weights, if inner = 1.
struct WeightColumns {
    const S* g;
    const S* x;
    const T* mean;
    const T* rstd;
    u64 channels;

    struct Row {
        Pack<S, PACK> x, g;
        T mean, rstd;
    };
    __device__ Each<TwoSums<T>>::State operator()(u64 first, const BlockLane& block) const {
        auto sums = Each<TwoSums<T>>::empty();
        auto load = [&](u64 row) -> Row {
            return {row_pack(x + first, row, channels), row_pack(g + first, row, channels), mean ? mean[row] : 0, rstd[row]};
        };
        for_rows_ahead(block, load, [&](const Row& row) {
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                T h = ((T)row.x.at[v] - row.mean) * row.rstd;
                sums.at[v] = TwoSums<T>::join(sums.at[v], {mul_rounded(row.g.at[v], h), row.g.at[v]});
            }
        });
        return sums;
    }
};

// i / inner: elements of a weight come in runs of `inner`.
__device__ inline u64 stretch_of(u64 i, u64 inner) { return inner == 1 ? i : quotient(i, inner); }
// Offset of element i of all elements of a weight.
struct Shared {
    u64 weight, weights, inner;

    __device__ i64 operator()(u64 i) const {
        u64 n = stretch_of(i, inner);
        return (i64)((n * weights + weight) * inner + (i - n * inner));
    }
};

// Gradients of weights and biases.
template <class Group>
__device__ inline void weights(ToWeights to, const S* g, const S* x, const T* mean, const T* rstd, const RowNorm& norm,
                               Two<T>* states, const Units& cut, u32 lanes) {
    u64 all = norm.rows / norm.groups * norm.inner;
    auto of = [&](u64 weight, const BlockLane& block) {
        u64 own = norm.groups == 1 ? 0 : weight / norm.channels;
        Shared place = {weight, norm.groups * norm.channels, norm.inner};
        bool packed = norm.packed != 0 && norm.inner % PACK == 0;
        Held<S> xs = Line<const S, Shared>{x, place, packed}.read(block);
        Held<S> gs = Line<const S, Shared>{g, place, packed}.read(block);
        u64 number = 0;
        return fold_slots<TwoSums<T>>(block, [&](int slot) {
            // Padding has a gradient of 0.
            u64 i = block.at(slot < block.count ? slot : 0);
            number = slot % PACK == 0 || norm.inner % PACK != 0 ? stretch_of(i, norm.inner) : number;
            u64 row = number * norm.groups + own;
            T centre = mean ? mean[row] : 0, scale = rstd[row];
            T h = (xs[slot] - centre) * scale;
            return Two<T>{mul_rounded(gs[slot], h), gs[slot]};
        });
    };
    fold_units<Group, TwoSums<T>>(norm.groups * norm.channels, all, cut, lanes, states, of, to);
}

// The same if inner = 1, with vector loads along the weights.
extern "C" __global__ void __launch_bounds__(THREADS, blocks_of<T>) NAMED(normalize_weights_columns, DTYPE)(
    void* dweight, void* dbias, u32 stored, const S* g, const S* x, const T* mean, const T* rstd, u64 channels, u64 rows, Two<T>* states,
    const __grid_constant__ Units cut) {
    fold_columns<TwoSums<T>>(channels, rows, states, cut, WeightColumns{g, x, mean, rstd, channels},
                           ToWeights{dweight, dbias, stored});
}

// Rows of elements are contiguous; the elements of a weight may be strided.
ROW_KERNELS(normalize,
            (S* out, const S* x, const void* weight, const void* bias, T* mean, T* rstd, const __grid_constant__ RowNorm norm,
             f64 eps, u32 lanes),
            normalize<Group>(out, x, weight, bias, mean, rstd, norm, eps, lanes))
ROW_KERNELS(normalize_grad,
            (S* dx, const S* g, const S* x, const void* weight, const T* mean, const T* rstd,
             const __grid_constant__ RowNorm norm, u32 lanes),
            gradient<Group>(dx, g, x, weight, mean, rstd, norm, lanes))
WEIGHT_KERNELS(normalize_weights,
             (void* dweight, void* dbias, u32 stored, const S* g, const S* x, const T* mean, const T* rstd,
              const __grid_constant__ RowNorm norm, Two<T>* states, const __grid_constant__ Units cut, u32 lanes),
             weights<Group>({dweight, dbias, stored}, g, x, mean, rstd, norm, states, cut, lanes))
extern "C" __global__ void NAMED(normalize_weights_join, DTYPE)(void* dweight, void* dbias, u32 stored, const Two<T>* states,
                                                                u64 weights, const __grid_constant__ Units cut, u32 lanes) {
    join_units<TwoSums<T>>(weights, cut, lanes, states, ToWeights{dweight, dbias, stored});
}
