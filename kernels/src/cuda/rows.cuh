// Row reductions (folds) with one fixed order of operations. Several kinds of thread groups exist; all of them return the same bits.
//
// Order: a row is cut into blocks of 512 elements. Within a block, element i belongs to lane i / 4 % 32, so that each lane can load four
// neighbours at once. The 32 lanes are combined as a tree: lane l with l + 16, then with l + 8, and so on. 32 consecutive blocks form a
// part and are combined by the same tree. If a row has several parts, part p belongs to lane p % 32, and the lanes are combined by the
// same tree again. The result depends neither on strides, nor on the number of threads, nor on other work on the device.

enum : u32 { FULL = 0xffffffff };
constexpr u32 LANES = 32;
constexpr u32 BLOCK = 512;
// Blocks in a part.
enum : u32 { PART_BLOCKS = 32 };
// PACK: neighbouring elements that a lane loads at once. EACH, PACKS: elements and packs of a block that belong to one lane.
enum : int { PACK = 4, EACH = BLOCK / LANES, PACKS = EACH / PACK };

template <class T> __device__ inline T shuffle(T x, u32 from) { return __shfl_sync(FULL, x, from); }

// Source lane of a shuffle: `by` lanes further down, or lane number `lane`.
struct Down {
    u32 by;
    template <class T> __device__ T operator()(T x) const { return __shfl_down_sync(FULL, x, by); }
};
struct From {
    u32 lane;
    template <class T> __device__ T operator()(T x) const { return shuffle(x, lane); }
};
template <class T, class Lane> __device__ inline T moved(T x, Lane lane) { return lane(x); }

// Reduction operators: `empty` is the neutral state, `join` combines two states.
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

// Applies F to each of the PACK elements of a pack.
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

// Two sums in one pass.
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

// State of a log-sum-exp: `first` is m, the largest element that is not NaN; `second` is the sum of exp(x - m), or of exp(x) if m is
// infinite.
template <class T> struct LogSum {
    using State = Two<T>;
    // Maximum that ignores NaN. Either zero may be returned for a tie of zeros.
    struct Largest {
        using State = T;
        __device__ static T empty() { return lowest<T>(); }
        __device__ static T join(T a, T b) { return larger_of(a, b); }
    };
    __device__ static State empty() { return {lowest<T>(), 0}; }
    // exp(x - m), and 1 if both are the same infinity.
    __device__ static T term(T x, T m) { return x == m ? (T)1 : exp_of(x - m); }
    __device__ static State join(State a, State b) {
        // Only the smaller maximum needs an exponential; the other factor is 1.
        bool less = a.first < b.first;
        T m = less ? b.first : a.first, scale = term(less ? a.first : b.first, m);
        return {m, less ? mul_rounded(a.second, scale) + b.second : a.second + mul_rounded(b.second, scale)};
    }
    // add_rounded keeps the compiler from contracting the addition with later operations.
    __device__ static T value(State state) { return add_rounded(state.first, log_of(state.second)); }
};

// State of a variance: number of elements, mean, and sum of squared deviations from the mean.
__device__ inline f64 square_of(f64 x) { return mul_rounded(x, x); }
template <class T> struct Deviation {
    T count;
    T mean;
    // F64, since squares of large F32 numbers overflow F32.
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

// Combines the states of `lanes` neighbouring threads (a power of two). All of them receive the result.
template <class F> __device__ inline typename F::State join_lanes(typename F::State state, u32 lanes) {
    for (u32 half = lanes / 2; half > 0; half /= 2) {
        state = F::join(state, moved(state, Down{half}));
    }
    return moved(state, From{threadIdx.x % LANES & ~(lanes - 1)});
}

// The elements of a block that belong to thread `lane` of `lanes` threads (a power of two).
struct BlockLane {
    u32 lane;
    u32 lanes;
    // Index of the block's first element in the row.
    u64 first;
    // Number of elements of this thread.
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
    // Row index of the thread's element number `slot`.
    __device__ u64 at(int slot) const { return first + lane * PACK + (slot / PACK * lanes * PACK + slot % PACK); }
    // Inverse of `at`; -1 if the element belongs to another thread.
    __device__ int slot_of(u64 i) const {
        u32 behind = (u32)(i - first), pack = behind / PACK;
        bool own = i >= first && i - first < BLOCK && pack % lanes == lane;
        return own ? (int)(pack / lanes * PACK + behind % PACK) : -1;
    }
};

// Calls `body(slot)` for the slots in `from..to` whose pack contains any of the lane's `count` elements. Both bounds are compile-time
// constants, so that arrays indexed by slot stay in registers.
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
// Reduces a thread's elements of a block; `of(from, to)` reduces the slots in between. If a row has fewer than 32 threads, each pack of a
// thread stands for a lane of its own, and the packs are combined in the order of the tree over lanes.
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
// Reduces the values `at(slot)` in order. For slots behind the last element, `at` must return a neutral value.
template <class F, class At> __device__ inline typename F::State fold_between(int from, int to, u32 count, At at) {
    typename F::State state = F::empty();
    for_slots(from, to, count, [&](int slot) { state = F::join(state, at(slot)); });
    return state;
}
template <class F, class At> __device__ inline typename F::State fold_slots(const BlockLane& block, At at) {
    return fold_lane<F>(block, [&](int from, int to) { return fold_between<F>(from, to, block.count, at); });
}
// A pack as 32-bit words, and the conversion of element `v` to the compute type.
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
// BF16 is the upper half of an F32: one shift or mask.
template <> __device__ inline f32 element_of<bf16>(const Words<bf16>& words, int v) {
    return __uint_as_float(v % 2 == 0 ? words.at[v / 2] << 16 : words.at[v / 2] & 0xffff0000);
}

// A lane's elements of a block in registers, converted to the compute type.
template <class S> struct Held {
    Opmath<S> at[EACH];

    __device__ Opmath<S> operator[](int slot) const { return at[slot]; }
    __device__ Opmath<S>& operator[](int slot) { return at[slot]; }
};

// A lane's elements of a block for `LogSum`. The block's maximum over all lanes is found first; then each lane sums exp(x - maximum).
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
// Reduces a block over `lanes` neighbouring threads, each of which holds a state or `Exponentials`.
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

// Offsets of elements in memory: contiguous, or `step` apart.
struct Beside {
    __device__ u64 operator()(u64 i) const { return i; }
};
struct Apart {
    i64 step;

    __device__ i64 operator()(u64 i) const { return (i64)i * step; }
};
template <class S> __device__ S element_type(const S*);
template <class S> using Element = decltype(element_type((S*)nullptr));
// A row in memory; `place(i)` is the offset of element i. `packed`: the elements of each pack are contiguous and aligned, so that a pack is
// one load.
template <class S, class Place = Beside> struct Line {
    S* at;
    Place place;
    bool packed;

    __device__ S* pack(const BlockLane& block, int k) const { return at + place(block.at(k * PACK)); }

    // All elements of the lane; slots behind the last one are `none`.
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
            // Backwards: in forward order the compiler hoists the first store out of both branches and splits the vector store.
#pragma unroll
            for (int v = PACK - 1; v >= 0; --v) {
                if (k * PACK + v < block.count) {
                    at[place(block.at(k * PACK + v))] = values.elements[v];
                }
            }
        }
    }
};

// A row with a run-time step; `packed` only if the step is 1.
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

// Thread groups. A thread block works on `width()` rows; `place()` is the number of this thread's row among them. All threads of a
// thread block proceed together; threads whose row does not exist pass `len` 0.
//
// - `fold_blocks(all, len, of)` reduces a row. `all` is the length of every row, `len` is `all` or 0. `of(block)` returns the state of the
//   lane's elements of a block, or `Exponentials` for `LogSum`.
// - `fold_part(start, most, all, len, of)` reduces at most `most` blocks from block `start` on, all of one part.
// - `each_block(len, body)` calls `body` for the thread's blocks.
// - HOLDS: each thread has one block of a row, `near(len)`, and may keep its elements in registers.
// - ACROSS: neighbouring threads work on neighbouring rows.

// Number of blocks from `start` on, at most `most`.
__device__ inline u32 blocks_from(u64 start, u32 most, u64 all) {
    u64 left = (all + BLOCK - 1) / BLOCK - start;
    return left < most ? (u32)left : most;
}

// Up to 32 neighbouring threads of a warp for a row of one block, or for a single block of a longer row.
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

// A thread block for one row; warp w reduces blocks w, w + warps, .. of each part.
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
    // Combines the states that all warps have put into shared memory, which may be overwritten afterwards.
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

// A thread block for one row, with one warp for each block of the row.
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

// A thread's view of a row: kept in registers if the group HOLDS, else loaded again at each use. `From` loads a block.
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

// One row for each threadIdx.x, for rows that are strided in memory while neighbouring rows are contiguous. threadIdx.y is the lane; with
// more lanes than threads, also lane threadIdx.y + blockDim.y, which the tree combines with it first.
struct ColumnGroup {
    static constexpr bool HOLDS = false, ACROSS = true;
    u32 lanes;

    __device__ explicit ColumnGroup(u32 lanes) : lanes(lanes) {}
    __device__ u32 lane() const { return threadIdx.y; }
    __device__ u32 width() const { return blockDim.x; }
    __device__ u32 place() const { return threadIdx.x; }
    __device__ bool leads() const { return threadIdx.y == 0; }

    // The tree over the lanes of a row, in shared memory.
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
    // Reduces a block; `of(n)` returns the state or `Exponentials` of lane n.
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
    // Combines the states `turn(0)`, `turn(1)`, ..: state n belongs to lane n % 32, and lanes are combined by the tree.
    template <class F, class Turn> __device__ static typename F::State join_turns(u64 count, Turn turn) {
        // States of this thread's one or two lanes.
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

// Calls `body(group, row, exists, unit)` for the unit of this thread's group. A row has `units` units, and the grid has a group for each: a loop over
// units would take up to 16 more registers. Launchers need at least one row.
template <class Group, class Body> __device__ inline void for_units(u64 rows, u32 units, u32 lanes, Body body) {
    Group group(lanes);
    u64 rows_before = units == 1 ? blockIdx.x : quotient(blockIdx.x, units);
    u64 row = rows_before * group.width() + group.place();
    body(group, row, row < rows, (u32)(blockIdx.x - rows_before * units));
}
// Calls `body(group, row, exists)` for the row of this thread's group.
template <class Group, class Body> __device__ inline void for_rows(u64 rows, u32 lanes, Body body) {
    for_units<Group>(rows, 1, lanes, [&](const Group& group, u64 row, bool exists, u32) { body(group, row, exists); });
}

// How rows are split when there are too few to fill the device: `units` units of `blocks` blocks each (1, or all of a part). Units are
// reduced independently and combined by a second kernel.
struct Units {
    u32 units;
    u32 blocks;
};
// Reduces each unit of rows of `all` elements; `of(row, block)` returns the state of a lane's elements. With one unit per row, calls
// `done(row, state)`; otherwise writes the units' states to `states` for `join_units`.
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
// Combines the states of each row's units in the order of `fold_blocks` and calls `done(row, state)`.
template <class F, class Done>
__device__ inline void join_units(u64 rows, const Units& cut, u32 lanes, const typename F::State* states, Done done) {
    using State = typename F::State;
    if (cut.blocks == 1 && cut.units > PART_BLOCKS) {
        // A warp combines the blocks of a part.
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

// Minimum of resident thread blocks per multiprocessor for kernels that keep a row in registers.
template <class T> constexpr int blocks_of = sizeof(T) == 8 ? 1 : 3;
// Maximum of threads of WideGroup and BlockGroup kernels.
template <class T> constexpr int wide_of = sizeof(T) == 8 ? 256 : 896;

// Instantiates a kernel for each thread group as NAME_<group>_<dtype>; the body refers to its group as `Group`.
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
