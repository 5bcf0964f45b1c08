// Gradients of the weights and biases of norms.

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
// Both sums of a lane's rows of a block, for a pack of weights whose elements lie side by side, one in each row.
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
            return {pack_of(x + first, row, channels), pack_of(g + first, row, channels), mean ? mean[row] : 0, rstd[row]};
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
