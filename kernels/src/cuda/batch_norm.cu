// Batch normalization of images [n, c, ..]. Images are stored as S, values per channel as T.

constexpr int THREADS = 256;

// Writes mean and biased variance of each channel.
struct ToStatistics {
    T* mean;
    T* var;

    __device__ void operator()(u64 channel, Deviation<T> state) const {
        mean[channel] = state.mean;
        var[channel] = (T)(state.squares / state.count);
    }
};
template <class Group>
__device__ inline void statistics(ToStatistics to, const S* x, const Channels& channels, Deviation<T>* states, const Units& cut,
                                  u32 lanes) {
    auto of = [&](u64 channel, const BlockLane& block) {
        Held<S> held = line(x, channels, channel).read(block);
        return deviation_of<T>(block, [&](int slot) -> T { return held[slot]; });
    };
    fold_units<Group, Deviations<T>>(channels.channels, channels.each(), cut, lanes, states, of, to);
}
extern "C" __global__ void __launch_bounds__(THREADS, blocks_of<T>) NAMED(batch_statistics_columns, DTYPE)(
    T* mean, T* var, const S* x, u64 channels, u64 pixels, Deviation<T>* states, const __grid_constant__ Units cut) {
    auto of = [&](u64 first, const BlockLane& block) {
        auto load = [&](u64 pixel) { return row_pack(x + first, pixel, channels); };
        T sums[PACK] = {};
        for_rows_ahead(block, load, [&](const Pack<S, PACK>& pack) {
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                sums[v] += pack.at[v];
            }
        });
        auto all = pack_of<Deviation<T>, PACK>(
            [&](int v) -> Deviation<T> { return {(T)block.count, block.count == 0 ? (T)0 : sums[v] / (T)block.count, 0}; });
        for_rows_ahead(block, load, [&](const Pack<S, PACK>& pack) {
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                all.at[v].squares += square_of((T)pack.at[v] - all.at[v].mean);
            }
        });
        return all;
    };
    fold_columns<Deviations<T>>(channels, pixels, states, cut, of, ToStatistics{mean, var});
}
WEIGHT_KERNELS(batch_statistics,
               (T* mean, T* var, const S* x, const __grid_constant__ Channels channels, Deviation<T>* states,
                const __grid_constant__ Units cut, u32 lanes),
               statistics<Group>({mean, var}, x, channels, states, cut, lanes))
extern "C" __global__ void NAMED(batch_statistics_join, DTYPE)(T* mean, T* var, const Deviation<T>* states, u64 channels,
                                                               const __grid_constant__ Units cut, u32 lanes) {
    join_units<Deviations<T>>(channels, cut, lanes, states, ToStatistics{mean, var});
}

// Parameters of a channel: (x - centre) scale + shift, followed by a ReLU if `relu`.
struct Affine {
    T centre, inverse, scale, shift;

    __device__ T normal(T x) const { return mul_rounded(x - centre, inverse); }
};
#define NORM T *mean, T *var, const T *weight, const T *bias, f64 eps, u32 relu
#define NORM_GIVEN ChannelNorm{mean, var, weight, bias, (T)eps, relu != 0}
struct ChannelNorm {
    using Of = Affine;

    const T* mean;
    const T* var;
    const T* weight;
    const T* bias;
    T eps;
    bool relu;

    __device__ Affine of(u64 c) const { return of(c, mean[c], var[c]); }
    __device__ Affine of(u64 c, T centre, T variance) const {
        T inverse = 1 / sqrt_of(variance + eps);
        return {centre, inverse, weight ? mul_rounded(inverse, weight[c]) : inverse, bias ? bias[c] : (T)0};
    }
    __device__ static T plain(T x, const Affine& affine) {
        return add_rounded(mul_rounded(x - affine.centre, affine.scale), affine.shift);
    }
    // The output for element x; the second operand is unused.
    __device__ T value(T x, T, const Affine& affine) const {
        T value = plain(x, affine);
        return relu && value <= 0 ? (T)0 : value;
    }
    // The gradient before the ReLU, given the gradient behind it.
    __device__ T through(T x, T g, const Affine& affine) const {
        return relu && plain(x, affine) <= 0 ? (T)0 : g;
    }
};

// Writes the sums of g times the normalized x, and of g, of each channel.
struct ToSums {
    T* with_x;
    T* plain;

    __device__ void operator()(u64 channel, Two<T> state) const {
        with_x[channel] = state.first;
        plain[channel] = state.second;
    }
};
template <class Group>
__device__ inline void sums(ToSums to, const S* x, const S* g, const ChannelNorm& norm, const Channels& channels, Two<T>* states,
                            const Units& cut, u32 lanes) {
    auto of = [&](u64 channel, const BlockLane& block) {
        Held<S> xs = line(x, channels, channel).read(block), gs = line(g, channels, channel).read(block);
        Affine affine = norm.of(channel);
        return fold_slots<TwoSums<T>>(block, [&](int slot) {
            T slope = norm.through(xs[slot], gs[slot], affine);
            return Two<T>{mul_rounded(slope, affine.normal(xs[slot])), slope};
        });
    };
    fold_units<Group, TwoSums<T>>(channels.channels, channels.each(), cut, lanes, states, of, to);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) NAMED(batch_norm_sums_columns, DTYPE)(
    T* with_x, T* plain, const S* x, const S* g, NORM, u64 channels, u64 pixels, Two<T>* states,
    const __grid_constant__ Units cut) {
    ChannelNorm norm = NORM_GIVEN;
    auto of = [&](u64 first, const BlockLane& block) {
        using Pixel = Two<Pack<S, PACK>>;
        auto load = [&](u64 pixel) -> Pixel { return {row_pack(x + first, pixel, channels), row_pack(g + first, pixel, channels)}; };
        auto sums = Each<TwoSums<T>>::empty();
        auto affine = pack_of<Affine, PACK>([&](int v) { return norm.of(first + v); });
        for_rows_ahead(block, load, [&](const Pixel& pixel) {
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                T x = pixel.first.at[v], slope = norm.through(x, pixel.second.at[v], affine.at[v]);
                sums.at[v] = TwoSums<T>::join(sums.at[v], {mul_rounded(slope, affine.at[v].normal(x)), slope});
            }
        });
        return sums;
    };
    fold_columns<TwoSums<T>>(channels, pixels, states, cut, of, ToSums{with_x, plain});
}
WEIGHT_KERNELS(batch_norm_sums,
               (T* with_x, T* plain, const S* x, const S* g, NORM, const __grid_constant__ Channels channels,
                Two<T>* states, const __grid_constant__ Units cut, u32 lanes),
               sums<Group>({with_x, plain}, x, g, NORM_GIVEN, channels, states, cut, lanes))
extern "C" __global__ void NAMED(batch_norm_sums_join, DTYPE)(T* with_x, T* plain, const Two<T>* states,
                                                              u64 channels, const __grid_constant__ Units cut, u32 lanes) {
    join_units<TwoSums<T>>(channels, cut, lanes, states, ToSums{with_x, plain});
}

// Parameters of a channel's gradient.
struct Slope {
    Affine affine;
    Two<T> mean;
};
// Computes them. With count 0 (evaluation) the sums do not contribute.
struct Slopes {
    using Of = Slope;

    ChannelNorm norm;
    ToSums sums;
    T count;

    __device__ Slope of(u64 c) const { return of(norm.of(c), {sums.with_x[c], sums.plain[c]}); }
    __device__ Slope of(const Affine& affine, Two<T> sums) const {
        return {affine, count > 0 ? Two<T>{sums.first / count, sums.second / count} : Two<T>{0, 0}};
    }
    // `normal` is the normalized x, and g the gradient before the ReLU.
    __device__ T before(T normal, T g, const Slope& slope) const {
        return slope.affine.scale * (count > 0 ? g - slope.mean.second - mul_rounded(normal, slope.mean.first) : g);
    }
    __device__ T value(T x, T g, const Slope& slope) const {
        return before(slope.affine.normal(x), norm.through(x, g, slope.affine), slope);
    }
};

// An elementwise op of x and g with per-channel parameters `how.of(c)`; output and inputs have one layout.
template <class How> struct Made {
    S* out;
    const S *x, *g;
    How how;

    // Computes V elements; `of(v)` returns the parameters for element v.
    template <int V, class Of> __device__ void pack(u64 at, Of of) const {
        Pack<S, V> xs = load<V>(x + at, true), gs = load<V>(g + at, true);
        store<V>(out + at, pack_of<S, V>([&](int v) { return how.value(xs.at[v], gs.at[v], of(v)); }));
    }
};
// Any layout. The walk has two operands: the element, and its channel, which is constant or consecutive within a vector.
template <class How> struct Walked {
    Made<How> made;
    const Walk<2>& walk;

    template <int V> __device__ void at(const Offsets<2>& offsets) const {
        typename How::Of of = {};
        made.template pack<V>(offsets.at[0], [&](int v) {
            if (v == 0 || walk.moves(1)) {
                of = made.how.of(offsets.at[1] + v);
            }
            return of;
        });
    }
};
// Channels last. threadIdx.x selects V channels, whose parameters are loaded once; the thread then loops over pixels.
template <class How> __device__ inline void make_columns(const Made<How>& made, u64 channels, u64 pixels) {
    constexpr int V = lanes_of<S, S>;
    u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (first >= channels) {
        return;
    }
    auto of = pack_of<typename How::Of, V>([&](int v) { return made.how.of(first + v); });
    for (u64 p = (u64)blockIdx.y * blockDim.y + threadIdx.y; p < pixels; p += (u64)gridDim.y * blockDim.y) {
        made.template pack<V>(p * channels + first, [&](int v) { return of.at[v]; });
    }
}
#define MADE(name, How, g, how, ...)                                                                                        \
    extern "C" __global__ void NAMED(name, DTYPE)(S * out, __VA_ARGS__, const __grid_constant__ Walk<2> walk) {              \
        for_vectors<lanes_of<S, S>>(walk, Walked<How>{{out, x, g, how}, walk});                                              \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) NAMED(name##_columns, DTYPE)(S * out, __VA_ARGS__, u64 channels,   \
                                                                                       u64 pixels) {                         \
        make_columns(Made<How>{out, x, g, how}, channels, pixels);                                                           \
    }
#define SLOPES Slopes{NORM_GIVEN, {with_x, plain}, (T)count}
MADE(batch_norm, ChannelNorm, x, NORM_GIVEN, const S* x, NORM)
MADE(batch_norm_grad, Slopes, g, SLOPES, const S* x, const S* g, NORM, T *with_x, T *plain, f64 count)

// Both passes in one kernel, for channels that a thread block holds in registers.
extern "C" __global__ void __launch_bounds__(wide_of<T>, 1) NAMED(batch_norm_wide, DTYPE)(
    S* out, const S* x, NORM, const __grid_constant__ Channels channels) {
    WideGroup group(LANES);
    u64 channel = blockIdx.x, all = channels.each();
    Held<S> held = line(x, channels, channel).read(group.near(all));
    auto state = group.fold_blocks<Deviations<T>>(all, all, [&](const BlockLane& block) {
        return deviation_of<T>(block, [&](int slot) -> T { return held[slot]; });
    });
    T variance = (T)(state.squares / state.count);
    if (group.leads()) {
        mean[channel] = state.mean, var[channel] = variance;
    }
    ChannelNorm norm = NORM_GIVEN;
    Affine affine = norm.of(channel, state.mean, variance);
    line(out, channels, channel).write(group.near(all), [&](int slot) { return norm.value(held[slot], 0, affine); });
}
extern "C" __global__ void __launch_bounds__(wide_of<T>, 1) NAMED(batch_norm_grad_wide, DTYPE)(
    S* dx, const S* x, const S* g, NORM, T* with_x, T* plain, f64 count, const __grid_constant__ Channels channels) {
    WideGroup group(LANES);
    u64 channel = blockIdx.x, all = channels.each();
    Slopes slopes = SLOPES;
    Held<S> xs = line(x, channels, channel).read(group.near(all)), gs = line(g, channels, channel).read(group.near(all));
    Affine affine = slopes.norm.of(channel);
#pragma unroll
    for (int slot = 0; slot < EACH; ++slot) {
        gs[slot] = slopes.norm.through(xs[slot], gs[slot], affine), xs[slot] = affine.normal(xs[slot]);
    }
    Two<T> sums = group.fold_blocks<TwoSums<T>>(all, all, [&](const BlockLane& block) {
        return fold_slots<TwoSums<T>>(block, [&](int slot) { return Two<T>{mul_rounded(gs[slot], xs[slot]), gs[slot]}; });
    });
    if (group.leads()) {
        slopes.sums(channel, sums);
    }
    Slope slope = slopes.of(affine, sums);
    line(dx, channels, channel).write(group.near(all), [&](int slot) { return slopes.before(xs[slot], gs[slot], slope); });
}

// Updates running statistics: running = running kept + batch moved, or the cumulative mean over all batches if `kept` and `moved` are 0. One
// thread block.
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
