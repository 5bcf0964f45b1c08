// Adding rows and elements at indices. An index out of range is a fault and is left out.

struct RowSource {
    Entries entries;
    const S* from;

    template <int V> struct Item {
        bool counts;
        Pack<S, V> pack;

        __device__ Opmath<S> added(Opmath<S> sum, int v) const { return add(sum, (Opmath<S>)pack.at[v]); }
    };
    template <int V> __device__ void load(Item<V>& item, u32 entry, i64 column) const {
        item.pack = ::load<V>(from + entries.at<0>(entry) + column, true);
    }
};

#define ROWS()                                                                                                         \
    const S *from, const i64 *index, const __grid_constant__ EntryCounts counts, const __grid_constant__ Walk<3> lines, \
        Fault fault
#define ROW_SOURCE() (RowSource{Entries{index, counts, lines}, from})
INDEXED_SUMS(index_add, ROWS, ROW_SOURCE)
