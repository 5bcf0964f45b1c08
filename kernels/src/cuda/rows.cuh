// Groups of threads that fold the elements of a row, in one order whatever the group.
//
// A row is cut into blocks of 512. In a block element i goes to lane i / 4 % 32, so that a lane reads four neighbours at once;
// lanes are joined as a tree, lane l with l + 16, then with l + 8, and so on. 32 neighbouring blocks are a part, and are joined
// as the same tree. Several parts' values go to lanes in turn, part p to p % 32, and are joined as that tree again. Neither
// strides, nor the number of threads, nor what else runs shows in the result.

enum : u32 { FULL = 0xffffffff };
constexpr u32 LANES = 32;
constexpr u32 BLOCK = 512;
// Blocks of a part.
enum : u32 { PART_BLOCKS = 32 };
// Neighbours that a lane reads at once, a pack; packs and elements of a block that are one lane's.
enum : int { PACK = 4, EACH = BLOCK / LANES, PACKS = EACH / PACK };

template <class T> __device__ inline T shuffle(T x, u32 from) { return __shfl_sync(FULL, x, from); }

// Where a lane takes a state from: `by` lanes further, or one lane of the warp.
struct Down {
    u32 by;
    template <class T> __device__ T operator()(T x) const { return __shfl_down_sync(FULL, x, by); }
};
struct From {
    u32 lane;
    template <class T> __device__ T operator()(T x) const { return shuffle(x, lane); }
};
template <class T, class Lane> __device__ inline T moved(T x, Lane lane) { return lane(x); }

// What a fold does: `empty` is the value of no elements, `join` that of two parts.
template <class S> struct Sum {
    using State = S;
    __device__ static S empty() { return 0; }
    __device__ static S join(S a, S b) { return add(a, b); }
};
template <class S> struct Max {
    using State = S;
    __device__ static S empty() { return lowest<S>(); }
    __device__ static S join(S a, S b) { return maximum(a, b); }
};

// A fold of each of a pack's elements.
template <class F> struct Each {
    using State = Pack<typename F::State, PACK>;
    __device__ static State empty() {
        return pack_of<typename F::State, PACK>([](int) { return F::empty(); });
    }
    __device__ static State join(State a, State b) {
#pragma unroll
        for (int v = 0; v < PACK; ++v) {
            a.at[v] = F::join(a.at[v], b.at[v]);
        }
        return a;
    }
};
template <class S, class Lane> __device__ inline Pack<S, PACK> moved(Pack<S, PACK> x, Lane lane) {
#pragma unroll
    for (int v = 0; v < PACK; ++v) {
        x.at[v] = moved(x.at[v], lane);
    }
    return x;
}

// Two sums at once.
template <class T> struct Two {
    T first;
    T second;
};
template <class T, class Lane> __device__ inline Two<T> moved(Two<T> x, Lane lane) {
    return {moved(x.first, lane), moved(x.second, lane)};
}
template <class T> struct TwoSums {
    using State = Two<T>;
    __device__ static State empty() { return {0, 0}; }
    __device__ static State join(State a, State b) { return {a.first + b.first, a.second + b.second}; }
};

// The logarithm of a sum of exponentials: `first` is the largest element m that is not NaN, `second` the sum of exp(x - m), or of
// exp(x) where m is infinite.
template <class T> struct LogSum {
    using State = Two<T>;
    // The largest of numbers, whatever the sign of a zero.
    struct Largest {
        using State = T;
        __device__ static T empty() { return lowest<T>(); }
        __device__ static T join(T a, T b) { return larger_of(a, b); }
    };
    __device__ static State empty() { return {lowest<T>(), 0}; }
    // exp(x - m), also where both are the same infinity.
    __device__ static T term(T x, T m) { return x == m ? (T)1 : exp_of(x - m); }
    __device__ static State join(State a, State b) {
        // The other term is 1.
        bool less = a.first < b.first;
        T m = less ? b.first : a.first, scale = term(less ? a.first : b.first, m);
        return {m, less ? mul_rounded(a.second, scale) + b.second : a.second + mul_rounded(b.second, scale)};
    }
    // Rounded by itself, whatever is done with it.
    __device__ static T value(State state) { return add_rounded(state.first, log_of(state.second)); }
};

// How many elements there are, their mean, and the sum of squared distances from it.
__device__ inline f64 square_of(f64 x) { return mul_rounded(x, x); }
template <class T> struct Deviation {
    T count;
    T mean;
    // In F64, which holds the squares of all numbers of F32.
    f64 squares;
};
template <class T, class Lane> __device__ inline Deviation<T> moved(Deviation<T> x, Lane lane) {
    return {moved(x.count, lane), moved(x.mean, lane), moved(x.squares, lane)};
}
template <class T> struct Deviations {
    using State = Deviation<T>;
    __device__ static State empty() { return {0, 0, 0}; }
    // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    __device__ static State join(State a, State b) {
        if (a.count == 0 || b.count == 0) {
            return a.count == 0 ? b : a;
        }
        T all = a.count + b.count, share = a.count == b.count ? (T)0.5 : b.count / all, between = b.mean - a.mean;
        f64 square = mul_rounded((f64)between, (f64)between);
        return {all, a.mean + mul_rounded(between, share),
                a.squares + b.squares + mul_rounded(square, (f64)mul_rounded(a.count, share))};
    }
};

// Joins the states of `lanes` neighbouring threads, a power of two; each of them gets the result.
template <class F> __device__ inline typename F::State join_lanes(typename F::State state, u32 lanes) {
    for (u32 half = lanes / 2; half > 0; half /= 2) {
        state = F::join(state, moved(state, Down{half}));
    }
    return moved(state, From{threadIdx.x % LANES & ~(lanes - 1)});
}

// A block as a thread sees it that is number `lane` of `lanes`, a power of two.
struct BlockLane {
    u32 lane;
    u32 lanes;
    // The block's first element.
    u64 first;
    // The thread's elements.
    u32 count;

    __device__ BlockLane(u32 lane, u32 lanes, u64 first, u64 len) : lane(lane), lanes(lanes), first(first), count(0) {
        u32 step = lanes * PACK, own = lane * PACK;
        u32 rest = first >= len ? 0 : len - first < BLOCK ? (u32)(len - first) : BLOCK;
        if (rest > own) {
            u32 behind = (rest - own) & (step - 1);
            count = (rest - own) >> __ffs((int)step) - 1;
            count = count * PACK + (behind < PACK ? behind : PACK);
        }
    }
    // The thread's element in a slot.
    __device__ u64 at(int slot) const { return first + lane * PACK + (slot / PACK * lanes * PACK + slot % PACK); }
    // The slot of an element, -1 if it is not the thread's.
    __device__ int slot_of(u64 i) const {
        u32 behind = (u32)(i - first), pack = behind / PACK;
        bool own = i >= first && i - first < BLOCK && pack % lanes == lane;
        return own ? (int)(pack / lanes * PACK + behind % PACK) : -1;
    }
};

// Calls `body(slot)` for slots from `from` on, before `to`, of the packs in which the lane has some of its `count` elements. Both are known
// to the compiler, so that a value for each slot can be kept in registers. Short rows are over soon: what is not run is not fetched.
template <class Body> __device__ inline void for_slots(int from, int to, u32 count, Body body) {
#pragma unroll
    for (int slot = from; slot < to; slot += PACK) {
        if (slot >= count) {
            break;
        }
#pragma unroll
        for (int v = 0; v < PACK; ++v) {
            body(slot + v);
        }
    }
}
template <class Body> __device__ inline void for_slots(u32 count, Body body) { for_slots(0, EACH, count, body); }
// The fold of a thread's elements of a block: `of(from, to)` is that of the slots between. A thread with several packs of a row that
// has fewer threads than a warp stands for as many lanes, which are joined in the order of lanes.
template <class F, class Of> __device__ inline typename F::State fold_lane(const BlockLane& block, Of of) {
    if (block.lanes == LANES) {
        return of(0, EACH);
    }
    typename F::State first = of(0, PACK);
    if (block.count <= PACK) {
        return first;
    }
    typename F::State second = of(PACK, 2 * PACK), third = of(2 * PACK, 3 * PACK);
    return F::join(F::join(first, third), F::join(second, of(3 * PACK, EACH)));
}
// The fold of values `at(slot)`, one after the other. In a pack that is not whole there are others behind them, which must not show.
template <class F, class At> __device__ inline typename F::State fold_between(int from, int to, u32 count, At at) {
    typename F::State state = F::empty();
    for_slots(from, to, count, [&](int slot) { state = F::join(state, at(slot)); });
    return state;
}
template <class F, class At> __device__ inline typename F::State fold_slots(const BlockLane& block, At at) {
    return fold_lane<F>(block, [&](int from, int to) { return fold_between<F>(from, to, block.count, at); });
}
// A pack as words in memory, and element `v` of it.
template <class S> using Words = Pack<u32, PACK * sizeof(S) / sizeof(u32)>;
template <class S> union PackOf {
    S elements[PACK];
    Words<S> words;
};
template <class S> __device__ inline Opmath<S> element_of(const Words<S>& words, int v) {
    PackOf<S> pack;
    pack.words = words;
    return pack.elements[v];
}
// One instruction instead of two.
template <> __device__ inline f32 element_of<bf16>(const Words<bf16>& words, int v) {
    return __uint_as_float(v % 2 == 0 ? words.at[v / 2] << 16 : words.at[v / 2] & 0xffff0000);
}

// A lane's elements of a block, as they are computed with.
template <class S> struct Held {
    Opmath<S> at[EACH];

    __device__ Opmath<S> operator[](int slot) const { return at[slot]; }
    __device__ Opmath<S>& operator[](int slot) { return at[slot]; }
};

// A lane's elements of a block for `LogSum`, for which the largest of all lanes is found before exponentials `exp(x)` are summed.
template <class S, class Exp> struct Exponentials {
    using T = Opmath<S>;
    using Largest = typename LogSum<T>::Largest;
    BlockLane block;
    Held<S> x;
    Exp exp;

    __device__ T largest() const {
        return fold_slots<Largest>(block, [&](int slot) { return x[slot]; });
    }
    __device__ T sum(T largest) const {
        T shift = is_finite(largest) ? largest : (T)0;
        return fold_slots<Sum<T>>(block, [&](int slot) { return exp(x[slot] - shift); });
    }
};
// The fold of a block of which each of `lanes` neighbouring threads has a state, or exponentials.
template <class F> __device__ inline typename F::State join_block(typename F::State state, u32 lanes) {
    return join_lanes<F>(state, lanes);
}
template <class F, class S, class Exp> __device__ inline typename F::State join_block(const Exponentials<S, Exp>& x, u32 lanes) {
    auto m = join_lanes<typename Exponentials<S, Exp>::Largest>(x.largest(), lanes);
    return {m, join_lanes<Sum<Opmath<S>>>(x.sum(m), lanes)};
}
template <class T, class At> __device__ inline Deviation<T> deviation_of(const BlockLane& block, At at) {
    return fold_lane<Deviations<T>>(block, [&](int from, int to) -> Deviation<T> {
        u32 count = block.count < from ? 0 : min(block.count, (u32)to) - from;
        T mean = count == 0 ? (T)0 : fold_between<Sum<T>>(from, to, block.count, at) / (T)count;
        f64 squares = fold_between<Sum<f64>>(
            from, to, block.count, [&](int slot) { return slot < block.count ? square_of(at(slot) - mean) : 0.0; });
        return {(T)count, mean, squares};
    });
}

// Elements next to each other, and a step apart.
struct Beside {
    __device__ u64 operator()(u64 i) const { return i; }
};
struct Apart {
    i64 step;

    __device__ i64 operator()(u64 i) const { return (i64)i * step; }
};
template <class S> __device__ S element_type(const S*);
template <class S> using Element = decltype(element_type((S*)nullptr));
// A row in memory, of which element `i` lies at `place(i)`. If it is `packed`, four that a lane has next to each other lie so in
// memory, too, and can be read at once.
template <class S, class Place = Beside> struct Line {
    S* at;
    Place place;
    bool packed;

    __device__ S* pack(const BlockLane& block, int k) const { return at + place(block.at(k * PACK)); }

    // Pack `k` of a lane's; `none` where there is no element.
    __device__ Pack<Element<S>, PACK> read(const BlockLane& block, int k, Element<S> none) const {
        if (packed && k * PACK + PACK <= block.count) {
            return *(const Pack<Element<S>, PACK>*)pack(block, k);
        }
        return pack_of<Element<S>, PACK>(
            [&](int v) { return k * PACK + v < block.count ? at[place(block.at(k * PACK + v))] : none; });
    }
    // All elements; `none` is what follows the last one.
    __device__ Held<Element<S>> read(const BlockLane& block, Element<S> none = Element<S>()) const {
        Held<Element<S>> held;
        if (packed && block.count % PACK == 0) {
            PackOf<Element<S>> empty = {{none, none, none, none}};
            Words<Element<S>> packs[PACKS];
#pragma unroll
            for (int k = 0; k < PACKS; ++k) {
                packs[k] = empty.words;
                if (k * PACK < block.count) {
                    packs[k] = *(const Words<Element<S>>*)pack(block, k);
                }
            }
#pragma unroll
            for (int slot = 0; slot < EACH; ++slot) {
                held[slot] = element_of<Element<S>>(packs[slot / PACK], slot % PACK);
            }
            return held;
        }
#pragma unroll
        for (int slot = 0; slot < EACH; ++slot) {
            held[slot] = none;
            if (slot < block.count) {
                held[slot] = at[place(block.at(slot))];
            }
        }
        return held;
    }
    // Writes `of(slot)` to each element.
    template <class Of> __device__ void write(const BlockLane& block, Of of) const {
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            if (k * PACK >= block.count) {
                break;
            }
            PackOf<S> values;
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                values.elements[v] = of(k * PACK + v);
            }
            if (packed && k * PACK + PACK <= block.count) {
                *(Words<S>*)pack(block, k) = values.words;
                continue;
            }
            // From last to first: otherwise the compiler hoists the first store out of both branches and splits the store of words.
#pragma unroll
            for (int v = PACK - 1; v >= 0; --v) {
                if (k * PACK + v < block.count) {
                    at[place(block.at(k * PACK + v))] = values.elements[v];
                }
            }
        }
    }
};

// The same of elements a step apart, which are side by side where the step is 1, and packed then only.
template <class S> struct Strided {
    S* at;
    i64 step;
    bool packed;

    __device__ Held<Element<S>> read(const BlockLane& block, Element<S> none = Element<S>()) const {
        return step == 1 ? Line<S>{at, {}, packed}.read(block, none) : Line<S, Apart>{at, {step}, false}.read(block, none);
    }
    template <class Of> __device__ void write(const BlockLane& block, Of of) const {
        step == 1 ? Line<S>{at, {}, packed}.write(block, of) : Line<S, Apart>{at, {step}, false}.write(block, of);
    }
};

// Groups: a block of threads has `width()` rows at a time, and of these the thread's group has number `place()`. All threads of a
// block go on to the next rows together, those whose row does not exist with `len` 0.
//
// `fold_blocks(all, len, of)` folds a row of `len` elements, `all` in every row that exists: `of(block)` is the fold of a lane's
// elements of a block, or for `LogSum` their `Exponentials`; `fold_part(start, most, all, len, of)` folds at most `most` blocks from `start` on,
// which are up to a part.
// `each_block(len, body)` visits the thread's blocks. With HOLDS a thread has one block of each row, `near(len)`, whose elements can
// be kept in registers. ACROSS, rows lie side by side.

// How many blocks there are from `start` on, at most `most`.
__device__ inline u32 blocks_from(u64 start, u32 most, u64 all) {
    u64 left = (all + BLOCK - 1) / BLOCK - start;
    return left < most ? (u32)left : most;
}

// Up to 32 neighbouring threads of a warp, for rows of one block, and for parts of one.
struct WarpGroup {
    static constexpr bool HOLDS = true, ACROSS = false;
    u32 lanes;

    __device__ explicit WarpGroup(u32 lanes) : lanes(lanes) {}
    __device__ u32 lane() const { return threadIdx.x & (lanes - 1); }
    __device__ u32 width() const { return blockDim.x / lanes; }
    __device__ u32 place() const { return threadIdx.x / lanes; }
    __device__ bool leads() const { return lane() == 0; }

    __device__ BlockLane near(u64 len) const { return BlockLane(lane(), lanes, 0, len); }
    template <class F, class Of> __device__ typename F::State fold_blocks(u64, u64 len, Of of) const {
        return join_block<F>(of(near(len)), lanes);
    }
    template <class F, class Of> __device__ typename F::State fold_part(u64 start, u32, u64, u64 len, Of of) const {
        return join_block<F>(of(BlockLane(lane(), lanes, start * BLOCK, len)), lanes);
    }
    template <class Body> __device__ void each_block(u64 len, Body body) const { body(near(len)); }
};

// A block of threads for one row; warp w sees blocks w, w + warps, .. of each part.
struct BlockGroup {
    static constexpr bool HOLDS = false, ACROSS = false;

    __device__ explicit BlockGroup(u32) {}
    __device__ u32 lane() const { return threadIdx.x % LANES; }
    __device__ u32 warp() const { return threadIdx.x / LANES; }
    __device__ u32 warps() const { return blockDim.x / LANES; }
    __device__ u32 width() const { return 1; }
    __device__ u32 place() const { return 0; }
    __device__ bool leads() const { return threadIdx.x == 0; }

    __device__ BlockLane block(u64 number, u64 len) const { return BlockLane(lane(), LANES, number * BLOCK, len); }
    template <class State> __device__ void put(State* states, u32 turn, State state) const {
        if (lane() == 0) {
            states[turn] = state;
        }
    }
    // Joins what all warps have put there, and leaves it to be written again.
    template <class F> __device__ typename F::State join_states(const typename F::State* states, u32 count) const {
        __syncthreads();
        typename F::State state = join_lanes<F>(lane() < count ? states[lane()] : F::empty(), LANES);
        __syncthreads();
        return state;
    }
    template <class F, class Of> __device__ typename F::State fold_part(u64 start, u32 most, u64 all, u64 len, Of of) const {
        __shared__ typename F::State states[PART_BLOCKS];
        u32 blocks = blocks_from(start, most, all);
        for (u32 turn = warp(); turn < blocks; turn += warps()) {
            put(states, turn, join_block<F>(of(block(start + turn, len)), LANES));
        }
        return join_states<F>(states, blocks);
    }
    template <class F, class Of> __device__ typename F::State fold_blocks(u64 all, u64 len, Of of) const {
        typename F::State joined = F::empty();
        for (u64 part = 0; part * PART_BLOCKS * BLOCK < all; ++part) {
            typename F::State state = fold_part<F>(part * PART_BLOCKS, PART_BLOCKS, all, len, of);
            if (all <= PART_BLOCKS * BLOCK) {
                return state;
            }
            if (lane() == part % LANES) {
                joined = F::join(joined, state);
            }
        }
        return join_lanes<F>(joined, LANES);
    }
    template <class Body> __device__ void each_block(u64 len, Body body) const {
        for (u64 number = warp(); number * BLOCK < len; number += warps()) {
            body(block(number, len));
        }
    }
};

// A block of threads for one row, with a warp for each of its blocks.
struct WideGroup : BlockGroup {
    static constexpr bool HOLDS = true;

    __device__ explicit WideGroup(u32 lanes) : BlockGroup(lanes) {}
    __device__ BlockLane near(u64 len) const { return block(warp(), len); }
    template <class F, class Of> __device__ typename F::State fold_blocks(u64, u64 len, Of of) const {
        __shared__ typename F::State states[PART_BLOCKS];
        put(states, warp(), join_block<F>(of(near(len)), LANES));
        return join_states<F>(states, warps());
    }
    template <class Body> __device__ void each_block(u64 len, Body body) const { body(near(len)); }
};

// What a thread keeps of a row, or reads again and again: `From` reads blocks of it, with `none` behind the last element.
template <class Group, class S, class From = Line<const S>, bool HOLDS = Group::HOLDS> struct RowOf {
    From from;
    S none;

    __device__ RowOf(const Group&, const From& from, u64, S none = S()) : from(from), none(none) {}
    __device__ Held<S> read(const BlockLane& block) const { return from.read(block, none); }
};
template <class Group, class S, class From> struct RowOf<Group, S, From, true> {
    Held<S> held;

    __device__ RowOf(const Group& group, const From& from, u64 len, S none = S()) : held(from.read(group.near(len), none)) {}
    __device__ const Held<S>& read(const BlockLane&) const { return held; }
};

// Rows side by side, one to each threadIdx.x, for rows whose elements are far apart in memory but near those of other rows.
// Thread threadIdx.y is lane threadIdx.y and, of more lanes than there are threads, the one that is joined with it first.
struct ColumnGroup {
    static constexpr bool HOLDS = false, ACROSS = true;
    u32 lanes;

    __device__ explicit ColumnGroup(u32 lanes) : lanes(lanes) {}
    __device__ u32 lane() const { return threadIdx.y; }
    __device__ u32 width() const { return blockDim.x; }
    __device__ u32 place() const { return threadIdx.x; }
    __device__ bool leads() const { return threadIdx.y == 0; }

    // The tree over the threads of a row.
    template <class F> __device__ static typename F::State join_columns(typename F::State state) {
        __shared__ typename F::State states[LANES * LANES / 2];
        u32 mine = threadIdx.y * blockDim.x + threadIdx.x;
        states[mine] = state;
        __syncthreads();
        for (u32 half = blockDim.y / 2; half > 0; half /= 2) {
            if (threadIdx.y < half) {
                states[mine] = F::join(states[mine], states[mine + half * blockDim.x]);
            }
            __syncthreads();
        }
        state = states[threadIdx.x];
        __syncthreads();
        return state;
    }
    __device__ BlockLane block(u64 number, u64 len, u32 lane) const { return BlockLane(lane, lanes, number * BLOCK, len); }
    // The fold of a block of which lane n has a state, or exponentials, `of(n)`.
    template <class F, class Of> __device__ typename F::State join_block(Of of, const typename F::State*) const {
        typename F::State state = F::empty();
#pragma unroll 1
        for (u32 lane = threadIdx.y; lane < lanes; lane += blockDim.y) {
            state = F::join(state, of(lane));
        }
        return join_columns<F>(state);
    }
    template <class F, class Of, class S, class Exp>
    __device__ typename F::State join_block(Of of, const Exponentials<S, Exp>*) const {
        using Largest = typename Exponentials<S, Exp>::Largest;
        Exponentials<S, Exp> first = of(threadIdx.y), second = of(threadIdx.y + blockDim.y);
        auto m = join_columns<Largest>(Largest::join(first.largest(), second.largest()));
        return {m, join_columns<Sum<Opmath<S>>>(first.sum(m) + second.sum(m))};
    }
    // Joins the states of `count` turns, which go to lanes one after the other, as the tree over lanes.
    template <class F, class Turn> __device__ static typename F::State join_turns(u64 count, Turn turn) {
        // What this thread's lanes have.
        typename F::State own[2] = {F::empty(), F::empty()};
        for (u64 n = 0; n < count; ++n) {
            typename F::State state = turn(n);
            if (count == 1) {
                return state;
            }
            u32 lane = (u32)(n % LANES);
            if (lane % blockDim.y == threadIdx.y) {
                typename F::State& to = lane < blockDim.y ? own[0] : own[1];
                to = F::join(to, state);
            }
        }
        return join_columns<F>(F::join(own[0], own[1]));
    }
    template <class F, class Of> __device__ typename F::State fold_part(u64 start, u32 most, u64 all, u64 len, Of of) const {
        return join_turns<F>(blocks_from(start, most, all), [&](u64 turn) {
            auto of_lane = [&](u32 lane) { return of(block(start + turn, lane < lanes ? len : 0, lane)); };
            return join_block<F>(of_lane, (decltype(of_lane(0))*)nullptr);
        });
    }
    template <class F, class Of> __device__ typename F::State fold_blocks(u64 all, u64 len, Of of) const {
        u64 parts = (all + PART_BLOCKS * BLOCK - 1) / (PART_BLOCKS * BLOCK);
        return join_turns<F>(parts, [&](u64 part) { return fold_part<F>(part * PART_BLOCKS, PART_BLOCKS, all, len, of); });
    }
    template <class Body> __device__ void each_block(u64 len, Body body) const {
        for (u64 number = 0; number * BLOCK < len; ++number) {
#pragma unroll 1
            for (u32 lane = threadIdx.y; lane < lanes; lane += blockDim.y) {
                body(block(number, len, lane));
            }
        }
    }
};

// Calls `body(group, row, exists, unit)` for the units, `units` of each row, that are this thread's group's.
template <class Group, class Body> __device__ inline void for_units(u64 rows, u32 units, u32 lanes, Body body) {
    Group group(lanes);
    u64 all = quotient(rows + group.width() - 1, group.width()) * units;
    for (u64 i = blockIdx.x; i < all; i += gridDim.x) {
        u64 rows_before = units == 1 ? i : quotient(i, units);
        u64 row = rows_before * group.width() + group.place();
        body(group, row, row < rows, (u32)(i - rows_before * units));
    }
}
// Calls `body(group, row, exists)` for the rows of this thread's group.
template <class Group, class Body> __device__ inline void for_rows(u64 rows, u32 lanes, Body body) {
    for_units<Group>(rows, 1, lanes, [&](const Group& group, u64 row, bool exists, u32) { body(group, row, exists); });
}

// How the rows of a fold are cut in units, which are folded by themselves if there are several: each of `blocks` blocks, 1 or
// those of a part.
struct Units {
    u32 units;
    u32 blocks;
};
// Folds each unit of rows of `all` elements, `of(row, block)` a lane's elements of a block, and calls `done(row, state)` with a
// row's fold; if rows have several units, their states go to `states`, and `join_units` goes on.
template <class Group, class F, class Of, class Done>
__device__ inline void fold_units(u64 rows, u64 all, const Units& cut, u32 lanes, typename F::State* states, Of of, Done done) {
    for_units<Group>(rows, cut.units, lanes, [&](const Group& group, u64 row, bool exists, u32 unit) {
        auto state = group.template fold_part<F>((u64)unit * cut.blocks, cut.blocks, all, exists ? all : 0,
                                                 [&](const BlockLane& block) { return of(exists ? row : 0, block); });
        if (exists && group.leads()) {
            if (cut.units > 1) {
                states[row * cut.units + unit] = state;
            } else {
                done(row, state);
            }
        }
    });
}
// Joins the states of each row's units, in the order of `fold_blocks`, and calls `done(row, state)`.
template <class F, class Done>
__device__ inline void join_units(u64 rows, const Units& cut, u32 lanes, const typename F::State* states, Done done) {
    using State = typename F::State;
    if (cut.blocks == 1 && cut.units > PART_BLOCKS) {
        // A warp joins the blocks of a part.
        __shared__ State joined[LANES];
        for_rows<BlockGroup>(rows, LANES, [&](const BlockGroup& group, u64 row, bool) {
            u32 parts = (cut.units + PART_BLOCKS - 1) / PART_BLOCKS;
            for (u32 part = group.warp(); part < parts; part += group.warps()) {
                u32 unit = part * PART_BLOCKS + group.lane(), turn = part % LANES;
                State state = join_lanes<F>(unit < cut.units ? states[row * cut.units + unit] : F::empty(), LANES);
                group.put(joined, turn, part < LANES ? state : F::join(joined[turn], state));
            }
            State state = group.template join_states<F>(joined, min(parts, LANES));
            if (group.leads()) {
                done(row, state);
            }
        });
        return;
    }
    for_rows<WarpGroup>(rows, lanes, [&](const WarpGroup& group, u64 row, bool exists) {
        State joined = F::empty();
#pragma unroll 8
        for (u32 unit = exists ? group.lane() : cut.units; unit < cut.units; unit += lanes) {
            joined = F::join(joined, states[row * cut.units + unit]);
        }
        joined = join_lanes<F>(joined, lanes);
        if (exists && group.leads()) {
            done(row, joined);
        }
    });
}

// Blocks of threads that a multiprocessor holds at least, for kernels that keep a row's elements in registers.
template <class T> constexpr int blocks_of = sizeof(T) == 8 ? 1 : 3;
// Threads of a block that holds a row, a warp for each block of elements.
template <class T> constexpr int wide_of = sizeof(T) == 8 ? 256 : 896;

// The kernels of an op for each group: NAME_<group>_<dtype>, whose body may name its `Group`.
#define GROUP_KERNEL(threads, blocks, name, group, GROUP, parameters, ...)                                  \
    extern "C" __global__ void __launch_bounds__(threads, blocks) NAMED(name##_##group, DTYPE) parameters { \
        using Group = GROUP;                                                                                \
        __VA_ARGS__;                                                                                        \
    }
#define WEIGHT_KERNELS(name, parameters, ...)                                  \
    GROUP_KERNEL(THREADS, 1, name, warp, WarpGroup, parameters, __VA_ARGS__)   \
    GROUP_KERNEL(512, 1, name, block, BlockGroup, parameters, __VA_ARGS__)     \
    GROUP_KERNEL(THREADS, 1, name, column, ColumnGroup, parameters, __VA_ARGS__)
#define ROW_KERNELS(name, parameters, ...)                                               \
    GROUP_KERNEL(THREADS, blocks_of<T>, name, warp, WarpGroup, parameters, __VA_ARGS__)  \
    GROUP_KERNEL(wide_of<T>, 1, name, wide, WideGroup, parameters, __VA_ARGS__)          \
    GROUP_KERNEL(wide_of<T>, 1, name, block, BlockGroup, parameters, __VA_ARGS__)
#define GROUP_KERNELS(name, parameters, ...)      \
    ROW_KERNELS(name, parameters, __VA_ARGS__)    \
    GROUP_KERNEL(THREADS, 1, name, column, ColumnGroup, parameters, __VA_ARGS__)
