// index_add and scatter_add. An index out of range raises a fault and is skipped.

struct RowSource {
    Entries entries;
    const S* from;

    __device__ i64 place(i64 line, u32 entry) const { return line + (i64)entry * entries.counts.steps[0]; }
    template <int V> __device__ Sums<V> load(i64 place, i64 column) const {
        return widened_pack(::load<V>(from + place + column, true));
    }
};

#define ROWS()                                                                                                         \
    const S *from, const i64 *index, const __grid_constant__ EntryCounts counts, const __grid_constant__ Walk<3> lines, \
        Fault fault
#define ROW_SOURCE() (RowSource{Entries{index, counts, lines}, from})
INDEXED_SUMS(index_add, sizeof(Opmath<S>) == 8 ? 1 : 2, ROWS, ROW_SOURCE)
