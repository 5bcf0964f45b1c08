// Column reductions of a row-major matrix, where a thread reduces PACK neighbouring columns; and the elements of a channel of images.

// `of(first, block)` returns the states of a lane's rows of a block for the columns `first..first + PACK`. With one unit per column, calls
// `done(column, state)`; otherwise writes the units' states to `states`.
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
// Calls `body(load(row))` for each of a lane's rows of a block; several loads are issued ahead.
template <class Load, class Body> __device__ inline void for_rows_ahead(const BlockLane& block, Load load, Body body) {
    using Item = decltype(load(u64()));
    constexpr int AHEAD = sizeof(Item) <= 16 ? 8 : 4;
    for (int start = 0; start < EACH && start < block.count; start += AHEAD) {
        Item items[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            // Rows that do not exist load the first one again.
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
// The pack at `at` in a row of a matrix with `columns` columns.
__device__ inline Pack<S, PACK> row_pack(const S* at, i64 row, i64 columns) { return *(const Pack<S, PACK>*)(at + row * columns); }

// Images [n, channels, ..] with `size` elements in a channel of an image.
struct Channels {
    u64 images, channels, size;
    // Whether a channel's elements can be loaded as packs.
    u64 packed;
    // Divides by `size`, see `divided`; 0 if a channel has 2^31 elements or more.
    u32 magic, shift;

    __device__ u64 each() const { return images * size; }
    __device__ u64 image(u64 i) const { return magic ? divided((u32)i, magic, shift) : i / size; }
};
// Offset of element i of a channel, counted over all images.
struct Plane {
    const Channels& channels;
    u64 channel;

    __device__ i64 operator()(u64 i) const {
        u64 image = channels.image(i);
        return (i64)((image * channels.channels + channel) * channels.size + (i - image * channels.size));
    }
};
template <class O> __device__ inline Line<O, Plane> line(O* x, const Channels& channels, u64 channel) {
    return {x, {channels, channel}, channels.packed != 0};
}
