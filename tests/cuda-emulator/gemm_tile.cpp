#include "gemm_tile.hpp"

const Tile PLAIN_TILE = {multiply_tile<float>, multiply_tile<double>};
