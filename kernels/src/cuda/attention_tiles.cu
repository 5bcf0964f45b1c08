// The kernels of attention on tensor cores for rows of up to `width` elements: for each the strips of 64 rows that a block owns,
// the rows of its tiles, and how many blocks a multiprocessor has registers for.

#if __CUDA_ARCH__ >= 800 && !BY_GROUPS || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TILING(width, f_strips, f_tile, f_blocks, q_strips, q_tile, q_blocks, kv_strips, kv_tile, kv_blocks, slice)      \
    extern "C" __global__ void __launch_bounds__(WARPS<f_strips> * LANES, f_blocks)                                      \
        NAMED(attention_tiles, DTYPE)(                                                                                   \
        const S* q, const S* k, const S* v, const S* mask, S* out, f32* log_sums,                                        \
        const __grid_constant__ Walk<OPERANDS> batch, const __grid_constant__ Problem problem) {                         \
        forward<width, f_strips, f_tile>(q, k, v, mask, out, log_sums, batch, problem);                                  \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS<q_strips> * LANES, q_blocks)                                      \
        NAMED(attention_tiles_grad_q, DTYPE)(                                                                            \
        const S* q, const S* k, const S* v, const S* mask, const S* g, const f32* log_sums, const f32* products, S* dq,  \
        const __grid_constant__ Walk<OPERANDS> batch, const __grid_constant__ Problem problem) {                         \
        grad_q<width, q_strips, q_tile>(q, k, v, mask, g, log_sums, products, dq, batch, problem);                       \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS<kv_strips> * LANES, kv_blocks)                                    \
        NAMED(attention_tiles_grad_kv, DTYPE)(                                                                           \
        const S* q, const S* k, const S* v, const S* mask, const S* g, const f32* log_sums, const f32* products, S* dk,  \
        S* dv, const __grid_constant__ Walk<OPERANDS> batch, const __grid_constant__ Problem problem) {                  \
        grad_kv<width, kv_strips, kv_tile, slice>(q, k, v, mask, g, log_sums, products, dk, dv, batch, problem);         \
    }
#else  // whose launchers use the plain kernels
#define TILING(...)
#endif
