// Normalization of contiguous rows and its gradients: each row is read once, kept in registers as far as it fits, folded, and
// written. The gradients of weights and biases are folds along the other axes. Elements are stored as S; means and inverse
// deviations as what they are computed in.

// Threads of a block, at most: few enough that the elements they hold stay in registers.
constexpr int THREADS = 256;

// A contiguous tensor `[rows / groups, groups, channels, inner]`.
struct Norm {
    u64 rows;
    u64 groups;
    u64 channels;
    u64 inner;

    __device__ u64 len() const { return channels * inner; }
    // Where the weight of element `i` of a row lies.
    __device__ u64 weight(u64 row, u64 i) const {
        return (groups == 1 ? 0 : row % groups * channels) + (inner == 1 ? i : i / inner);
    }
};

// out = (x - mean) rstd weight + bias; `mean`, `weight` and `bias` may be missing
template <class Group>
__device__ inline void normalize(S* out, const S* x, const S* weight, const S* bias, T* mean, T* rstd, const Norm& norm,
                                 f64 eps, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        const S* from = x + (exists ? row : 0) * all;
        S* to = out + (exists ? row : 0) * all;
        T held[EACH];
        auto skip = [](u64) {};
        group.each(len, skip, [&](u64 i, int slot) { held[slot] = from[i]; });
        T centre = 0;
        if (mean) {
            centre = group.template fold<Sum<T>>(all, len, [&](u64 i) -> T { return from[i]; },
                                                [&](u64, int slot) { return held[slot]; }) /
                     (T)all;
        }
        auto square = [&](T x) { return mul_rounded(x - centre, x - centre); };
        T squares = group.template fold<Sum<T>>(all, len, [&](u64 i) { return square(from[i]); },
                                               [&](u64, int slot) { return square(held[slot]); });
        T scale = 1 / sqrt_of(squares / (T)all + (T)eps);
        if (exists && group.leads()) {
            rstd[row] = scale;
            if (mean) {
                mean[row] = centre;
            }
        }
        auto write = [&](u64 i, T x) {
            u64 w = norm.weight(row, i);
            T value = (x - centre) * scale;
            value = weight ? value * weight[w] : value;
            to[i] = bias ? value + bias[w] : value;
        };
        group.each(len, [&](u64 i) { write(i, from[i]); }, [&](u64 i, int slot) { write(i, held[slot]); });
    });
}

// dx = rstd (d - mean(d) - h mean(d h)), h = (x - mean) rstd, d = g weight; without a mean the first mean(d) is left out
template <class Group>
__device__ inline void gradient(S* dx, const S* g, const S* x, const S* weight, const T* mean, const T* rstd,
                                const Norm& norm, u32 lanes) {
    for_rows<Group>(norm.rows, lanes, [&](const Group& group, u64 row, bool exists) {
        u64 all = norm.len(), len = exists ? all : 0;
        row = exists ? row : 0;
        const S* from_x = x + row * all;
        const S* from_g = g + row * all;
        S* to = dx + row * all;
        T centre = mean ? mean[row] : 0, scale = rstd[row];
        auto normal = [&](u64 i) { return (from_x[i] - centre) * scale; };
        auto weighted = [&](u64 i) -> T { return weight ? from_g[i] * weight[norm.weight(row, i)] : from_g[i]; };
        T hs[EACH], ds[EACH];
        group.each(len, [](u64) {}, [&](u64 i, int slot) {
            hs[slot] = normal(i);
            ds[slot] = weighted(i);
        });
        T shift = 0;
        if (mean) {
            shift = group.template fold<Sum<T>>(all, len, weighted, [&](u64, int slot) { return ds[slot]; }) / (T)all;
        }
        T slope = group.template fold<Sum<T>>(all, len, [&](u64 i) { return mul_rounded(weighted(i), normal(i)); },
                                             [&](u64, int slot) { return mul_rounded(ds[slot], hs[slot]); }) /
                  (T)all;
        auto write = [&](u64 i, T h, T d) { to[i] = (d - shift - h * slope) * scale; };
        group.each(len, [&](u64 i) { write(i, normal(i), weighted(i)); },
                  [&](u64 i, int slot) { write(i, hs[slot], ds[slot]); });
    });
}

// Two sums at once.
struct Two {
    T first;
    T second;
};
__device__ inline Two shuffle_down(Two x, u32 by) { return {shuffle_down(x.first, by), shuffle_down(x.second, by)}; }
__device__ inline Two shuffle(Two x, u32 from) { return {shuffle(x.first, from), shuffle(x.second, from)}; }
struct TwoSums {
    using State = Two;
    __device__ static State empty() { return {0, 0}; }
    __device__ static State join(State a, State b) { return {a.first + b.first, a.second + b.second}; }
};

// dweight = sum(g h), dbias = sum(g), over the rows and inner elements of each weight; either may be missing
template <class Group>
__device__ inline void weights(S* dweight, S* dbias, const S* g, const S* x, const T* mean, const T* rstd, const Norm& norm,
                               u32 lanes) {
    for_rows<Group>(norm.groups * norm.channels, lanes, [&](const Group& group, u64 weight, bool exists) {
        u64 all = norm.rows / norm.groups * norm.inner;
        u64 own = norm.groups == 1 ? 0 : weight / norm.channels;
        auto term = [&](u64 i) {
            u64 n = norm.inner == 1 ? i : i / norm.inner;
            u64 row = n * norm.groups + own;
            u64 at = (n * norm.groups * norm.channels + weight) * norm.inner + (i - n * norm.inner);
            T h = (x[at] - (mean ? mean[row] : 0)) * rstd[row];
            T slope = g[at];
            return Two{mul_rounded(slope, h), slope};
        };
        Two sums = group.template fold<TwoSums>(all, exists ? all : 0, term);
        if (exists && group.leads()) {
            if (dweight) {
                dweight[weight] = sums.first;
            }
            if (dbias) {
                dbias[weight] = sums.second;
            }
        }
    });
}

// Rows lie along memory; those of a weight may lie across it.
ROW_KERNELS(normalize,
            (S* out, const S* x, const S* weight, const S* bias, T* mean, T* rstd, const __grid_constant__ Norm norm,
             f64 eps, u32 lanes),
            normalize<Group>(out, x, weight, bias, mean, rstd, norm, eps, lanes))
ROW_KERNELS(normalize_grad,
            (S* dx, const S* g, const S* x, const S* weight, const T* mean, const T* rstd,
             const __grid_constant__ Norm norm, u32 lanes),
            gradient<Group>(dx, g, x, weight, mean, rstd, norm, lanes))
GROUP_KERNELS(normalize_weights,
             (S* dweight, S* dbias, const S* g, const S* x, const T* mean, const T* rstd,
              const __grid_constant__ Norm norm, u32 lanes),
             weights<Group>(dweight, dbias, g, x, mean, rstd, norm, lanes))
