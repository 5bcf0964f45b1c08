// Folds along axes: one output for each element of `kept`, of the elements of `reduced`.

template <class S> struct Prod {
    using State = S;
    __device__ static S empty() { return 1; }
    __device__ static S join(S a, S b) { return mul(a, b); }
};
template <class S> struct Min {
    using State = S;
    __device__ static S empty() { return highest<S>(); }
    __device__ static S join(S a, S b) { return minimum(a, b); }
};

// An element and its place.
template <class T> struct Best {
    T value;
    i64 index;  // -1 for none
};
template <class T> __device__ inline Best<T> shuffle_down(Best<T> x, u32 by) {
    return {shuffle_down(x.value, by), shuffle_down(x.index, by)};
}
template <class T> __device__ inline Best<T> shuffle(Best<T> x, u32 from) {
    return {shuffle(x.value, from), shuffle(x.index, from)};
}
// The first of the largest elements, or of the smallest; NaN wins over all others.
template <class T, bool LARGEST> struct FirstBest {
    using State = Best<T>;
    __device__ static State empty() { return {0, -1}; }
    __device__ static State join(State a, State b) {
        if (a.index < 0 || b.index < 0) {
            return a.index < 0 ? b : a;
        }
        bool tie = a.value == b.value || (is_nan(a.value) && is_nan(b.value));
        bool better = LARGEST ? a.value > b.value : a.value < b.value;
        bool first = tie ? a.index < b.index : better || is_nan(a.value);
        return first ? a : b;
    }
};

// What elements are folded in. Bytes are in 32 bits: sums and products wrap around alike, and shuffles want words.
template <class T> struct FoldedOf {
    using Type = T;
};
template <> struct FoldedOf<u8> {
    using Type = u32;
};
using F = FoldedOf<T>::Type;
template <> __device__ inline u32 lowest() { return 0; }
template <> __device__ inline u32 highest() { return 255; }

// A row's elements.
struct Row {
    const S* from;
    const Walk<1>& reduced;

    __device__ F operator()(u64 i) const { return from[offsets(reduced, i).at[0]]; }
};

// What is made of a row; `all` is the length of every row, `len` is 0 for a row that does not exist.
template <class How> struct Plain {
    template <class Group> __device__ static F of(const Group& group, Row x, u64 all, u64 len, f64) {
        return group.template fold<How>(all, len, x);
    }
};
#if FLOATS
struct Mean {
    template <class Group> __device__ static T of(const Group& group, Row x, u64 all, u64 len, f64) {
        return Plain<Sum<F>>::of(group, x, all, len, 0) / (T)(f64)all;
    }
};
// sum (x - mean)^2 / divisor
struct Var {
    template <class Group> __device__ static T of(const Group& group, Row x, u64 all, u64 len, f64 divisor) {
        T mean = Mean::of(group, x, all, len, 0);
        auto square = [&](u64 i) {
            T d = x(i) - mean;
            return mul_rounded(d, d);
        };
        return group.template fold<Sum<T>>(all, len, square) / (T)divisor;
    }
};
// m + log(sum exp(x - m)), m = max x
struct LogSumExp {
    template <class Group> __device__ static T of(const Group& group, Row x, u64 all, u64 len, f64) {
        T m = Plain<Max<F>>::of(group, x, all, len, 0);
        // With an infinite one `x - m` would be NaN; without it the infinity comes through by itself.
        T shift = is_nan(m - m) && !is_nan(m) ? (T)0 : m;
        auto term = [&](u64 i) { return exp_of(x(i) - shift); };
        T sum = group.template fold<Sum<T>>(all, len, term);
        return log_of(sum) + shift;
    }
};
#endif
template <bool LARGEST> struct IndexOfBest {
    template <class Group> __device__ static i64 of(const Group& group, Row x, u64 all, u64 len, f64) {
        auto at = [&](u64 i) { return Best<F>{x(i), (i64)i}; };
        return group.template fold<FirstBest<F, LARGEST>>(all, len, at).index;
    }
};

template <class Group, class What, class O>
__device__ inline void reduce(O* out, const S* x, const Walk<1>& kept, const Walk<1>& reduced, u32 lanes, f64 divisor) {
    for_rows<Group>(kept.elements, lanes, [&](const Group& group, u64 row, bool exists) {
        Row elements = {exists ? x + offsets(kept, row).at[0] : x, reduced};
        auto value = What::of(group, elements, reduced.elements, exists ? reduced.elements : 0, divisor);
        if (exists && group.leads()) {
            out[row] = value;
        }
    });
}

#define REDUCTION_BY(name, What, O, group, Group, bound)                                                               \
    extern "C" __global__ void __launch_bounds__(bound, 1) NAMED(name##_##group, DTYPE)(                               \
        O * out, const S* x, const __grid_constant__ Walk<1> kept, const __grid_constant__ Walk<1> reduced, u32 lanes, \
        f64 divisor) {                                                                                                 \
        reduce<Group, What>(out, x, kept, reduced, lanes, divisor);                                                    \
    }
#define REDUCTION(name, What, O)                         \
    REDUCTION_BY(name, What, O, warp, WarpGroup, 256)    \
    REDUCTION_BY(name, What, O, block, BlockGroup, 1024) \
    REDUCTION_BY(name, What, O, column, ColumnGroup, 1024)

REDUCTION(sum, Plain<Sum<F>>, S)
REDUCTION(prod, Plain<Prod<F>>, S)
REDUCTION(max, Plain<Max<F>>, S)
REDUCTION(min, Plain<Min<F>>, S)
REDUCTION(argmax, IndexOfBest<true>, i64)
REDUCTION(argmin, IndexOfBest<false>, i64)
#if FLOATS
REDUCTION(mean, Mean, S)
REDUCTION(var, Var, S)
REDUCTION(logsumexp, LogSumExp, S)
#endif
