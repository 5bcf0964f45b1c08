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

    __device__ Each<TwoSums<T>>::State operator()(u64 first, const BlockLane& block) const {
        const S* operands[2] = {x + first, g + first};
        auto sums = Each<TwoSums<T>>::empty();
        for_elements<2>(operands, channels, block, [&](u64 row, const Pack<S, PACK>* packs) {
            T centre = mean ? mean[row] : 0, scale = rstd[row];
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                T h = ((T)packs[0].at[v] - centre) * scale;
                sums.at[v] = TwoSums<T>::join(sums.at[v], {mul_rounded(packs[1].at[v], h), packs[1].at[v]});
            }
        });
        return sums;
    }
};
