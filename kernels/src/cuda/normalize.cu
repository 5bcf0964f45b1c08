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
// Gradients of weights and biases.
template <class Group>
__device__ inline void weights(ToWeights to, const S* g, const S* x, const T* mean, const T* rstd, const RowNorm& norm,
                               Two<T>* states, const Units& cut, u32 lanes) {
    u64 all = norm.rows / norm.groups * norm.inner;
    Channels channels = {norm.rows / norm.groups, norm.groups * norm.channels, norm.inner, norm.packed && norm.inner % PACK == 0,
                         all >> 31 ? 0 : norm.magic, norm.shift};
    auto of = [&](u64 weight, const BlockLane& block) {
        u64 own = norm.groups == 1 ? 0 : weight / norm.channels, number = 0;
        Held<S> xs = line(x, channels, weight).read(block), gs = line(g, channels, weight).read(block);
        return fold_slots<TwoSums<T>>(block, [&](int slot) {
            // Padding has a gradient of 0.
            u64 i = block.at(slot < block.count ? slot : 0);
            number = slot % PACK == 0 || norm.inner % PACK != 0 ? channels.image(i) : number;
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
    struct Row {
        Pack<S, PACK> x, g;
        T mean, rstd;
    };
    auto of = [&](u64 first, const BlockLane& block) {
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
    };
    fold_columns<TwoSums<T>>(channels, rows, states, cut, of, ToWeights{dweight, dbias, stored});
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
