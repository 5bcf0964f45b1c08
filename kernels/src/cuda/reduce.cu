// The kernels of reductions.

// Reduces columns of a matrix whose rows are `along` elements apart.
template <class What, class O>
__device__ inline void reduce_columns(O* out, const S* x, typename What::Fold::State* states, u64 columns, u64 all, i64 along,
                                      const Units& cut, f64 divisor) {
    using Fold = typename What::Fold;
    auto of = [&](u64 first, const BlockLane& block) {
        auto state = Each<Fold>::empty();
        auto load = [&](u64 row) { return row_pack(x + first, (i64)row, along); };
        for_rows_ahead(block, load, [&](const Pack<S, PACK>& pack) {
#pragma unroll
            for (int v = 0; v < PACK; ++v) {
                state.at[v] = Fold::join(state.at[v], (F)pack.at[v]);
            }
        });
        return state;
    };
    fold_columns<Fold>(columns, all, states, cut, of, [&](u64 column, const typename Fold::State& state) {
        out[column] = What::value(state, all, divisor);
    });
}

#define REDUCTION_BY(name, What, O, group, Group)                                                             \
    extern "C" __global__ void __launch_bounds__(threads_of<Group>, blocks_at_once<Group>) NAMED(             \
        name##_##group, DTYPE)(                                                                               \
        const S* x, O* out, What::Fold::State* states, const __grid_constant__ Walk<1> kept,                 \
        const __grid_constant__ Walk<1> reduced, const __grid_constant__ Units cut, u32 lanes, f64 divisor) { \
        reduce<Group, What>(out, x, states, kept, reduced, cut, lanes, divisor);                              \
    }
#define REDUCTION(name, What, O)                                                                              \
    REDUCTION_BY(name, What, O, warp, WarpGroup)                                                              \
    REDUCTION_BY(name, What, O, block, BlockGroup)                                                            \
    REDUCTION_BY(name, What, O, column, ColumnGroup)                                                          \
    extern "C" __global__ void NAMED(name##_join, DTYPE)(O * out, const What::Fold::State* states, u64 rows,  \
                                                         u64 all, const __grid_constant__ Units cut,          \
                                                         u32 lanes, f64 divisor) {                            \
        join<What>(out, states, rows, all, cut, lanes, divisor);                                              \
    }

// The same, and a kernel for contiguous columns, for reductions whose state is one element.
#define BY_ELEMENT(name, What)                                                                                  \
    REDUCTION(name, What, S)                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, sizeof(F) == 8 ? 1 : 2) NAMED(name##_columns, DTYPE)( \
        const S* x, S* out, What::Fold::State* states, u64 columns, u64 all, i64 along,                         \
        const __grid_constant__ Units cut, f64 divisor) {                                                       \
        reduce_columns<What>(out, x, states, columns, all, along, cut, divisor);                                \
    }

BY_ELEMENT(sum, Plain<Sum<F>>)
BY_ELEMENT(prod, Plain<Prod<F>>)
BY_ELEMENT(max, Plain<Max<F>>)
BY_ELEMENT(min, Plain<Min<F>>)
REDUCTION(argmax, IndexOfBest<true>, i64)
REDUCTION(argmin, IndexOfBest<false>, i64)
#if FLOATS
BY_ELEMENT(mean, Mean)
REDUCTION(var, Var, S)
REDUCTION(std, Std, S)
REDUCTION(logsumexp, LogSumExp, S)
#endif
