// Sums along the rows of several operands in one launch. Rows are folded in the order of `rows.cuh`, so that the bits are those of
// a launch for each operand, whatever groups of threads that would have.

// Threads of a block: columns, or lanes of a row, by half the lanes of a column, or rows.
constexpr u32 THREADS = LANES * LANES / 2;

// An operand, cut into parts of as many rows as a block of threads has at a time.
struct Operand {
    const S* x;
    S* out;
    // Rows of `len` elements, up to those of a part of `rows.cuh`; they begin `across` elements apart.
    u32 rows;
    u32 len;
    int across;
    // Element i of a row lies at i % inner * along + i / inner * outer.
    u32 inner;
    int along;
    int outer;
    // Lanes with elements of a row of one block.
    u32 lanes;
    // Whether a row can be read in packs.
    u32 packed;

    // Whether neighbours in memory are of neighbouring rows, which are runs of elements then.
    __device__ bool are_columns() const { return across == 1 && along != 1; }
};

// Where the elements of a row lie that has two axes.
struct Nested {
    const Operand& of;

    __device__ i64 operator()(u64 i) const {
        u32 outer = (u32)i / of.inner, inner = (u32)i - outer * of.inner;
        return (i64)inner * of.along + (i64)outer * of.outer;
    }
};

// A warp for each row, which it goes through block by block.
struct WarpRows {
    static constexpr bool ACROSS = false;

    __device__ explicit WarpRows(u32) {}
    __device__ u32 width() const { return blockDim.y; }
    __device__ u32 place() const { return threadIdx.y; }
    __device__ bool leads() const { return threadIdx.x == 0; }

    template <class F, class Of> __device__ typename F::State fold_part(u64 start, u32 most, u64 all, u64 len, Of of) const {
        typename F::State own = F::empty();
        u32 blocks = blocks_from(start, most, all);
#pragma unroll 1
        for (u32 turn = 0; turn < blocks; ++turn) {
            typename F::State state = join_lanes<F>(of(BlockLane(threadIdx.x, LANES, (start + turn) * BLOCK, len)), LANES);
            own = threadIdx.x == turn ? state : own;
        }
        return join_lanes<F>(own, LANES);
    }
};

// The sums of the rows of a part.
template <class Group, class Place> __device__ inline void sum_rows(const Operand& of, u32 part, Place place) {
    Group group(of.lanes);
    u64 row = (u64)part * group.width() + group.place();
    bool exists = row < of.rows;
    Line<const S, Place> line = {of.x + (i64)(exists ? row : 0) * of.across, place, of.packed != 0};
    auto sum_block = [&](const BlockLane& block) {
        Held<S> held = line.template read<!Group::ACROSS>(block);
        return fold_slots<Sum<T>>(block.count, [&](int slot) -> T { return held[slot]; });
    };
    T sum = group.template fold_part<Sum<T>>(0, PART_BLOCKS, of.len, exists ? of.len : 0, sum_block);
    if (exists && group.leads()) {
        of.out[row] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) NAMED(many_sums, DTYPE)(const __grid_constant__ Table<Operand> operands) {
    for_parts(operands, [&](const Operand& of, u32 part, u32) {
        if (of.are_columns()) {
            sum_rows<ColumnGroup>(of, part, Step{of.along});
        } else {
            sum_rows<WarpRows>(of, part, Nested{of});
        }
    });
}
