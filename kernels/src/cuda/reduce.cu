// The kernels of reductions.

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

REDUCTION(sum, Plain<Sum<F>>, S)
REDUCTION(prod, Plain<Prod<F>>, S)
REDUCTION(max, Plain<Max<F>>, S)
REDUCTION(min, Plain<Min<F>>, S)
REDUCTION(argmax, IndexOfBest<true>, i64)
REDUCTION(argmin, IndexOfBest<false>, i64)
#if FLOATS
REDUCTION(mean, Mean, S)
REDUCTION(var, Var, S)
REDUCTION(logsumexp, LogSumExp, S)
#endif
