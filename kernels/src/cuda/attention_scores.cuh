// From products of queries and keys to scores and weights.

#ifndef DROPS  // without dropout
#define DROPS 0
// Interface of dropout for kernels without it: all weights are kept.
template <bool BY_KEY, int STRIPS, int EIGHTS> struct Kept {
    __device__ Kept(const Problem&, u32, int, int) {}
    __device__ void draw(int, int) {}
    __device__ void leave_out(f32 (&)[4], int, int) const {}
    __device__ void operator()(u32 (&)[4], int, int) const {}
};
#endif

// This thread's elements of 16 x 16 numbers from a column of a tile on, as accumulators of eight columns each hold them. TURNED: rows of the
// accumulators are columns of the tile.
template <bool TURNED, int WIDTH, int ROWS> __device__ inline void tile_elements(f32 (&to)[2][4], Shared rows, int column) {
    if constexpr (EACH_WORD == 2) {
        u32 words[4];
        Shared at = rows + place<WIDTH, ROWS>(lane() % 16, lane() / 16 * 8, column);
        if constexpr (TURNED) {
            load_transposed(words, at);
        } else {
            load_matrices(words, at);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int n = i / 4, half = i / 2 % 2;
            to[n][i % 4] = ((const S*)&words[TURNED ? n + half * 2 : n * 2 + half])[i % 2];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int own = own_row() + i / 2 % 2 * 8, other = own_column() + i / 4 * 8 + i % 2;
            to[i / 4][i % 4] = __uint_as_float(load_word(rows + place<WIDTH, ROWS>(TURNED ? other : own, TURNED ? own : other, column)));
        }
    }
}

// Scaling of products. Without a mask and with a positive scale, products are used directly, and the scale is part of the exponent's factor.
// Otherwise `prepare` applies scale and mask first. DIRECT kernels support only the former.
template <bool DIRECT> struct Scores {
    const Problem& problem;
    const S* mask;  // of the first pair
    u32 pair;

    __device__ bool direct() const { return DIRECT || (!mask && problem.factor > 0); }
    __device__ f32 factor() const { return direct() ? problem.factor : LOG2_E; }
    __device__ f32 scale() const { return direct() ? problem.rounded_scale : 1; }
    // Dropout factor of kept weights; applied once to the final sums.
    __device__ f32 kept_scale() const { return DROPS ? (f32)problem.kept_scale : 1; }

    // Applies scale and mask to products of queries and keys, or of keys and queries if BY_KEY. The tile of the mask has ROWS queries and WIDTH keys;
    // `rows` are its first query and `column` its first key that the products have.
    template <bool BY_KEY, int WIDTH, int ROWS, int STRIPS, int EIGHTS>
    __device__ void prepare(Sums<STRIPS, EIGHTS>& products, Shared rows, int column) const {
        if (direct()) {
            return;
        }
#pragma unroll
        for (int n = 0; n < EIGHTS; n += 2) {
            f32 added[2][4] = {};
            if (mask) {
                tile_elements<BY_KEY, WIDTH, ROWS>(added, rows + (BY_KEY ? n * 8 * PANEL_ROW<WIDTH> : 0), column + (BY_KEY ? 0 : n * 8));
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                f32& product = products.at[0][n + i / 4][i % 4];
                product = mul_rounded(product, problem.rounded_scale) + added[i / 4][i % 4];
            }
        }
    }
};
