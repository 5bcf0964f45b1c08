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

// Bytes are folded in 32 bits: sums and products wrap around alike, and shuffles want words.
template <class T> struct FoldedOf {
    using Type = Opmath<T>;
};
template <> struct FoldedOf<u8> {
    using Type = u32;
};
template <class T> using Folded = typename FoldedOf<T>::Type;
template <> __device__ inline u32 lowest() { return 0; }
template <> __device__ inline u32 highest() { return 255; }

// A row's elements.
template <class T> struct Row {
    const T* from;
    const Walk<1>& reduced;

    __device__ Folded<T> operator()(u64 i) const { return from[offsets(reduced, i).at[0]]; }
};

// What is made of a row; `all` is the length of every row, `len` is 0 for a row that does not exist.
template <template <class> class F> struct Plain {
    template <class Team, class T> __device__ static Folded<T> of(const Team& team, Row<T> x, u64 all, u64 len, f64) {
        return team.template fold<F<Folded<T>>>(all, len, x);
    }
};
struct Mean {
    template <class Team, class T> __device__ static Opmath<T> of(const Team& team, Row<T> x, u64 all, u64 len, f64) {
        return Plain<Sum>::of(team, x, all, len, 0) / (Opmath<T>)(f64)all;
    }
};
// sum (x - mean)^2 / divisor
struct Var {
    template <class Team, class T>
    __device__ static Opmath<T> of(const Team& team, Row<T> x, u64 all, u64 len, f64 divisor) {
        using C = Opmath<T>;
        C mean = Mean::of(team, x, all, len, 0);
        auto square = [&](u64 i) {
            C d = x(i) - mean;
            return mul_rounded(d, d);
        };
        return team.template fold<Sum<C>>(all, len, square) / (C)divisor;
    }
};
// m + log(sum exp(x - m)), m = max x
struct LogSumExp {
    template <class Team, class T> __device__ static Opmath<T> of(const Team& team, Row<T> x, u64 all, u64 len, f64) {
        using C = Opmath<T>;
        C m = Plain<Max>::of(team, x, all, len, 0);
        // With an infinite one `x - m` would be NaN; without it the infinity comes through by itself.
        C shift = is_nan(m - m) && !is_nan(m) ? (C)0 : m;
        auto term = [&](u64 i) { return exp_of(x(i) - shift); };
        C sum = team.template fold<Sum<C>>(all, len, term);
        return log_of(sum) + shift;
    }
};
template <bool LARGEST> struct IndexOfBest {
    template <class Team, class T> __device__ static i64 of(const Team& team, Row<T> x, u64 all, u64 len, f64) {
        using S = Folded<T>;
        auto at = [&](u64 i) { return Best<S>{x(i), (i64)i}; };
        return team.template fold<FirstBest<S, LARGEST>>(all, len, at).index;
    }
};

template <class Team, class What, class O, class T>
__device__ inline void reduce(O* out, const T* x, const Walk<1>& kept, const Walk<1>& reduced, u32 lanes, f64 divisor) {
    for_rows<Team>(kept.elements, lanes, [&](const Team& team, u64 row, bool exists) {
        Row<T> elements = {exists ? x + offsets(kept, row).at[0] : x, reduced};
        auto value = What::of(team, elements, reduced.elements, exists ? reduced.elements : 0, divisor);
        if (exists && team.leads()) {
            out[row] = value;
        }
    });
}

#define TEAM(name, What, O, T, team, Team, bound)                                                                  \
    extern "C" __global__ void __launch_bounds__(bound, 1) name##_##team##_##T(                                       \
        O* out, const T* x, const __grid_constant__ Walk<1> kept, const __grid_constant__ Walk<1> reduced, u32 lanes, \
        f64 divisor) {                                                                                             \
        reduce<Team, What>(out, x, kept, reduced, lanes, divisor);                                                 \
    }
#define REDUCTION(name, What, O, T)                     \
    TEAM(name, What, O, T, warp, WarpTeam, 256)         \
    TEAM(name, What, O, T, block, BlockTeam, 1024)      \
    TEAM(name, What, O, T, column, ColumnTeam, 1024)

#define NUMBERS(T)                               \
    REDUCTION(sum, Plain<Sum>, T, T)             \
    REDUCTION(prod, Plain<Prod>, T, T)           \
    REDUCTION(max, Plain<Max>, T, T)             \
    REDUCTION(min, Plain<Min>, T, T)             \
    REDUCTION(argmax, IndexOfBest<true>, i64, T) \
    REDUCTION(argmin, IndexOfBest<false>, i64, T)
#if FLOATS
REDUCTION(mean, Mean, DTYPE, DTYPE)
REDUCTION(var, Var, DTYPE, DTYPE)
REDUCTION(logsumexp, LogSumExp, DTYPE, DTYPE)
#endif
NUMBERS(DTYPE)
