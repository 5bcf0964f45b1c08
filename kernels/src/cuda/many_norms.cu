// Gradients of the weights of several norms in one launch: the columns of `normalize_weights_columns`, with its bits.

// Threads of a block, at most.
constexpr int THREADS = 256;

// A norm, cut into parts of as many packs of weights as a block of threads has at a time. Its rows are up to a part of `rows.cuh`.
struct Operand {
    ToWeights to;
    const S* g;
    const S* x;
    const T* mean;
    const T* rstd;
    u32 channels;
    u32 rows;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) NAMED(many_norms, DTYPE)(const __grid_constant__ Table<Operand> operands) {
    for_parts(operands, [&](const Operand& norm, u32 part, u32) {
        ColumnGroup group(LANES);
        u64 pack = (u64)part * group.width() + group.place();
        WeightColumns of = {norm.g, norm.x, norm.mean, norm.rstd, norm.channels};
        fold_pack<TwoSums<T>>(group, pack, pack < norm.channels / PACK, norm.rows, 0, PART_BLOCKS, of, norm.to);
    });
}
