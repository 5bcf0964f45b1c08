// Folds of columns that lie side by side in rows of memory: a thread has PACK neighbours.

// `of(first, block)` is the fold of a lane's elements of a block for the columns of a pack, from `first` on, and `done(column, state)` takes
// what those come to whose rows are one unit.
template <class F, class Of, class Done>
__device__ inline void fold_columns(u64 columns, u64 rows, typename F::State* states, const Units& cut, Of of, Done done) {
    for_units<ColumnGroup>(columns / PACK, cut.units, LANES, [&](const ColumnGroup& group, u64 pack, bool exists, u32 unit) {
        auto all = group.template fold_part<Each<F>>((u64)unit * cut.blocks, cut.blocks, rows, exists ? rows : 0,
                                                     [&](const BlockLane& block) { return of(exists ? pack * PACK : 0, block); });
#pragma unroll
        for (int v = 0; v < PACK && exists && group.leads(); ++v) {
            u64 column = pack * PACK + v;
            if (cut.units > 1) {
                states[column * cut.units + unit] = all.at[v];
            } else {
                done(column, all.at[v]);
            }
        }
    });
}
// Calls `body(item)` with `load(row)` for each row of a lane's of a block. Several are read ahead.
template <class Load, class Body> __device__ inline void for_rows_ahead(const BlockLane& block, Load load, Body body) {
    using Item = decltype(load(u64()));
    constexpr int AHEAD = sizeof(Item) <= 16 ? 8 : 4;
    for (int start = 0; start < EACH && start < block.count; start += AHEAD) {
        Item items[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            // What there is not, is read where something is.
            items[k] = load(block.at(start + k < block.count ? start + k : 0));
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            if (start + k < block.count) {
                body(items[k]);
            }
        }
    }
}
// The pack of a row in memory at `at`, where rows have so many columns.
__device__ inline Pack<S, PACK> pack_of(const S* at, i64 row, i64 columns) { return *(const Pack<S, PACK>*)(at + row * columns); }
