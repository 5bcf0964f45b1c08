// Groups of threads that fold the elements of a row, in one order whatever the group.
//
// A row is cut into blocks of 512. In a block element i goes to lane i % 32; lanes are joined as a tree, lane l with
// l + 16, then with l + 8, and so on. Several blocks' values go to lanes in turn, block b to b % 32, and are joined as the
// same tree. Neither strides, nor the number of threads, nor what else runs shows in the result.

constexpr u32 FULL = 0xffffffff;
constexpr u32 LANES = 32;
constexpr u32 BLOCK = 512;
// Elements of a block that are one lane's.
enum : int { EACH = BLOCK / LANES };

__device__ inline u32 shuffle_down(u32 x, u32 by) { return __shfl_down_sync(FULL, x, by); }
__device__ inline f32 shuffle_down(f32 x, u32 by) { return __shfl_down_sync(FULL, x, by); }
__device__ inline f64 shuffle_down(f64 x, u32 by) { return __shfl_down_sync(FULL, x, by); }
__device__ inline i64 shuffle_down(i64 x, u32 by) { return __shfl_down_sync(FULL, x, by); }
__device__ inline u32 shuffle(u32 x, u32 from) { return __shfl_sync(FULL, x, from); }
__device__ inline f32 shuffle(f32 x, u32 from) { return __shfl_sync(FULL, x, from); }
__device__ inline f64 shuffle(f64 x, u32 from) { return __shfl_sync(FULL, x, from); }
__device__ inline i64 shuffle(i64 x, u32 from) { return __shfl_sync(FULL, x, from); }

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

// Joins the states of `lanes` neighbouring threads, a power of two; each of them gets the result.
template <class F> __device__ inline typename F::State join_lanes(typename F::State state, u32 lanes) {
    for (u32 half = lanes / 2; half > 0; half /= 2) {
        state = F::join(state, shuffle_down(state, half));
    }
    return shuffle(state, threadIdx.x % LANES & ~(lanes - 1));
}

// A block of a row, of which the thread has up to EACH elements: calls `body(i, slot)` for them, with slots that the
// compiler knows, so that a value for each can be kept in registers.
template <class Body> __device__ inline void for_near(u64 first, u64 len, u32 lane, u32 lanes, Body body) {
#pragma unroll
    for (int slot = 0; slot < EACH; ++slot) {
        // Short rows are over soon, and what is not run is not fetched.
        if (first + slot * lanes >= len) {
            break;
        }
        u64 i = first + lane + slot * lanes;
        if (i < len) {
            body(i, slot);
        }
    }
}
// The same without slots, in less code.
template <class Body> __device__ inline void for_far(u64 first, u64 len, u32 lane, u32 lanes, Body body) {
    u64 end = first + BLOCK < len ? first + BLOCK : len;
#pragma unroll 4
    for (u64 i = first + lane; i < end; i += lanes) {
        body(i);
    }
}

// Groups. Rows `first()`, `first() + step()`, .. begin stretches of rows, of which this thread's group has number `place()`. All
// threads of a block go through all stretches together, those whose row does not exist with `len` 0.
//
// `fold(all, len, far, near)` folds a row of `len` elements, `all` in every row that exists: `far(i)` gives element `i`. If
// there is a `near`, `near(i, slot)` gives those of the first block that the thread sees, see `for_near`.
// `each(len, far, near)` visits the thread's elements in the same way.
struct NoNear {};
template <class F, class Far, class Near>
__device__ inline typename F::State fold_near(u64 first, u64 len, u32 lane, u32 lanes, Far, Near near) {
    typename F::State state = F::empty();
    for_near(first, len, lane, lanes, [&](u64 i, int slot) { state = F::join(state, near(i, slot)); });
    return state;
}
template <class F, class Far>
__device__ inline typename F::State fold_near(u64 first, u64 len, u32 lane, u32 lanes, Far far, NoNear) {
    typename F::State state = F::empty();
    for_far(first, len, lane, lanes, [&](u64 i) { state = F::join(state, far(i)); });
    return state;
}

// Up to 32 neighbouring threads of a warp, for rows of one block.
struct WarpGroup {
    u32 lanes;

    __device__ explicit WarpGroup(u32 lanes) : lanes(lanes) {}
    __device__ u32 lane() const { return threadIdx.x & (lanes - 1); }
    __device__ u64 first() const { return (u64)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / LANES * (LANES / lanes); }
    __device__ u64 step() const { return (u64)gridDim.x * (blockDim.x / lanes); }
    __device__ u64 place() const { return threadIdx.x % LANES / lanes; }
    __device__ bool leads() const { return lane() == 0; }

    template <class F, class Far, class Near = NoNear>
    __device__ typename F::State fold(u64, u64 len, Far far, Near near = Near()) const {
        return join_lanes<F>(fold_near<F>(0, len, lane(), lanes, far, near), lanes);
    }
    template <class Far, class Near> __device__ void each(u64 len, Far, Near near) const {
        for_near(0, len, lane(), lanes, near);
    }
};

// A block of threads for one row; warp w sees the row's blocks w, w + warps, ..
struct BlockGroup {
    __device__ explicit BlockGroup(u32) {}
    __device__ u32 lane() const { return threadIdx.x % LANES; }
    __device__ u32 warp() const { return threadIdx.x / LANES; }
    __device__ u32 warps() const { return blockDim.x / LANES; }
    __device__ u64 first() const { return blockIdx.x; }
    __device__ u64 step() const { return gridDim.x; }
    __device__ u64 place() const { return 0; }
    __device__ bool leads() const { return threadIdx.x == 0; }

    template <class F, class Far, class Near = NoNear>
    __device__ typename F::State fold(u64 all, u64 len, Far far, Near near = Near()) const {
        __shared__ typename F::State states[LANES];
        u32 lane = this->lane();
        // States of the second level, one a turn.
        for (u32 turn = warp(); turn < LANES; turn += warps()) {
            typename F::State joined = F::empty();
            for (u64 block = turn; block * BLOCK < all; block += LANES) {
                typename F::State state = block == warp()
                                              ? fold_near<F>(block * BLOCK, len, lane, LANES, far, near)
                                              : fold_near<F>(block * BLOCK, len, lane, LANES, far, NoNear());
                joined = F::join(joined, join_lanes<F>(state, LANES));
            }
            if (lane == 0) {
                states[turn] = joined;
            }
        }
        __syncthreads();
        typename F::State state = join_lanes<F>(states[lane], LANES);
        __syncthreads();
        return state;
    }
    template <class Far, class Near> __device__ void each(u64 len, Far far, Near near) const {
        for_near((u64)warp() * BLOCK, len, lane(), LANES, near);
        for (u64 block = warp() + warps(); block * BLOCK < len; block += warps()) {
            for_far(block * BLOCK, len, lane(), LANES, far);
        }
    }
};

// Rows side by side, one to each threadIdx.x, for rows whose elements are far apart in memory but near those of other rows.
// Lane l is threadIdx.y.
struct ColumnGroup {
    __device__ explicit ColumnGroup(u32) {}
    __device__ u32 lane() const { return threadIdx.y; }
    __device__ u64 first() const { return (u64)blockIdx.x * blockDim.x; }
    __device__ u64 step() const { return (u64)gridDim.x * blockDim.x; }
    __device__ u64 place() const { return threadIdx.x; }
    __device__ bool leads() const { return threadIdx.y == 0; }

    template <class F> __device__ static typename F::State join_columns(typename F::State state) {
        __shared__ typename F::State states[LANES * LANES];
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
    template <class F, class Far, class Near = NoNear>
    __device__ typename F::State fold(u64 all, u64 len, Far far, Near near = Near()) const {
        typename F::State state = join_columns<F>(fold_near<F>(0, len, lane(), blockDim.y, far, near));
        if (all <= BLOCK) {
            return state;
        }
        typename F::State joined = lane() == 0 ? F::join(F::empty(), state) : F::empty();
        for (u64 block = 1; block * BLOCK < all; ++block) {
            state = join_columns<F>(fold_near<F>(block * BLOCK, len, lane(), LANES, far, NoNear()));
            if (lane() == block % LANES) {
                joined = F::join(joined, state);
            }
        }
        return join_columns<F>(joined);
    }
    template <class Far, class Near> __device__ void each(u64 len, Far far, Near near) const {
        for_near(0, len, lane(), blockDim.y, near);
        for (u64 block = 1; block * BLOCK < len; ++block) {
            for_far(block * BLOCK, len, lane(), LANES, far);
        }
    }
};

// Calls `body(group, row, exists)` for the rows of this thread's group.
template <class Group, class Body> __device__ inline void for_rows(u64 rows, u32 lanes, Body body) {
    Group group(lanes);
    for (u64 first = group.first(); first < rows; first += group.step()) {
        u64 row = first + group.place();
        body(group, row, row < rows);
    }
}

// The kernels of an op for each group: NAME_<group>_<dtype>, whose body may name its `Group`.
#define GROUP_KERNEL(name, group, GROUP, parameters, ...)                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAMED(name##_##group, DTYPE) parameters { \
        using Group = GROUP;                                                                           \
        __VA_ARGS__;                                                                                   \
    }
#define ROW_KERNELS(name, parameters, ...)                       \
    GROUP_KERNEL(name, warp, WarpGroup, parameters, __VA_ARGS__) \
    GROUP_KERNEL(name, block, BlockGroup, parameters, __VA_ARGS__)
#define GROUP_KERNELS(name, parameters, ...)   \
    ROW_KERNELS(name, parameters, __VA_ARGS__) \
    GROUP_KERNEL(name, column, ColumnGroup, parameters, __VA_ARGS__)
