// Adding at indices. An index out of range is a fault and is left out.

struct IndexAdd {
    u64 count;       // indices
    i64 index_step;
    i64 src_step;    // from one row to the next
    i64 out_step;
    i64 size;        // rows of `out`
    u64 rows;        // of them, those that a block owns
    u64 width;       // columns that a block works on at a time, a power of two up to THREADS
    u64 fresh;       // whether `out` is 0 before
};

// out[index[i], c] += src[i, c], in ascending order of i. A block owns rows of `out` and columns; it goes through the
// indices once for each of its columns, a tile at a time, and its groups of threads follow the hits of their rows in
// order. Each element of `out` is one thread's.
extern "C" __global__ void __launch_bounds__(THREADS) NAMED(index_add, DTYPE)(
    S* out, const S* src, const i64* index, const __grid_constant__ Walk<2> columns,
    const __grid_constant__ IndexAdd what, Fault fault) {
    __shared__ u32 rows[THREADS];
    u32 width = (u32)what.width, groups = THREADS / width;
    u32 group = threadIdx.x / width;
    i64 first = (i64)(blockIdx.x * what.rows);
    for (u64 start = (u64)blockIdx.y * width; start < columns.elements; start += (u64)gridDim.y * width) {
        u64 column = start + threadIdx.x % width;
        bool exists = column < columns.elements;
        Offsets<2> at = offsets(columns, exists ? column : 0);
        const S* from = src + at.at[0];
        S* to = out + at.at[1] + first * what.out_step;
        if (what.fresh && exists) {
            for (u64 row = group; row < what.rows && first + (i64)row < what.size; row += groups) {
                to[(i64)row * what.out_step] = S();
            }
        }
        Sums<S> sums(to, what.out_step, groups, group);
        for (u64 tile = 0; tile < what.count; tile += THREADS) {
            u32 owner = NONE;
            if (tile + threadIdx.x < what.count) {
                i64 i = index[(i64)(tile + threadIdx.x) * what.index_step];
                if (!in_range(i, what.size)) {
                    if (blockIdx.x == 0) {
                        raise(fault, i, what.size);
                    }
                } else if (i >= first && (u64)(i - first) < what.rows) {
                    rows[threadIdx.x] = (u32)(i - first);
                    owner = (u32)(i - first) & (groups - 1);
                }
            }
            follow_hits<Opmath<T>>(
                owner, groups, exists,
                [&](u32 place) -> Opmath<T> { return from[(i64)(tile + place) * what.src_step]; },
                [&](u32 place, Opmath<T> x) { sums.take(rows[place], x); });
        }
        sums.finish();
    }
}

struct ScatterAdd {
    u64 count;     // indices of a line
    i64 steps[3];  // along the axis, of src, out and index
    i64 size;      // places along the axis in `out`
    u64 groups;    // threads of a line, a power of two
};

// out[p moved by index[p] along the axis] += src[p], in row-major order of p. Each thread goes through all indices of one line
// along the axis, and follows those whose place is its own.
extern "C" __global__ void NAMED(scatter_add, DTYPE)(S* out, const S* src, const i64* index,
                                                     const __grid_constant__ Walk<3> lines,
                                                     const __grid_constant__ ScatterAdd what, Fault fault) {
    for (u64 t = thread_index(); t < lines.elements * what.groups; t += thread_count()) {
        u64 group = t / lines.elements;
        Offsets<3> at = offsets(lines, t % lines.elements);
        Sums<S> sums(out + at.at[1], what.steps[1], what.groups, (u32)group);
        for (u64 p = 0; p < what.count; ++p) {
            i64 i = index[at.at[2] + (i64)p * what.steps[2]];
            if (!in_range(i, what.size)) {
                if (group == 0) {
                    raise(fault, i, what.size);
                }
            } else if (((u64)i & (what.groups - 1)) == group) {
                sums.take(i, src[at.at[0] + (i64)p * what.steps[0]]);
            }
        }
        sums.finish();
    }
}
