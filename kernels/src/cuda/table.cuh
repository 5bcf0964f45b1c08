// Operands of one launch, each split into parts. Part b of the launch belongs to the last operand whose `first` is at most b.

constexpr u32 TABLE = 64;
template <class O> struct Table {
    O all[TABLE];
    u32 first[TABLE];
    u32 count;
    u32 parts;
};

// Calls `body(operand, part, all)` for each part of this thread block; `part` counts within the operand, `all` within the launch.
template <class O, class Body> __device__ inline void for_parts(const Table<O>& table, Body body) {
    for (u32 all = blockIdx.x; all < table.parts; all += gridDim.x) {
        u32 low = 0, high = table.count;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            (table.first[middle] <= all ? low : high) = middle;
        }
        body(table.all[low], all - table.first[low], all);
    }
}
