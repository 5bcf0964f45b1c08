// Batch normalisation of images [n, c, ..]. They are stored as S, and all that there is for a channel as what is computed in.

constexpr int THREADS = 256;

struct Channels {
    u64 images, channels, size;
    // Whether packs of a channel's elements can be read.
    u64 packed;

    __device__ u64 each() const { return images * size; }
};
// Where element i of all of a channel's lies.
struct Plane {
    const Channels& channels;
    u64 channel;

    __device__ i64 operator()(u64 i) const {
        u64 image = quotient(i, channels.size);
        return (i64)((image * channels.channels + channel) * channels.size + (i - image * channels.size));
    }
};
__device__ inline Held<S> read(const S* x, const Channels& channels, u64 channel, const BlockLane& block) {
    return Line<const S, Plane>{x, {channels, channel}, channels.packed != 0}.read(block);
}

// Mean and mean square deviation of each channel.
struct ToStatistics {
    T* mean;
    T* var;

    __device__ void operator()(u64 channel, Deviation<T> state) const {
        mean[channel] = state.mean;
        var[channel] = state.squares / state.count;
    }
};
template <class Group>
__device__ inline void statistics(ToStatistics to, const S* x, const Channels& channels, Deviation<T>* states, const Units& cut,
                                  u32 lanes) {
    auto of = [&](u64 channel, const BlockLane& block) {
        Held<S> held = read(x, channels, channel, block);
        return deviation_of<T>(block.count, [&](int slot) -> T { return held[slot]; });
    };
    fold_units<Group, Deviations<T>>(channels.channels, channels.each(), cut, lanes, states, of, to);
}
WEIGHT_KERNELS(batch_statistics,
               (T* mean, T* var, const S* x, const __grid_constant__ Channels channels, Deviation<T>* states,
                const __grid_constant__ Units cut, u32 lanes),
               statistics<Group>({mean, var}, x, channels, states, cut, lanes))
extern "C" __global__ void NAMED(batch_statistics_join, DTYPE)(T* mean, T* var, const Deviation<T>* states, u64 channels,
                                                               const __grid_constant__ Units cut, u32 lanes) {
    join_units<Deviations<T>>(channels, cut, lanes, states, ToStatistics{mean, var});
}

// Sums of g times the normalised x, and of g, over each channel: side by side, and apart.
struct ToSums {
    Two<T>* sums;
    T* with_x;
    T* plain;

    __device__ void operator()(u64 channel, Two<T> state) const {
        sums[channel] = state;
        with_x[channel] = state.first;
        plain[channel] = state.second;
    }
};
template <class Group>
__device__ inline void sums(ToSums to, const S* x, const S* g, const T* mean, const T* var, f64 eps, const Channels& channels,
                            Two<T>* states, const Units& cut, u32 lanes) {
    auto of = [&](u64 channel, const BlockLane& block) {
        Held<S> xs = read(x, channels, channel, block), gs = read(g, channels, channel, block);
        T centre = mean[channel], inverse = 1 / sqrt_of(var[channel] + (T)eps);
        return fold_slots<TwoSums<T>>(block.count, [&](int slot) {
            return Two<T>{mul_rounded(gs[slot], mul_rounded(xs[slot] - centre, inverse)), gs[slot]};
        });
    };
    fold_units<Group, TwoSums<T>>(channels.channels, channels.each(), cut, lanes, states, of, to);
}
WEIGHT_KERNELS(batch_norm_sums,
               (Two<T>* all, T* with_x, T* plain, const S* x, const S* g, const T* mean, const T* var, f64 eps,
                const __grid_constant__ Channels channels, Two<T>* states, const __grid_constant__ Units cut, u32 lanes),
               sums<Group>({all, with_x, plain}, x, g, mean, var, eps, channels, states, cut, lanes))
extern "C" __global__ void NAMED(batch_norm_sums_join, DTYPE)(Two<T>* all, T* with_x, T* plain, const Two<T>* states,
                                                              u64 channels, const __grid_constant__ Units cut, u32 lanes) {
    join_units<TwoSums<T>>(channels, cut, lanes, states, ToSums{all, with_x, plain});
}

// Operands of the walks: the element, and its channel, which is the same for all elements of a vector or the next one for each.
struct Normalised {
    S* out;
    const S* x;
    const T* mean;
    const T* var;
    const T* weight;
    const T* bias;
    T eps;
    const Walk<2>& walk;

    template <int V> __device__ void at(const Offsets<2>& offsets) const {
        Pack<S, V> xs = load<V>(x + offsets.at[0], true), result;
        T centre = 0, scale = 0, shift = 0;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            if (v == 0 || walk.moves(1)) {
                i64 c = offsets.at[1] + v;
                centre = mean[c], shift = bias ? bias[c] : (T)0;
                scale = 1 / sqrt_of(var[c] + eps);
                scale = weight ? mul_rounded(scale, weight[c]) : scale;
            }
            result.at[v] = add_rounded(mul_rounded(xs.at[v] - centre, scale), shift);
        }
        store<V>(out + offsets.at[0], result);
    }
};
extern "C" __global__ void NAMED(batch_norm, DTYPE)(S* out, const S* x, const T* mean, const T* var, const T* weight,
                                                    const T* bias, f64 eps, const __grid_constant__ Walk<2> walk) {
    for_vectors<lanes_of<S, S>>(walk, Normalised{out, x, mean, var, weight, bias, (T)eps, walk});
}

// The gradient of images; `sums` do not come in without a count.
struct Gradient {
    S* out;
    const S* x;
    const S* g;
    const T* mean;
    const T* var;
    const T* weight;
    const Two<T>* sums;
    T eps;
    T count;
    const Walk<2>& walk;

    template <int V> __device__ void at(const Offsets<2>& offsets) const {
        Pack<S, V> xs = load<V>(x + offsets.at[0], true), gs = load<V>(g + offsets.at[0], true), result;
        T centre = 0, inverse = 0, scale = 0;
        Two<T> mean_of = {0, 0};
#pragma unroll
        for (int v = 0; v < V; ++v) {
            if (v == 0 || walk.moves(1)) {
                i64 c = offsets.at[1] + v;
                centre = mean[c], inverse = 1 / sqrt_of(var[c] + eps);
                scale = weight ? mul_rounded(inverse, weight[c]) : inverse;
                if (count > 0) {
                    mean_of = {sums[c].first / count, sums[c].second / count};
                }
            }
            T value = gs.at[v];
            if (count > 0) {
                T normal = mul_rounded(xs.at[v] - centre, inverse);
                value = value - mean_of.second - mul_rounded(normal, mean_of.first);
            }
            result.at[v] = scale * value;
        }
        store<V>(out + offsets.at[0], result);
    }
};
extern "C" __global__ void NAMED(batch_norm_grad, DTYPE)(S* out, const S* x, const S* g, const T* mean, const T* var,
                                                         const T* weight, const Two<T>* sums, f64 eps, f64 count,
                                                         const __grid_constant__ Walk<2> walk) {
    for_vectors<lanes_of<S, S>>(walk, Gradient{out, x, g, mean, var, weight, sums, (T)eps, (T)count, walk});
}

// Statistics of all batches so far, moved towards those of one: running = running kept + batch moved or, without `kept` and
// `moved`, by a share of 1 / count. One block.
extern "C" __global__ void NAMED(follow_statistics, DTYPE)(T* mean, T* var, i64* count, const T* batch_mean,
                                                           const T* batch_var, u64 channels, f64 unbiased, f64 kept,
                                                           f64 moved) {
    i64 all = *count + 1;
    T share = 1 / (T)all;
    bool is_mean = kept + moved == 0;
    auto follow = [&](T running, T batch) {
        return is_mean ? add_rounded(running, mul_rounded(batch - running, share))
                       : add_rounded(mul_rounded(running, (T)kept), mul_rounded(batch, (T)moved));
    };
    for (u64 c = threadIdx.x; c < channels; c += blockDim.x) {
        mean[c] = follow(mean[c], batch_mean[c]);
        var[c] = follow(var[c], mul_rounded(batch_var[c], (T)unbiased));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *count = all;
    }
}
