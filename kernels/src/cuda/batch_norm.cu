// Batch normalisation of images [n, c, ..]. They are stored as S like weights and biases; means and variances as what they
// are computed in.

struct Channels {
    u64 images, channels, size;
    f64 eps;

    // Element i of all of a channel's.
    __device__ u64 at(u64 channel, u64 i) const { return (i / size * channels + channel) * size + i % size; }
};

// Calls `body(group, channel, exists, len)` for each channel.
template <class Body> __device__ inline void for_channels(const Channels& channels, Body body) {
    u64 len = channels.images * channels.size;
    for_rows<BlockGroup>(channels.channels, LANES, [&](const BlockGroup& group, u64 channel, bool exists) {
        body(group, exists ? channel : 0, exists, exists ? len : 0);
    });
}

// Mean and mean square deviation of each channel.
extern "C" __global__ void __launch_bounds__(256, 1) NAMED(batch_statistics, DTYPE)(
    T* mean, T* var, const S* x, const __grid_constant__ Channels channels) {
    u64 all = channels.images * channels.size;
    for_channels(channels, [&](const BlockGroup& group, u64 channel, bool exists, u64 len) {
        T centre = group.template fold<Sum<T>>(all, len, [&](u64 i) -> T { return x[channels.at(channel, i)]; }) / (T)(f64)all;
        T squares = group.template fold<Sum<T>>(all, len, [&](u64 i) {
            T d = x[channels.at(channel, i)] - centre;
            return mul_rounded(d, d);
        });
        if (exists && group.leads()) {
            mean[channel] = centre;
            var[channel] = squares / (T)(f64)all;
        }
    });
}

// Sums of g times the normalised x, and of g, over each channel. Calls `then(channel, len, with_x, plain)` with them.
template <class Then>
__device__ inline void sums(S* with_x, S* plain, const S* x, const S* g, const T* mean, const T* var, const Channels& channels,
                            Then then) {
    u64 all = channels.images * channels.size;
    for_channels(channels, [&](const BlockGroup& group, u64 channel, bool exists, u64 len) {
        T centre = mean[channel], inverse = 1 / sqrt_of(var[channel] + (T)channels.eps);
        T sum = group.template fold<Sum<T>>(all, len, [&](u64 i) -> T { return g[channels.at(channel, i)]; });
        T product = group.template fold<Sum<T>>(all, len, [&](u64 i) {
            u64 at = channels.at(channel, i);
            return mul_rounded((T)g[at], mul_rounded(x[at] - centre, inverse));
        });
        if (exists && group.leads()) {
            plain[channel] = sum;
            with_x[channel] = product;
        }
        then(channel, len, product, sum);
    });
}

// Operands of the walk: the element, and its channel.
extern "C" __global__ void NAMED(batch_norm, DTYPE)(S* out, const S* x, const T* mean, const T* var, const S* weight,
                                                    const S* bias, f64 eps, const __grid_constant__ Walk<2> walk) {
    for_each(walk, [&](const Offsets<2>& offsets) {
        i64 c = offsets.at[1];
        T scale = 1 / sqrt_of(var[c] + (T)eps);
        scale = weight ? mul_rounded(scale, (T)weight[c]) : scale;
        T value = mul_rounded(x[offsets.at[0]] - mean[c], scale);
        out[offsets.at[0]] = bias ? add_rounded(value, (T)bias[c]) : value;
    });
}

// The gradient of images, and what it depends on beside the sums over the channel.
struct Gradient {
    S* out;
    const S* x;
    const S* g;
    const T* mean;
    const T* var;
    const S* weight;
    T eps;
    T count;  // 0 if the sums do not come in

    __device__ void write(i64 at, i64 c, T with_x, T plain) const {
        T inverse = 1 / sqrt_of(var[c] + eps);
        T scale = weight ? mul_rounded(inverse, (T)weight[c]) : inverse;
        T value = g[at];
        if (count > 0) {
            T normal = mul_rounded(x[at] - mean[c], inverse);
            value = value - plain / count - mul_rounded(normal, with_x / count);
        }
        out[at] = scale * value;
    }
};

#if HALF
// The sums come into the gradient of the images before they are rounded, so that is made where they are.
extern "C" __global__ void __launch_bounds__(256, 1) NAMED(batch_norm_grad, DTYPE)(
    S* out, S* with_x, S* plain, const S* x, const S* g, const T* mean, const T* var, const S* weight, f64 count,
    const __grid_constant__ Channels channels) {
    Gradient gradient = {out, x, g, mean, var, weight, (T)channels.eps, (T)count};
    sums(with_x, plain, x, g, mean, var, channels, [&](u64 channel, u64 len, T with_x, T plain) {
        for (u64 i = threadIdx.x; i < len; i += blockDim.x) {
            gradient.write((i64)channels.at(channel, i), (i64)channel, with_x, plain);
        }
    });
}
#else
extern "C" __global__ void __launch_bounds__(256, 1) NAMED(batch_norm_sums, DTYPE)(
    S* with_x, S* plain, const S* x, const S* g, const T* mean, const T* var, const __grid_constant__ Channels channels) {
    sums(with_x, plain, x, g, mean, var, channels, [](u64, u64, T, T) {});
}
extern "C" __global__ void NAMED(batch_norm_grad, DTYPE)(S* out, const S* x, const S* g, const T* mean, const T* var,
                                                         const S* weight, const S* with_x, const S* plain, f64 eps,
                                                         f64 count, const __grid_constant__ Walk<2> walk) {
    Gradient gradient = {out, x, g, mean, var, weight, (T)eps, (T)count};
    for_each(walk, [&](const Offsets<2>& offsets) {
        i64 c = offsets.at[1];
        gradient.write(offsets.at[0], c, with_x[c], plain[c]);
    });
}
#endif
