// index_add and scatter_add. An index out of range raises a fault and is skipped.

struct RowSource {
    Entries entries;
    const S* from;

    __device__ i64 place(i64 line, u32 entry) const { return line + (i64)entry * entries.counts.steps[0]; }
    template <int V> __device__ Sums<V> load(i64 place, i64 column) const {
        return widened_pack(::load<V>(from + place + column, true));
    }
};

// Adds values of which no two have one place. The place begins with `out`.
extern "C" __global__ void NAMED(index_put, DTYPE)(S* out, const S* from, const i64* index, const __grid_constant__ EntryCounts counts,
                                                   const __grid_constant__ Walk<3> lines, Fault fault) {
    Entries entries{index, counts, lines};
    for (u64 n = thread_index(); n < counts.entries; n += thread_count()) {
        i64 i = entries.index_of((u32)n);
        if (in_range(i, counts.size)) {
            Entry entry = entries.entry((u32)n);
            Offsets<3> at = offsets(lines, entry.line);
            S* to = out + at.at[1] + i * counts.steps[1];
            *to = (T)*to + (T)from[at.at[0] + (i64)entry.place * counts.steps[0]];
        } else {
            raise(fault, i, counts.size);
        }
    }
}

#define ROWS()                                                                                                         \
    const S *from, const i64 *index, const __grid_constant__ EntryCounts counts, const __grid_constant__ Walk<3> lines, \
        Fault fault
#define ROW_SOURCE() (RowSource{Entries{index, counts, lines}, from})
INDEXED_SUMS(index_add, sizeof(Opmath<S>) == 8 ? 1 : 2, ROWS, ROW_SOURCE)
