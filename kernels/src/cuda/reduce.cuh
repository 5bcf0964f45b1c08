// Reductions over axes: each position of `kept` has one output, the reduction over all positions of `reduced`.

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

// An element and its index along the reduced axes.
template <class T> struct Best {
    T value;
    i64 index;  // -1 for none
};
template <class T, class Lane> __device__ inline Best<T> moved(Best<T> x, Lane lane) {
    return {moved(x.value, lane), moved(x.index, lane)};
}
// First of the largest (or smallest) elements; NaN takes precedence over all numbers.
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

// Type of the state. U8 is reduced in 32 bits: sums and products wrap around equally, and shuffles need words.
template <class T> struct FoldedOf {
    using Type = T;
};
template <> struct FoldedOf<u8> {
    using Type = u32;
};
using F = FoldedOf<T>::Type;
template <> __device__ inline u32 lowest() { return 0; }
template <> __device__ inline u32 highest() { return 255; }

// Reductions: `Fold` is the operator, `of(block, x)` returns a lane's state of a block (slots behind the last element hold `none()`), and
// `value` converts the final state to the output.
template <class How> struct Plain {
    using Fold = How;
    __device__ static F none() { return How::empty(); }
    template <class X> __device__ static F of(const BlockLane& block, const X& x) {
        return fold_slots<How>(block, [&](int slot) -> F { return x[slot]; });
    }
    __device__ static F value(F state, u64, f64) { return state; }
};
template <bool LARGEST> struct IndexOfBest {
    using Fold = FirstBest<F, LARGEST>;
    // Ties are won by the first element, so padding never wins.
    __device__ static F none() { return LARGEST ? lowest<F>() : highest<F>(); }
    template <class X> __device__ static Best<F> of(const BlockLane& block, const X& x) {
        // Slots are in index order: a later element must be strictly better.
        F best = x[0];
        int at = 0;
        for_slots(block.count, [&](int slot) {
            F value = x[slot];
            if (!(LARGEST ? value <= best : value >= best) && !is_nan(best)) {
                best = value;
                at = slot;
            }
        });
        return block.count == 0 ? Fold::empty() : Best<F>{best, (i64)block.at(at)};
    }
    __device__ static i64 value(Best<F> state, u64, f64) { return state.index; }
};
#if FLOATS
struct Mean : Plain<Sum<T>> {
    __device__ static T value(T state, u64 all, f64) { return state / (T)(f64)all; }
};
struct LogSumExp {
    using Fold = LogSum<T>;
    struct Exp {
        __device__ T operator()(T x) const { return exp_of(x); }
    };
    __device__ static T none() { return lowest<T>(); }
    __device__ static Exponentials<S, Exp> of(const BlockLane& block, const Held<S>& x) { return {block, x}; }
    __device__ static T value(Two<T> state, u64, f64) { return Fold::value(state); }
};
struct Squares {
    using Fold = Deviations<T>;
    __device__ static T none() { return 0; }
    template <class X> __device__ static Deviation<T> of(const BlockLane& block, const X& x) {
        return deviation_of<T>(block, [&](int slot) -> T { return x[slot]; });
    }
};
struct Var : Squares {
    __device__ static T value(Deviation<T> state, u64, f64 divisor) { return (T)(state.squares / divisor); }
};
struct Std : Squares {
    __device__ static T value(Deviation<T> state, u64, f64 divisor) { return (T)sqrt_of(state.squares / divisor); }
};
#endif

__device__ inline S stored(F x) {
    S element;
    element = x;
    return element;
}
// Offsets of the elements of a row.
struct Reduced {
    const Walk<1>& walk;

    __device__ i64 operator()(u64 i) const { return offsets(walk, i).at[0]; }
};

template <class Group, class What, class O>
__device__ inline void reduce(O* out, const S* x, typename What::Fold::State* states, const Walk<1>& kept,
                              const Walk<1>& reduced, const Units& cut, u32 lanes, f64 divisor) {
    using Fold = typename What::Fold;
    u64 all = reduced.elements;
    fold_units<Group, Fold>(
        kept.elements, all, cut, lanes, states,
        [&](u64 row, const BlockLane& block) {
            const S* at = x + offsets(kept, row).at[0];
            S none = stored(What::none());
            Line<const S, Reduced> line = {at, {reduced}, reduced.vector != 0};
            if (Group::ACROSS || reduced.axes != 1) {
                return What::of(block, line.read(block, none));
            }
            // One reduced axis: a constant step, without branches between loads.
            Strided<const S> straight = {at, reduced.axis[0].strides[0], line.packed};
            return What::of(block, straight.read(block, none));
        },
        [&](u64 row, typename Fold::State state) { out[row] = What::value(state, all, divisor); });
}
template <class What, class O>
__device__ inline void join(O* out, const typename What::Fold::State* states, u64 rows, u64 all, const Units& cut, u32 lanes,
                            f64 divisor) {
    using Fold = typename What::Fold;
    join_units<Fold>(rows, cut, lanes, states,
                     [&](u64 row, typename Fold::State state) { out[row] = What::value(state, all, divisor); });
}

// Maximum of threads of a block. F64 columns take twice the registers. Column reductions run fastest with one large thread block per
// multiprocessor, row reductions with two, so that one loads while the other combines.
constexpr int THREADS = FLOATS && sizeof(F) == 8 ? 256 : 512;
template <class Group> constexpr int threads_of = Group::ACROSS ? THREADS : 512;
template <class Group> constexpr int blocks_at_once = Group::ACROSS || sizeof(F) == 8 ? 1 : 2;
