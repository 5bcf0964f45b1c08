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
template <class T, class Lane> __device__ inline Best<T> moved(Best<T> x, Lane lane) {
    return {moved(x.value, lane), moved(x.index, lane)};
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

// Reductions: `Fold` joins states, `of(block, x)` makes a lane's state of its elements of a block, with `none` behind the last
// one, and `value` is what becomes of the state of all.
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
    // Not before an element that is there, which comes first.
    __device__ static F none() { return LARGEST ? lowest<F>() : highest<F>(); }
    template <class X> __device__ static Best<F> of(const BlockLane& block, const X& x) {
        // Slots come in the order of elements, so that a later one has to be better.
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
// Where the elements of a row lie.
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
            // Along one axis, nothing decides anything between loads.
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

// Threads of a block, at most. A thread that folds columns of F64 takes twice the registers. Columns are read faster by one block of
// many threads, rows by several blocks, of which some read while others join what they have.
constexpr int THREADS = FLOATS && sizeof(F) == 8 ? 256 : 512;
template <class Group> constexpr int threads_of = Group::ACROSS ? THREADS : 512;
template <class Group> constexpr int blocks_at_once = Group::ACROSS || sizeof(F) == 8 ? 1 : 2;
