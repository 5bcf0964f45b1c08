// Batch normalization of images [n, c, ..]. Images are stored as S, values per channel as T.

constexpr int THREADS = 256;

struct Channels {
    u64 images, channels, size;
    // Whether a channel's elements can be loaded as packs.
    u64 packed;
    // Divides by `size`, see `divided`; 0 if a channel has 2^31 elements or more.
    u32 magic, shift;

    __device__ u64 each() const { return images * size; }
    __device__ u64 image(u64 i) const { return magic ? divided((u32)i, magic, shift) : i / size; }
};
// Offset of element i of a channel, counted over all images.
struct Plane {
    const Channels& channels;
    u64 channel;

    __device__ i64 operator()(u64 i) const {
        u64 image = channels.image(i);
        return (i64)((image * channels.channels + channel) * channels.size + (i - image * channels.size));
    }
};
__device__ inline Held<S> read(const S* x, const Channels& channels, u64 channel, const BlockLane& block) {
    return Line<const S, Plane>{x, {channels, channel}, channels.packed != 0}.read(block);
}

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
        Held<S> held = read(x, channels, channel, block);
        return deviation_of<T>(block, [&](int slot) -> T { return held[slot]; });
    };
    fold_units<Group, Deviations<T>>(channels.channels, channels.each(), cut, lanes, states, of, to);
}
extern "C" __global__ void __launch_bounds__(THREADS, blocks_of<T>) NAMED(batch_statistics_columns, DTYPE)(
    T* mean, T* var, const S* x, u64 channels, u64 pixels, Deviation<T>* states, const __grid_constant__ Units cut) {
    auto of = [&](u64 first, const BlockLane& block) {
        auto load = [&](u64 pixel) { return row_pack(x + first, pixel, channels); };
        auto all = Each<Deviations<T>>::empty();
        T sums[PACK] = {};
        for_rows_ahead(block, load, [&](const Pack<S, PACK>& pack) {
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                sums[v] += pack.at[v];
            }
        });
#pragma unroll
        for (int v = 0; v < PACK; ++v) {
            all.at[v] = {(T)block.count, block.count == 0 ? (T)0 : sums[v] / (T)block.count, 0};
        }
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
};
#define NORM const T *mean, const T *var, const T *weight, const T *bias, f64 eps, u32 relu
#define NORM_GIVEN ChannelNorm{mean, var, weight, bias, (T)eps, relu != 0}
struct ChannelNorm {
    using Of = Affine;

    const T* mean;
    const T* var;
    const T* weight;
    const T* bias;
    T eps;
    bool relu;

    __device__ Affine of(u64 c) const {
        T inverse = 1 / sqrt_of(var[c] + eps);
        return {mean[c], inverse, weight ? mul_rounded(inverse, weight[c]) : inverse, bias ? bias[c] : (T)0};
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

// Writes the sums of g times the normalized x, and of g, of each channel: as pairs and as two vectors.
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
__device__ inline void sums(ToSums to, const S* x, const S* g, const ChannelNorm& norm, const Channels& channels, Two<T>* states,
                            const Units& cut, u32 lanes) {
    auto of = [&](u64 channel, const BlockLane& block) {
        Held<S> xs = read(x, channels, channel, block), gs = read(g, channels, channel, block);
        Affine affine = norm.of(channel);
        return fold_slots<TwoSums<T>>(block, [&](int slot) {
            T slope = norm.through(xs[slot], gs[slot], affine);
            return Two<T>{mul_rounded(slope, mul_rounded(xs[slot] - affine.centre, affine.inverse)), slope};
        });
    };
    fold_units<Group, TwoSums<T>>(channels.channels, channels.each(), cut, lanes, states, of, to);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) NAMED(batch_norm_sums_columns, DTYPE)(
    Two<T>* all, T* with_x, T* plain, const S* x, const S* g, NORM, u64 channels, u64 pixels, Two<T>* states,
    const __grid_constant__ Units cut) {
    ChannelNorm norm = NORM_GIVEN;
    auto of = [&](u64 first, const BlockLane& block) {
        struct Pixel {
            Pack<S, PACK> x, g;
        };
        auto load = [&](u64 pixel) -> Pixel { return {row_pack(x + first, pixel, channels), row_pack(g + first, pixel, channels)}; };
        auto sums = Each<TwoSums<T>>::empty();
        Affine affine[PACK];
#pragma unroll
        for (int v = 0; v < PACK; ++v) {
            affine[v] = norm.of(first + v);
        }
        for_rows_ahead(block, load, [&](const Pixel& pixel) {
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                T slope = norm.through(pixel.x.at[v], pixel.g.at[v], affine[v]);
                T normal = mul_rounded((T)pixel.x.at[v] - affine[v].centre, affine[v].inverse);
                sums.at[v] = TwoSums<T>::join(sums.at[v], {mul_rounded(slope, normal), slope});
            }
        });
        return sums;
    };
    fold_columns<TwoSums<T>>(channels, pixels, states, cut, of, ToSums{all, with_x, plain});
}
WEIGHT_KERNELS(batch_norm_sums,
               (Two<T>* all, T* with_x, T* plain, const S* x, const S* g, NORM, const __grid_constant__ Channels channels,
                Two<T>* states, const __grid_constant__ Units cut, u32 lanes),
               sums<Group>({all, with_x, plain}, x, g, NORM_GIVEN, channels, states, cut, lanes))
extern "C" __global__ void NAMED(batch_norm_sums_join, DTYPE)(Two<T>* all, T* with_x, T* plain, const Two<T>* states,
                                                              u64 channels, const __grid_constant__ Units cut, u32 lanes) {
    join_units<TwoSums<T>>(channels, cut, lanes, states, ToSums{all, with_x, plain});
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
    const Two<T>* sums;
    T count;

    __device__ Slope of(u64 c) const {
        Two<T> means = count > 0 ? Two<T>{sums[c].first / count, sums[c].second / count} : Two<T>{0, 0};
        return {norm.of(c), means};
    }
    __device__ T value(T x, T g, const Slope& slope) const {
        const Affine& affine = slope.affine;
        g = norm.through(x, g, affine);
        if (count > 0) {
            T normal = mul_rounded(x - affine.centre, affine.inverse);
            g = g - slope.mean.second - mul_rounded(normal, slope.mean.first);
        }
        return affine.scale * g;
    }
};

// An elementwise op of N inputs with per-channel parameters `how.of(c)`; output and inputs have one layout.
template <int N, class How> struct Made {
    S* out;
    const S* images[N];
    How how;

    // Computes V elements; `of(v)` returns the parameters for element v.
    template <int V, class Of> __device__ void pack(u64 at, Of of) const {
        Pack<S, V> packs[N];
#pragma unroll
        for (int n = 0; n < N; ++n) {
            packs[n] = load<V>(images[n] + at, true);
        }
        store<V>(out + at, pack_of<S, V>([&](int v) { return how.value(packs[0].at[v], packs[N - 1].at[v], of(v)); }));
    }
};
// Any layout. The walk has two operands: the element, and its channel, which is constant or consecutive within a vector.
template <int N, class How> struct Walked {
    Made<N, How> made;
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
template <int N, class How> __device__ inline void make_columns(const Made<N, How>& made, u64 channels, u64 pixels) {
    constexpr int V = lanes_of<S, S>;
    u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * V;
    if (first >= channels) {
        return;
    }
    typename How::Of of[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
        of[v] = made.how.of(first + v);
    }
    for (u64 p = (u64)blockIdx.y * blockDim.y + threadIdx.y; p < pixels; p += (u64)gridDim.y * blockDim.y) {
        made.template pack<V>(p * channels + first, [&](int v) { return of[v]; });
    }
}
#define MADE(name, N, How, images, how, ...)                                                                                 \
    extern "C" __global__ void NAMED(name, DTYPE)(S * out, __VA_ARGS__, const __grid_constant__ Walk<2> walk) {              \
        for_vectors<lanes_of<S, S>>(walk, Walked<N, How>{{out, images, how}, walk});                                         \
    }                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) NAMED(name##_columns, DTYPE)(S * out, __VA_ARGS__, u64 channels,   \
                                                                                       u64 pixels) {                         \
        make_columns(Made<N, How>{out, images, how}, channels, pixels);                                                      \
    }
#define ONE {x}
#define TWO {x, g}
#define SLOPES Slopes{NORM_GIVEN, sums, (T)count}
MADE(batch_norm, 1, ChannelNorm, ONE, NORM_GIVEN, const S* x, NORM)
MADE(batch_norm_grad, 2, Slopes, TWO, SLOPES, const S* x, const S* g, NORM, const Two<T>* sums, f64 count)

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
