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

// The same for what is joined element by element, of columns that lie side by side.
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
