// For all of this file: the code runs only where the processor has these.
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#endif

#include "gemm_tile.hpp"

const Tile FUSED_TILE = {multiply_tile<float>, multiply_tile<double>};
